"""What the chat and the completions dialect share: request fields, their translation, and pieces of answers."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from gnusnode.api.gateway import RequestInfo
from gnusnode.api.options import ApiOptions
from gnusnode.api.tasks import Event
from gnusnode.contracts.base import describe
from gnusnode.contracts.generation import MAX_TOKENS, ContextProfile, Delta, Sampling, TokenLogprob, Usage
from gnusnode.contracts.policy import PolicyEnvelope, narrow
from gnusnode.contracts.services import MAX_CHOICES, ChoiceDelta, ChoiceDone, PlanMade, TaskDone
from gnusnode.errors import RequestError, UnsupportedField

_SAMPLED: Final = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty")
_MAX_SEED: Final = 2**32 - 1


class Wire(BaseModel):
    """A request of the OpenAI dialect: new fields appear monthly, so unknown ones are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Stops = Annotated[
    list[Annotated[str, StringConstraints(min_length=1, max_length=256)]],
    Field(max_length=16),
    BeforeValidator(_as_list),
]


class StreamOptions(Wire):
    include_usage: bool = False


class SamplingFields(Wire):
    """How to sample; None: as the node is set."""

    model: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1000)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Stops | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: dict[str, float] | None = None
    gnus: dict[str, Any] | None = None
    """Our extension: ``profile``, and fields of the policy envelope."""

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def open_sampling(self) -> tuple[str, ...]:
        """What of the sampling the client left open: a model's own defaults may fill it."""
        return tuple(name for name in _SAMPLED if getattr(self, name) is None)

    def refuse_common(self) -> None:
        """Raises ``RequestError`` for what would change the meaning and is not supported."""
        if self.logit_bias:
            raise unsupported("logit_bias")
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options is only allowed with stream: true", param="stream_options")

    def sampling(self, defaults: Sampling) -> Sampling:
        """The complete, disclosed sampler chain; without a seed, a random one."""
        asked = {name: value for name in _SAMPLED if (value := getattr(self, name)) is not None}
        seed = secrets.randbelow(_MAX_SEED) + 1 if self.seed is None else (self.seed - 1) % _MAX_SEED + 1
        return Sampling(**{**defaults.model_dump(), **asked, "seed": seed})

    @property
    def profile(self) -> ContextProfile:
        """``gnus.profile``: how the context is set up.

        Raises:
            RequestError: neither throughput nor canonical.
        """
        asked = (self.gnus or {}).get("profile", ContextProfile.THROUGHPUT.value)
        if asked not in tuple(ContextProfile):
            raise RequestError("gnus.profile is throughput or canonical", param="gnus.profile")
        return ContextProfile(asked)

    def policy(self, info: RequestInfo, options: ApiOptions, max_tokens: int) -> PolicyEnvelope:
        """The request's policy, within the operator's. Without a word about tokens, it allows what was asked for.

        Raises:
            RequestError: ``gnus`` does not hold policy fields.
            Forbidden: it names another tenant.
        """
        fields: dict[str, Any] = {"tenant": info.principal.tenant, "max_tokens": min(max_tokens, MAX_TOKENS)}
        try:
            wanted = {key: value for key, value in (self.gnus or {}).items() if key != "profile"}
            asked = PolicyEnvelope.model_validate({**fields, **wanted})
        except ValidationError as error:
            raise RequestError(f"gnus.{describe(error)}", param="gnus", hint="see docs/api.md, policy") from error
        bound = (options.policy or asked).model_copy(update={"tenant": info.principal.tenant})
        return narrow(bound, asked)


