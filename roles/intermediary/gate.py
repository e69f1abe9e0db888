"""The one way to a tool: nothing runs but what was attested, byte for byte, and approved where a person has to.

Every check stands here a second time although the pipeline made it: what it trusts are records and digests, not the
path by which a call came.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from gnusnode.contracts.base import SignedRecord
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.roster import Roster
from gnusnode.contracts.tools import NEEDS_APPROVAL, Decision, DryRunResult, ToolApproval, ToolAttestation
from gnusnode.contracts.verify import verify, verify_bytes
from gnusnode.errors import ToolBlocked
from roles.intermediary.call import Call
from roles.intermediary.ledger import Entry, Ledger, State

T = TypeVar("T")
R = TypeVar("R", bound=SignedRecord)

SETTLE_SECONDS: Final = 5.0
"""Time to write down how a call ended when its caller has gone already."""


class Gate:
    """Lets a call through once, or says why not.

    Args:
        own: this node's PeerID: it executes what it has attested itself, and nobody else's word counts.
        roster: as it is at the moment of the call.
        sanitizer: the version in force; what was judged by another one is judged anew.
        now_ms: wall clock, milliseconds since the epoch.
    """

    def __init__(
        self, own: str, roster: Callable[[], Roster], ledger: Ledger, *, sanitizer: str, now_ms: Callable[[], int]
    ) -> None:
        self._own = own
        self._roster = roster
        self._ledger = ledger
        self._sanitizer = sanitizer
        self._now_ms = now_ms

    async def execute(
        self,
        call: Call,
        dry_run: DryRunResult,
        attestation: bytes,
        approval: bytes | None,
        run: Callable[[], Awaitable[tuple[T, str]]],
    ) -> T:
        """Runs ``run``, which gives its result and the sha256 of its raw output, if all records agree on this call.

        Args:
            dry_run: what was predicted and judged; the tool is held to it.
            attestation, approval: the records as they were signed, not as somebody has read them.

        Raises:
            ToolBlocked: no. Nothing has run then.
            DataError: it could not be written down that the call is made: it was not.
        """
        attested = self._attested(call, dry_run, attestation)
        approved = self._approved(call, attested, approval)
        entry = Entry(
            state=State.CLAIMED,
            tool_name=call.proposal.tool_name,
            attestation_hash=attested.digest,
            approval_hash=approved.digest if approved else None,
            claimed_at_ms=self._now_ms(),
        )
        if not await self._ledger.claim(call.key, entry):
            raise ToolBlocked("ALREADY_EXECUTED", "this call was made before, or may have been", where=call.key)
        return await self._run(call.key, run)

    async def _run(self, key: str, run: Callable[[], Awaitable[tuple[T, str]]]) -> T:
        state, output_hash = State.FAILED, None
        try:
            result, output_hash = await run()
            state = State.DONE
            return result
        finally:
            with trio.move_on_after(SETTLE_SECONDS, shield=True):
                await self._ledger.settle(key, state, output_hash)

    def _attested(self, call: Call, dry_run: DryRunResult, data: bytes) -> ToolAttestation:
        record = self._believed(ToolAttestation, data, "ATTESTATION")
        for name, value in (*call.bound().items(), ("provenance_hash", dry_run.digest)):
            if getattr(record, name) != value:
                raise ToolBlocked("ATTESTATION_MISMATCH", f"the attestation is for another {name}", where=call.key)
        if record.sanitizer_version != self._sanitizer:
            raise ToolBlocked("SANITIZER_CHANGED", "the sanitiser was replaced since: propose it again", where=call.key)
        if not record.safe_to_execute:
            raise ToolBlocked(record.reason_code, "the call was found not safe to execute", where=call.key)
        outcome = verify(call.plan, self._now_ms(), self._roster())
        if outcome is not Outcome.OK:
            raise ToolBlocked("PLAN_REFUSED", f"its plan is not in force: {outcome.value}", where=call.key)
        return record

    def _approved(self, call: Call, attested: ToolAttestation, data: bytes | None) -> ToolApproval | None:
        if attested.reason_code != NEEDS_APPROVAL:
            return None
        if data is None:
            raise ToolBlocked(NEEDS_APPROVAL, "a person has to approve this call first", where=call.key)
        record = self._believed(ToolApproval, data, "APPROVAL")
        same = (
            record.attestation_hash == attested.digest
            and record.args_hash == call.args_hash
            and record.request_id == attested.request_id
            and record.tool_call_id == attested.tool_call_id
        )
        if not same:
            raise ToolBlocked("APPROVAL_MISMATCH", "the approval is for another call", where=call.key)
        if record.decision is not Decision.APPROVE:
            raise ToolBlocked("DENIED", f"{record.decided_by} denied it", where=call.key)
        return record

    def _believed(self, cls: type[R], data: bytes, what: str) -> R:
        verdict = verify_bytes(cls, data, self._now_ms(), self._roster())
        if verdict.record is None:
            raise ToolBlocked(f"{what}_REFUSED", f"{verdict.outcome.value}: {verdict.detail or 'see the outcome'}")
        if verdict.record.signer_peer != self._own:
            raise ToolBlocked(f"{what}_FOREIGN", "it was signed by another node", where=verdict.record.signer_peer)
        return verdict.record
