"""``code.run``: a Python program in a sandbox that is thrown away; it reaches nothing, so nothing has to be asked.

The dry-run reads the program without running it, and names the sandbox that would be used: no proved sandbox that is
strong enough, no tool. There is no weaker way.
"""

from __future__ import annotations

import ast
import json
from typing import Annotated, Final

import trio
from pydantic import StringConstraints

from gnusnode.contracts.tools import DryRunResult, ToolProposal
from gnusnode.errors import ToolBlocked, Unavailable
from gnusnode.policy.labels import Confidentiality
from gnusnode.policy.sinks import Authors, Effect, Output, ToolDescription
from roles.intermediary.tools.base import (
    Arguments,
    Category,
    Scope,
    ToolManifest,
    ToolOutput,
    predicted,
    read_arguments,
    refused,
)
from sandbox.run.registry import Absent, Proved, Registry, Wanted
from sandbox.run.types import Job, Limits, Result, Status

MAX_CODE: Final = 60_000
MAX_STDIN: Final = 60_000
DEFAULT_LIMITS: Final = Limits()
_NOTED: Final = 64
"""Imported modules that a preview names."""


class CodeArguments(Arguments):
    code: Annotated[str, StringConstraints(min_length=1, max_length=MAX_CODE)]
    stdin: Annotated[str, StringConstraints(max_length=MAX_STDIN)] = ""


MANIFEST: Final = ToolManifest(
    description=ToolDescription(
        name="code.run",
        capability="tool:code.run",
        effect=Effect.READ,
        # Whatever stands in them, the sandbox has no network, no file of this machine and no memory of former runs.
        harmless=("code", "stdin"),
        output=Output(authors=Authors.ANYONE, confidentiality=Confidentiality.PRIVATE),
    ),
    category=Category.CODE,
    summary="Run a Python 3 program without network or files, and read what it prints.",
    arguments=CodeArguments,
)


class CodeRun:
    """See ``Tool``.

    Args:
        registry: the sandboxes that proved themselves.
        wanted: what the policy demands of one, in its order.
    """

    def __init__(self, registry: Registry, wanted: Wanted, limits: Limits = DEFAULT_LIMITS) -> None:
        self._registry = registry
        self._wanted = wanted
        self._limits = limits

    @property
    def manifest(self) -> ToolManifest:
        return MANIFEST

    def absence(self) -> str:
        """Why the tool is not there, for ``doctor``; empty: it is."""
        found = self._registry.choose(self._wanted)
        return str(found) if isinstance(found, Absent) else ""

    async def dry_run(self, call: ToolProposal, scope: Scope) -> DryRunResult:
        """Reads the program; equal programs and sandboxes give equal bytes."""
        del scope  # there is no place that it could reach
        try:
            arguments = read_arguments(CodeArguments, call)
            imports = await trio.to_thread.run_sync(_imports, arguments.code)
            chosen = self._choose()
        except ToolBlocked as error:
            return refused(call, error)
        return predicted(call, preview=_preview(arguments, imports, chosen), flags=())

    async def run(self, call: ToolProposal, scope: Scope, predicted: DryRunResult) -> ToolOutput:
        """See ``Tool``. A program that fails or runs into a limit has an output too, which says so.

        Raises:
            Unavailable: the sandbox failed, not the program.
        """
        del scope
        arguments = read_arguments(CodeArguments, call)
        chosen = self._choose()
        if _name_of(chosen) not in predicted.mock_output.preview:
            raise ToolBlocked("SANDBOX_CHANGED", "it is not the sandbox of the dry-run any more", where=call.tool_name)
        job = Job(source=arguments.code, stdin=arguments.stdin.encode())
        result = await chosen.backend.run(job, self._limits)
        if result.status is Status.INFRA:
            raise Unavailable(f"the sandbox failed: {result.reason}", where=chosen.backend.name, hint="try again")
        return ToolOutput(_written(result), "application/json", source=chosen.backend.name)

    def _choose(self) -> Proved:
        found = self._registry.choose(self._wanted)
        if isinstance(found, Absent):
            raise ToolBlocked("SANDBOX_ABSENT", str(found), hint="gnusnode doctor says what is missing")
        return found


def _imports(code: str) -> tuple[str, ...]:
    """The modules that a program imports by name.

    Raises:
        ToolBlocked: it is no Python.
    """
    try:
        tree = ast.parse(code)
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    except SyntaxError as error:
        raise ToolBlocked("CODE_INVALID", f"line {error.lineno}: {error.msg}", where="code") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ToolBlocked("CODE_INVALID", "the program cannot be read", where="code") from error
    return tuple(sorted(names - {""}))[:_NOTED]


def _preview(arguments: CodeArguments, imports: tuple[str, ...], chosen: Proved) -> str:
    lines = arguments.code.count("\n") + 1
    uses = f"imports {', '.join(imports)}" if imports else "imports nothing"
    return f"A program of {lines} lines would run in {_name_of(chosen)}. It {uses}."


def _name_of(chosen: Proved) -> str:
    """Backend and strength: what was proved of it stands in the digest."""
    return f"{chosen.backend.name} ({chosen.strength.digest})"


def _written(result: Result) -> bytes:
    """What a model reads of a run. The status is the engine's word; output that was cut off is said to be."""
    told = {
        "status": result.status.value,
        "exit_code": result.exit_code,
        "stdout": result.stdout.text,
        "stderr": result.stderr.text,
    }
    if result.reason:
        told["reason"] = result.reason
    if result.stdout.truncated or result.stderr.truncated:
        told["truncated"] = True
    return json.dumps(told, ensure_ascii=False).encode()
