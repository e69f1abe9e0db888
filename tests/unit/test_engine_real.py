"""The parent's promises with the real child and a real model."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from gnusnode.contracts.generation import ContextProfile, EngineState, Started
from gnusnode.errors import EngineFailed, ModelInvalid
from gnusnode.inference.artifacts.gguf import read_header
from gnusnode.inference.devices import probe_devices
from gnusnode.inference.frames import ChildSpec
from gnusnode.inference.limits import EngineLimits
from gnusnode.inference.manager import open_manager
from gnusnode.inference.process import open_llama
from gnusnode.inference.residency import HostedModel
from sandbox import confine
from tests.fakes.engines import ARTIFACT, alive, collect, generation, real_model

pytestmark = pytest.mark.model

PATIENCE = 90.0
LIMITS = EngineLimits(ping_every=0.1, silent_after=1.5)


def spec(path: Path | None = None, **fields: object) -> ChildSpec:
    return ChildSpec.model_validate(
        {
            "model_path": str(path or real_model()),
            "model_name": "smollm2",
            "artifact_hash": ARTIFACT,
            "n_ctx": 1024,
            "slots": 4,
            "threads": 1,
            **fields,
        }
    )


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGSTOP], ids=lambda number: number.name)
async def test_streams_of_a_child_that_is_struck_fail_typed_and_a_new_one_gives_the_same_answer(
    number: signal.Signals,
) -> None:
    with trio.fail_after(PATIENCE):
        async with open_llama(spec(), limits=LIMITS) as engine:
            before = (await collect(engine, generation("The sea is")))[2].tokens
            first = engine.pid
            assert first is not None

            async def struck() -> None:
                async with engine.generate(generation("Once upon a time", max_tokens=400)) as events:
                    async for event in events:
                        if not isinstance(event, Started):
                            os.kill(first, number)

            with pytest.raises(EngineFailed):
                await struck()
            assert (await collect(engine, generation("The sea is")))[2].tokens == before
            assert not alive(first)
            assert engine.info().restarts == 1


@pytest.mark.requirement("G-EX-5")
async def test_the_child_runs_confined() -> None:
    async with open_llama(spec()) as engine:
        status = Path(f"/proc/{engine.pid}/status").read_text()
        environment = Path(f"/proc/{engine.pid}/environ").read_bytes()
        sockets = [os.readlink(entry) for entry in Path(f"/proc/{engine.pid}/fd").iterdir()]
        reason = engine.info().reason
    assert "Seccomp:\t2" in status
    assert "NoNewPrivs:\t1" in status
    assert "confined" in reason
    assert "PATH=" not in environment.decode().replace("PYTHONPATH=", "")
    assert not [link for link in sockets if link.startswith("socket:")]


@pytest.mark.parametrize("own", [True, False])
async def test_weights_are_mapped_from_the_file_or_lie_in_memory_of_the_child(own: bool) -> None:
    async with open_llama(spec(own_weights=own)) as engine:
        maps = Path(f"/proc/{engine.pid}/smaps").read_text()
        answer = await collect(engine, generation("The sea is"))
    assert (real_model().name in maps) is not own
    huge = sum(int(line.split()[1]) for line in maps.splitlines() if line.startswith("AnonHugePages:"))
    if own and "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        assert huge * 1024 > real_model().stat().st_size / 2
    assert answer[2].tokens


HOST = """
import sys, trio
from gnusnode.inference.frames import ChildSpec
from gnusnode.inference.process import open_llama
async def main():
    async with open_llama(ChildSpec.model_validate_json(sys.argv[1])) as engine:
        print(engine.pid, flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


async def test_a_host_that_is_killed_leaves_no_child_not_even_a_stopped_one() -> None:
    command = [sys.executable, "-P", "-c", HOST, spec().model_dump_json()]
    with trio.fail_after(PATIENCE):
        host = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, env=confine.launch_environment())
        assert host.stdout is not None
        pid = int(await host.stdout.receive_some())
        os.kill(pid, signal.SIGSTOP)
        host.kill()
        await host.wait()
        await host.stdout.aclose()
        while alive(pid):
            await trio.sleep(0.01)  # not our child: its end is no event for us


async def test_a_damaged_file_is_refused_or_kills_the_child_only(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(real_model().read_bytes()[:1_000_000])
    with trio.fail_after(PATIENCE), pytest.raises((ModelInvalid, EngineFailed)):
        async with open_llama(spec(damaged), limits=LIMITS):
            pass


async def test_the_canonical_engine_is_of_class_a_and_shows_its_place() -> None:
    path = real_model()
    hosted = HostedModel(
        name="smollm2",
        path=str(path),
        artifact_hash="sha256:" + hashlib.sha256(path.read_bytes()).hexdigest(),
        header=read_header(path),
        n_ctx=512,
        slots=3,
        threads=1,
    )
    with trio.fail_after(PATIENCE):
        async with open_manager([hosted], devices=await probe_devices()) as manager:
            engine = await manager.engine("smollm2", ContextProfile.CANONICAL)
            info = engine.info()
            await collect(engine, generation(profile=ContextProfile.CANONICAL))
    assert info.state is EngineState.READY
    assert info.determinism == "A"
    assert info.device == "cpu"
    assert "CPU" in info.reason
    assert info.rss_bytes > 0
