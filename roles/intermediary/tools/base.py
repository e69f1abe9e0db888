"""What every tool is to the intermediary: a manifest, a dry-run that changes nothing, and a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from gnusnode.contracts.base import describe
from gnusnode.contracts.services import ToolSpec
from gnusnode.contracts.tools import DryRunResult, MockOutput, SimulatedEffects, ToolProposal
from gnusnode.errors import ToolBlocked
from gnusnode.policy.sinks import Effect, ToolDescription
from gnusnode.web.refusals import WebRefused

OK = "OK"
_PREVIEW = 65_536
_REQUEST_LINE = 4096


class Category(StrEnum):
    """Which kind of dry-run a tool has."""

    WEB = "web"
    """Predicts its requests and sends none."""
    FILES = "fs"
    """Compares what is there with what would be there."""
    CODE = "code"
    MEMORY = "memory"
    THIRD_PARTY = "mcp"


class Arguments(BaseModel):
    """Base of the arguments of a tool: closed, frozen, nothing coerced."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


@dataclass(frozen=True)
class ToolManifest:
    """All that is known of a tool before it is called."""

    description: ToolDescription
    """For the policy: capability, effect, what each argument can do."""
    category: Category
    summary: str
    """For the model: what it does, in a sentence or two."""
    arguments: type[Arguments]

    @property
    def name(self) -> str:
        return self.description.name

    @property
    def mutates(self) -> bool:
        return self.description.effect is not Effect.READ

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments."""
        return self.arguments.model_json_schema()

    def spec(self) -> ToolSpec:
        """The tool as a model is offered it."""
        return ToolSpec(name=self.name, description=self.summary, parameters=self.schema())


@dataclass(frozen=True)
class Scope:
    """What plan, policy and manifest leave to one call. Empty allows nothing."""

    domains: tuple[str, ...] | None = ()
    """Hosts, compared to the letter; None: every public one."""
    paths: tuple[str, ...] = ()
    """Absolute paths of directories or files, and what lies below them."""


@dataclass(frozen=True)
class ToolOutput:
    """What a tool gave, raw: for the sanitiser and for nobody else."""

    data: bytes
    media_type: str
    source: str
    """The URL, path or service it comes from."""
    charset: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    note: str = ""
    """What we ourselves have to say of it, such as the status of an answer."""
    longest: int | None = None
    """Characters of clean text that the caller asked for at most; None: no wish."""


class Tool(Protocol):
    """One tool. Its methods may be called by many tasks at once."""

    @property
    def manifest(self) -> ToolManifest: ...

    async def dry_run(self, call: ToolProposal, scope: Scope) -> DryRunResult:
        """What ``run`` would do. Nothing is sent or changed; equal worlds give equal bytes.

        A refusal is a result with ``dry_run_ok`` false; see ``reason_of``. Never raises for what is in ``call``.
        """
        ...

    async def run(self, call: ToolProposal, scope: Scope, predicted: DryRunResult) -> ToolOutput:
        """Does it.

        Args:
            predicted: what ``dry_run`` gave and somebody agreed to.

        Raises:
            ToolBlocked: it is refused, or no longer what was predicted. Nothing was changed.
            GnusError: it was tried and failed.
        """
        ...


A = TypeVar("A", bound=Arguments)


def read_arguments(cls: type[A], call: ToolProposal) -> A:
    """The arguments of ``call``.

    Raises:
        ToolBlocked: ARGUMENTS_INVALID.
    """
    try:
        return cls.model_validate(call.arguments)
    except ValidationError as error:
        raise ToolBlocked("ARGUMENTS_INVALID", describe(error), where=call.tool_name) from error


def predicted(
    call: ToolProposal,
    *,
    preview: str,
    media_type: str = "text/plain",
    requests: Iterable[str] = (),
    files: Iterable[str] = (),
    flags: Iterable[str] = (),
    asks: bool = False,
) -> DryRunResult:
    """The result of a dry-run that went well.

    Args:
        preview: shown to a person; cut, with a flag, where it is too long for the record.
        asks: whether a person has to agree whatever the policy says.
    """
    cut = len(preview) > _PREVIEW
    return DryRunResult(
        tool_call_id=call.tool_call_id,
        dry_run_ok=True,
        simulated_effects=SimulatedEffects(
            network_requests=tuple(line[:_REQUEST_LINE] for line in requests), filesystem_access=tuple(files)
        ),
        mock_output=MockOutput(content_type=media_type, preview=preview[:_PREVIEW]),
        risk_flags=tuple(sorted({*flags, *(("preview_truncated",) if cut else ())})),
        human_approval_required=asks,
    )


def refused(call: ToolProposal, error: ToolBlocked | WebRefused) -> DryRunResult:
    """The result of a dry-run that found the call not permissible; the reason is a flag and begins the preview."""
    words = error.what.removeprefix(f"{error.reason}: ")
    where = f" [{error.where}]" if error.where else ""
    return DryRunResult(
        tool_call_id=call.tool_call_id,
        dry_run_ok=False,
        simulated_effects=SimulatedEffects(),
        mock_output=MockOutput(content_type="text/plain", preview=f"{error.reason}: {words}{where}"[:_PREVIEW]),
        risk_flags=(error.reason.lower(),),
        human_approval_required=False,
    )


def reason_of(result: DryRunResult) -> str:
    """``OK``, or the reason code of a refused dry-run."""
    return OK if result.dry_run_ok else result.mock_output.preview.partition(":")[0]


def is_same_prediction(a: DryRunResult, b: DryRunResult) -> bool:
    """Whether both foresee the same effects and show the same; flags may have been added by who looked at them."""
    return (a.dry_run_ok, a.simulated_effects, a.mock_output) == (b.dry_run_ok, b.simulated_effects, b.mock_output)


def blocked(error: WebRefused) -> ToolBlocked:
    """A refusal of the web guard as one of the tool path."""
    return ToolBlocked(error.reason.value, error.what, where=error.where, hint=error.hint)
