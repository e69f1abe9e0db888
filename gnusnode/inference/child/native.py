"""llama.cpp's C interface, typed and checked: no return code and no NULL passes this module unseen.

Importing it loads libllama. One thread uses a model and its contexts; nothing here may be called from two.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Sequence
from enum import IntEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

# Read by libgomp and ggml while they load: spinning OpenMP threads collapse on a shared host, and ggml's backtrace
# starts a debugger that stalls an abort for seconds.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

import llama_cpp.llama_cpp
import numpy as np
from numpy.typing import NDArray

lib: Any = llama_cpp.llama_cpp
"""Untyped on purpose: the package's hints ask for arrays where every pointer will do."""

Ids = NDArray[np.int32]
Row = NDArray[np.float32]
State = NDArray[np.uint8]

_WARN: Final = 3
"""ggml log level: 1 debug, 2 info, 3 warning, 4 error, 5 continuation of the line before."""
_MAX_PIECE: Final = 1 << 16
_MAX_VIEWS: Final = 4096


class NativeError(Exception):
    """A call into llama.cpp failed; the text says which."""


class Outcome(IntEnum):
    """What ``Context.decode`` can answer without the context being broken."""

    OK = 0
    NO_SLOT = 1
    ABORTED = 2


_OUTCOMES: Final = tuple(Outcome)


class Attr(IntEnum):
    """Attribute bits of a vocabulary entry."""

    UNKNOWN = lib.LLAMA_TOKEN_ATTR_UNKNOWN
    USER_DEFINED = lib.LLAMA_TOKEN_ATTR_USER_DEFINED
    CONTROL = lib.LLAMA_TOKEN_ATTR_CONTROL
    LSTRIP = lib.LLAMA_TOKEN_ATTR_LSTRIP
    RSTRIP = lib.LLAMA_TOKEN_ATTR_RSTRIP


class LogSink:
    """Receives what the library prints, for as long as the process lives."""

    muted = False
    """While an abort is under way: the library reports it as a failure."""
    _installed: LogSink | None = None

    def __init__(self, emit: Callable[[str, str], None]) -> None:
        self._emit = emit
        self._level = 0
        self._callback = lib.llama_log_callback(self._on_line)

    def install(self) -> None:
        LogSink._installed = self  # the library keeps a bare pointer to the callback
        lib.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _on_line(self, level: int, text: bytes, _data: object) -> None:
        if level != 5:
            self._level = level
        line = text.decode("utf-8", "replace").strip()
        if self._level >= _WARN and line and not LogSink.muted:
            self._emit("error" if self._level > _WARN else "warning", line)


