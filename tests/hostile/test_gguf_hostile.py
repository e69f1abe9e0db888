"""Malformed model files: each is refused by our own reader, before native code sees it."""

from __future__ import annotations

import math
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnusnode.errors import ModelInvalid
from gnusnode.inference.artifacts import ggufwire
from gnusnode.inference.artifacts.gguf import parse_header, read_header
from tests.fakes.ggufs import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U8,
    U32,
    U64,
    GgufMaker,
    array,
    packaged_model,
    text,
    tiny_gguf,
    value,
)

Change = Callable[[GgufMaker], None]


def pair(key: str, kind: int, plain: object) -> Change:
    def change(maker: GgufMaker) -> None:
        maker.pairs[key] = value(kind, plain)

    return change


def raw(key: str, kind: int, body: bytes) -> Change:
    def change(maker: GgufMaker) -> None:
        maker.pairs[key] = (kind, body)

    return change


def without(key: str) -> Change:
    return lambda maker: maker.pairs.pop(key) and None


def tensor(index: int, name: str | None = None, dims: tuple[int, ...] | None = None, kind: int | None = None) -> Change:
    def change(maker: GgufMaker) -> None:
        old = maker.tensors[index]
        maker.tensors[index] = (name or old[0], old[1] if dims is None else dims, old[2] if kind is None else kind)

    return change


def attribute(name: str, plain: object) -> Change:
    return lambda maker: setattr(maker, name, plain)


