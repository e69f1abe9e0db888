"""Who can serve a request, best first, with reasons. Pure: cards, facts and policy in, an order out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Final

from gnusnode.contracts.plan import ExpertRole, PrivacyMode
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.services import FAST, LOCAL, ROUTED, ExpertCard, TaskRequest
from gnusnode.contracts.swarm import Tier
from gnusnode.errors import Forbidden, ModelNotFound, NoExpert, Overloaded
from roles.router.classify import GENERAL, Intent
from roles.router.estimate import SECONDS_UNTIL_READY, Estimate, estimate, is_cramped
from roles.router.explore import newcomer
from roles.router.facts import PeerFacts, Swarm
from roles.router.health import Experience, Key

DRAFTING: Final = (ExpertRole.SEMANTIC_CORE, ExpertRole.PRIMARY_DRAFT, ExpertRole.DOMAIN_EXPERT)
"""Roles that answer users; the others work on answers."""

_LEAST_RELIABLE: Final = 0.1
_UNVOUCHED: Final = 0.5
"""What the reputation of a node without a certificate counts, compared with a member's."""
_LONGEST_RETRY: Final = 300.0
_MUCH_SLOWER: Final = 3.0
"""How many times as long as with the best a newcomer may take, by its own word, to be tried."""


@dataclass(frozen=True)
class Candidate:
    """An expert that can serve, and why it stands where it stands.

    Attributes:
        fits: whether its domain is that of the request.
        estimate: of its answer, in seconds.
        cost: expected seconds until a good answer: way and work, times as often as it takes at its reputation.
        rtt_seconds: the way to it and back.
        cramped: prompt and answer are likely too long for it.
        failed: it did not manage its latest answer: others go first.
    """

    card: ExpertCard
    fits: bool
    estimate: Estimate
    cost: float
    reasons: tuple[str, ...]
    rtt_seconds: float = 0.0
    cramped: bool = False
    failed: bool = False

    @property
    def key(self) -> Key:
        """Identifies the expert in the swarm."""
        return (self.card.peer, self.card.expert_id)


@dataclass(frozen=True)
class Inquiry:
    """What the router adds to a request when it looks for experts.

    Attributes:
        intent: the classification of the request.
        privacy: of the plan to be made, which may be stricter than the policy's.
        warm: key of the expert that last read this conversation.
        experience: what this router has seen of experts.
        patience: seconds that the request leaves for waiting.
        explore: part of the suitable requests that go to a newcomer first.
    """

    intent: Intent
    privacy: PrivacyMode
    warm: Key | None = None
    experience: Experience = field(default_factory=Experience)
    patience: float = math.inf
    explore: float = 0.0


def choose_experts(
    cards: Iterable[ExpertCard], request: TaskRequest, inquiry: Inquiry, swarm: Swarm
) -> list[Candidate]:
    """All that can serve the request, best first; never empty.

    Order: those that did not just fail, whose context suffices, domain fit, then the core, then cost, in which queue,
    rates, way, reputation and loading a model count; names decide ties, so that equal inputs give equal orders. A
    newcomer goes first now and then.

    Raises:
        ModelNotFound: nobody offers the model asked for; the hint has the nearest names.
        Forbidden: the policy does not allow it.
        NoExpert: it exists but cannot serve now; the text says what is missing: role, model, privacy, tier, reputation.
        Overloaded: all are too busy for the time that the request leaves.
    """
    usable = _able(list(cards), request, inquiry, swarm)
    candidates = [_candidate(card, request, inquiry, swarm) for card in usable]
    # This node's own engines are not judged from here: their queues know who waits, and refuse by themselves.
    free = [c for c in candidates if c.card.peer == swarm.node or c.estimate.wait < inquiry.patience]
    if not free:
        raise _all_busy(candidates, inquiry.patience)
    order = _by_speed if request.model == FAST else _by_fit
    return _explored(sorted(free, key=order), request, inquiry, swarm)


# --- who is able ------------------------------------------------------------------------------------------------------