class Vocab:
    """The tokens of a model. Token ids are plain ints; ``size`` of them."""

    def __init__(self, model: Any) -> None:
        self._vocab = _not_null(lib.llama_model_get_vocab(model), "llama_model_get_vocab")
        self.handle = self._vocab
        self.size = int(lib.llama_vocab_n_tokens(self._vocab))
        self._text_pieces: dict[int, bytes] = {}
        ids = range(self.size)
        self.attrs = [int(lib.llama_vocab_get_attr(self._vocab, token)) for token in ids]
        self.eog = frozenset(token for token in ids if lib.llama_vocab_is_eog(self._vocab, token))
        bos = int(lib.llama_vocab_bos(self._vocab))
        self.bos = bos if 0 <= bos < self.size else None
        eos = int(lib.llama_vocab_eos(self._vocab))
        self.eos = eos if 0 <= eos < self.size else None
        self.adds_bos = bool(lib.llama_vocab_get_add_bos(self._vocab)) and self.bos is not None

    def text(self, token: int) -> str:
        """The entry's own spelling in the vocabulary."""
        raw = lib.llama_vocab_get_text(self._vocab, token)
        return (raw or b"").decode("utf-8", "replace")

    def tokenize(self, text: str, *, special: bool, add_special: bool = False) -> list[int]:
        """Token ids of ``text``; control tokens are recognised in it only when ``special``.

        Raises:
            NativeError: the tokenizer refused the text.
        """
        raw = text.encode("utf-8")
        # Not n_ctx_train of the file, which may claim anything: a token stands for at least a byte, bar BOS and EOS.
        room = len(raw) + 8
        out = np.empty(room, np.int32)
        pointer = out.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        count = int(lib.llama_tokenize(self._vocab, raw, len(raw), pointer, room, add_special, special))
        if count < 0:
            raise NativeError(f"llama_tokenize answered {count} to a text of {len(raw)} bytes")
        return out[:count].tolist()

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes a token adds to the text; nothing for a control token unless ``special``."""
        if special:
            return self._piece(token, special=True)
        known = self._text_pieces.get(token)
        if known is None:
            known = self._text_pieces[token] = self._piece(token, special=False)
        return known

    def _piece(self, token: int, *, special: bool) -> bytes:
        if not 0 <= token < self.size:
            raise NativeError(f"token {token} is outside the vocabulary of {self.size}")
        room = 64
        while room <= _MAX_PIECE:
            buffer = ctypes.create_string_buffer(room)
            count = int(lib.llama_token_to_piece(self._vocab, token, buffer, room, 0, special))
            if count >= 0:
                return buffer.raw[:count]
            room = max(room * 2, -count)
        raise NativeError(f"the piece of token {token} is longer than {_MAX_PIECE} bytes")


class Batch:
    """The tokens of one decode: arrays of our own, which the C structure points at. One sequence per token."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._seq = np.zeros(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        self._n_seq = np.ones(capacity, np.int32)
        self._seq_of = self._seq.ctypes.data + 4 * np.arange(capacity, dtype=np.uint64)
        self.native = lib.llama_batch()
        kinds = {field[0]: field[1] for field in lib.llama_batch._fields_}
        arrays = {
            "token": self._token,
            "pos": self._pos,
            "n_seq_id": self._n_seq,
            "seq_id": self._seq_of,
            "logits": self._wanted,
        }
        for name, array in arrays.items():
            setattr(self.native, name, ctypes.cast(array.ctypes.data, kinds[name]))

    def clear(self) -> None:
        self.size = 0

    def add(self, token: int, pos: int, seq: int) -> int:
        """Append one token whose logits are wanted; returns its row."""
        row = self.size
        self._token[row] = token
        self._pos[row] = pos
        self._seq[row] = seq
        self._wanted[row] = 1
        self.size = row + 1
        return row

    def extend(self, tokens: Sequence[int] | Ids, start: int, seq: int, wanted_from: int) -> int:
        """Append tokens at positions ``start…``; logits are wanted from offset ``wanted_from`` on.

        Returns:
            The row of the first.
        """
        row, end = self.size, self.size + len(tokens)
        self._token[row:end] = tokens
        self._pos[row:end] = np.arange(start, start + len(tokens), dtype=np.int32)
        self._seq[row:end] = seq
        self._wanted[row:end] = 0
        self._wanted[row + wanted_from : end] = 1
        self.size = end
        return row


