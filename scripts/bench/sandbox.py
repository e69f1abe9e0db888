"""How long a job takes in a Docker sandbox, cold and warm, in milliseconds; prints one JSON record a line.

    python scripts/bench/sandbox.py [--socket /var/run/docker.sock] [--runs 20]

Makes and loads the image first where it is missing. ``cold`` starts a container for the job; ``warm`` finds the pool as
full as it wants to be and nothing else running. What ``cold`` takes includes the removal of the container, which a
node that serves its pool does later. The bars: 450 ms and 150 ms.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import record
import trio

from sandbox.run.docker import images
from sandbox.run.docker.backend import DEFAULT_SOCKET, DockerBackend
from sandbox.run.docker.engine import Engine
from sandbox.run.types import Job, Limits, Status

JOB = Job(source="print(6 * 7)")
PAUSE = 0.3
"""Seconds between jobs: what the last one left to do must not count."""


async def timed(backend: DockerBackend, *, warm: bool) -> float:
    began = time.perf_counter()
    result = await backend.run(JOB, Limits())
    took = (time.perf_counter() - began) * 1000
    if result.status is not Status.OK or result.warm is not warm:
        raise SystemExit(f"not the run that was to be measured: {result}")
    return took


async def cold(backend: DockerBackend, runs: int) -> list[float]:
    times: list[float] = []
    for _ in range(runs):
        times.append(await timed(backend, warm=False))
        await trio.sleep(PAUSE)
    return times


async def warm(backend: DockerBackend, runs: int) -> list[float]:
    times: list[float] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.keep_warm)
        await backend.run(JOB, Limits())
        for _ in range(runs):
            await trio.sleep(PAUSE)
            while not backend.is_full:  # noqa: ASYNC110 - the pool tells nobody when it is
                await trio.sleep(0.05)
            await trio.sleep(PAUSE)
            times.append(await timed(backend, warm=True))
        nursery.cancel_scope.cancel()
    return times


def emit(name: str, times: list[float], image_id: str) -> None:
    p95 = statistics.quantiles(times, n=20)[-1]
    record.emit(f"sandbox.docker.{name}_ms", {**record.spread(times, 1), "p95": round(p95, 1)}, image=image_id)


async def main(socket: str, runs: int) -> None:
    with tempfile.TemporaryDirectory(prefix="gnusnode-bench-") as directory:
        image = await images.provide(Engine(socket), Path(directory) / "image.tar")
    backend = DockerBackend(image_id=image.image_id, node="bench", socket=socket)
    emit("cold", await cold(backend, runs), image.image_id)
    emit("warm", await warm(backend, runs), image.image_id)
    began = time.perf_counter()
    report = await backend.self_test()
    seconds = round(time.perf_counter() - began, 2)
    record.emit("sandbox.docker.self_test_s", {"seconds": seconds, "passed": report.passed}, image=image.image_id)
    await backend.aclose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", default=DEFAULT_SOCKET, help="the engine's Unix socket")
    parser.add_argument("--runs", type=int, default=20, help="jobs of each kind")
    options = parser.parse_args()
    trio.run(main, options.socket, options.runs)