def _able(cards: list[ExpertCard], request: TaskRequest, inquiry: Inquiry, swarm: Swarm) -> list[ExpertCard]:
    """Those whom nothing forbids, narrowed one condition at a time: the first that leaves nobody is what is missing."""
    drafting = [card for card in cards if card.engine.generates and card.role in DRAFTING]
    allowed = _allowed(_named(drafting, request.model, swarm), request.model, request.policy)
    where, privacy = request.model, inquiry.privacy
    visible = [card for card in allowed if swarm.may_see(card.peer, privacy)]
    if not visible:
        tiers = "".join(sorted({swarm.facts(card.peer).tier.value for card in allowed}))
        raise NoExpert(
            f"no expert may see a prompt of privacy mode {privacy.value!r}: nodes of tier {'/'.join(tiers)} serve it",
            where=where,
            hint="start the role core or elm on a node of this swarm, or choose a wider privacy mode",
        )
    least = request.policy.attestation_requirements.min_reputation
    reputed = [card for card in visible if swarm.facts(card.peer).reputation >= least]
    if not reputed:
        best = max(swarm.facts(card.peer).reputation for card in visible)
        raise NoExpert(
            f"no expert has the reputation of {least:g} that the policy demands; the best has {best:.2f}",
            where=where,
            hint="lower attestation_requirements.min_reputation, or wait until nodes have proved themselves",
        )
    return _working(reputed, where)


def _named(cards: list[ExpertCard], model: str, swarm: Swarm) -> list[ExpertCard]:
    if not cards:
        raise NoExpert(
            "no model that answers is ready yet: nobody serves the role core or elm with one",
            where=model,
            hint="one may still be loading: see `gnusnode status`, or add one with `gnusnode models add FILE`",
            retry_after=5.0,
        )
    if model == LOCAL:
        own = [card for card in cards if card.peer == swarm.node]
        if not own:
            raise NoExpert(
                "this node itself has no model that answers",
                where=model,
                hint="add one with `gnusnode models add FILE`, or let others answer: use the model 'gnus'",
            )
        return own
    if model in ROUTED:
        return cards
    found = [card for card in cards if model in _names(card)]
    if found:
        return found
    offered = sorted({name for card in cards for name in (card.expert_id, card.engine.model)})
    near = get_close_matches(model, (*offered, *ROUTED), 3) or [*offered[:5], ROUTED[0]]
    raise ModelNotFound(
        f"no expert serves the model {model!r}",
        param="model",
        hint=f"did you mean {', '.join(map(repr, near))}? A stored model is served once it stands in models.load",
    )


def _names(card: ExpertCard) -> tuple[str, str, str]:
    """What a request may call an expert by: its own name, its model's, and the digest of the model file."""
    return (card.expert_id, card.engine.model, card.engine.artifact_hash)


def _allowed(cards: list[ExpertCard], model: str, policy: PolicyEnvelope) -> list[ExpertCard]:
    if policy.allowed_models is None:
        return cards
    names = set(policy.allowed_models)
    allowed = [card for card in cards if not names.isdisjoint(_names(card))]
    if not allowed:
        raise Forbidden(
            f"the policy does not allow {'any model that is here' if model in ROUTED else repr(model)}",
            where="policy.allowed_models",
            hint=f"allowed: {', '.join(policy.allowed_models) or 'none'}",
            param="model",
        )
    return allowed


def _working(cards: list[ExpertCard], where: str) -> list[ExpertCard]:
    working = [card for card in cards if card.engine.state in SECONDS_UNTIL_READY]
    if not working:
        states = ", ".join(sorted({f"{card.expert_id} is {card.engine.state.value}" for card in cards}))
        raise NoExpert(f"no expert works: {states}", where=where, hint="see `gnusnode status` for the reason")
    return working


def _all_busy(candidates: list[Candidate], patience: float) -> Overloaded:
    """Told when the first of them is expected to have time."""
    soonest = min(candidate.estimate.wait for candidate in candidates)
    return Overloaded(
        f"all {len(candidates)} experts that could answer are busy: the first is free in {soonest:.0f} s, and the"
        f" request leaves {patience:.0f} s",
        retry_after=min(max(soonest - patience, 1.0), _LONGEST_RETRY),
        hint="try again then, or allow more time",
    )


