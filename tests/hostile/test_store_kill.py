"""kill -9 of a writing node: nothing that was acknowledged is lost, and the store opens as if nothing had happened."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import gnusnode
from gnusnode.identity import NodeIdentity
from gnusnode.store import Store, open_store
from gnusnode.store.audit import open_audit
from gnusnode.store.blobs import open_blobs
from gnusnode.store.check import check_data_file
from gnusnode.store.tables import PLANS

ROOT = Path(gnusnode.__file__).parents[1]
SIGNER = NodeIdentity(bytes(range(32)))
KILLS = 20
TASKS = 8


def _value(key: bytes) -> bytes:
    seed = hashlib.sha256(key).digest()
    return seed * (1 + seed[0] % 120)


async def _write_for_ever(home: Path) -> None:
    """Writes with several tasks and says on standard output what was acknowledged, a line each."""
    blobs = await open_blobs(home / "blobs")
    run = os.urandom(6).hex()

    async def put(store: Store, task: int) -> None:
        for number in range(1_000_000):
            key = f"{run}-{task}-{number}".encode()
            await store.put(PLANS, key, _value(key))
            os.write(1, b"put %b\n" % key)

    async def keep(task: int) -> None:
        for number in range(1_000_000):
            key = f"{run}-blob-{task}-{number}".encode()
            address = await blobs.put(_value(key) * 20)
            os.write(1, b"blob %b\n" % address.encode())

    async with open_store(home / "store") as store:
        tool = (await open_audit(store, SIGNER)).writer("tool")
        async with trio.open_nursery() as nursery:
            for task in range(TASKS):
                nursery.start_soon(put, store, task)
            nursery.start_soon(keep, 0)
            while True:
                event = await tool.append("tool.result", output_sha256="sha256:" + "0" * 64)
                os.write(1, b"event %d\n" % event.seq)


def run_and_kill(home: Path, acknowledgements: int) -> list[list[bytes]]:
    """What a child that was killed after so many acknowledgements had acknowledged in all."""
    command = [sys.executable, __file__, str(home)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(acknowledgements)]
        child.kill()
        lines += child.stdout.readlines()
    assert all(lines[:acknowledgements]), "the child ended by itself"
    return [line.split() for line in lines if line.endswith(b"\n")]


async def compare(home: Path, acknowledged: list[list[bytes]]) -> None:
    async with open_store(home / "store") as store:
        blobs = await open_blobs(home / "blobs")
        log = await open_audit(store, SIGNER)
        for kind, name in acknowledged:
            match kind:
                case b"put":
                    assert store.get(PLANS, name) == _value(name)
                case b"blob":
                    assert await blobs.verify(name.decode())
                case _:
                    assert log.length > int(name)
        assert (await log.verify()).broken is None
        assert list((home / "blobs" / "tmp").iterdir()) == []


@pytest.mark.slow
def test_no_acknowledged_write_is_lost_by_kill_9(tmp_path: Path) -> None:
    dice = random.Random(9)
    for _ in range(KILLS):
        acknowledged = run_and_kill(tmp_path, dice.randrange(1, 400))
        report = check_data_file(tmp_path / "store" / "data.mdb", budget=None)
        assert report.complete
        trio.run(compare, tmp_path, acknowledged)


if __name__ == "__main__":
    trio.run(_write_for_ever, Path(sys.argv[1]))
