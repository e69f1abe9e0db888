"""What a request wants, what it is about, and what is at stake: deterministic, explained, total on any text.

Evidence is a sum of weights per label, from words (``lexicon``) and from structure (code, formulas, offered tools); a
piece counts once. Softmax makes probabilities of the sums; a small margin between the two best domains says that asking
a model may be worth its price. Time is linear in at most ``LOOKED_AT`` characters.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from gnusnode.contracts.generation import ClassifyResult
from gnusnode.policy.envelopes import Risk
from roles.router import lexicon

LOOKED_AT: Final = 8000
"""Characters of a text that are weighed: its beginning and its end, where people say what they want."""

GENERAL: Final = "general"
DOMAINS: Final = (GENERAL, *lexicon.DOMAINS)
ACTION: Final = "act"

_Evidence: TypeAlias = "defaultdict[str, dict[str, float]]"
"""Per label: what speaks for it, with weights."""

_ADVICE_DOMAINS: Final = ("legal", "finance")
_PRIOR_INTENT: Final = {"answer": 0.5}
_PRIOR_DOMAIN: Final = {GENERAL: 1.5}
_WORD: Final = re.compile(r"\w+")
_CODE: Final = re.compile(r"```|^\s*(?:def |class |import |from \w+ import|fn |func |#include|SELECT )|[{};]\s*$", re.M)
_FORMULA: Final = re.compile(r"\d\s*[-+*/^=×÷]\s*[\dx(]|\\frac|\\int|\bx\s*[\^=]|[√∫∑]")
_TRACE: Final = re.compile(r"Traceback \(most recent|^\s+at \S+\(|panicked at|Segmentation fault", re.M)


@dataclass(frozen=True)
class Surroundings:
    """What a request brings besides its last user text.

    Attributes:
        tools: names of the tools that the client offers.
        tool_choice: ``auto``, ``none``, ``required`` or a tool's name.
        structured: whether the answer must follow a JSON schema.
    """

    tools: tuple[str, ...] = ()
    tool_choice: str = "auto"
    structured: bool = False

    @property
    def insists_on_tool(self) -> bool:
        return bool(self.tools) and self.tool_choice not in ("auto", "none")


@dataclass(frozen=True)
class Intent:
    """The classification of one request.

    Attributes:
        intent: one of ``lexicon.INTENTS``.
        domain: one of ``DOMAINS``.
        risk: how much harm a wrong answer or action can do.
        confidence: the lower of the probabilities of intent and domain.
        margin: probability of the domain minus that of the next one.
        reasons: one line each, for people; they quote words of the lexicon only, never the request.
    """

    intent: str
    domain: str
    risk: Risk
    confidence: float
    margin: float
    reasons: tuple[str, ...]


def classify(text: str, surroundings: Surroundings | None = None) -> Intent:
    """Classifies the last user text of a request."""
    looked = text if len(text) <= LOOKED_AT else f"{text[: LOOKED_AT // 2]}\n{text[-LOOKED_AT // 2 :]}"
    intents, domains, risks = _from_words(looked)
    _from_structure(intents, domains, looked, surroundings or Surroundings())
    intent = _choose(intents, tuple(lexicon.INTENTS), _PRIOR_INTENT)
    domain = _choose(domains, DOMAINS, _PRIOR_DOMAIN)
    risk, why_risk = _risk(risks, intent.label, domain.label)
    return Intent(
        intent=intent.label,
        domain=domain.label,
        risk=risk,
        confidence=round(min(intent.probability, domain.probability), 4),
        margin=round(domain.margin, 4),
        reasons=(
            f"intent {intent.label}: {_why(intents[intent.label])}",
            f"domain {domain.label}: {_why(domains[domain.label])}",
            f"risk {risk}: {why_risk}",
        ),
    )


def settle(intent: Intent, scored: ClassifyResult) -> Intent:
    """The classification after a model scored the domains: the more certain of the two speaks."""
    if scored.margin <= intent.margin or scored.label not in DOMAINS:
        note = f"domain by the model: {scored.label[:64]}, margin {scored.margin:.2f}, less certain than the words"
        return replace(intent, reasons=(*intent.reasons, note))
    note = f"domain {scored.label}: label scoring by the model, margin {scored.margin:.2f}"
    return replace(intent, domain=scored.label, margin=round(scored.margin, 4), reasons=(*intent.reasons, note))


# --- evidence ---------------------------------------------------------------------------------------------------------


def _from_words(text: str) -> tuple[_Evidence, _Evidence, _Evidence]:
    """Evidence of the lexicon for intent, domain and risk."""
    found: dict[str, _Evidence] = {table: defaultdict(dict) for table in ("intent", "domain", "risk")}
    for term in _terms(_fold(text)):
        for table, label, weight in _LEXICON.get(term, ()):
            found[table][label][term] = weight
    if not text.isascii():
        for term, table, label in _SPACELESS:
            if term in text:
                found[table][label][term] = 3.0
    return found["intent"], found["domain"], found["risk"]


def _from_structure(intents: _Evidence, domains: _Evidence, text: str, surroundings: Surroundings) -> None:
    if _CODE.search(text):
        domains["code"]["code in the text"] = 2.0
        intents["program"]["code in the text"] = 1.0
    if _TRACE.search(text):
        domains["code"]["a stack trace"] = 2.0
        intents["program"]["a stack trace"] = 2.0
    if _FORMULA.search(text):
        domains["math"]["a formula"] = 2.0
        intents["solve"]["a formula"] = 2.0
    if surroundings.structured:
        intents["extract"]["a schema for the answer"] = 2.0
    if surroundings.insists_on_tool:
        intents[ACTION]["the client asks for a tool call"] = 4.0


def _fold(text: str) -> str:
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter))


def _terms(folded: str) -> Iterator[str]:
    """The words of a text, and the phrases of the lexicon that begin at each."""
    words = _WORD.findall(folded)
    for place, word in enumerate(words):
        yield word
        for length in range(2, _PHRASES.get(word, 1) + 1):
            yield " ".join(words[place : place + length])


# --- the choice -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Choice:
    label: str
    probability: float
    margin: float


def _choose(evidence: _Evidence, labels: tuple[str, ...], prior: Mapping[str, float]) -> _Choice:
    sums = {label: prior.get(label, 0.0) + sum(evidence[label].values()) for label in labels}
    best = max(labels, key=lambda label: (sums[label], label in prior, -labels.index(label)))
    weights = {label: math.exp(value - sums[best]) for label, value in sums.items()}
    total = sum(weights.values())
    second = max(weight for label, weight in weights.items() if label != best)
    return _Choice(best, 1.0 / total, (1.0 - second) / total)


def _risk(evidence: _Evidence, intent: str, domain: str) -> tuple[Risk, str]:
    if evidence["high"]:
        return "high", _why(evidence["high"])
    if evidence["medium"]:
        return "medium", _why(evidence["medium"])
    if intent == ACTION:
        return "medium", "it asks for an action"
    if domain in _ADVICE_DOMAINS:
        return "medium", f"{domain} advice"
    return "low", "nothing speaks for more"


def _why(evidence: Mapping[str, float]) -> str:
    if not evidence:
        return "nothing speaks for another"
    return ", ".join(sorted(evidence, key=lambda term: (-evidence[term], term))[:5])


# --- the lexicon, compiled once ---------------------------------------------------------------------------------------


def _parsed(table: str, lines: Mapping[str, str]) -> Iterator[tuple[str, str, str, float]]:
    for label, text in lines.items():
        for weight, terms in re.findall(r"(\d): ([^:]+?)(?=\s+\d:|\s*$)", text):
            for term in terms.split(","):
                yield " ".join(term.split()), table, label, float(weight)


def _compiled() -> dict[str, list[tuple[str, str, float]]]:
    index: dict[str, list[tuple[str, str, float]]] = defaultdict(list)
    for table, lines in (("intent", lexicon.INTENTS), ("domain", lexicon.DOMAINS), ("risk", lexicon.RISKS)):
        for term, name, label, weight in _parsed(table, lines):
            index[term].append((name, label, weight))
    return dict(index)


_LEXICON: Final = _compiled()
_PHRASES: Final = {
    first: max(len(term.split()) for term in _LEXICON if term.split()[0] == first)
    for first in {term.split()[0] for term in _LEXICON if " " in term}
}
"""Longest phrase, in words, that begins with a word."""
_SPACELESS: Final = tuple(
    (term, table, label)
    for table, labels in lexicon.SPACELESS.items()
    for label, terms in labels.items()
    for term in terms.split()
)