class Context:
    """A KV cache and the compute graph over it.

    A broken one (``NativeError`` from ``decode``) must not be used again: end the process.
    """

    def __init__(self, handle: Any, vocab: Vocab, model: Any) -> None:
        self._handle = handle
        self._memory = lib.llama_get_memory(handle)
        """None in models that only encode."""
        self._row: Any = ctypes.c_float * vocab.size
        self._rows: dict[int, Row] = {}
        """Views by address: the library writes its logits to the same few places for as long as the context lives."""
        self._embedding: Any = ctypes.c_float * int(lib.llama_model_n_embd_out(model))
        self._abort = ctypes.create_string_buffer(2)
        self.n_ctx = int(lib.llama_n_ctx(handle))

    @property
    def remembers(self) -> bool:
        """Whether there is a KV cache or the like; without, a model can embed but not generate."""
        return self._memory is not None

    @property
    def pools(self) -> bool:
        """Whether sequences get one embedding; else only tokens do."""
        return int(lib.llama_pooling_type(self._handle)) != lib.LLAMA_POOLING_TYPE_NONE

    def close(self) -> None:
        lib.llama_free(self._handle)

    def install_abort(self) -> None:
        """Let ``abort`` stop a running decode. CPU only: other backends do not ask.

        The library asks some 600 times a token, from its compute threads: libc's strlen over a two-byte buffer answers
        without the interpreter and its lock.
        """
        strlen = ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p).value
        callback = ctypes.cast(strlen or 0, lib.ggml_abort_callback)
        lib.llama_set_abort_callback(self._handle, callback, ctypes.cast(self._abort, ctypes.c_void_p))

    def abort(self) -> None:
        """Stop the decode that runs now, or the next one. The only method that another thread may call."""
        LogSink.muted = True
        self._abort[0] = b"\x01"

    def allow(self) -> None:
        """Take back ``abort``."""
        self._abort[0] = b"\x00"
        LogSink.muted = False

    def decode(self, batch: Batch) -> Outcome:
        """Run the batch. After ``ABORTED`` its sequences hold some of its tokens: remove those from the positions on.

        Raises:
            NativeError: the batch was invalid or the backend failed.
        """
        batch.native.n_tokens = batch.size
        code = int(lib.llama_decode(self._handle, batch.native))
        if not 0 <= code < len(_OUTCOMES):
            raise NativeError(f"llama_decode answered {code} to a batch of {batch.size} tokens")
        return _OUTCOMES[code]

    def embed(self, batch: Batch) -> None:
        """Run a batch of whole sequences for their embeddings, and forget it.

        Raises:
            NativeError: as ``decode``.
        """
        batch.native.n_tokens = batch.size
        run = lib.llama_encode if self._memory is None else lib.llama_decode
        code = int(run(self._handle, batch.native))
        if code != 0:
            raise NativeError(f"llama.cpp answered {code} to a batch of {batch.size} tokens to embed")
        self.clear()

    def logits(self, row: int) -> Row:
        """Logits of one batch row that was wanted: float32, one per token. A view, valid until the next decode."""
        address = _logits_address(self._handle, row)
        if not address:
            raise NativeError(f"llama_get_logits_ith({row}) answered NULL")
        view = self._rows.get(address)
        if view is None:
            if len(self._rows) >= _MAX_VIEWS:
                self._rows.clear()
            view = self._rows[address] = _view(address, self._row)
        return view

    def embedding(self, seq: int) -> Row:
        """Pooled embedding of a sequence of the last batch: float32, a copy."""
        pointer = _not_null(lib.llama_get_embeddings_seq(self._handle, seq), f"llama_get_embeddings_seq({seq})")
        return _view(ctypes.addressof(pointer.contents), self._embedding).copy()

    def remove(self, seq: int, start: int = 0) -> bool:
        """Forget a sequence from a position on. False: this kind of memory can only forget it whole."""
        if self._memory is None:
            return True
        return bool(lib.llama_memory_seq_rm(self._memory, seq, start, -1))

    def copy(self, source: int, target: int, length: int) -> None:
        """Let ``target`` share the first ``length`` cells of ``source``. Unified memory only: else it would abort."""
        lib.llama_memory_seq_cp(self._memory, source, target, 0, length)

    def save(self, seq: int) -> State | None:
        """What the cache holds of a sequence, as bytes for ``load`` of this very context; None: nothing."""
        size = int(lib.llama_state_seq_get_size(self._handle, seq))
        state = np.empty(size, np.uint8)
        written = int(lib.llama_state_seq_get_data(self._handle, _octets(state), size, seq)) if size else 0
        return state[:written] if written else None

    def load(self, seq: int, state: State) -> bool:
        """Put back what ``save`` gave. False: there is no place for it in one piece; the sequence is empty then."""
        if int(lib.llama_state_seq_set_data(self._handle, _octets(state), len(state), seq)):
            return True
        self.remove(seq)
        return False

    def clear(self) -> None:
        if self._memory is not None:
            lib.llama_memory_clear(self._memory, False)

    def set_threads(self, decode: int, batch: int) -> None:
        lib.llama_set_n_threads(self._handle, decode, batch)

    def synchronize(self) -> None:
        lib.llama_synchronize(self._handle)


def build_id() -> str:
    """Names the exact native code and the instruction sets it found: equal ids may be expected to give equal bits."""
    digest = hashlib.sha256(lib.llama_print_system_info() or b"")
    folder = os.environ.get("LLAMA_CPP_LIB_PATH") or Path(lib.__file__).parent / "lib"
    for file in sorted(Path(folder).glob("lib*")):
        if file.name.startswith(("libllama.", "libggml")) and file.suffix in (".so", ".dylib"):
            digest.update(file.read_bytes())
    return f"llama-cpp-python {version('llama-cpp-python')}, {digest.hexdigest()[:16]}"


def _octets(array: State) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(ctypes.c_uint8))


# The package's own prototype wraps the result into a pointer object, for every token.
_logits_address: Any = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)(
    ctypes.cast(lib.llama_get_logits_ith, ctypes.c_void_p).value or 0
)


def _view(address: int, kind: Any) -> Row:
    """The array of C type ``kind`` at an address."""
    return np.frombuffer(kind.from_address(address), np.float32)


def _not_null(value: Any, call: str) -> Any:
    if not value:
        raise NativeError(f"{call} answered NULL")
    return value
