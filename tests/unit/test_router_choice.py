"""Which experts may serve, and which of them first."""

from __future__ import annotations

import pytest

from gnusnode.contracts.generation import EngineState, Message
from gnusnode.contracts.plan import PrivacyMode
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.services import ExpertCard, TaskRequest
from gnusnode.errors import Forbidden, ModelNotFound, NoExpert
from roles.router.choose import Inquiry, choose_experts
from roles.router.classify import classify
from roles.router.facts import Swarm
from roles.router.health import Experience
from roles.router.prefixes import PrefixMemory
from tests.fakes.cards import FAR, HERE, THERE, card, elm, swarm
from tests.fakes.world import task

CODE = "Fix this Python function"


def order(
    *cards: ExpertCard,
    request: TaskRequest | None = None,
    privacy: PrivacyMode = PrivacyMode.PLAINTEXT,
    view: Swarm | None = None,
    warm: tuple[str, str] | None = None,
) -> list[str]:
    asked = request or task()
    messages = asked.generation.prompt.messages
    assert messages is not None
    inquiry = Inquiry(classify(messages[-1].content), privacy, warm=warm)
    return [c.card.expert_id for c in choose_experts(cards, asked, inquiry, view or swarm())]


@pytest.mark.requirement("G-EX-2")
def test_an_expert_of_the_domain_comes_first_and_other_experts_after_the_core():
    cards = (card("core"), elm("coder", "code"), elm("lawyer", "legal"))
    assert order(*cards, request=task(CODE)) == ["coder", "core", "lawyer"]
    assert order(*cards, request=task("hello"))[0] == "core"


def test_queue_and_measured_rate_decide_between_equals():
    busy, slow, fast = card("busy", queued=9, free_slots=0), card("slow", decode_rate=5.0), card("fast")
    assert order(busy, slow, fast) == ["fast", "slow", "busy"]


def test_streams_that_run_share_the_rate_of_their_engine():
    idle = card("idle", slots=8, free_slots=8, decode_rate=50.0)
    shared, nearly_idle = (card("fast", slots=8, free_slots=free, decode_rate=200.0) for free in (3, 7))
    assert order(shared, idle) == ["idle", "fast"]
    assert order(nearly_idle, idle) == ["fast", "idle"]


def test_an_expert_that_just_failed_goes_last_however_fast_it_is():
    intent = classify("hello")
    cards = (card("broken", decode_rate=9000.0), card("slow", decode_rate=5.0))
    experience = Experience(failed=frozenset({(HERE, "broken")}))
    ranked = choose_experts(cards, task(), Inquiry(intent, PrivacyMode.PLAINTEXT, experience=experience), swarm())
    assert [(found.card.expert_id, found.failed) for found in ranked] == [("slow", False), ("broken", True)]


def test_a_cached_conversation_wins_over_a_slightly_faster_expert():
    long_prompt = task("word " * 4000)
    warm, cold = card("warm", decode_rate=45.0), card("cold")
    assert order(warm, cold, request=long_prompt) == ["cold", "warm"]
    assert order(warm, cold, request=long_prompt, warm=(HERE, "warm")) == ["warm", "cold"]


def test_equal_experts_are_ordered_by_name_whatever_order_they_came_in():
    cards = [card(name, peer=peer) for name in ("b", "a") for peer in (THERE, HERE)]
    forwards, backwards = order(*cards), order(*reversed(cards))
    assert forwards == backwards == ["a", "b", "a", "b"], "those of this node, then those of a peer"


def test_a_named_model_is_found_by_expert_or_model_name_only():
    cards = (card("core"), elm("coder", "code", model="big-coder"))
    assert order(*cards, request=task(model="coder")) == ["coder"]
    assert order(*cards, request=task(model="big-coder")) == ["coder"]


def test_an_unknown_model_names_the_nearest():
    with pytest.raises(ModelNotFound) as caught:
        order(card("smollm2-135m"), elm("coder", "code"), request=task(model="smolm2-135m"))
    assert caught.value.hint is not None
    assert "smollm2-135m" in caught.value.hint
    assert caught.value.param == "model"


def test_a_model_outside_the_policy_is_forbidden_and_auto_skips_it():
    policy = PolicyEnvelope(allowed_models=("small",))
    assert order(card("big"), card("small"), request=task(policy=policy)) == ["small"]
    with pytest.raises(Forbidden, match="big"):
        order(card("big"), card("small"), request=task(model="big", policy=policy))
    with pytest.raises(Forbidden):
        order(card("big"), request=task(policy=policy))


@pytest.mark.requirement("G-PV-1")
@pytest.mark.parametrize(
    ("privacy", "seen"),
    [
        (PrivacyMode.PLAINTEXT, ["own", "far", "member"]),
        (PrivacyMode.RESTRICTED, ["own", "member"]),
        (PrivacyMode.PRIVATE_BOUNDARY, ["own"]),
    ],
)
def test_a_prompt_travels_no_further_than_its_privacy_mode(privacy: PrivacyMode, seen: list[str]):
    cards = (card("far", peer=FAR), card("member", peer=THERE), card("own", peer=HERE))
    assert order(*cards, privacy=privacy, view=swarm(members=(HERE, THERE))) == seen
    if privacy is PrivacyMode.RESTRICTED:
        with pytest.raises(NoExpert, match="restricted"):
            order(card("far", peer=FAR), privacy=privacy)


def test_an_engine_that_is_not_up_yet_serves_when_no_other_does():
    for state in (EngineState.STARTING, EngineState.RESTARTING, EngineState.STOPPED):
        assert order(card("a-down", state=state), card("up")) == ["up", "a-down"]
        assert order(card("a-down", state=state)) == ["a-down"]


def test_an_unloaded_expert_of_the_domain_is_worth_loading():
    cards = (card("core"), elm("coder", "code", state=EngineState.STOPPED))
    assert order(*cards, request=task(CODE)) == ["coder", "core"]


def test_an_engine_in_quarantine_is_named_with_its_state_and_never_used():
    assert order(card("down", state=EngineState.QUARANTINED), card("up")) == ["up"]
    with pytest.raises(NoExpert, match="core is quarantined"):
        order(card("core", state=EngineState.QUARANTINED))


def test_nobody_who_answers_is_said_so():
    embedder = card("embedder", generates=False, embeds=True)
    verifier = card("judge", service="elm", role="verifier")
    for cards in ((), (embedder,), (verifier,)):
        with pytest.raises(NoExpert, match="no model"):
            order(*cards)


def messages(*texts: str) -> tuple[Message, ...]:
    return tuple(Message(role="user", content=text) for text in texts)


def test_the_longest_known_prefix_names_its_holder_to_its_tenant_only():
    memory = PrefixMemory()
    memory.remember("a", messages("one"), (HERE, "x"))
    memory.remember("a", messages("one", "two"), (HERE, "y"))
    assert memory.find("a", messages("one", "two", "three")) == (HERE, "y")
    assert memory.find("a", messages("other")) is None
    assert memory.find("b", messages("one", "two")) is None
    assert memory.find("a", ()) is None


def test_the_prefix_memory_forgets_the_least_recently_used():
    memory = PrefixMemory(capacity=2)
    for text in ("one", "two"):
        memory.remember("a", messages(text), (HERE, text))
    assert memory.find("a", messages("one")) == (HERE, "one")
    memory.remember("a", messages("three"), (HERE, "three"))
    assert len(memory) == 2
    assert memory.find("a", messages("two")) is None
    assert memory.find("a", messages("one")) == (HERE, "one")
