"""The sanitiser as the pipeline uses it: any output of a tool in, clean text and what was suspect out, or a refusal."""

from __future__ import annotations

from typing import Final

import trio

from gnusnode.documents.reader import read_document
from gnusnode.errors import Unprocessable
from gnusnode.sanitize import kinds, output
from gnusnode.sanitize.extract import Refused
from gnusnode.sanitize.findings import Point
from gnusnode.sanitize.output import SANITIZER_VERSION
from roles.intermediary.pipeline import Clean
from roles.intermediary.tools.base import ToolOutput

_TAKEN_APART: Final = output.DOCUMENTS | {kinds.Media.PDF.value}


class Sanitizer:
    """See ``Cleaner``. Work beside the loop; parsers that are not our own in a confined process."""

    version: str = SANITIZER_VERSION

    async def __call__(self, tool_call_id: str, given: ToolOutput) -> Clean:
        """Raises ``Unprocessable``: of a type that nobody can clean, damaged, or the parser failed."""
        clean = await self._clean(given)
        record = output.record(tool_call_id, given.data, clean)
        if given.longest is not None and len(record.plain_text) > given.longest:
            # Cut after cleaning: a cut could take the half by which something is known.
            record = record.model_copy(update={"plain_text": record.plain_text[: given.longest]})
        suspect = {one.kind.value for one in clean.findings if one.severity.counts_at(Point.FLAG)}
        return Clean(record, tuple(sorted(suspect)))

    async def _clean(self, given: ToolOutput) -> output.Clean:
        essence = given.media_type.partition(";")[0].strip().lower()
        declared = f"{given.media_type}; charset={given.charset}" if given.charset else given.media_type
        if essence not in _TAKEN_APART:
            return await trio.to_thread.run_sync(output.sanitize, given.data, declared)
        try:
            extract = await read_document(given.data, declared, url=given.source)
        except Refused as refused:
            where = refused.reason.value
            raise Unprocessable(refused.detail, where=where, hint="nothing of it can be used") from refused
        return await trio.to_thread.run_sync(output.from_extract, extract)
