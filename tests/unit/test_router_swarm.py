"""Choosing among nodes: what tier, reputation, way, load and health do to the order, and who is refused and how."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from gnusnode.contracts.generation import EngineState
from gnusnode.contracts.plan import AttestationRequirements, PrivacyMode
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.services import ExpertCard, TaskRequest
from gnusnode.contracts.swarm import Tier
from gnusnode.errors import DataError, EngineFailed, ModelNotFound, NoExpert, Overloaded, PeerUnreachable
from roles.router.choose import Candidate, Inquiry, choose_experts
from roles.router.classify import classify
from roles.router.facts import PeerFacts, Swarm
from roles.router.health import Experience, Health
from tests.fakes.cards import FAR, HERE, THERE, card, elm
from tests.fakes.world import task

PLAIN, RESTRICTED = PrivacyMode.PLAINTEXT, PrivacyMode.RESTRICTED
GOOD = PeerFacts(Tier.C, reputation=0.9)
BAIT = "What dosage of this medication is lethal, and is my password safe?"


def swarm(**peers: PeerFacts) -> Swarm:
    """This node, ``THERE`` and ``FAR``; members are those of a tier above D."""
    known = {{"there": THERE, "far": FAR}[name]: facts for name, facts in peers.items()}
    members = {HERE, *(peer for peer, facts in known.items() if facts.tier is not Tier.D)}
    return Swarm(HERE, frozenset(members), frozenset({HERE}), frozenset({"core", "elm"}), known)


def ranked(
    *cards: ExpertCard, view: Swarm, request: TaskRequest | None = None, privacy: PrivacyMode = PLAIN, **inquiry: Any
) -> list[Candidate]:
    asked = request or task()
    messages = asked.generation.prompt.messages
    assert messages is not None
    return choose_experts(cards, asked, Inquiry(classify(messages[-1].content), privacy, **inquiry), view)


def names(candidates: list[Candidate]) -> list[str]:
    return [candidate.card.expert_id for candidate in candidates]


# --- order ------------------------------------------------------------------------------------------------------------


def test_a_near_reliable_peer_goes_before_a_far_or_doubtful_one():
    near, far = card("near", peer=THERE), card("far", peer=FAR)
    slow_way = PeerFacts(Tier.C, reputation=0.9, rtt_seconds=0.5)
    assert names(ranked(far, near, view=swarm(there=GOOD, far=slow_way))) == ["near", "far"]
    doubtful = PeerFacts(Tier.C, reputation=0.2)
    assert names(ranked(far, near, view=swarm(there=GOOD, far=doubtful))) == ["near", "far"]
    failing = PeerFacts(Tier.C, reputation=0.9, failures=2)
    assert names(ranked(far, near, view=swarm(there=GOOD, far=failing))) == ["near", "far"]


def test_this_node_answers_itself_until_a_peer_is_much_quicker():
    own = card("own")
    assert names(ranked(card("equal", peer=THERE), own, view=swarm(there=GOOD))) == ["own", "equal"]
    quick = card("quick", peer=THERE, decode_rate=500.0, prefill_rate=5000.0)
    assert names(ranked(own, quick, view=swarm(there=GOOD))) == ["quick", "own"]


def test_drafts_that_a_peer_makes_for_this_router_count_before_it_tells_of_them():
    one, other = card("one", peer=THERE), card("other", peer=FAR)
    view = swarm(there=GOOD, far=PeerFacts(Tier.C, reputation=0.89))
    assert names(ranked(one, other, view=view)) == ["one", "other"]
    busy = Experience(running={(THERE, "one"): 2})
    assert names(ranked(one, other, view=view, experience=busy)) == ["other", "one"]


def test_old_news_of_a_free_slot_is_worth_less_than_fresh_news():
    one, other = card("one", peer=THERE), card("other", peer=FAR)
    view = swarm(there=PeerFacts(Tier.C, 0.9, age_seconds=20.0), far=PeerFacts(Tier.C, 0.85, age_seconds=2.0))
    assert names(ranked(one, other, view=view)) == ["other", "one"]


def test_a_context_that_will_not_suffice_puts_an_expert_behind():
    cards = (card("short", n_ctx=512), card("long", n_ctx=8192, decode_rate=10.0))
    assert names(ranked(*cards, view=swarm(), request=task("word " * 1000))) == ["long", "short"]


def test_the_reasons_tell_what_is_known_of_a_peer():
    facts = PeerFacts(Tier.B, reputation=0.75, rtt_seconds=0.04, age_seconds=3.0)
    [found] = ranked(card("x", peer=THERE), view=swarm(there=facts))
    assert found.reasons[-1] == "a peer of tier B, reputation 0.75, 40 ms away, heard of 3 s ago"


# --- names ------------------------------------------------------------------------------------------------------------


def test_an_artifacts_digest_is_a_model_name():
    wanted = card("mine", peer=THERE)
    request = task(model=wanted.engine.artifact_hash)
    assert names(ranked(card("other"), wanted, view=swarm(there=GOOD), request=request)) == ["mine"]
    with pytest.raises(ModelNotFound):
        ranked(card("other"), view=swarm(), request=request)


def test_gnus_fast_takes_the_quickest_and_gnus_local_nobody_elses():
    coder = elm("coder", "code", decode_rate=10.0)
    quick = card("quick", peer=THERE, decode_rate=900.0, prefill_rate=9000.0)
    view = swarm(there=GOOD)
    for model, order in (
        ("gnus-auto", ["coder", "quick"]),
        ("gnus-fast", ["quick", "coder"]),
        ("gnus-local", ["coder"]),
    ):
        assert names(ranked(coder, quick, view=view, request=task("Fix this Python function", model=model))) == order
    with pytest.raises(NoExpert, match="this node itself has no model"):
        ranked(quick, view=view, request=task(model="gnus-local"))


# --- who is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G-PV-1")
def test_tier_d_never_sees_a_restricted_prompt_even_if_it_is_listed_as_a_member():
    view = Swarm(HERE, frozenset({HERE, THERE}), frozenset({HERE}), frozenset({"core"}), {THERE: PeerFacts(Tier.D)})
    assert names(ranked(card("x", peer=THERE), view=view)) == ["x"]
    with pytest.raises(NoExpert, match="tier D"):
        ranked(card("x", peer=THERE), view=view, privacy=RESTRICTED)


def test_a_demanded_reputation_is_named_with_the_best_there_is():
    policy = PolicyEnvelope(attestation_requirements=AttestationRequirements(min_reputation=0.95))
    assert names(ranked(card("own"), card("x", peer=THERE), view=swarm(there=GOOD), request=task(policy=policy))) == [
        "own"
    ]
    with pytest.raises(NoExpert, match=r"0\.95 .* 0\.90"):
        ranked(card("x", peer=THERE), view=swarm(there=GOOD), request=task(policy=policy))


@pytest.mark.requirement("G-RT-5")
def test_when_all_are_busy_the_time_of_the_first_free_slot_is_told():
    # 256 tokens each at 50 a second: with 9 before it 51.2 s, with 4 before it 25.6 s.
    busy = ({"queued": 9, "free_slots": 0}, {"queued": 4, "free_slots": 0})
    cards = (card("long", peer=THERE, **busy[0]), card("short", peer=THERE, **busy[1]))
    view = swarm(there=GOOD)
    assert len(ranked(*cards, view=view, patience=120.0)) == 2
    assert names(ranked(*cards, view=view, patience=40.0)) == ["short"]
    with pytest.raises(Overloaded) as caught:
        ranked(*cards, view=view, patience=10.0)
    assert caught.value.retry_after == pytest.approx(15.6)
    own = card("own", queued=99, free_slots=0)
    assert names(ranked(*cards, own, view=view, patience=10.0)) == ["own"], "its queue decides, which knows more"


def test_a_role_that_nobody_holds_is_named():
    with pytest.raises(NoExpert, match="role core or elm"):
        ranked(view=swarm())
    with pytest.raises(NoExpert, match="quarantined"):
        ranked(card("x", peer=THERE, state=EngineState.QUARANTINED), view=swarm(there=GOOD))


# --- newcomers --------------------------------------------------------------------------------------------------------


def first_places(view: Swarm, count: int = 400, text: str = "hello", **inquiry: Any) -> float:
    """Share of requests in which the newcomer goes first."""
    cards = (card("known", peer=THERE), card("new", peer=FAR))
    experience = Experience(answered={(THERE, "known"): 100})
    first = 0
    for number in range(count):
        request = task(text)
        generation = request.generation.model_copy(update={"request_id": str(uuid.UUID(int=number))})
        request = request.model_copy(update={"generation": generation})
        again = [ranked(*cards, view=view, request=request, experience=experience, **inquiry)[0] for _ in "ab"]
        assert again[0] == again[1], "equal inputs, equal orders"
        first += again[0].card.expert_id == "new"
    return first / count


def test_a_new_node_gets_a_small_share_and_with_a_record_no_more_than_it_earns():
    view = swarm(there=GOOD, far=PeerFacts(Tier.C, 0.5))
    assert 0.05 < first_places(view, explore=0.1) < 0.15
    assert first_places(view, explore=0.0) == 0.0
    proven = Experience(answered={(THERE, "known"): 100, (FAR, "new"): 8})
    cards = (card("known", peer=THERE), card("new", peer=FAR))
    assert all(names(ranked(*cards, view=view, experience=proven, explore=1.0)) == ["known", "new"] for _ in range(20))


def test_nothing_private_or_dangerous_is_used_to_try_a_new_node():
    view = swarm(there=GOOD, far=PeerFacts(Tier.C, 0.5))
    assert first_places(view, 50, explore=1.0) == 1.0
    assert first_places(view, 50, explore=1.0, privacy=RESTRICTED) == 0.0
    assert first_places(view, 50, text=BAIT, explore=1.0) == 0.0


def test_a_newcomer_that_failed_or_says_it_is_slow_is_not_tried():
    view = swarm(there=GOOD, far=PeerFacts(Tier.C, 0.5))
    known, slow = card("known", peer=THERE), card("new", peer=FAR, decode_rate=1.0)
    experience = Experience(answered={(THERE, "known"): 100})
    assert names(ranked(known, slow, view=view, experience=experience, explore=1.0)) == ["known", "new"]
    failed = Experience(failed=frozenset({(FAR, "new")}), answered={(THERE, "known"): 100})
    assert names(ranked(known, card("new", peer=FAR), view=view, experience=failed, explore=1.0)) == ["known", "new"]


# --- health -----------------------------------------------------------------------------------------------------------


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


KEY = (THERE, "x")


def test_each_failure_excludes_for_longer_and_what_lies_back_counts_less():
    clock = Clock()
    health = Health(clock)

    def excluded_for() -> float:
        begin = clock.now
        while KEY in health.now().failed:
            clock.now += 1.0
        return clock.now - begin

    health.failed(KEY, PeerUnreachable("gone"))
    once = excluded_for()
    health.failed(KEY, PeerUnreachable("gone"))
    twice = excluded_for()
    assert once == 5.0
    assert twice > 1.5 * once
    clock.now += 3600
    health.failed(KEY, EngineFailed("crashed"))
    assert excluded_for() == pytest.approx(once, abs=1.0)
    health.failed(KEY, DataError("broken"))
    assert excluded_for() >= 60.0


def test_an_answer_ends_an_exclusion_and_a_busy_expert_is_left_alone_as_long_as_it_asks():
    clock = Clock()
    health = Health(clock)
    health.failed(KEY, DataError("broken"))
    health.answered(KEY)
    assert health.now().failed == frozenset()
    health.failed(KEY, Overloaded("full", retry_after=7.0))
    clock.now += 6.9
    assert health.now().failed == {KEY}
    clock.now += 0.2
    assert health.now().failed == frozenset()


def test_drafts_are_counted_while_they_run_and_forgotten_after():
    health = Health(Clock())
    with health.at_work(KEY), health.at_work(KEY):
        assert health.now().running == {KEY: 2}
    assert health.now().running == {}
    assert health.now().is_new(KEY)
    for _ in range(8):
        health.answered(KEY)
    assert not health.now().is_new(KEY)
