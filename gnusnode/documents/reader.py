"""A document in, an ``Extract`` out: in this process where the parser is our own, in a confined one where it is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import trio

from gnusnode.documents import passing
from gnusnode.sanitize import document
from gnusnode.sanitize.extract import Extract, Refusal, Refused
from sandbox import wire, worker

WORKER: Final = "gnusnode.documents.worker"
_MAX_FRAME: Final = 48 * 1024 * 1024
_ENVIRONMENT: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Numerical libraries start a thread a core otherwise, each with its own address space."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one document may cost.

    Attributes:
        seconds: wall clock from start to answer.
        cpu_seconds: CPU of the worker.
        memory: bytes of its address space.
    """

    seconds: float = 30.0
    cpu_seconds: int = 30
    memory: int = 2 * 1024 * 1024 * 1024


async def read_document(
    data: bytes, declared: str = "", *, url: str = "", limits: Limits | None = None, module: str = WORKER
) -> Extract:
    """Takes a document apart.

    Args:
        declared: the content type that came with it; empty: none did.
        url: where it came from.
        module: what runs in the confined process.

    Raises:
        Refused: whatever went wrong, a crash, a time-out and a missing library of the parser among it. Then nothing of
            the document may be used.
    """
    kind = document.identify(data, declared)
    if kind not in document.NATIVE:
        return await trio.to_thread.run_sync(lambda: document.extract(data, declared, url=url))
    limits = limits or Limits()
    job: dict[str, object] = {
        "op": "read",
        "data": data,
        "declared": declared,
        "url": url,
        "memory": limits.memory,
        "cpu_seconds": limits.cpu_seconds,
    }
    with trio.move_on_after(limits.seconds) as scope:
        return await _ask(job, module)
    assert scope.cancelled_caught
    raise Refused(Refusal.PARSER_TIMEOUT, f"the parser took more than {limits.seconds:g} s")


async def _ask(job: dict[str, object], module: str) -> Extract:
    try:
        async with worker.open_worker(module, environment=_ENVIRONMENT, max_frame=_MAX_FRAME) as process:
            answer = await process.receive() if await process.send(job) else None
    except OSError as error:
        raise Refused(Refusal.PARSER_FAILED, "the parser process could not be started") from error
    except wire.FrameError as error:
        raise Refused(Refusal.PARSER_FAILED, "the parser process answered nonsense") from error
    if answer is None:
        raise Refused(Refusal.PARSER_FAILED, "the parser process died over the document")
    return passing.from_frame(answer)
