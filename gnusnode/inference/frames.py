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

from typing import Any

from gnusnode.contracts import canonical
from gnusnode.contracts.base import Record
from gnusnode.contracts.generation import ContextProfile
from gnusnode.contracts.ids import Name, Sha256
from sandbox import wire
from sandbox.wire import FrameError, Unpacker, pack

__all__ = ["ChildSpec", "FrameError", "Unpacker", "pack", "pack_known"]


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


def pack_known(frame: dict[str, Any]) -> bytes:
    """``pack`` without the check of every value, for frames that are sent for every token."""
    return wire.framed(canonical.encode_known(frame))
