"""Fetching a model file from two peers over libp2p on loopback, each in a process of its own; prints one JSON record.

    python scripts/bench/blobs.py [--megabytes 200] [--kill | --restart]

``--kill`` ends one holder with SIGKILL half-way, ``--restart`` the fetching process itself, which then begins again;
the figures are those of its second run. ``rss_growth_mb`` is the peak of the fetching process above what it
needed before the first byte; ``bytes_ratio`` is what came from all peers over the size of the file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import record
import trio

from gnusnode.inference.artifacts.models import ModelStore
from gnusnode.net.blobs import Fetching, FetchLimits, Puller, TokenBucket, serve_blobs
from tests.fakes import blobworld
from tests.fakes.blobworld import ME
from tests.fakes.ggufs import tiny_gguf

HOLDERS = blobworld.HOLDERS[:2]
LISTEN = ("/ip4/127.0.0.1/tcp/0",)


def make_file(path: Path, megabytes: int) -> str:
    """A valid model of about that size; its sha256."""
    rng, digest = random.Random(1), hashlib.sha256()
    with path.open("wb") as file:
        for piece in (tiny_gguf(), *(rng.randbytes(10**6) for _ in range(megabytes))):
            file.write(piece)
            digest.update(piece)
    return f"sha256:{digest.hexdigest()}"


async def serve(number: int, folder: Path, file: Path) -> None:
    from gnusnode.net.p2p.host import open_net
    from gnusnode.net.p2p.options import NetOptions

    identity = HOLDERS[number]
    store = ModelStore(folder, reserve=0)
    await store.prepare()
    await store.add(file, "bench", mode="link")
    async with (
        open_net(identity.seed, NetOptions(listen=LISTEN)) as net,
        serve_blobs(net, store, identity, gate=lambda peer: None),
    ):
        print(json.dumps(net.addresses()), flush=True)
        await trio.sleep_forever()


async def fetch(folder: Path, sha256: str, addresses: list[list[str]], victim: int | None) -> dict[str, Any]:
    from gnusnode.net.p2p.host import open_net
    from gnusnode.net.p2p.options import NetOptions

    store = ModelStore(folder, reserve=0)
    await store.prepare()
    peers = [holder.peer_id for holder in HOLDERS]
    async with open_net(ME.seed, NetOptions(listen=LISTEN)) as net:
        for peer, known in zip(peers, addresses, strict=True):
            await net.connect(peer, known)
        roster = blobworld.roster(*HOLDERS)
        fetching = Fetching(net, lambda: roster, lambda peer, reason: None, FetchLimits(reserve=0), TokenBucket(0))
        puller = Puller(store, fetching, holders=lambda sha256: peers)
        before, started, cpu = _status_kb("VmRSS"), time.monotonic(), time.process_time()
        _forget_peak()

        def progress(done: int, total: int | None) -> None:
            nonlocal victim
            if victim is not None and total and done > total // 2:
                os.kill(victim or os.getpid(), signal.SIGKILL)
                victim = None

        pulled = await puller.pull(sha256, progress=progress)
        seconds = time.monotonic() - started
        received = sum(pulled.received.values())
        return {
            "bytes": pulled.model.size,
            "received": pulled.received,
            "bytes_ratio": round(received / pulled.model.size, 4),
            "seconds": round(seconds, 3),
            "mb_per_second": round(pulled.model.size / seconds / 1e6, 1),
            "fetcher_cpu_seconds": round(time.process_time() - cpu, 3),
            "rss_before_mb": round(before / 1024, 1),
            "rss_growth_mb": round((_status_kb("VmHWM") - before) / 1024, 1),
            "chunks_in_vain": fetching.statistics.chunks_in_vain,
            "sources_lost": fetching.statistics.sources_lost,
        }


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _status_kb(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


@contextmanager
def holders(folder: Path, file: Path) -> Iterator[list[tuple[subprocess.Popen[str], list[str]]]]:
    """Two serving processes and their addresses."""
    command = [sys.executable, __file__, "--folder"]
    running = [
        subprocess.Popen(
            [*command, str(folder / f"holder{n}"), "--serve", str(n), "--file", str(file)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(len(HOLDERS))
    ]
    try:
        yield [(process, json.loads(process.stdout.readline())) for process in running if process.stdout]
    finally:
        for process in running:
            process.kill()
            process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--kill", action="store_true", help="end one holder half-way")
    parser.add_argument("--restart", action="store_true", help="end the fetching process half-way, and begin again")
    for hidden in ("--folder", "--file", "--sha256", "--addresses"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    for hidden in ("--serve", "--victim"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--fetch", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.serve is not None:
        trio.run(partial(serve, given.serve, Path(given.folder), Path(given.file)))
        return 0
    if given.fetch:
        addresses = json.loads(given.addresses)
        print(json.dumps(trio.run(fetch, Path(given.folder), given.sha256, addresses, given.victim)))
        return 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        sha256 = make_file(folder / "model.gguf", given.megabytes)
        with holders(folder, folder / "model.gguf") as running:
            command = [sys.executable, __file__, "--fetch", "--folder", str(folder / "mine"), "--sha256", sha256]
            command += ["--addresses", json.dumps([addresses for _, addresses in running])]
            if given.restart:
                killed = subprocess.run([*command, "--victim", "0"], check=False, timeout=600)
                assert killed.returncode == -signal.SIGKILL
            command += ["--victim", str(running[1][0].pid)] if given.kill else []
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    record.emit("blobs", json.loads(done.stdout) | {"killed": given.kill, "restarted": given.restart})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
