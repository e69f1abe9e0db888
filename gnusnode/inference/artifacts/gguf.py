"""What a GGUF model file says of itself, read under hard limits before any native code sees the file.

``read_header`` refuses whatever llama.cpp would abort on, misread or accept silently: implausible sizes, token ids
outside the vocabulary, missing layers, weights outside the file. Pure but for the one bounded read; run it in a worker
thread.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Final, NoReturn

from gnusnode.errors import DataError, ModelInvalid, ModelNotFound
from gnusnode.inference.artifacts import ggufwire
from gnusnode.inference.artifacts.ggufwire import Array, RawHeader, Scalar, Tensor

__all__ = ["GgufHeader", "Tensor", "parse_header", "read_header"]

MAX_LAYERS: Final = 512
"""llama.cpp's own fixed limit; a larger value aborts the process."""
MAX_EXPERTS: Final = 512
MAX_CONTEXT: Final = 16 * 1024 * 1024
MAX_EMBEDDING: Final = 128 * 1024
MAX_HEADS: Final = 4096
MAX_HEAD_DIM: Final = 4096
MAX_FEED_FORWARD: Final = 4 * 1024 * 1024
MAX_TEMPLATE_CHARS: Final = 256 * 1024
_KEPT_TEXT: Final = 1024
_LAYER: Final = re.compile(r"blk\.([0-9]{1,6})\.")
_TEMPLATE_KEY: Final = "tokenizer.chat_template"


@dataclass(frozen=True)
class GgufHeader:
    """The checked summary of one model file."""

    version: int
    architecture: str
    name: str
    """Printable; empty when the file names none."""
    license: str
    metadata: Mapping[str, Scalar]
    """Scalar metadata; texts of more than 1024 characters are left out."""
    tokenizer: str
    """llama.cpp's name of the tokeniser family: ``gpt2``, ``llama``, ``bert``, …"""
    vocab_size: int
    special_tokens: Mapping[str, int]
    """``bos``, ``eos``, ``padding``, … -> token id, each inside the vocabulary."""
    template: str | None
    """The Jinja chat template. Untrusted: render it only in the confined child."""
    template_sha256: str | None
    n_layer: int
    n_embd: int
    n_head: int
    """Of the layer that has most."""
    n_head_kv: int
    """Of the layer that has most."""
    head_dim_k: int
    head_dim_v: int
    context_train: int
    """Tokens of the context that the model was trained on."""
    causal: bool
    """False: an encoder such as BERT, which embeds and does not generate."""
    pooling: int
    """llama.cpp's pooling type of embeddings; 0: none named."""
    tensors: tuple[Tensor, ...]
    data_offset: int
    file_size: int
    heads_kv: tuple[int, ...] = field(repr=False)
    """KV heads of each layer."""

    @property
    def embeds(self) -> bool:
        """Whether the file says that it is made for embeddings."""
        return not self.causal or self.pooling > 0

    @property
    def generates(self) -> bool:
        return self.causal and self.pooling <= 0

    @cached_property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(_product(tensor.dims) for tensor in self.tensors)

    @cached_property
    def tensor_bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)

    def layer_bytes(self, layer: int) -> int:
        """Bytes of the weights of one layer, 0 … ``n_layer`` - 1."""
        return self._bytes_by_layer[layer]

    @cached_property
    def other_bytes(self) -> int:
        """Bytes of the weights outside the layers: embeddings, output."""
        return self.tensor_bytes - sum(self._bytes_by_layer)

    def kv_bytes_per_token(self, element_bytes: int = 2) -> int:
        """Bytes of attention cache per token of context over all layers; ``element_bytes`` 2 is f16."""
        return sum(self.heads_kv) * (self.head_dim_k + self.head_dim_v) * element_bytes

    @cached_property
    def _bytes_by_layer(self) -> tuple[int, ...]:
        sizes = [0] * self.n_layer
        for tensor in self.tensors:
            if found := _LAYER.match(tensor.name):
                sizes[int(found[1])] += tensor.bytes
        return tuple(sizes)


def read_header(path: str | Path) -> GgufHeader:
    """The header of a file. Blocks for the time of reading some MiB.

    Raises:
        ModelInvalid: not a model that we would load; the text says why and at which byte.
        ModelNotFound: there is no such file.
        DataError: it cannot be read.
    """
    try:
        # O_NONBLOCK: a named pipe in the file's place must not hang the node.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with io.FileIO(descriptor) as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ModelInvalid("this is not a regular file", where=str(path))
            return _header(ggufwire.parse(file.read, status.st_size, where=str(path)), status.st_size, str(path))
    except FileNotFoundError as error:
        raise ModelNotFound("there is no such file", where=str(path)) from error
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=str(path)) from error