def per_choice(asked: int, policy: PolicyEnvelope, choices: int) -> int:
    """Tokens of one choice: as asked, as far as the policy, which bounds all choices together, leaves them."""
    return max(1, min(asked, policy.max_tokens // choices))


def unsupported(field: str, hint: str | None = None) -> UnsupportedField:
    return UnsupportedField(f"{field} is not supported here", param=field, hint=hint or "leave it out")


# --- log-probabilities ----------------------------------------------------------------------------------------------

_ESCAPED: Final = re.compile(r"\\x([89a-f][0-9a-f])")


def piece_bytes(piece: str) -> bytes:
    """The bytes of a token: an incomplete character is written ``\\xNN`` in its piece."""
    parts = _ESCAPED.split(piece)
    return b"".join(bytes.fromhex(part) if at % 2 else part.encode() for at, part in enumerate(parts))


def chat_logprobs(logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
    """``choices[].logprobs`` of the chat dialect."""

    def entry(piece: str, logprob: float) -> dict[str, Any]:
        return {"token": piece, "logprob": logprob, "bytes": list(piece_bytes(piece))}

    content = [
        entry(one.piece, one.logprob) | {"top_logprobs": [entry(top.piece, top.logprob) for top in one.top]}
        for one in logprobs
    ]
    return {"content": content, "refusal": None}


# --- pieces of answers ----------------------------------------------------------------------------------------------


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


class Facts:
    """What the swarm says of the tasks of one answer: usage, and the ``gnus`` object. Charges tokens as they come."""

    def __init__(self, request_ids: Sequence[str], model: str, charge: Callable[[int], None]) -> None:
        self._charge = charge
        self._request_ids = request_ids
        self._requested_model = model
        self._plans: dict[str, PlanMade] = {}
        """By request, the plan that holds now."""
        self._choices: dict[int, ChoiceDone] = {}
        self._done: list[TaskDone] = []

    @property
    def model(self) -> str:
        """The model that answers; what was asked for, until the plan is known."""
        plan = self._plans.get(self._request_ids[0])
        return plan.model if plan else self._requested_model

    @property
    def node(self) -> str | None:
        """The node that answers, as far as it is known; of several tasks, that of the first."""
        plan = self._plans.get(self._request_ids[0])
        return plan.node if plan else None

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=sum(done.usage.prompt_tokens for done in self._done),
            completion_tokens=sum(done.usage.completion_tokens for done in self._done),
            cached_tokens=sum(done.usage.cached_tokens for done in self._done),
        )

    def note(self, event: Event) -> None:
        match event:
            case PlanMade():
                self._plans[event.plan.request_id] = event
            case ChoiceDone():
                self._choices[event.index] = event
            case TaskDone():
                self._done.append(event)
                self._charge(event.usage.prompt_tokens)
            case ChoiceDelta():
                # At once: who leaves before the end has used them too.
                self._charge(len(event.delta.tokens))

    def gnus(self) -> dict[str, Any]:
        """The ``gnus`` object of a complete answer; of several tasks, it shows the first and names all."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        found: dict[str, Any] = {
            "request_id": self._request_ids[0],
            "model": self.model,
            "confidence": [choice.output.confidence for choice in choices],
            "resumed": any(choice.resumed for choice in choices),
            "rerouted": 0,
        }
        if len(self._request_ids) > 1:
            found["request_ids"] = list(self._request_ids)
        plan = self._plans.get(self._request_ids[0])
        if plan is not None:
            found |= {"mode": plan.plan.execution_graph.mode, "reasons": plan.reasons}
        for done in self._done:
            if len(self._done) == 1 or (plan is not None and done.plan_digest == plan.plan.digest):
                found |= {
                    "node": done.node,
                    "plan_digest": done.plan_digest,
                    "plan_digests": done.plan_digests or (done.plan_digest,),
                    "rerouted": done.rerouted,
                    "stages_ms": done.stages_ms,
                }
        return found


def coalesced(events: Iterable[Event]) -> list[Event]:
    """The same events, with the deltas of one choice that stand together made into one."""
    merged: list[Event] = []
    pending: dict[int, list[Delta]] = {}

    def flush() -> None:
        merged.extend(ChoiceDelta.model_construct(kind="delta", index=i, delta=_join(d)) for i, d in pending.items())
        pending.clear()

    for event in events:
        if isinstance(event, ChoiceDelta):
            pending.setdefault(event.index, []).append(event.delta)
        else:
            flush()
            merged.append(event)
    flush()
    return merged


def _join(deltas: list[Delta]) -> Delta:
    if len(deltas) == 1:
        return deltas[0]
    # Built from checked parts: validating the sum again would cost more than the tokens did.
    return Delta.model_construct(
        kind="delta",
        text="".join(delta.text for delta in deltas),
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        logprobs=tuple(one for delta in deltas for one in delta.logprobs),
    )
