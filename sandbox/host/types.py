"""The values of the host ABI: what a module may be granted, how it is denied, and the numbers it gets as an answer.

A module asks with a ``CapabilityRequest`` (``gnusnode.contracts.generation``), in its canonical encoding. The host
answers with a ``Code``, and with bytes where it grants. Pure data.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from gnusnode.contracts.base import Record, SignedRecord
from gnusnode.contracts.fields import Capability, Count, JsonObject, Moment, Part, Word
from gnusnode.contracts.generation import CapabilityRequest
from gnusnode.contracts.ids import PeerId, Sha256, Signature

MAX_REQUEST: Final = 64 * 1024
"""Bytes of one encoded request."""
MAX_ANSWER: Final = 1024 * 1024
"""Bytes of one encoded answer."""

CLOCK: Final = "clock.now"
"""``{}`` -> ``{seconds}``: Unix time, rounded down to a second. Scope ``coarse``."""
RANDOM: Final = "random.bytes"
"""``{count}`` -> ``{bytes}``. Scope ``host_attested``: the bytes go into the signed account."""
INPUT: Final = "module.input"
"""``{offset, length}`` -> ``{bytes, total}``: a piece of what the run was given. Scope ``own``, never denied."""
OUTPUT: Final = "module.output"
"""``{bytes}`` -> ``{total}``: adds to the result of the run. Scope ``own``, never denied."""
OWN: Final = "own"
PROPOSAL_ONLY: Final = "proposal_only"
"""The scope of what a module may propose in its answer and never call."""


class Code(IntEnum):
    """What ``gnus.call`` returns when it is negative; zero and above is the length of the answer in bytes."""

    DENIED = -1
    """The host does not grant this. Why is for the audit log, not for the module."""
    FAULT = -2
    """A pointer and its length do not lie inside the module's memory. Nothing was read or written."""
    TOO_SMALL = -3
    """The answer does not fit the buffer. It is lost, nothing was written; asking again is a new call."""
    BAD_REQUEST = -4
    """Too long, or not the canonical encoding of a ``CapabilityRequest``."""
    FAILED = -5
    """Granted, but the operation did not succeed."""


class Refusal(StrEnum):
    """Why a request was denied."""

    NOT_GRANTED = "not_granted"
    OTHER_SCOPE = "other_scope"
    OUTSIDE_CONSTRAINTS = "outside_constraints"
    PROPOSAL_ONLY = "proposal_only"
    NO_OPERATION = "no_operation"
    """Granted, but this host does not offer it."""


class Grant(Part):
    """One capability that a module has, exactly as its manifest asks for it."""

    capability: Capability
    scope: Word
    constraints: JsonObject = {}


class Grants(Record):
    """All that a module has. What is not in here does not exist for it; there is no network and no file system at all.

    ``digest`` is the ``capability_hash`` of attestations.
    """

    record_name: ClassVar[str] = "host-grants"

    artifact_hash: Sha256
    capabilities: Annotated[tuple[Grant, ...], Field(max_length=64)] = ()
    clock: Literal["disabled", "coarse"] = "disabled"
    randomness: Literal["disabled", "host_attested"] = "disabled"

    def narrowed(self, allowed: Collection[str]) -> Grants:
        """The same, without the capabilities that are not in ``allowed``: plans and policies only take away."""
        kept = tuple(grant for grant in self.capabilities if grant.capability in allowed)
        return self.model_copy(update={"capabilities": kept})


@dataclass(frozen=True, slots=True)
class Denial:
    """A request that the host does not grant; ``reason`` is a sentence for people."""

    refusal: Refusal
    reason: str


Verdict = Grant | Denial
Operation = Callable[[CapabilityRequest], Awaitable[Any]]
"""What a granted capability does: the answer is plain data that ``contracts.canonical`` can encode.

It raises ``GnusError`` where it cannot; the module then sees ``Code.FAILED``.
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the host says to one request: the encoded result, or a code."""

    code: Code | None
    body: bytes = b""


class HostAudit(SignedRecord):
    """The host's word on everything that a module asked for in one run, and got.

    ``digest_of_calls`` chains each request with its verdict and its answer in the order in which they came, so that
    random bytes and times are attested too: whoever has the requests and answers can compute it again.
    """

    record_name: ClassVar[str] = "host-audit"

    artifact_hash: Sha256
    grants_hash: Sha256
    calls: Count
    denied: Count
    digest_of_calls: Sha256
    issued_at_ms: Moment
    signer: PeerId
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleLimits:
    """What one run of a module may use; every limit is hard. ``ValueError`` when one is not positive.

    Attributes:
        fuel: instructions, about; the same module and input use the same fuel everywhere.
        wall_seconds: from the start of the worker to the end of the run, compilation and host calls included.
        memory_bytes: linear memory.
        table_elements: all tables together.
        stack_bytes: the module's call stack.
        host_calls: of ``gnus.call``; one more ends the module.
        module_bytes: the size of the module itself.
        process_bytes: address space of the whole worker, compiler included.
    """

    fuel: int = 2_000_000_000
    wall_seconds: float = 10.0
    memory_bytes: int = 64 * 1024 * 1024
    table_elements: int = 10_000
    stack_bytes: int = 256 * 1024
    host_calls: int = 10_000
    module_bytes: int = 16 * 1024 * 1024
    process_bytes: int = 2 * 1024 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"limit {name} must be positive, not {getattr(self, name)}")


class Ending(StrEnum):
    """How a run of a module ended: the word of the worker's engine or of the host, never of the module."""

    OK = "ok"
    """The export returned."""
    REFUSED = "refused"
    """Not a module that we run: invalid, too large, or it imports something other than ``gnus.call``."""
    TRAP = "trap"
    """It did what WebAssembly forbids, such as reading outside its memory."""
    FUEL = "fuel"
    STACK = "stack"
    TIMEOUT = "timeout"
    HOST_CALLS = "host_calls"
    KILLED = "killed"
    """The worker died, or said what no sound worker says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleResult:
    """What came of a run.

    Attributes:
        ending: how it ended.
        value: what the export returned; None unless it returned one integer.
        fuel_used: the same for the same module and input; None unless it ended with ``ok`` or ``fuel``.
        reason: for people; empty when all is well.
    """

    ending: Ending
    value: int | None = None
    fuel_used: int | None = None
    reason: str = ""