def parse_header(data: bytes, *, file_size: int | None = None, where: str = "model") -> GgufHeader:
    """The header of a file of which ``data`` is the beginning; ``file_size`` is that of the whole file.

    Raises:
        ModelInvalid: as ``read_header``.
    """
    size = len(data) if file_size is None else file_size
    return _header(ggufwire.parse(io.BytesIO(data).read, size, where=where), size, where)


class _Facts:
    """Typed and bounded access to the metadata of one file."""

    def __init__(self, raw: RawHeader, where: str) -> None:
        self.pairs = raw.pairs
        self.where = where
        self.arch = self.text("general.architecture", required=True)

    def fail(self, reason: str) -> NoReturn:
        raise ModelInvalid(reason, where=self.where, hint="the file is damaged, hostile or not a language model")

    def text(self, key: str, *, required: bool = False) -> str:
        value = self.pairs.get(key, "")
        if not isinstance(value, str):
            self.fail(f"{key} is not a text")
        if required and not value:
            self.fail(f"{key} is missing")
        return value

    def number(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """The whole number of ``key``, which must lie in ``low … high``."""
        value = self.pairs.get(key, default)
        if value is None:
            self.fail(f"{key} is missing")
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(f"{key} is not a whole number")
        if not low <= value <= high:
            self.fail(f"{key} is {value}, which is outside {low} … {high}")
        return value

    def per_layer(self, key: str, layers: int, high: int, default: int | None = None) -> tuple[int, ...]:
        """One number a layer, from a single number or an array. Single ones are at least 1; some layers may be 0."""
        value = self.pairs.get(key)
        if not isinstance(value, Array):
            return (self.number(key, 1, high, default),) * layers
        items = value.items
        if items is None or value.count != layers:
            self.fail(f"{key} has {value.count} items for {layers} layers")
        numbers = tuple(item for item in items if type(item) is int and 0 <= item <= high)
        if len(numbers) != layers or not any(numbers):
            self.fail(f"{key} has an item outside 0 … {high}, or only zeros")
        return numbers

    def array_size(self, key: str) -> int | None:
        value = self.pairs.get(key)
        if value is not None and not isinstance(value, Array):
            self.fail(f"{key} is not an array")
        return value.count if value else None


def _header(raw: RawHeader, file_size: int, where: str) -> GgufHeader:
    facts = _Facts(raw, where)
    arch = facts.arch
    _refuse_other_kinds(facts)
    n_layer = facts.number(f"{arch}.block_count", 1, MAX_LAYERS)
    n_embd = facts.number(f"{arch}.embedding_length", 1, MAX_EMBEDDING)
    heads = facts.per_layer(f"{arch}.attention.head_count", n_layer, MAX_HEADS)
    heads_kv = _heads_kv(facts, heads)
    head_dim_k, head_dim_v = _head_dims(facts, n_embd, max(heads))
    vocab_size = _vocab_size(facts)
    _check_other_numbers(facts, n_layer)
    _check_tensors(facts, raw.tensors, n_layer, n_embd, vocab_size)
    template = _template(facts)
    return GgufHeader(
        version=raw.version,
        architecture=arch,
        name=_printable(facts.text("general.name")),
        license=_printable(facts.text("general.license")),
        metadata=_scalars(raw.pairs),
        tokenizer=facts.text("tokenizer.ggml.model"),
        vocab_size=vocab_size,
        special_tokens=_special_tokens(facts, vocab_size),
        template=template,
        template_sha256=None if template is None else f"sha256:{hashlib.sha256(template.encode()).hexdigest()}",
        n_layer=n_layer,
        n_embd=n_embd,
        n_head=max(heads),
        n_head_kv=max(heads_kv),
        head_dim_k=head_dim_k,
        head_dim_v=head_dim_v,
        context_train=facts.number(f"{arch}.context_length", 1, MAX_CONTEXT),
        causal=facts.pairs.get(f"{arch}.attention.causal", True) is not False,
        pooling=facts.number(f"{arch}.pooling_type", 0, 16, 0),
        tensors=raw.tensors,
        data_offset=raw.data_offset,
        file_size=file_size,
        heads_kv=heads_kv,
    )


def _refuse_other_kinds(facts: _Facts) -> None:
    if not re.fullmatch(r"[a-z0-9_.-]{1,64}", facts.arch):
        facts.fail(f"general.architecture {facts.arch[:80]!r} is not a name")
    kind = facts.text("general.type") or "model"
    if kind != "model":
        facts.fail(f"the file holds a {_printable(kind)}, not a model")
    if facts.number("split.count", 0, 65535, 0) > 1:
        facts.fail("the file is one part of a split model; merge the parts with llama-gguf-split --merge first")


def _heads_kv(facts: _Facts, heads: tuple[int, ...]) -> tuple[int, ...]:
    key = f"{facts.arch}.attention.head_count_kv"
    if key not in facts.pairs:
        return heads
    heads_kv = facts.per_layer(key, len(heads), MAX_HEADS)
    for of_layer, kv in zip(heads, heads_kv, strict=True):
        if kv and of_layer % kv:
            facts.fail(f"{key} is {kv}, which does not divide the {of_layer} attention heads")
    return heads_kv


def _head_dims(facts: _Facts, n_embd: int, n_head: int) -> tuple[int, int]:
    attention = f"{facts.arch}.attention"
    default = None if n_embd % n_head else n_embd // n_head
    if default is None and f"{attention}.key_length" not in facts.pairs:
        facts.fail(f"{facts.arch}.embedding_length {n_embd} cannot be shared by {n_head} attention heads")
    head_dim_k = facts.number(f"{attention}.key_length", 1, MAX_HEAD_DIM, default)
    head_dim_v = facts.number(f"{attention}.value_length", 1, MAX_HEAD_DIM, default)
    rope = facts.number(f"{facts.arch}.rope.dimension_count", 0, MAX_HEAD_DIM, 0)
    if rope % 2 or rope > head_dim_k:
        facts.fail(f"{facts.arch}.rope.dimension_count {rope} is odd or over the head size {head_dim_k}")
    return head_dim_k, head_dim_v


def _vocab_size(facts: _Facts) -> int:
    """The length of the token list; everything that also counts tokens must agree with it."""
    facts.text("tokenizer.ggml.model", required=True)
    size = facts.array_size("tokenizer.ggml.tokens")
    if not size:
        facts.fail("the file has no vocabulary")
    said = facts.number(f"{facts.arch}.vocab_size", 0, 2**31, size)
    if said != size:
        facts.fail(f"{facts.arch}.vocab_size is {said}, but the vocabulary has {size} tokens")
    for key in ("tokenizer.ggml.token_type", "tokenizer.ggml.scores"):
        if facts.array_size(key) not in (None, size):
            facts.fail(f"{key} does not have one item for each of the {size} tokens")
    return size


def _special_tokens(facts: _Facts, vocab_size: int) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for key in facts.pairs:
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id"):
            name = key.removeprefix("tokenizer.ggml.").removesuffix("_token_id")
            found[name] = facts.number(key, 0, vocab_size - 1)
    return MappingProxyType(found)


def _check_other_numbers(facts: _Facts, n_layer: int) -> None:
    arch = facts.arch
    if f"{arch}.feed_forward_length" in facts.pairs:
        facts.per_layer(f"{arch}.feed_forward_length", n_layer, MAX_FEED_FORWARD)
    experts = facts.number(f"{arch}.expert_count", 0, MAX_EXPERTS, 0)
    facts.number(f"{arch}.expert_used_count", 0, experts, 0)
    for key in (f"{arch}.rope.freq_base", f"{arch}.attention.layer_norm_rms_epsilon"):
        value = facts.pairs.get(key, 1.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            facts.fail(f"{key} is not a positive number")


def _check_tensors(facts: _Facts, tensors: tuple[Tensor, ...], n_layer: int, n_embd: int, vocab_size: int) -> None:
    embedding = next((tensor for tensor in tensors if tensor.name == "token_embd.weight"), None)
    if embedding is None:
        facts.fail("the tensor token_embd.weight is missing")
    if embedding.dims != (n_embd, vocab_size):
        facts.fail(f"token_embd.weight is {embedding.dims}, but the metadata says {(n_embd, vocab_size)}")
    layers = {int(found[1]) for tensor in tensors if (found := _LAYER.match(tensor.name))}
    if odd := sorted(layers ^ set(range(n_layer))):
        facts.fail(f"{facts.arch}.block_count is {n_layer}, but layer {odd[0]} is missing from it or from the weights")


def _template(facts: _Facts) -> str | None:
    template = facts.text(_TEMPLATE_KEY)
    if len(template) > MAX_TEMPLATE_CHARS:
        facts.fail(f"the chat template has {len(template)} characters, {MAX_TEMPLATE_CHARS} are allowed")
    return template or None


def _scalars(pairs: Mapping[str, Scalar | Array]) -> Mapping[str, Scalar]:
    return MappingProxyType(
        {
            key: value
            for key, value in pairs.items()
            if not isinstance(value, Array) and not (isinstance(value, str) and len(value) > _KEPT_TEXT)
        }
    )


def _printable(text: str) -> str:
    """At most 128 characters without control characters: names of a hostile file reach terminals and logs."""
    return "".join(char for char in text[:128] if char.isprintable()).strip()


def _product(dims: tuple[int, ...]) -> int:
    product = 1
    for dim in dims:
        product *= dim
    return product
