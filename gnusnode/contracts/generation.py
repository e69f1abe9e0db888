"""What one asks of a language model and what it says back: the same records on the engine's pipe and on the rpc.

Token ids are those of the artifact named by ``EngineInfo.artifact_hash``; log-probabilities are natural; times are
milliseconds measured by the node that did the work.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, StringConstraints, model_validator

from gnusnode.contracts.base import Record
from gnusnode.contracts.fields import JsonDocument
from gnusnode.contracts.ids import Name, Sha256, Uuid

MAX_TEXT_CHARS: Final = 1_000_000
MAX_TOKENS: Final = 1_000_000
MAX_LABELS: Final = 32

Text = Annotated[str, StringConstraints(max_length=MAX_TEXT_CHARS)]
StopText = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Label = Annotated[str, StringConstraints(min_length=1, max_length=64)]
TokenIds = Annotated[tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], Field(max_length=MAX_TOKENS)]


class ContextProfile(StrEnum):
    """How a context is set up: ``throughput`` shares KV and prefixes, ``canonical`` is bit-exact on the same build."""

    THROUGHPUT = "throughput"
    CANONICAL = "canonical"


class Message(Record):
    record_name: ClassVar[str] = "message"

    role: Literal["system", "user", "assistant", "tool"]
    content: Text
    name: Name | None = None


class Sampling(Record):
    """The disclosed sampler chain. ``temperature`` 0 is greedy; ``seed`` is always set: a job can be replayed."""

    record_name: ClassVar[str] = "sampling"

    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, le=1000)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    seed: Annotated[int, Field(ge=1, lt=2**32)] = 1


class Prompt(Record):
    """Exactly one of: messages (rendered by the model's template), raw text, or exact token ids."""

    record_name: ClassVar[str] = "prompt"

    messages: Annotated[tuple[Message, ...], Field(max_length=1000)] | None = None
    text: Text | None = None
    tokens: TokenIds | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Prompt:
        given = [part for part in (self.messages, self.text, self.tokens) if part is not None]
        if len(given) != 1 or not given[0]:
            raise ValueError("give exactly one of messages, text and tokens, and do not leave it empty")
        return self


class GenerateRequest(Record):
    """One generation. ``resume_tokens`` were already delivered: prefilled, not sampled, and counted as output."""

    record_name: ClassVar[str] = "generate-request"
    max_bytes: ClassVar[int] = 8 * 1024 * 1024

    request_id: Uuid
    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    sampling: Sampling = Sampling()
    stop: Annotated[tuple[StopText, ...], Field(max_length=16)] = ()
    resume_tokens: TokenIds = ()
    json_schema: JsonDocument | None = None
    """A schema of our bounded subset: the output is constrained to it; ``finish_reason=length`` makes it invalid."""
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """None: no log-probabilities; n: that of each token and of the n most likely alternatives."""
    profile: ContextProfile = ContextProfile.THROUGHPUT
    tenant: Name = "local"
    priority: Annotated[int, Field(ge=0, le=9)] = 5
    """0 is served first."""
    deadline_ms: Annotated[int, Field(ge=1)] | None = None
    """Milliseconds from submission after which the answer is of no use; also the basis of early refusal."""


class TopLogprob(Record):
    record_name: ClassVar[str] = "top-logprob"

    token: int
    piece: str
    logprob: float


class TokenLogprob(Record):
    record_name: ClassVar[str] = "token-logprob"

    token: int
    piece: str
    """The token's text; bytes that are not UTF-8 on their own are written ``\\xNN``."""
    logprob: float
    top: tuple[TopLogprob, ...] = ()


class Usage(Record):
    record_name: ClassVar[str] = "usage"

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were taken from a shared prefix."""


class Timing(Record):
    record_name: ClassVar[str] = "timing"

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0


class Started(Record):
    """The job left the queue: the exact prompt is known."""

    record_name: ClassVar[str] = "generation-started"

    kind: Literal["started"] = "started"
    prompt_tokens: TokenIds
    cached_tokens: int = 0


class Delta(Record):
    """New tokens. ``text`` is their complete UTF-8 text so far and may be empty in the middle of a character."""

    record_name: ClassVar[str] = "generation-delta"

    kind: Literal["delta"] = "delta"
    text: str
    tokens: TokenIds
    logprobs: tuple[TokenLogprob, ...] = ()


class Done(Record):
    """The last event of a generation that ended as asked. Failures are errors, never a ``Done``."""

    record_name: ClassVar[str] = "generation-done"

    kind: Literal["done"] = "done"
    finish_reason: Literal["stop", "length"]
    tokens: TokenIds
    """All output token ids, resumed ones and the end-of-turn token included."""
    mean_logprob: float | None = None
    """Mean natural log-probability of the sampled tokens: the basis of confidence."""
    usage: Usage
    timing: Timing


GenerateEvent = Annotated[Started | Delta | Done, Field(discriminator="kind")]


class ClassifyRequest(Record):
    """Which label continues the prompt best. ``calibrate`` subtracts the scores for a content-free input."""

    record_name: ClassVar[str] = "classify-request"

    request_id: Uuid
    instruction: Text
    """Everything before the text: task, labels, few-shot examples. Shared between calls, so it is cached."""
    text: Text
    suffix: Text = ""
    """What stands between the text and the label, such as ``\\nTopic:``."""
    labels: Annotated[tuple[Label, ...], Field(min_length=2, max_length=MAX_LABELS)]
    calibrate: bool = True
    tenant: Name = "local"


class ClassifyResult(Record):
    record_name: ClassVar[str] = "classify-result"

    label: str
    probabilities: tuple[float, ...]
    """One per label, in the order of the request; sum 1; after calibration when asked."""
    margin: float
    """Probability of the best label minus that of the second."""
    raw_logprobs: tuple[float, ...]


class ScoreRequest(Record):
    """Teacher-forced check of a claimed answer: one prefill of prompt and answer."""

    record_name: ClassVar[str] = "score-request"
    max_bytes: ClassVar[int] = 8 * 1024 * 1024

    request_id: Uuid
    prompt_tokens: TokenIds
    answer_tokens: Annotated[TokenIds, Field(min_length=1)]
    replay: Sampling | None = None
    """When set, the seeded sampler chain is replayed over the forced logits and compared with the claim."""


class ScoreResult(Record):
    """One entry per answer token."""

    record_name: ClassVar[str] = "score-result"
    max_bytes: ClassVar[int] = 8 * 1024 * 1024

    gaps: tuple[float, ...]
    """Best logit minus the claimed token's logit."""
    ranks: tuple[int, ...]
    """How many tokens had a higher logit; 0 is the argmax."""
    logprobs: tuple[float, ...]
    replayed: tuple[bool, ...] | None = None
    argmax_match: float
    """Share of tokens of rank 0."""


class EmbedRequest(Record):
    record_name: ClassVar[str] = "embed-request"
    max_bytes: ClassVar[int] = 8 * 1024 * 1024

    request_id: Uuid
    texts: Annotated[tuple[Text, ...], Field(min_length=1, max_length=2048)]
    tenant: Name = "local"


class EmbedResult(Record):
    record_name: ClassVar[str] = "embed-result"
    max_bytes: ClassVar[int] = 64 * 1024 * 1024

    vectors: tuple[tuple[float, ...], ...]
    """One L2-normalised vector per text, in order."""
    prompt_tokens: int


class EngineState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    QUARANTINED = "quarantined"
    STOPPED = "stopped"


class EngineInfo(Record):
    """What an engine is and how it does just now."""

    record_name: ClassVar[str] = "engine-info"

    model: Name
    artifact_hash: Sha256
    state: EngineState
    reason: str = ""
    """Why the state is what it is, and why these devices and layers were chosen; for people."""
    build: str = ""
    """Engine build id: bit equality may only be asked between equal builds."""
    template_hash: Sha256 | None = None
    n_ctx: int = 0
    n_ctx_train: int = 0
    n_vocab: int = 0
    embedding_size: int = 0
    generates: bool = True
    embeds: bool = False
    slots: int = 0
    free_slots: int = 0
    queued: int = 0
    prefill_rate: float = 0.0
    """Tokens per second of the whole engine, measured at start and updated while running."""
    decode_rate: float = 0.0
    """As ``prefill_rate``: of all streams that run together, not of each."""
    threads: int = 0
    gpu_layers: int = 0
    device: str = "cpu"
    determinism: Literal["A", "B", "C"] = "C"
    """A: the canonical profile gives the same bytes on the same build; B: a valid continuation; C: neither."""
    template_warning: str = ""
    restarts: int = 0
    rss_bytes: int = 0


# --- the confined child's only way out: the host ABI ------------------------------------------------------------------


class CapabilityRequest(Record):
    record_name: ClassVar[str] = "capability-request"

    name: Name
    scope: Name
    arguments: dict[str, Any] = {}


class CapabilityVerdict(Record):
    record_name: ClassVar[str] = "capability-verdict"

    name: Name
    granted: bool
    reason: str
