"""Measures the store and prints one JSON record a line.

    python scripts/bench/store.py [--dir DIR] [--seconds 3] [--kills 50]

Durable writes per second (1 KB values, each acknowledged after its fsync) with 1, 16 and 128 tasks, and the loop's lag;
audit events appended and verified; blob MB/s written and verified; time to open; acknowledged writes lost by kill -9.
What an fsync costs decides most of it, so every record carries the cost of a plain one.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

import record  # noqa: E402 - stands beside this file

from gnusnode.identity import NodeIdentity  # noqa: E402 - found through the line above
from gnusnode.store import Store, open_store  # noqa: E402
from gnusnode.store.audit import open_audit  # noqa: E402
from gnusnode.store.blobs import open_blobs  # noqa: E402
from gnusnode.store.check import check_data_file  # noqa: E402
from gnusnode.store.tables import PLANS, from_u64, u64  # noqa: E402

VALUE = os.urandom(1024)
MIB = 1024 * 1024


def emit(bench: str, directory: Path, **figures: Any) -> None:
    record.emit(f"store.{bench}", figures, filesystem=filesystem(directory), fsync_ms=fsync_ms(directory))


def filesystem(directory: Path) -> str:
    done = subprocess.run(["stat", "-f", "-c", "%T", str(directory)], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def fsync_ms(directory: Path) -> float:
    """Median of 50 appends of 4 KB with fsync."""
    times: list[float] = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(50):
            file.write(bytes(4096))
            begin = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begin)
    return round(sorted(times)[25] * 1000, 3)


class LoopLag:
    """How late the loop wakes a task that sleeps 5 ms."""

    def __init__(self) -> None:
        self.samples: list[float] = []

    async def watch(self) -> None:
        while True:
            due = trio.current_time() + 0.005
            await trio.sleep_until(due)
            self.samples.append((trio.current_time() - due) * 1000)

    def figures(self) -> dict[str, float]:
        ordered = sorted(self.samples)
        return {
            "loop_lag_p50_ms": round(ordered[len(ordered) // 2], 2),
            "loop_lag_p99_ms": round(ordered[len(ordered) * 99 // 100], 2),
            "loop_lag_max_ms": round(ordered[-1], 2),
        }


@contextmanager
def cpu() -> Iterator[dict[str, float]]:
    figures: dict[str, float] = {}
    begin, begin_cpu = time.perf_counter(), time.process_time()
    yield figures
    figures["wall_s"] = round(time.perf_counter() - begin, 3)
    figures["cpu_s"] = round(time.process_time() - begin_cpu, 3)


async def durable_writes(directory: Path, tasks: int, seconds: float) -> None:
    lag = LoopLag()
    latencies: list[float] = []

    async def write(store: Store, task: int) -> None:
        number = 0
        while True:
            begin = time.perf_counter()
            await store.put(PLANS, os.urandom(8) + u64(task) + u64(number), VALUE)
            latencies.append((time.perf_counter() - begin) * 1000)
            number += 1

    async with open_store(directory / f"writes-{tasks}") as store:
        with cpu() as spent:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lag.watch)
                for task in range(tasks):
                    nursery.start_soon(write, store, task)
                await trio.sleep(seconds)
                nursery.cancel_scope.cancel()
    ordered = sorted(latencies)
    emit(
        "durable_writes",
        directory,
        tasks=tasks,
        writes=len(ordered),
        writes_per_s=round(len(ordered) / spent["wall_s"]),
        latency_p50_ms=round(ordered[len(ordered) // 2], 2),
        latency_p99_ms=round(ordered[len(ordered) * 99 // 100], 2),
        **lag.figures(),
        **spent,
    )


async def audit_events(directory: Path, tasks: int, seconds: float) -> None:
    count = 0
    async with open_store(directory / "audit") as store:
        log = await open_audit(store, NodeIdentity.generate())
        tool = log.writer("tool")

        async def write() -> None:
            nonlocal count
            while True:
                await tool.append("tool.result", output_sha256="sha256:" + "0" * 64, ok=True)
                count += 1

        with cpu() as spent:
            async with trio.open_nursery() as nursery:
                for _ in range(tasks):
                    nursery.start_soon(write)
                await trio.sleep(seconds)
                nursery.cancel_scope.cancel()
        emit("audit_append", directory, tasks=tasks, events=count, events_per_s=round(count / spent["wall_s"]), **spent)
        with cpu() as spent:
            report = await log.verify()
        assert report.broken is None
        emit(
            "audit_verify",
            directory,
            events=report.checked,
            events_per_s=round(report.checked / spent["wall_s"]),
            **spent,
        )


async def blob_throughput(directory: Path, mib: int) -> None:
    blobs = await open_blobs(directory / "blobs")
    chunk = os.urandom(MIB)
    lag = LoopLag()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lag.watch)
        with cpu() as spent:
            async with blobs.writer(size=mib * MIB) as writer:
                for _ in range(mib):
                    await writer.write(chunk)
                address = await writer.commit()
        emit(
            "blob_write", directory, mib=mib, mb_per_s=round(mib * 1.048576 / spent["wall_s"]), **lag.figures(), **spent
        )
        with cpu() as spent:
            assert await blobs.verify(address)
        emit("blob_verify", directory, mib=mib, mb_per_s=round(mib * 1.048576 / spent["wall_s"]), **spent)
        nursery.cancel_scope.cancel()


async def opening(directory: Path, entries: int) -> None:
    home = directory / "opening"
    async with open_store(home) as store:
        for part in range(0, entries, 5000):
            numbers = range(part, min(part + 5000, entries))
            await store.write(lambda txn, numbers=numbers: [txn.put(PLANS, u64(n), VALUE) for n in numbers])
    with cpu() as spent:
        async with open_store(home) as store:
            spent["entries"] = from_u64(store.scan(PLANS, reverse=True, limit=1)[0][0]) + 1
    emit("open", directory, **spent)
    with cpu() as spent:
        report = check_data_file(home / "data.mdb", budget=None)
    emit("check_whole", directory, pages=report.pages_checked, **spent)


def kills(directory: Path, count: int) -> None:
    """Runs the kill test's own child and comparison ``count`` times; any loss raises."""
    sys.path.insert(0, str(REPOSITORY / "tests" / "hostile"))
    import test_store_kill as kill

    dice, acknowledged = random.Random(50), 0
    home = directory / "kills"
    with cpu() as spent:
        for _ in range(count):
            lines = kill.run_and_kill(home, dice.randrange(1, 400))
            acknowledged += len(lines)
            assert check_data_file(home / "store" / "data.mdb", budget=None).complete
            trio.run(kill.compare, home, lines)
    emit("kill_9", directory, kills=count, acknowledged=acknowledged, lost=0, **spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=None, help="where to write; the file system that is measured")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--blob-mib", type=int, default=256)
    parser.add_argument("--entries", type=int, default=50_000)
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="gnusnode-bench-", dir=arguments.dir))
    try:
        for tasks in (1, 16, 128):
            trio.run(durable_writes, directory, tasks, arguments.seconds)
        trio.run(audit_events, directory, 16, arguments.seconds)
        trio.run(blob_throughput, directory, arguments.blob_mib)
        trio.run(opening, directory, arguments.entries)
        kills(directory, arguments.kills)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
