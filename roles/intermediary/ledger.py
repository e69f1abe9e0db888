"""Which calls were made: durable before anything happens, so that none is made twice, whatever dies in between.

claimed ─▶ done | failed
   └─ the process died ─▶ unknown     it may have happened: it is never tried again
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Final

from gnusnode.contracts.base import Record
from gnusnode.contracts.fields import Moment
from gnusnode.contracts.ids import Name, Sha256
from gnusnode.store.db import Store
from gnusnode.store.tables import TOOL_CALLS
from gnusnode.store.txn import WriteTxn

KEEP_MS: Final = 30 * 86_400_000
"""How long a call that was made is remembered; its attestation and its plan are long expired by then."""
_PAGE: Final = 256


class State(StrEnum):
    CLAIMED = "claimed"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Entry(Record):
    """One call that was let through."""

    record_name: ClassVar[str] = "tool-call-entry"

    state: State
    tool_name: Name
    attestation_hash: Sha256
    approval_hash: Sha256 | None
    claimed_at_ms: Moment
    output_hash: Sha256 | None = None
    """Of the raw output, which is kept nowhere."""


class Ledger:
    """The calls of this node. Made by ``open``."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    async def open(cls, store: Store, now_ms: int) -> Ledger:
        """Takes up what the store holds: calls that were cut off become ``unknown``, old ones are forgotten.

        Raises:
            DataError: the store cannot be read or written.
        """
        start: bytes | None = None
        while page := await store.page(TOOL_CALLS, start=start, limit=_PAGE):
            changes = {key: _taken_up(Entry.from_bytes(value), now_ms) for key, value in page}

            def write(txn: WriteTxn, changes: dict[bytes, Entry | None] = changes) -> None:
                for key, entry in changes.items():
                    txn.delete(TOOL_CALLS, key) if entry is None else txn.put(TOOL_CALLS, key, entry.to_bytes())

            await store.write(write)
            start = page[-1][0] + b"\0"
        return cls(store)

    async def claim(self, key: str, entry: Entry) -> bool:
        """Takes the call for its one execution; False: it was taken before. Durable when this returns.

        Raises:
            DataError: it could not be written: the call must not be made.
        """
        name, value = key.encode(), entry.to_bytes()

        def write(txn: WriteTxn) -> bool:
            if txn.get(TOOL_CALLS, name) is not None:
                return False
            txn.put(TOOL_CALLS, name, value)
            return True

        return await self._store.write(write)

    async def settle(self, key: str, state: State, output_hash: str | None = None) -> None:
        """How a claimed call ended."""
        name = key.encode()

        def write(txn: WriteTxn) -> None:
            if (value := txn.get(TOOL_CALLS, name)) is not None:
                entry = Entry.from_bytes(value).model_copy(update={"state": state, "output_hash": output_hash})
                txn.put(TOOL_CALLS, name, entry.to_bytes())

        await self._store.write(write)

    def get(self, key: str) -> Entry | None:
        value = self._store.get(TOOL_CALLS, key.encode())
        return None if value is None else Entry.from_bytes(value)


def _taken_up(entry: Entry, now_ms: int) -> Entry | None:
    if now_ms - entry.claimed_at_ms > KEEP_MS:
        return None
    return entry.model_copy(update={"state": State.UNKNOWN}) if entry.state is State.CLAIMED else entry
