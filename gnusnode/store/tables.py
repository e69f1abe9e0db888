"""The closed list of tables: what stands under which key, and who writes it.

A table that is not named here does not exist. Values are canonical CBOR records unless the table says otherwise;
payloads of more than ``MAX_VALUE`` belong into the blob store.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

SCHEMA_VERSION: Final = 1
"""Layout of this store. A store of a newer version is refused; see ``docs/store.md``."""

MAX_KEY: Final = 511
"""Bytes; the limit of LMDB's 0.9 file format."""
MAX_VALUE: Final = 8 * 1024 * 1024
"""Bytes of one value."""


@dataclass(frozen=True)
class Table:
    """One named table of the store."""

    name: str
    key: str
    """What the key is, for people."""
    value: str
    """What the value is, for people."""
    writer: str
    """The one module that writes it."""


META: Final = Table("meta", "name in ASCII", "schema version and other facts about the store itself", "store")
PLANS: Final = Table("plans", "request id", "ExecutionPlan with state and reasons", "roles.ingress")
OUTPUTS: Final = Table("outputs", "request id / index (u32)", "ExpertOutput", "roles.ingress")
AUDIT: Final = Table("audit", "sequence number (u64)", "AuditEvent", "store.audit")
AUDIT_HEADS: Final = Table("audit-heads", "``head``", "AuditHead: signed length and last digest", "store.audit")
ROTATIONS: Final = Table("rotations", "PeerID of the new key", "KeyRotation", "store.audit")

TOOL_CALLS: Final = Table(
    "tool-calls", "request id / tool call id", "Entry: one call let through", "roles.intermediary"
)
APPROVALS: Final = Table("approvals", "request id / tool call id", "Pending: asked of a person", "roles.intermediary")

ALL: Final = (META, PLANS, OUTPUTS, AUDIT, AUDIT_HEADS, ROTATIONS, TOOL_CALLS, APPROVALS)

_U64: Final = struct.Struct(">Q")


def u64(number: int) -> bytes:
    """A key that sorts like the number it stands for."""
    return _U64.pack(number)


def from_u64(key: bytes) -> int:
    return _U64.unpack(key)[0]


def check_key(key: bytes) -> None:
    """Raises ``ValueError`` for a key that LMDB cannot hold: a bug of the caller, found before it hurts others."""
    if not 1 <= len(key) <= MAX_KEY:
        raise ValueError(f"a key has 1 to {MAX_KEY} bytes, not {len(key)}")


def check_value(value: bytes) -> None:
    """Raises ``ValueError`` for a value that belongs into the blob store."""
    if len(value) > MAX_VALUE:
        raise ValueError(f"a value of {len(value)} bytes belongs into the blob store (limit {MAX_VALUE})")