CASES: dict[str, tuple[Change, str]] = {
    # counts and lengths that the file does not have
    "huge tensor count": (attribute("tensor_count", 2**62), "over the limit"),
    "negative tensor count": (attribute("tensor_count", 2**64 - 1), "over the limit"),
    "tensor count beyond the file": (attribute("tensor_count", 30_000), "do not fit"),
    "no tensors": (attribute("tensors", []), "token_embd"),
    "huge key count": (attribute("pair_count", 2**61), "over the limit"),
    "key count beyond the file": (attribute("pair_count", 4_000), "do not fit"),
    "fewer keys than said": (attribute("pair_count", 25), "byte"),
    "version 99": (attribute("version", 99), "version 99"),
    "version 1": (attribute("version", 1), "version 1"),
    "big-endian": (attribute("version", 3 << 24), "big-endian"),
    "huge string": (raw("x.y", STRING, struct.pack("<Q", 2**63)), "over the limit"),
    "string beyond the file": (raw("x.y", STRING, struct.pack("<Q", 900_000)), "inside its header"),
    "huge array": (raw("x.y", ARRAY, struct.pack("<IQ", U32, 2**60)), "over the limit"),
    "array beyond the file": (raw("x.y", ARRAY, struct.pack("<IQ", U32, 1_000_000)), "do not fit"),
    "string array beyond the file": (raw("x.y", ARRAY, struct.pack("<IQ", STRING, 1_000_000)), "do not fit"),
    "string of an array over the limit": (
        raw("x.y", ARRAY, struct.pack("<IQQ", STRING, 1, 2**40)),
        "over the limit",
    ),
    "nested array": (raw("x.y", ARRAY, struct.pack("<IQ", ARRAY, 1)), "nested"),
    "unknown value type": (raw("x.y", 77, b""), "unknown value type"),
    "truth value of 7": (raw("x.y", BOOL, b"\x07"), "truth value"),
    "number that is none": (pair("x.y", F32, math.nan), "finite"),
    "infinite number": (pair("x.y", F32, math.inf), "finite"),
    "value not UTF-8": (raw("x.y", STRING, text(b"\xff\xfe")), "UTF-8"),
    "key with control characters": (pair("x\x1by", U32, 1), "printable"),
    "empty key": (pair("", U32, 1), "empty"),
    "long key": (pair("k" * 300, U32, 1), "over the limit"),
    # the tensor table
    "no dimensions": (tensor(3, dims=()), "dimensions"),
    "five dimensions": (tensor(3, dims=(1, 1, 1, 1, 1)), "dimensions"),
    "dimension zero": (tensor(3, dims=(0, 8)), "outside"),
    "dimension that overflows": (tensor(3, dims=(2**63, 2)), "outside"),
    "product that overflows": (tensor(3, dims=(2**39, 2**39, 2**39)), "more than the whole file"),
    "unknown tensor type": (tensor(3, kind=77), "unknown tensor type"),
    "type that was removed": (tensor(3, kind=4), "unknown tensor type"),
    "rows that blocks do not divide": (tensor(3, kind=8), "multiple"),
    "tensor twice": (tensor(3, name="token_embd.weight"), "twice"),
    "long tensor name": (tensor(3, name="n" * 64), "over the limit"),
    "overlapping tensors": (lambda m: m.offsets.update({"blk.0.attn_q.weight": 0}), "ends at"),
    "unaligned tensor": (lambda m: m.offsets.update({"blk.0.attn_norm.weight": 193}), "ends at"),
    "tensor far outside": (lambda m: m.offsets.update({"output_norm.weight": 2**62}), "ends at"),
    "alignment zero": (pair("general.alignment", U32, 0), "power of two"),
    "alignment three": (pair("general.alignment", U32, 48), "power of two"),
    "alignment as text": (pair("general.alignment", STRING, "32"), "power of two"),
    # values that abort, mislead or exhaust llama.cpp
    "block_count 4e9": (pair("llama.block_count", U32, 4_000_000_000), "block_count"),
    "block_count below the file's": (pair("llama.block_count", U32, 1), "block_count"),
    "block_count above the file's": (pair("llama.block_count", U32, 3), "block_count"),
    "block_count as text": (pair("llama.block_count", STRING, "2"), "whole number"),
    "block_count as a truth value": (pair("llama.block_count", BOOL, True), "whole number"),
    "no block_count": (without("llama.block_count"), "missing"),
    "context_length 2^31": (pair("llama.context_length", U32, 2**31), "context_length"),
    "context_length 0": (pair("llama.context_length", U32, 0), "context_length"),
    "head_count 0": (pair("llama.attention.head_count", U32, 0), "head_count"),
    "head_count that divides nothing": (pair("llama.attention.head_count", U32, 3), "shared"),
    "head_count_kv that divides nothing": (pair("llama.attention.head_count_kv", U32, 3), "divide"),
    "head counts of too few layers": (
        raw("llama.attention.head_count", *array(U32, [2])),
        "1 items for 2 layers",
    ),
    "head counts all zero": (raw("llama.attention.head_count", *array(U32, [0, 0])), "only zeros"),
    "embedding_length 1": (pair("llama.embedding_length", U32, 1), "embedding_length|token_embd"),
    "embedding_length 0": (pair("llama.embedding_length", U32, 0), "embedding_length"),
    "feed_forward_length 2^31": (pair("llama.feed_forward_length", U32, 2**31), "feed_forward"),
    "key_length 2^31": (pair("llama.attention.key_length", U32, 2**31), "key_length"),
    "rope dimension odd": (pair("llama.rope.dimension_count", U32, 3), "odd"),
    "rope dimension over the head": (pair("llama.rope.dimension_count", U32, 8), "odd or over"),
    "epsilon zero": (pair("llama.attention.layer_norm_rms_epsilon", F32, 0.0), "positive"),
    "4e9 experts": (pair("llama.expert_count", U32, 4_000_000_000), "expert_count"),
    "more experts used than there are": (pair("llama.expert_used_count", U32, 4), "expert_used"),
    "pooling type unknown": (pair("llama.pooling_type", U32, 1000), "pooling"),
    "vocab_size 100": (pair("llama.vocab_size", U32, 100), "vocab_size"),
    "no vocabulary": (without("tokenizer.ggml.tokens"), "vocabulary"),
    "vocabulary as a number": (pair("tokenizer.ggml.tokens", U32, 6), "not an array"),
    "no tokeniser": (without("tokenizer.ggml.model"), "missing"),
    "token types of another vocabulary": (raw("tokenizer.ggml.token_type", *array(I32, [1] * 5)), "token_type"),
    "scores of another vocabulary": (raw("tokenizer.ggml.scores", *array(F32, [0.0] * 7)), "scores"),
    "bos outside the vocabulary": (pair("tokenizer.ggml.bos_token_id", U32, 4_000_000), "bos_token_id"),
    "eos outside the vocabulary": (pair("tokenizer.ggml.eos_token_id", U32, 6), "eos_token_id"),
    "padding id negative": (pair("tokenizer.ggml.padding_token_id", I32, -1), "padding_token_id"),
    "eot id as 64 bits": (pair("tokenizer.ggml.eot_token_id", U64, 2**63), "eot_token_id"),
    "huge template": (pair("tokenizer.chat_template", STRING, "x" * 300_000), "template"),
    "template as a number": (pair("tokenizer.chat_template", U32, 1), "not a text"),
    "no architecture": (without("general.architecture"), "missing"),
    "architecture with a path": (pair("general.architecture", STRING, "../llama"), "not a name"),
    "adapter": (pair("general.type", STRING, "adapter"), "not a model"),
    "part of a split": (pair("split.count", U32, 4), "split"),
    "wrong embedding shape": (tensor(0, dims=(8, 5)), "token_embd"),
    "no embedding": (tensor(0, name="other.weight"), "token_embd"),
    "layer number huge": (tensor(3, name="blk.999999.attn_k.weight"), "block_count"),
    "type of bytes for a count": (raw("llama.block_count", U8, b"\x00"), "block_count"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_malformed_file_is_refused_with_its_reason(case: str) -> None:
    change, reason = CASES[case]
    maker = GgufMaker()
    change(maker)
    with pytest.raises(ModelInvalid, match=reason):
        parse_header(maker.build())


def test_the_file_that_the_cases_change_is_itself_accepted() -> None:
    assert parse_header(GgufMaker().build()).n_layer == 2


@pytest.mark.parametrize("data", [b"", b"GG", b"GGUF", b"hello world\n" * 1000, b"<!DOCTYPE html>" * 50])
def test_what_is_no_gguf_file_is_refused(data: bytes) -> None:
    with pytest.raises(ModelInvalid):
        parse_header(data)


def test_a_file_cut_anywhere_is_refused() -> None:
    data = tiny_gguf()
    last = parse_header(data).tensors[-1]
    for size in range(last.offset + last.bytes):
        with pytest.raises(ModelInvalid):
            parse_header(data[:size])


def test_a_key_that_stands_twice_is_refused() -> None:
    maker = GgufMaker(pair_count=20)
    data = maker.header()
    again = text("llama.block_count") + struct.pack("<II", U32, 2)
    # Between the last key and the first tensor: the reader takes it for one more key.
    at = data.index(text("token_embd.weight"))
    with pytest.raises(ModelInvalid, match="twice"):
        parse_header(data[:at] + again + data[at:] + bytes(4096))


# --- the real file, damaged; sparse copies, so that no case writes 98 MB ---------------------------------------------

REAL_CASES: dict[str, tuple[bytes, str, int]] = {
    "block_count 4e9": (b"llama.block_count", "<I", 4_000_000_000),
    "block_count 31": (b"llama.block_count", "<I", 31),
    "head_count 0": (b"llama.attention.head_count", "<I", 0),
    "embedding_length 1": (b"llama.embedding_length", "<I", 1),
    "context_length 2^31": (b"llama.context_length", "<I", 2**31),
    "bos outside": (b"tokenizer.ggml.bos_token_id", "<I", 4_000_000),
    "eos outside": (b"tokenizer.ggml.eos_token_id", "<I", 4_000_000),
    "vocab_size 100": (b"llama.vocab_size", "<I", 100),
    "rope dimension 7": (b"llama.rope.dimension_count", "<I", 7),
}


def sparse_copy(path: Path, header: bytes, size: int) -> Path:
    with path.open("wb") as file:
        file.write(header)
        file.truncate(size)
    return path


@pytest.fixture(scope="module")
def real() -> tuple[bytes, int]:
    """Header and file size of the packaged model."""
    model = packaged_model()
    header = read_header(model)
    with model.open("rb") as file:
        return file.read(header.data_offset), header.file_size


def test_the_undamaged_header_of_the_packaged_model_is_accepted(real: tuple[bytes, int], tmp_path: Path) -> None:
    assert read_header(sparse_copy(tmp_path / "same.gguf", *real)).n_layer == 30


@pytest.mark.parametrize("case", REAL_CASES)
def test_a_changed_value_of_the_packaged_model_is_refused(case: str, real: tuple[bytes, int], tmp_path: Path) -> None:
    key, form, wrong = REAL_CASES[case]
    header, size = real
    at = header.index(text(key)) + 8 + len(key) + 4
    changed = header[:at] + struct.pack(form, wrong) + header[at + struct.calcsize(form) :]
    with pytest.raises(ModelInvalid, match=key.decode().rpartition(".")[2]):
        read_header(sparse_copy(tmp_path / "changed.gguf", changed, size))


@pytest.mark.parametrize(("at", "count"), [(8, 2**62), (8, 2**64 - 1), (16, 2**61), (24, 2**63)])
def test_a_changed_count_of_the_packaged_model_is_refused(
    at: int, count: int, real: tuple[bytes, int], tmp_path: Path
) -> None:
    header, size = real
    changed = header[:at] + struct.pack("<Q", count) + header[at + 8 :]
    with pytest.raises(ModelInvalid, match="over the limit"):
        read_header(sparse_copy(tmp_path / "changed.gguf", changed, size))


@pytest.mark.parametrize("part", [4 / 98e6, 1e-5, 0.005, 0.5, 0.99995])
def test_a_cut_copy_of_the_packaged_model_is_refused(part: float, real: tuple[bytes, int], tmp_path: Path) -> None:
    header, size = real
    kept = int(size * part)
    with pytest.raises(ModelInvalid):
        read_header(sparse_copy(tmp_path / "cut.gguf", header[:kept], kept))


# --- anything else ---------------------------------------------------------------------------------------------------

TINY = tiny_gguf()
HEADER = parse_header(TINY).data_offset


@given(st.lists(st.tuples(st.integers(0, HEADER - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_changed_bytes_give_a_header_or_a_refusal(changes: list[tuple[int, int]]) -> None:
    data = bytearray(TINY)
    for at, byte in changes:
        data[at] = byte
    try:
        header = parse_header(bytes(data))
    except ModelInvalid:
        return
    assert all(t.offset + t.bytes <= len(data) for t in header.tensors)
    assert all(token < header.vocab_size for token in header.special_tokens.values())


@given(st.integers(0, HEADER - 8), st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1]))
def test_a_changed_word_gives_a_header_or_a_refusal(at: int, word: int) -> None:
    data = TINY[:at] + struct.pack("<Q", word) + TINY[at + 8 :]
    try:
        parse_header(data)
    except ModelInvalid:
        return


@given(st.integers(0, HEADER), st.binary(max_size=64), st.integers(0, 64))
def test_inserted_and_removed_bytes_give_a_header_or_a_refusal(at: int, more: bytes, less: int) -> None:
    try:
        parse_header(TINY[:at] + more + TINY[at + less :])
    except ModelInvalid:
        return


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<IQ", STRING, ggufwire.MAX_ARRAY_ITEMS),
        struct.pack("<IQ", U64, ggufwire.MAX_ARRAY_ITEMS),
        struct.pack("<IQQ", STRING, 1, ggufwire.MAX_STRING_BYTES),
    ],
)
def test_memory_follows_the_bytes_that_are_there_not_those_that_are_claimed(body: bytes) -> None:
    maker = GgufMaker()
    maker.pairs["x.y"] = (ARRAY, body)
    data = maker.header()
    tracemalloc.start()
    try:
        with pytest.raises(ModelInvalid):
            parse_header(data, file_size=2**40)
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()


def test_each_byte_of_the_header_is_read_once(tmp_path: Path) -> None:
    """Many keys and a long vocabulary cost one pass: the work is linear in the size of the header."""
    maker = GgufMaker()
    maker.pairs |= {f"x.k{number}": value(U32, number) for number in range(3000)}
    maker.pairs["x.words"] = array(STRING, ["word"] * 200_000)
    data = maker.build()
    handed = []

    def read(size: int) -> bytes:
        at = sum(handed)
        handed.append(len(data[at : at + size]))
        return data[at : at + size]

    raw_header = ggufwire.parse(read, len(data), where="test")
    assert raw_header.data_offset <= sum(handed) <= len(data)
