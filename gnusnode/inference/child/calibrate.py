"""What a context can do on this machine: its speed, the threads that serve it best, and whether batching is exact."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Final

import psutil

from gnusnode.inference.child.native import Batch, Context, NativeError

_PROBE_PROMPT: Final = 32
_PROBE_STEPS: Final = 4
_TIE: Final = 1.1
"""More threads must be faster by this factor: a tie goes to fewer, which leaves the host some."""


@dataclass(frozen=True)
class Speed:
    """Tokens per second, wall clock, of all streams together. Measured with one, then as many as run."""

    prefill: float
    decode: float


def physical_cores() -> int:
    """Cores this process may use; hyper-threads of one core count once, as they share its vector units."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


def counted(count: int, thing: str) -> str:
    """``1 core``, ``2 cores``."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def choose_threads(context: Context, asked: int, cores: int) -> tuple[int, Speed]:
    """Set and return the thread count: the one asked for, or the fastest from 1, 2, 4… up to ``cores``.

    Stops at the first count that does not pay, so a host with many cores is not measured to the end.
    """
    if asked:
        context.set_threads(asked, asked)
        _warm_up(context)
        return asked, measure(context)
    threads = 1
    context.set_threads(1, 1)
    _warm_up(context)
    best = measure(context)
    for count in _ladder(cores):
        context.set_threads(count, count)
        speed = measure(context)
        if _cost(speed) * _TIE > _cost(best):
            break
        threads, best = count, speed
    context.set_threads(threads, threads)
    return threads, best


def measure(context: Context) -> Speed:
    """Prefill and decode rates over a few tokens. Leaves the memory of the context empty."""
    batch = Batch(_PROBE_PROMPT)
    context.clear()
    start = time.perf_counter()
    batch.extend([0] * _PROBE_PROMPT, 0, 0, _PROBE_PROMPT - 1)
    _run(context, batch)
    middle = time.perf_counter()
    for step in range(_PROBE_STEPS):
        batch.clear()
        batch.add(0, _PROBE_PROMPT + step, 0)
        _run(context, batch)
    end = time.perf_counter()
    context.clear()
    return Speed(_PROBE_PROMPT / (middle - start), _PROBE_STEPS / (end - middle))


def batching_is_exact(context: Context) -> bool:
    """Whether a token gets the same bits alone and beside another sequence. Leaves the memory of the context empty.

    True of llama.cpp's plain CPU kernels; one that picks its method by the size of the batch is found out here.
    """
    rows: list[bytes] = []
    for companions in ((), (1,)):
        context.clear()
        for seq in (0, *companions):
            batch = Batch(_PROBE_PROMPT)
            batch.extend([seq] * _PROBE_PROMPT, 0, seq, _PROBE_PROMPT - 1)
            _run(context, batch)
        step = Batch(2)
        row = step.add(0, _PROBE_PROMPT, 0)
        for seq in companions:
            step.add(1, _PROBE_PROMPT, seq)
        _run(context, step)
        rows.append(context.logits(row).tobytes())
    context.clear()
    return rows[0] == rows[1]


def _warm_up(context: Context) -> None:
    """The first decode reads the weights from the disk."""
    batch = Batch(1)
    batch.add(0, 0, 0)
    _run(context, batch)


def _run(context: Context, batch: Batch) -> None:
    if context.decode(batch) != 0:
        raise NativeError("the speed probe does not fit the context")
    context.synchronize()


def _ladder(cores: int) -> list[int]:
    counts = [2**power for power in range(1, 10) if 2**power < cores]
    return [*counts, cores] if cores > 1 else []


def _cost(speed: Speed) -> float:
    """Seconds of a typical request: four prompt tokens for each token of the answer."""
    return 4 / speed.prefill + 1 / speed.decode
