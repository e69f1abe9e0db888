"""Makes a GGUF file of the MiniLM sentence encoder that a Python package ships as safetensors.

The same input gives the same bytes: names, order and types are fixed here, and ``configs/models.toml`` pins the sha256
of the result, so that all nodes that embed with it share one artifact.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, Final

from gnusnode.errors import ConfigError, ModelInvalid

SOURCE_FILES: Final = ("config.json", "vocab.txt", "model.safetensors")
"""What must lie in the source directory."""
OUTPUT_BYTES: Final = 46 * 1024 * 1024
"""What the result needs on the disk."""

_MAX_SMALL_FILE: Final = 8 * 1024 * 1024
_TOP: Final = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm.weight": "token_embd_norm.weight",
    "embeddings.LayerNorm.bias": "token_embd_norm.bias",
}
_LAYER: Final = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_KEPT_F32: Final = ("position_embd.weight", "token_types.weight")
"""Small tables that llama.cpp adds element by element."""
_WORD_START: Final = "\u2581"
"""llama.cpp's WordPiece marks the first piece of a word, where BERT marks the others with ``##``."""


def convert(source: Path, target: Path) -> None:
    """Writes ``target`` from the files in ``source``. Blocks for about two seconds of CPU.

    Raises:
        ConfigError: the ``gguf`` package is not installed.
        ModelInvalid: the source is not such a model.
        OSError: reading or writing failed.
    """
    try:
        import gguf
        import numpy
    except ImportError as error:
        raise ConfigError(
            f"the embedding model cannot be made without the package {error.name}",
            hint="pip install 'gnusnode[embed]', or set models.embedding = \"none\"",
        ) from error
    try:
        config = json.loads(_small_file(source / "config.json"))
        vocabulary = _small_file(source / "vocab.txt").decode("utf-8").splitlines()
        weights = _Safetensors(source / "model.safetensors", numpy)
        writer = gguf.GGUFWriter(target, "bert")
        _describe(writer, gguf, config, vocabulary)
        for name, stored in _tensor_names(int(config["num_hidden_layers"])).items():
            array = weights.tensor(name)
            half = array.ndim == 2 and stored not in _KEPT_F32
            writer.add_tensor(stored, array.astype(numpy.float16 if half else numpy.float32))
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise ModelInvalid(f"not a MiniLM model: {error!r:.300}", where=str(source), hint="reinstall it") from error
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _describe(writer: Any, gguf: Any, config: dict[str, Any], vocabulary: list[str]) -> None:
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_license("apache-2.0")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_tokenizer_model("bert")
    writer.add_token_list([_piece(word) for word in vocabulary])
    writer.add_token_types([_kind(word, gguf.TokenType) for word in vocabulary])
    writer.add_bos_token_id(vocabulary.index("[CLS]"))
    writer.add_eos_token_id(vocabulary.index("[SEP]"))
    writer.add_unk_token_id(vocabulary.index("[UNK]"))
    writer.add_sep_token_id(vocabulary.index("[SEP]"))
    writer.add_pad_token_id(vocabulary.index("[PAD]"))
    writer.add_mask_token_id(vocabulary.index("[MASK]"))


def _special(word: str) -> bool:
    return len(word) > 2 and word.startswith("[") and word.endswith("]")


def _piece(word: str) -> str:
    if _special(word):
        return word
    return word[2:] if word.startswith("##") else _WORD_START + word


def _kind(word: str, kinds: Any) -> int:
    if word == "[UNK]":
        return kinds.UNKNOWN
    return kinds.CONTROL if _special(word) else kinds.NORMAL


def _tensor_names(layers: int) -> dict[str, str]:
    """Name in the source -> name in the result, in the order of the result."""
    names = dict(_TOP)
    for layer in range(layers):
        for there, here in _LAYER.items():
            for part in ("weight", "bias"):
                names[f"encoder.layer.{layer}.{there}.{part}"] = f"blk.{layer}.{here}.{part}"
    return names


def _small_file(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(_MAX_SMALL_FILE + 1)
    if len(data) > _MAX_SMALL_FILE:
        raise ValueError(f"{path.name} is too large")
    return data


class _Safetensors:
    """The tensors of a safetensors file, mapped into memory: 8-byte header length, JSON header, data."""

    def __init__(self, path: Path, numpy: Any) -> None:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _MAX_SMALL_FILE:
                raise ValueError("the safetensors header is too large")
            self._table: dict[str, Any] = json.loads(file.read(length))
        self._numpy = numpy
        self._data = numpy.memmap(path, mode="r", offset=8 + length)

    def tensor(self, name: str) -> Any:
        """The 32-bit float tensor ``name`` as an array that views the file."""
        entry = self._table[name]
        if entry["dtype"] != "F32":
            raise ValueError(f"{name} is {entry['dtype']}, not F32")
        begin, end = entry["data_offsets"]
        return self._data[begin:end].view(self._numpy.float32).reshape(entry["shape"])