# --- in which order ---------------------------------------------------------------------------------------------------

_Order = tuple[bool, bool, bool, bool, float, str, str]


def _by_fit(candidate: Candidate) -> _Order:
    card = candidate.card
    unfit, beside = not candidate.fits, card.service != "core"
    return (candidate.failed, candidate.cramped, unfit, beside, candidate.cost, card.expert_id, card.peer)


def _kind(candidate: Candidate) -> tuple[bool, str]:
    return (candidate.fits, candidate.card.service)


def _by_speed(candidate: Candidate) -> _Order:
    card = candidate.card
    return (candidate.failed, candidate.cramped, False, False, candidate.cost, card.expert_id, card.peer)


def _candidate(card: ExpertCard, request: TaskRequest, inquiry: Inquiry, swarm: Swarm) -> Candidate:
    key, facts = (card.peer, card.expert_id), swarm.facts(card.peer)
    is_warm = inquiry.warm == key
    fits = card.service == "elm" and inquiry.intent.domain != GENERAL and inquiry.intent.domain in card.domains
    expected = estimate(
        card.engine,
        request,
        warm=is_warm,
        mine=inquiry.experience.running.get(key, 0),
        age_seconds=facts.age_seconds,
    )
    cramped, failed = is_cramped(card.engine, request), key in inquiry.experience.failed
    is_named = request.model not in ROUTED
    notes: tuple[tuple[bool, str], ...] = (
        (True, f"expected in {expected.total:.1f} s, {card.engine.queued} waiting"),
        (fits, f"specialised in {inquiry.intent.domain}"),
        (card.service == "core" and not fits, "broad reasoning"),
        (SECONDS_UNTIL_READY.get(card.engine.state) != 0.0, f"its engine is {card.engine.state.value}"),
        (is_warm, "holds this conversation in its cache"),
        (is_named, "asked for by name"),
        (cramped, f"its context of {card.engine.n_ctx} tokens may not suffice"),
        (failed, "failed a moment ago"),
        (card.peer != swarm.node, _of_peer(facts)),
    )
    return Candidate(
        card,
        fits,
        expected,
        (expected.total + 2 * facts.rtt_seconds) / _reliability(facts),
        tuple(note for applies, note in notes if applies),
        rtt_seconds=facts.rtt_seconds,
        cramped=cramped,
        failed=failed,
    )


def _reliability(facts: PeerFacts) -> float:
    """How likely an answer is a good one: whoever is right half of the time takes two tries."""
    vouched = _UNVOUCHED if facts.tier is Tier.D else 1.0
    return max(_LEAST_RELIABLE, facts.reputation * vouched * 0.5**facts.failures)


def _of_peer(facts: PeerFacts) -> str:
    return (
        f"a peer of tier {facts.tier.value}, reputation {facts.reputation:.2f}, {facts.rtt_seconds * 1000:.0f} ms away,"
        f" heard of {facts.age_seconds:.0f} s ago"
    )


def _explored(ranked: list[Candidate], request: TaskRequest, inquiry: Inquiry, swarm: Swarm) -> list[Candidate]:
    """The same order, but for a newcomer whose turn it is to show what it can do."""
    best = ranked[0]
    if inquiry.privacy is not PrivacyMode.PLAINTEXT or inquiry.intent.risk == "high":
        return ranked
    strangers = [
        candidate.key
        for candidate in ranked
        if candidate.card.peer != swarm.node
        and inquiry.experience.is_new(candidate.key)
        and (candidate.failed, candidate.cramped, *_kind(candidate)) == (False, False, *_kind(best))
        and candidate.estimate.total <= _MUCH_SLOWER * best.estimate.total
    ]
    chosen = newcomer(strangers, request.generation.request_id, inquiry.explore)
    if chosen is None or chosen == best.key:
        return ranked
    first = next(candidate for candidate in ranked if candidate.key == chosen)
    told = replace(first, reasons=(*first.reasons, "new here: it gets a small share of the requests to prove itself"))
    return [told, *(candidate for candidate in ranked if candidate is not first)]
