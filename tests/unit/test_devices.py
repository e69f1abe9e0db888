"""What the machine has, and where the layers go."""

from __future__ import annotations

import sys

import pytest
import trio

from gnusnode.inference.devices import Device, DeviceReport, available_ram, probe_devices
from gnusnode.inference.layers import MIN_RESERVE, place, step_down, usable
from tests.fakes.engines import MIB, gpu, header

PLENTY = 64 * 1024 * MIB


def says(code: str) -> list[str]:
    return [sys.executable, "-c", f"import os,sys,time\n{code}"]


@pytest.mark.model
async def test_the_real_probe_finds_a_cpu() -> None:
    report = await probe_devices()
    assert not report.error
    assert [device.kind for device in report.devices].count("cpu") == 1
    assert all(device.total >= device.free >= 0 for device in report.devices)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("os._exit(0)", "ended with status 0"),
        ("os.write(1, b'CUDA error: no device\\n')", "nonsense"),
        ("os.write(1, b'\\0\\0\\0\\1\\xa0')", ""),
        ("os.write(1, bytes.fromhex('0000000aa167646576696365736178'))", "nonsense"),
    ],
    ids=["crash", "silence", "noise", "empty", "wrong type"],
)
async def test_a_probe_that_goes_wrong_is_an_answer(code: str, expected: str) -> None:
    with trio.fail_after(30):
        report = await probe_devices(command=says(code))
    assert report.devices == ()
    assert expected in report.error


async def test_a_probe_that_hangs_is_given_up() -> None:
    with trio.fail_after(30):
        report = await probe_devices(timeout=0.3, command=says("time.sleep(60)"))
    assert "did not answer" in report.error


async def test_a_probe_that_cannot_start_is_an_answer() -> None:
    assert "could not be started" in (await probe_devices(command=["/nonexistent"])).error


def test_integrated_gpus_count_only_where_there_is_no_other_and_the_build_can() -> None:
    igpu = gpu(1000, "iGPU").model_copy(update={"kind": "igpu"})
    cpu = Device(name="CPU", description="", kind="cpu", free=1, total=1)
    assert DeviceReport(devices=(cpu, igpu, gpu(10)), offload=True).gpus == (gpu(10),)
    assert DeviceReport(devices=(cpu, igpu), offload=True).gpus == (igpu,)
    assert DeviceReport(devices=(cpu, igpu, gpu(10)), offload=False).gpus == ()


def test_there_is_memory() -> None:
    assert available_ram() > 0


def test_a_reserve_is_left_on_a_device() -> None:
    assert usable(100 * MIB) == 0
    assert usable(1024 * MIB) == 1024 * MIB - MIN_RESERVE
    assert usable(100_000 * MIB) == 90_000 * MIB


def test_without_a_gpu_all_is_on_the_cpu_and_says_why() -> None:
    placement = place(header(), n_ctx=1024, gpus=(), ram=PLENTY)
    assert (placement.gpu_layers, placement.device, placement.gpu_bytes) == (0, "cpu", 0)
    assert "no usable GPU" in placement.reason
    assert not placement.refused


def test_a_large_gpu_takes_every_layer_and_the_output() -> None:
    placement = place(header(layers=10), n_ctx=1024, gpus=(gpu(20_000),), ram=PLENTY)
    assert placement.gpu_layers == 11
    # layers, embeddings, and 1024 tokens x 10 layers x 8 heads x (64 + 64) x 2 bytes of cache
    assert placement.gpu_bytes == 1200 * MIB + 1024 * 10 * 8 * 128 * 2
    assert "all 10 layers" in placement.reason


def test_a_small_gpu_takes_as_many_layers_as_fit_and_says_what_one_more_would_need() -> None:
    placement = place(header(layers=10), n_ctx=1024, gpus=(gpu(512 + 450),), ram=PLENTY)
    assert placement.gpu_layers == 4
    assert "4 of 10 layers" in placement.reason
    assert "one more" in placement.reason


def test_a_longer_context_leaves_room_for_fewer_layers() -> None:
    short = place(header(), n_ctx=1024, gpus=(gpu(1500),), ram=PLENTY)
    long = place(header(), n_ctx=65_536, gpus=(gpu(1500),), ram=PLENTY)
    assert long.gpu_layers < short.gpu_layers


def test_two_gpus_share_the_layers() -> None:
    assert place(header(), n_ctx=128, gpus=(gpu(1000), gpu(1000, "CUDA1")), ram=PLENTY).gpu_layers == 9


def test_a_ceiling_is_kept_and_named() -> None:
    placement = place(header(), n_ctx=128, gpus=(gpu(20_000),), ram=PLENTY, at_most=3)
    assert placement.gpu_layers == 3
    assert "ceiling" in placement.reason


def test_a_model_that_cannot_fit_into_memory_is_refused_with_the_figures() -> None:
    placement = place(header(), n_ctx=1024, gpus=(), ram=500 * MIB)
    assert "1.3 GiB" in placement.refused
    assert "500 MiB" in placement.refused


@pytest.mark.parametrize(
    ("gpus", "ram", "own"),
    [((), PLENTY, True), ((), 3000 * MIB, True), ((), 1500 * MIB, False), ((gpu(20_000),), PLENTY, False)],
)
def test_weights_lie_in_memory_of_their_own_only_on_a_cpu_that_has_plenty(
    gpus: tuple[Device, ...], ram: int, own: bool
) -> None:
    placement = place(header(), n_ctx=1024, gpus=gpus, ram=ram)
    assert not placement.refused
    assert placement.own_weights is own


def test_layers_on_a_gpu_take_no_main_memory() -> None:
    assert not place(header(), n_ctx=1024, gpus=(gpu(20_000),), ram=500 * MIB).refused


@pytest.mark.parametrize(("layers", "steps"), [(33, [16, 8, 0]), (2, [1, 0]), (1, [0]), (0, [])])
def test_stepping_down_ends_at_the_cpu(layers: int, steps: list[int]) -> None:
    assert list(step_down(layers)) == steps
