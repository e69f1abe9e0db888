"""What the header reader says of good files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from gnusnode.errors import DataError, ModelInvalid, ModelNotFound
from gnusnode.inference.artifacts.gguf import parse_header, read_header
from tests.fakes.ggufs import ARRAY, BOOL, STRING, U32, GgufMaker, array, packaged_model, tiny_gguf, value


def test_the_packaged_model_is_described_as_it_is() -> None:
    header = read_header(packaged_model())
    assert (header.architecture, header.license, header.vocab_size) == ("llama", "apache-2.0", 49_152)
    assert (header.n_layer, header.n_embd, header.n_head, header.n_head_kv) == (30, 576, 9, 3)
    assert (header.head_dim_k, header.head_dim_v, header.context_train) == (64, 64, 8192)
    assert header.special_tokens == {"bos": 1, "eos": 2, "unknown": 0, "padding": 2}
    assert header.parameters == 134_515_008
    assert header.generates
    assert not header.embeds


def test_memory_figures_of_the_packaged_model_match_what_llama_cpp_uses() -> None:
    header = read_header(packaged_model())
    # 2 (K and V) · 30 layers · 3 KV heads · 64 · 2 bytes: llama.cpp's own state files grow by this much per token.
    assert header.kv_bytes_per_token() == 23_040
    assert header.layer_bytes(0) + 29 * header.layer_bytes(1) + header.other_bytes == header.tensor_bytes
    last = header.tensors[-1]
    assert last.offset + last.bytes == header.file_size == packaged_model().stat().st_size


def test_the_template_is_given_with_its_digest() -> None:
    header = parse_header(tiny_gguf(template="{{ x }}"))
    assert header.template == "{{ x }}"
    assert header.template_sha256 == "sha256:" + hashlib.sha256(b"{{ x }}").hexdigest()


def test_a_file_without_a_template_has_none() -> None:
    header = parse_header(GgufMaker().build())
    assert header.template is None
    assert header.template_sha256 is None


def test_the_beginning_of_a_file_is_enough_when_its_size_is_known() -> None:
    data = tiny_gguf()
    header = parse_header(data)
    assert parse_header(data[: header.data_offset], file_size=len(data)) == header


def test_version_two_is_read_as_version_three() -> None:
    assert parse_header(GgufMaker(version=2).build()).n_layer == 2


def test_per_layer_head_counts_add_up_in_the_cache_size() -> None:
    maker = GgufMaker()
    maker.pairs["llama.attention.head_count_kv"] = array(U32, [2, 1])
    header = parse_header(maker.build())
    assert header.n_head_kv == 2
    assert header.kv_bytes_per_token() == (2 + 1) * (4 + 4) * 2
    assert header.kv_bytes_per_token(1) == (2 + 1) * (4 + 4)


def test_missing_kv_heads_mean_one_for_each_head() -> None:
    maker = GgufMaker()
    del maker.pairs["llama.attention.head_count_kv"]
    assert parse_header(maker.build()).n_head_kv == 2


@pytest.mark.parametrize("key", ["llama.attention.causal", "llama.pooling_type"])
def test_an_encoder_embeds_and_does_not_generate(key: str) -> None:
    maker = GgufMaker()
    maker.pairs[key] = value(BOOL, False) if key.endswith("causal") else value(U32, 1)
    header = parse_header(maker.build())
    assert header.embeds
    assert not header.generates


def test_names_lose_what_could_command_a_terminal() -> None:
    maker = GgufMaker()
    maker.pairs["general.name"] = value(STRING, "tiny\x1b[2J\r\nmodel" + "x" * 500)
    name = parse_header(maker.build()).name
    assert name.startswith("tiny[2Jmodel")
    assert len(name) <= 128


def test_long_texts_stay_out_of_the_metadata() -> None:
    maker = GgufMaker()
    maker.pairs["general.description"] = value(STRING, "x" * 5000)
    metadata = parse_header(maker.build()).metadata
    assert "general.description" not in metadata
    assert metadata["llama.block_count"] == 2


def test_another_alignment_is_followed() -> None:
    maker = GgufMaker(alignment=256)
    maker.pairs["general.alignment"] = value(U32, 256)
    header = parse_header(maker.build())
    assert all(tensor.offset % 256 == 0 for tensor in header.tensors)


def test_the_error_names_the_file_and_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(tiny_gguf()[:700])
    with pytest.raises(ModelInvalid, match=r"byte 700, inside its header \(byte") as caught:
        read_header(path)
    assert caught.value.where == str(path)
    assert caught.value.hint


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        read_header(tmp_path / "none.gguf")


def test_a_directory_is_no_model(tmp_path: Path) -> None:
    with pytest.raises((ModelInvalid, DataError)):
        read_header(tmp_path)


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelInvalid, match="regular"):
        read_header(tmp_path / "pipe.gguf")


def test_the_array_kind_is_told_apart_from_single_values() -> None:
    maker = GgufMaker()
    maker.pairs["general.tags"] = (ARRAY, array(STRING, ["a", "b"])[1])
    assert "general.tags" not in parse_header(maker.build()).metadata
