"""``fs.write``: creates or replaces one text file in one step, exactly as the difference that was shown says."""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Final, Literal

import trio
from pydantic import StringConstraints

from gnusnode.contracts import ids
from gnusnode.contracts.tools import DryRunResult, ToolProposal
from gnusnode.errors import DataError, NotFound, TooLarge, ToolBlocked
from gnusnode.policy.labels import Confidentiality, Width
from gnusnode.policy.sinks import Authors, Effect, Output, Sink, SinkKind, ToolDescription
from roles.intermediary.tools.base import (
    Arguments,
    Category,
    Scope,
    ToolManifest,
    ToolOutput,
    is_same_prediction,
    predicted,
    read_arguments,
    reason_of,
    refused,
)
from roles.intermediary.tools.beneath import Place, Roots, find_file, write_file

MAX_FILE: Final = 1024 * 1024
"""Bytes of the file that is replaced."""
_LINES: Final = 4000
"""More lines than this are not compared: the time of a comparison can grow with their square."""
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")


class WriteArguments(Arguments):
    path: Annotated[str, StringConstraints(min_length=2, max_length=1024)]
    """Absolute; its directory must be there."""
    content: Annotated[str, StringConstraints(max_length=65_536)]
    mode: Literal["create", "replace"] = "create"


MANIFEST: Final = ToolManifest(
    description=ToolDescription(
        name="fs.write",
        capability="tool:fs.write",
        effect=Effect.DESTROY,
        sinks=(
            Sink(argument="path", kind=SinkKind.PATH, width=Width.OWN),
            Sink(argument="content", kind=SinkKind.BODY, width=Width.OWN),
            Sink(argument="mode", kind=SinkKind.COMMAND, width=Width.OWN),
        ),
        output=Output(authors=Authors.STORE, stamped=("*",), confidentiality=Confidentiality.PRIVATE),
    ),
    category=Category.FILES,
    summary="Create a text file, or replace one.",
    arguments=WriteArguments,
)


class FsWrite:
    """See ``Tool``. A person is always asked: the file system is not read-only then."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    @property
    def manifest(self) -> ToolManifest:
        return MANIFEST

    async def dry_run(self, call: ToolProposal, scope: Scope) -> DryRunResult:
        """See ``Tool``; the preview is the difference to what is there now."""
        return (await self._predict(call, scope))[0]

    async def run(self, call: ToolProposal, scope: Scope, predicted: DryRunResult) -> ToolOutput:
        """See ``Tool``; blocked with STATE_CHANGED where the dry-run would give another result by now."""
        again, found = await self._predict(call, scope)
        if not is_same_prediction(again, predicted):
            raise ToolBlocked("STATE_CHANGED", "the file is no longer what it was when this was agreed to")
        if not again.dry_run_ok:
            raise ToolBlocked(reason_of(again), "the dry-run was refused", where=again.mock_output.preview)
        arguments, place = self._read(call, scope)
        data = arguments.content.encode()
        await trio.to_thread.run_sync(lambda: write_file(place, data, replaces=found))
        said = f"wrote {len(data)} bytes to {place}, {ids.sha256(data)}"
        return ToolOutput(data=said.encode(), media_type="text/plain", source=f"file://{place}")

    async def _predict(self, call: ToolProposal, scope: Scope) -> tuple[DryRunResult, bytes | None]:
        """The dry-run, and what is in the file's place now."""
        await trio.lowlevel.checkpoint()
        try:
            arguments, place = self._read(call, scope)
            found = await trio.to_thread.run_sync(find_file, place, MAX_FILE)
            _require_mode(arguments, place, there=found is not None)
        except ToolBlocked as error:
            return refused(call, error), None
        except (NotFound, TooLarge, DataError) as error:
            return refused(call, ToolBlocked("FILE_UNWRITABLE", error.what, where=error.where)), None
        preview = await trio.to_thread.run_sync(difference, str(place), found, arguments.content)
        result = predicted(
            call,
            preview=preview,
            media_type="text/x-diff",
            files=(str(place),),
            flags=("file_write", *(("hidden_file",) if place.hidden else ())),
            asks=True,
        )
        return result, found

    def _read(self, call: ToolProposal, scope: Scope) -> tuple[WriteArguments, Place]:
        arguments = read_arguments(WriteArguments, call)
        return arguments, self._roots.place(arguments.path, scope.paths)


def _require_mode(arguments: WriteArguments, place: Place, *, there: bool) -> None:
    if arguments.mode == "create" and there:
        raise ToolBlocked("FILE_EXISTS", "there is a file of this name already", where=str(place))
    if arguments.mode == "replace" and not there:
        raise ToolBlocked("FILE_MISSING", "there is no file to replace", where=str(place))


def difference(path: str, old: bytes | None, new: str) -> str:
    """What changes, as a unified diff under a line of digests, which bind what a long diff does not show."""
    before = "nothing" if old is None else f"{len(old)} bytes {ids.sha256(old)}"
    after = new.encode()
    head = f"# {path}: {before} -> {len(after)} bytes {ids.sha256(after)}\n"
    try:
        text = (old or b"").decode("utf-8")
    except UnicodeDecodeError:
        return f"{head}# the old content is not text\n{new}"
    ours, theirs = _LINE.findall(text), _LINE.findall(new)
    if len(ours) + len(theirs) > _LINES:
        return f"{head}# too many lines to compare; the new content is:\n{new}"
    source = "/dev/null" if old is None else path
    lines = difflib.unified_diff(ours, theirs, source, path, n=3)
    return head + "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
