"""The framed pipe between the daemon and an engine child: 4-byte big-endian length, then canonical CBOR.

Every frame is a map with ``op`` (to the child) or ``ev`` (from it) and, where it belongs to a job, ``id`` (the job's
number, unique per child). Bodies are records in their plain form. Token deltas of one scheduler step travel in one
frame, so that a step costs one write however many streams it serves.

    to the child                                     from the child
    {op: load,     spec: ChildSpec}                  {ev: ready,    info: {...}}
    {op: generate, id, request}                      {ev: started,  id, body: Started}
    {op: classify, id, request}                      {ev: step,     deltas: [[id, Delta], ...]}
    {op: score,    id, request}                      {ev: done,     id, body: Done}
    {op: embed,    id, request}                      {ev: result, id, body: ClassifyResult | ScoreResult | EmbedResult}
    {op: cancel,   id}                               {ev: error,    id or None, error: GnusError.to_wire()}
    {op: ping,     n}                                {ev: pong, n, active, queued, prefill_rate, decode_rate, rss}
    {op: verdict,  n, body: CapabilityVerdict}       {ev: capability, n, body: CapabilityRequest}
    {op: pause,    id}                               {ev: log,      level, text}
    {op: resume,   id}
    {op: quit}

Every job ends with exactly one of ``done``, ``result`` and ``error``; a cancelled one with ``error`` of code
``cancelled``. A paused job holds no room and makes no tokens until it is resumed. ``load`` is always the first frame,
``ready`` or an ``error`` without id its only answer.
"""

from __future__ import annotations

import struct
from typing import Any, Final, cast

from gnusnode.contracts import canonical
from gnusnode.contracts.base import Record
from gnusnode.contracts.generation import ContextProfile
from gnusnode.contracts.ids import Name, Sha256

MAX_FRAME: Final = 64 * 1024 * 1024
_HEADER: Final = struct.Struct(">I")


class ChildSpec(Record):
    """Everything an engine child needs to know; it reads no configuration, environment or file but the model."""

    record_name = "child-spec"

    model_path: str
    model_name: Name
    artifact_hash: Sha256
    profile: ContextProfile = ContextProfile.THROUGHPUT
    embeddings: bool = False
    n_ctx: int = 4096
    """Tokens of the whole context, shared by all slots (throughput) or per job (canonical)."""
    slots: int = 8
    batch: int = 512
    prefill_per_step: int = 256
    """Most prompt tokens mixed into one step, so that running streams keep their pace."""
    threads: int = 0
    """0: measured at start."""
    gpu_layers: int = 0
    own_weights: bool = False
    """Read the weights into memory of the child's own, which can lie in huge pages, instead of mapping the file."""
    template: str | None = None
    """Jinja chat template that replaces the one in the file."""
    check_tensors: bool = True
    flash_attention: bool = True
    """Throughput profile only. Without it every stream pays for the cells of all others and of the kept prefixes."""
    max_memory: int = 0
    """Bytes of resident memory beyond which the parent ends the child; 0: no bound."""


class FrameError(ValueError):
    """The other end does not speak our protocol."""


def pack(frame: dict[str, Any]) -> bytes:
    return _framed(canonical.encode(frame))


def pack_known(frame: dict[str, Any]) -> bytes:
    """``pack`` without the check of every value, for frames that are sent for every token."""
    return _framed(canonical.encode_known(frame))


def _framed(body: bytes) -> bytes:
    if len(body) > MAX_FRAME:
        raise FrameError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME}")
    return _HEADER.pack(len(body)) + body


class Unpacker:
    """Bytes in, frames out. ``feed`` may be given any split of the stream."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The frames completed by ``data``.

        Raises:
            FrameError: oversize, malformed or not a map.
        """
        self._buffer += data
        frames: list[dict[str, Any]] = []
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer, start)
            if length > MAX_FRAME:
                raise FrameError(f"a frame announces {length} bytes, the limit is {MAX_FRAME}")
            end = start + _HEADER.size + length
            if len(self._buffer) < end:
                break
            frames.append(_parse(bytes(self._buffer[start + _HEADER.size : end])))
            start = end
        del self._buffer[:start]
        return frames


def _parse(body: bytes) -> dict[str, Any]:
    try:
        frame = canonical.decode(body, max_bytes=MAX_FRAME)
    except canonical.NotCanonical as error:
        raise FrameError(str(error)) from error
    if not isinstance(frame, dict):
        raise FrameError("a frame is not a map")
    return cast("dict[str, Any]", frame)
