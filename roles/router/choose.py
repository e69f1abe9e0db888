"""Who can serve a request, best first, with reasons. Pure: cards and policy in, an order out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from gnusnode.contracts.generation import EngineInfo, EngineState
from gnusnode.contracts.plan import ExpertRole, PrivacyMode
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.services import ROUTED, ExpertCard, TaskRequest
from gnusnode.errors import Forbidden, ModelNotFound, NoExpert
from roles.router.classify import GENERAL, Intent

DRAFTING: Final = (ExpertRole.SEMANTIC_CORE, ExpertRole.PRIMARY_DRAFT, ExpertRole.DOMAIN_EXPERT)
"""Roles that answer users; the others work on answers."""

_SECONDS_UNTIL_READY: Final = {
    EngineState.READY: 0.0,
    EngineState.RESTARTING: 2.0,
    EngineState.STARTING: 5.0,
    EngineState.STOPPED: 10.0,
}
"""Rough time until an engine in this state works; one that is stopped is loaded by its first request.

What is missing here (quarantine) does not come back by itself.
"""
_UNMEASURED_RATE: Final = 10.0
"""Tokens per second that an engine counts as before it measured itself."""
_TYPICAL_ANSWER: Final = 256
"""Tokens that a job in the queue is assumed to take."""
_CHARS_PER_TOKEN: Final = 4


@dataclass(frozen=True)
class Swarm:
    """What the router knows of the swarm when it decides.

    Attributes:
        node: PeerID of this node.
        members: PeerIDs with a membership certificate, this node included.
        boundary: PeerIDs of this node's operator, this node included.
        services: names of the services that a plan may build on.
    """

    node: str
    members: frozenset[str]
    boundary: frozenset[str]
    services: frozenset[str]

    def may_see(self, peer: str, privacy: PrivacyMode) -> bool:
        """Whether a prompt of this privacy may travel to ``peer``."""
        match privacy:
            case PrivacyMode.PLAINTEXT:
                return True
            case PrivacyMode.RESTRICTED:
                return peer in self.members
            case PrivacyMode.PRIVATE_BOUNDARY:
                return peer in self.boundary


@dataclass(frozen=True)
class Candidate:
    """An expert that can serve, and why it stands where it stands.

    Attributes:
        fits: whether its domain is that of the request.
        seconds: expected time to the end of the answer; an estimate from queue and measured rates.
    """

    card: ExpertCard
    fits: bool
    seconds: float
    reasons: tuple[str, ...]
    failed: bool = False
    """It did not manage its latest answer: others go first."""

    @property
    def key(self) -> tuple[str, str]:
        """Identifies the expert in the swarm."""
        return (self.card.peer, self.card.expert_id)


def choose_experts(
    cards: Iterable[ExpertCard],
    request: TaskRequest,
    intent: Intent,
    privacy: PrivacyMode,
    swarm: Swarm,
    *,
    warm: tuple[str, str] | None = None,
    failed: Collection[tuple[str, str]] = (),
) -> list[Candidate]:
    """All that can serve the request, best first; never empty.

    Order: those that did not just fail, domain fit, then the core, then expected time, in which loading a model counts;
    names decide ties, so that equal inputs give equal orders.

    Args:
        privacy: of the plan to be made, which may be stricter than the policy's.
        warm: key of the expert that holds this conversation's prefix in its cache.
        failed: keys of experts that failed a moment ago.

    Raises:
        ModelNotFound: nobody offers the model asked for; the hint has the nearest names.
        Forbidden: the policy does not allow it.
        NoExpert: it exists but cannot serve now; the text says what is missing.
    """
    drafting = [card for card in cards if card.engine.generates and card.role in DRAFTING]
    named = _named(drafting, request.model)
    allowed = _allowed(named, request.model, request.policy)
    visible = [card for card in allowed if swarm.may_see(card.peer, privacy)]
    if not visible:
        raise NoExpert(
            f"no expert may see a prompt of privacy mode {privacy.value!r}",
            where=request.model,
            hint="start the role core or elm on a node of this swarm, or choose a wider privacy mode",
        )
    usable = [card for card in visible if card.engine.state in _SECONDS_UNTIL_READY]
    if not usable:
        raise NoExpert(
            f"no expert works: {', '.join(sorted({f'{c.expert_id} is {c.engine.state.value}' for c in visible}))}",
            where=visible[0].peer,
            hint="see `gnusnode status` for the reason",
        )
    candidates = [_candidate(card, request, intent, warm, failed) for card in usable]
    return sorted(candidates, key=_order)


def _order(candidate: Candidate) -> tuple[bool, bool, bool, float, str, str]:
    card = candidate.card
    return (candidate.failed, not candidate.fits, card.service != "core", candidate.seconds, card.expert_id, card.peer)


def _named(cards: list[ExpertCard], model: str) -> list[ExpertCard]:
    if not cards:
        raise NoExpert(
            "no model that answers is ready yet",
            where=model,
            hint="one may still be loading: see `gnusnode status`, or add one with `gnusnode models add FILE`",
            retry_after=5.0,
        )
    if model in ROUTED:
        return cards
    found = [card for card in cards if model in (card.expert_id, card.engine.model)]
    if found:
        return found
    names = sorted({name for card in cards for name in (card.expert_id, card.engine.model)} | set(ROUTED))
    near = get_close_matches(model, names, 3) or names[:5]
    raise ModelNotFound(
        f"no expert serves the model {model!r}",
        param="model",
        hint=f"did you mean {', '.join(map(repr, near))}? A stored model is served once it stands in models.load",
    )


def _allowed(cards: list[ExpertCard], model: str, policy: PolicyEnvelope) -> list[ExpertCard]:
    if policy.allowed_models is None:
        return cards
    names = set(policy.allowed_models)
    allowed = [card for card in cards if card.expert_id in names or card.engine.model in names]
    if not allowed:
        raise Forbidden(
            f"the policy does not allow {'any model that is here' if model in ROUTED else repr(model)}",
            where="policy.allowed_models",
            hint=f"allowed: {', '.join(policy.allowed_models) or 'none'}",
            param="model",
        )
    return allowed


def _candidate(
    card: ExpertCard,
    request: TaskRequest,
    intent: Intent,
    warm: tuple[str, str] | None,
    failed: Collection[tuple[str, str]],
) -> Candidate:
    is_warm = warm == (card.peer, card.expert_id)
    fits = card.service == "elm" and intent.domain != GENERAL and intent.domain in card.domains
    seconds = expected_seconds(card.engine, request, warm=is_warm)
    reasons = [f"expected in {seconds:.1f} s, {card.engine.queued} waiting"]
    if fits:
        reasons.append(f"specialised in {intent.domain}")
    elif card.service == "core":
        reasons.append("broad reasoning")
    if card.engine.state is not EngineState.READY:
        reasons.append(f"its engine is {card.engine.state.value}")
    if is_warm:
        reasons.append("holds this conversation in its cache")
    if request.model not in ROUTED:
        reasons.append("asked for by name")
    has_failed = (card.peer, card.expert_id) in failed
    if has_failed:
        reasons.append("failed a moment ago")
    return Candidate(card, fits, seconds, tuple(reasons), has_failed)


def expected_seconds(engine: EngineInfo, request: TaskRequest, *, warm: bool) -> float:
    """Estimated loading, waiting, prefill and decode of one answer, in seconds."""
    decode = engine.decode_rate or _UNMEASURED_RATE
    prefill = engine.prefill_rate or 4 * decode
    ahead = engine.queued + (0 if engine.free_slots else 1)
    wait = ahead * _TYPICAL_ANSWER / decode
    prompt = 0.0 if warm else _prompt_tokens(request) / prefill
    until_ready = _SECONDS_UNTIL_READY.get(engine.state, 0.0)
    # The rate is that of the whole engine: the streams that run share it with this one.
    streams = max(1, min(engine.slots - engine.free_slots + 1, engine.slots))
    answer = min(request.generation.max_tokens, _TYPICAL_ANSWER) * streams / decode
    return until_ready + wait + prompt + answer


def _prompt_tokens(request: TaskRequest) -> float:
    prompt = request.generation.prompt
    if prompt.tokens is not None:
        return len(prompt.tokens)
    if prompt.text is not None:
        return len(prompt.text) / _CHARS_PER_TOKEN
    return sum(len(message.content) for message in prompt.messages or ()) / _CHARS_PER_TOKEN
