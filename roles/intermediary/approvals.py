"""What waits for a person: durable, shown as it is bound, decided once, denied by default when nobody answers.

No model gets this far: a decision comes with the name of the key or local user that made it, through the API alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, ClassVar, Final

import trio
from pydantic import Field, StringConstraints

from gnusnode.contracts.base import Record
from gnusnode.contracts.dsse import Signer
from gnusnode.contracts.fields import Line, Moment
from gnusnode.contracts.ids import Sha256
from gnusnode.contracts.tools import (
    MAX_APPROVAL_MS,
    NEEDS_APPROVAL,
    Decision,
    DryRunResult,
    ToolApproval,
    ToolAttestation,
)
from gnusnode.errors import Conflict, NotFound, ToolBlocked
from gnusnode.store.db import Store
from gnusnode.store.tables import APPROVALS
from gnusnode.store.txn import WriteTxn
from roles.intermediary.call import Call

MAX_WAITING: Final = 256
"""More would be approved unread."""
MAX_WORDS: Final = 65_536
"""Characters that a person is shown of one call."""
KEEP_MS: Final = 7 * 86_400_000
"""How long what was decided can still be looked at."""
_PAGE: Final = 64


class Standing(StrEnum):
    WAITING = "waiting"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"


class Pending(Record):
    """One call that a person is asked about, with all that the decision binds."""

    record_name: ClassVar[str] = "pending-approval"
    max_bytes: ClassVar[int] = 4 * 1024 * 1024

    call: Call
    attestation: ToolAttestation
    dry_run: DryRunResult
    why: Annotated[tuple[Line, ...], Field(max_length=64)]
    """Why a person is asked, in plain words."""
    words: Annotated[str, StringConstraints(max_length=MAX_WORDS)] = ""
    """What the person is shown: the call, where each argument comes from, what stands against it. Escaped."""
    shown_hash: Sha256
    asked_at_ms: Moment
    expires_at_ms: Moment
    standing: Standing = Standing.WAITING
    approval: ToolApproval | None = None

    @property
    def key(self) -> str:
        return self.call.key


Told = Callable[[Pending], None]


class ApprovalDesk:
    """The queue of a node. Made by ``open``; ``run`` until cancelled.

    Args:
        signer: the node's key.
        now_ms: wall clock, milliseconds since the epoch.
        told: hears of every change, as events and metrics do.
    """

    def __init__(self, store: Store, signer: Signer, now_ms: Callable[[], int], told: Told) -> None:
        self._store = store
        self._signer = signer
        self._now_ms = now_ms
        self._told = told
        self._waiting: dict[str, Pending] = {}
        self._changed = trio.Event()

    @classmethod
    async def open(
        cls, store: Store, signer: Signer, now_ms: Callable[[], int], *, told: Told = lambda _: None
    ) -> ApprovalDesk:
        """Takes up what waits since before, and forgets what was decided long ago.

        Raises:
            DataError: the store cannot be read or written.
        """
        desk = cls(store, signer, now_ms, told)
        start: bytes | None = None
        while page := await store.page(APPROVALS, start=start, limit=_PAGE):
            for key, value in page:
                pending = Pending.from_bytes(value)
                if pending.standing is Standing.WAITING:
                    desk._waiting[pending.key] = pending
                elif now_ms() - pending.expires_at_ms > KEEP_MS:
                    await store.delete(APPROVALS, key)
            start = page[-1][0] + b"\0"
        return desk

    def waiting(self) -> tuple[Pending, ...]:
        """What nobody has decided yet, the oldest first."""
        return tuple(sorted(self._waiting.values(), key=lambda pending: pending.asked_at_ms))

    def get(self, key: str) -> Pending:
        """One of them, decided or not.

        Raises:
            NotFound: nobody was asked about this call, or long ago.
        """
        value = self._store.get(APPROVALS, key.encode())
        if value is None:
            raise NotFound("no such approval", where=key, hint="gnusnode approvals list")
        return Pending.from_bytes(value)

    async def ask(self, pending: Pending) -> None:
        """Puts a call before a person. It waits from here on, through restarts.

        Raises:
            ToolBlocked: too many wait already. Conflict: the call is before a person already.
            ValueError: its attestation does not say that a person is needed, or is for another call.
        """
        if pending.attestation.reason_code != NEEDS_APPROVAL or pending.attestation.args_hash != pending.call.args_hash:
            raise ValueError("not an attestation that asks for approval of this call")
        if len(self._waiting) >= MAX_WAITING:
            hint = "decide some of them: gnusnode approvals list"
            raise ToolBlocked("APPROVAL_QUEUE_FULL", f"{MAX_WAITING} calls wait for a person", hint=hint)
        key, value = pending.key.encode(), pending.to_bytes()

        def write(txn: WriteTxn) -> bool:
            if txn.get(APPROVALS, key) is not None:
                return False
            txn.put(APPROVALS, key, value)
            return True

        if not await self._store.write(write):
            raise Conflict("a person was asked about this call already", where=pending.key)
        self._waiting[pending.key] = pending
        self._tell(pending)

    async def decide(self, key: str, decision: Decision, by: str) -> ToolApproval:
        """A person has decided. The same decision again gives the same record.

        Args:
            by: the key or local user through which the person spoke.

        Raises:
            NotFound. ToolBlocked: it expired. Conflict: it was decided otherwise.
        """
        pending = self.get(key)
        now = self._now_ms()
        if pending.standing is Standing.WAITING and now >= pending.expires_at_ms:
            pending = await self._expire(pending)
        if pending.standing is Standing.EXPIRED:
            raise ToolBlocked("APPROVAL_EXPIRED", "nobody decided in time", where=key, hint="ask for it anew")
        approval = ToolApproval.signed(
            self._signer,
            request_id=pending.attestation.request_id,
            tool_call_id=pending.attestation.tool_call_id,
            attestation_hash=pending.attestation.digest,
            args_hash=pending.attestation.args_hash,
            shown_hash=pending.shown_hash,
            decision=decision,
            decided_by=by,
            decided_at_ms=now,
            expires_at_ms=min(now + MAX_APPROVAL_MS, max(now + 1, pending.attestation.expires_at_ms)),
            nonce=secrets.token_hex(16),
        )
        standing = Standing.APPROVED if decision is Decision.APPROVE else Standing.DENIED
        decided = await self._change(pending, standing, approval)
        if decided.approval is None or decided.standing is not standing:
            raise Conflict(f"it was {decided.standing.value} already", where=key)
        return decided.approval

    async def decided(self, key: str) -> Pending:
        """Waits until the call is decided, or nobody did in time."""
        while key in self._waiting:
            await self._changed.wait()
        return self.get(key)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Denies what nobody decides in time."""
        task_status.started()
        while True:
            now = self._now_ms()
            for pending in [each for each in self._waiting.values() if each.expires_at_ms <= now]:
                await self._expire(pending)
            soonest = min((each.expires_at_ms for each in self._waiting.values()), default=None)
            with trio.move_on_after(float("inf") if soonest is None else max(0.0, (soonest - now) / 1000)):
                await self._changed.wait()

    async def _expire(self, pending: Pending) -> Pending:
        return await self._change(pending, Standing.EXPIRED, None)

    async def _change(self, pending: Pending, standing: Standing, approval: ToolApproval | None) -> Pending:
        """Writes a decision, unless there is one; what stands then."""
        key = pending.key.encode()
        update = {"standing": standing, "approval": approval}

        def write(txn: WriteTxn) -> tuple[Pending, bool]:
            value = txn.get(APPROVALS, key)
            current = pending if value is None else Pending.from_bytes(value)
            if current.standing is not Standing.WAITING:
                return current, False
            changed = current.model_copy(update=update)
            txn.put(APPROVALS, key, changed.to_bytes())
            return changed, True

        stands, is_new = await self._store.write(write)
        self._waiting.pop(pending.key, None)
        if is_new:
            self._tell(stands)
        return stands

    def _tell(self, pending: Pending) -> None:
        self._changed.set()
        self._changed = trio.Event()
        self._told(pending)
