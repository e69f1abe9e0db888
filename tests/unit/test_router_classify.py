"""What the router makes of a text."""

from __future__ import annotations

import pytest

from gnusnode.contracts.generation import ClassifyResult
from roles.router.classify import DOMAINS, LOOKED_AT, Surroundings, classify, settle

CASES = [
    ("What is the capital of France?", "answer", "general", "low"),
    ("hello", "chat", "general", "low"),
    ("Fix this Python function:\ndef f(x):\n    return x +\n", "program", "code", "low"),
    ("Traceback (most recent call last):\nKeyError: 'a'", "program", "code", "low"),
    ("Solve the equation 3x + 5 = 20", "solve", "math", "low"),
    ("What is 12 * 13?", "solve", "math", "low"),
    ("Explain photosynthesis and the enzyme behind it", "explain", "science", "low"),
    ("Summarize this contract clause about liability", "summarise", "legal", "medium"),
    ("Should I invest in stocks or bonds?", "answer", "finance", "medium"),
    ("Translate this into German: good evening", "translate", "general", "low"),
    ("How do I get a refund for my order?", "explain", "customer_support", "low"),
    ("Plan the rollout after the incident, with a checklist", "plan", "operations", "low"),
    ("Search the web for the opening hours", "act", "general", "medium"),
    ("Write a poem about autumn", "write", "general", "low"),
    ("Extract the fields into a csv table", "extract", "general", "low"),
    ("Store my private key and password", "answer", "general", "high"),
    ("Übersetze den Vertrag auf Deutsch", "translate", "legal", "medium"),
    ("Explique la dérivée, s'il te plaît", "explain", "math", "low"),
    ("¿Por qué sube la inflación y mi hipoteca?", "explain", "finance", "medium"),
    ("请解释这段代码", "explain", "code", "low"),
    ("密码", "answer", "general", "high"),
]


@pytest.mark.requirement("G-RT-1")
@pytest.mark.parametrize(("text", "intent", "domain", "risk"), CASES)
def test_intent_domain_and_risk_are_recognised_with_reasons(text: str, intent: str, domain: str, risk: str):
    found = classify(text)
    assert (found.intent, found.domain, found.risk) == (intent, domain, risk)
    assert [reason.split(" ")[0] for reason in found.reasons] == ["intent", "domain", "risk"]
    assert 0 < found.confidence <= 1


def test_a_schema_and_a_demanded_tool_speak_for_their_intent():
    assert classify("the invoice", Surroundings(structured=True)).intent == "extract"
    assert classify("the weather", Surroundings(("get_weather",), "required")).intent == "act"
    assert classify("the weather", Surroundings(("get_weather",), "auto")).intent == "answer"


def test_reasons_never_quote_the_request():
    found = classify("my password is hunter2, the secret of the python")
    assert "hunter2" not in str(found.reasons)
    assert "password" in str(found.reasons)


def test_what_stands_in_the_middle_of_a_huge_text_costs_nothing():
    filler = "lorem ipsum " * LOOKED_AT
    assert classify(f"{filler} password {filler}").risk == "low"
    assert classify(f"{filler} password").risk == "high"
    assert classify(f"password {filler}").risk == "high"


def scored(label: str, margin: float) -> ClassifyResult:
    return ClassifyResult(label=label, probabilities=(0.6, 0.4), margin=margin, raw_logprobs=(-1.0, -2.0))


def test_the_more_certain_of_words_and_model_decides_the_domain():
    words = classify("python")
    surer = settle(words, scored("science", words.margin + 0.1))
    assert (surer.domain, surer.margin) == ("science", pytest.approx(words.margin + 0.1, abs=1e-3))
    assert settle(words, scored("science", words.margin / 2)).domain == words.domain
    assert len(surer.reasons) == len(words.reasons) + 1


def test_a_label_that_is_no_domain_changes_nothing():
    words = classify("python")
    assert settle(words, scored("nonsense", 1.0)).domain == words.domain
    assert "general" in DOMAINS
