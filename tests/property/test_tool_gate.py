"""Whatever records are forged, swapped, replayed or re-read: nothing runs but what was attested, once."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from gnusnode.contracts import canonical
from gnusnode.contracts.roster import Roster
from gnusnode.contracts.swarm import Role
from gnusnode.contracts.tools import NEEDS_APPROVAL, Decision, ToolApproval, ToolAttestation
from gnusnode.errors import ToolBlocked
from gnusnode.store.db import open_store
from roles.intermediary.call import Call
from roles.intermediary.gate import Gate
from roles.intermediary.ledger import Ledger
from tests.fakes.toolcalls import MINUTE, SANITIZER, attestation, call, dry_run
from tests.property.records import ME, NOW, OTHERS, ROSTER

CALLS = 8
ARGUMENTS: list[dict[str, Any]] = [{"url": "https://a.example/"}, {"url": "https://a.example/", "n": 5}, {"n": "5"}, {}]


@dataclass
class Issued:
    """What the intermediary itself signed: the only truth that an execution may rest on."""

    attestations: dict[bytes, tuple[Call, ToolAttestation]] = field(
        default_factory=dict[bytes, "tuple[Call, ToolAttestation]"]
    )
    approvals: dict[bytes, ToolApproval] = field(default_factory=dict[bytes, ToolApproval])


steps = st.lists(
    st.tuples(
        st.sampled_from(["attest", "forge", "tamper", "approve", "deny", "wait", "die", *["execute"] * 4]),
        st.integers(0, CALLS - 1),
        st.integers(0, len(ARGUMENTS) - 1),
        st.integers(0, 2**12),
    ),
    min_size=10,
    max_size=60,
)


def variant(number: int, arguments: int, pick: int) -> Call:
    """One of few calls, so that records of one meet another; the plan varies too."""
    return call(number, arguments=ARGUMENTS[arguments], nonce=str(pick % 2) * 32)


class World:
    def __init__(self, ledger: Ledger) -> None:
        self.now = NOW
        self.issued = Issued()
        self.heap: list[bytes] = []
        """Every attestation that anybody ever showed, true or false."""
        self.approvals: list[bytes | None] = [None]
        self.ran: dict[str, int] = {}
        self.ledger = ledger
        self.roster: Roster = ROSTER

    def gate(self) -> Gate:
        return Gate(ME.peer_id, lambda: self.roster, self.ledger, sanitizer=SANITIZER, now_ms=lambda: self.now)

    def attest(self, of: Call, pick: int) -> None:
        fields: dict[str, Any] = [
            {},
            {"reason_code": NEEDS_APPROVAL},
            {"reason_code": NEEDS_APPROVAL},
            {"safe_to_execute": False, "reason_code": "SSRF_ADDRESS"},
            {"sanitizer_version": "0.9.0"},
            {"expires_at_ms": self.now + 1},
        ][pick % 6]
        fields = {"timestamp_ms": self.now, "expires_at_ms": self.now + 5 * MINUTE, **fields, "nonce": f"{pick:032x}"}
        record = attestation(of, **fields)
        self.issued.attestations[record.to_bytes()] = (of, record)
        self.heap.append(record.to_bytes())

    def forge(self, of: Call, pick: int) -> None:
        by = OTHERS[pick % len(OTHERS)]
        self.heap.append(attestation(of, by, timestamp_ms=self.now, expires_at_ms=self.now + MINUTE).to_bytes())

    def tamper(self, of: Call, pick: int) -> None:
        if not self.heap:
            return
        data = self.heap[pick % len(self.heap)]
        try:
            plain = canonical.decode(data, max_bytes=2**20)
        except canonical.NotCanonical:
            return
        assert isinstance(plain, dict)
        changed = [
            plain | of.bound(),  # moved to another call
            plain | {"safe_to_execute": True, "dry_run_ok": True, "reason_code": "OK"},
            plain | {"expires_at_ms": self.now + MINUTE},
            plain | {"extra": 1},
        ][pick % 4]
        self.heap.append(canonical.encode(changed))
        self.heap.append(data + b"\x00")
        at = pick % len(data)
        self.heap.append(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])

    def decide(self, pick: int, decision: Decision) -> None:
        known = list(self.issued.attestations.values())
        asked = [each for each in known if each[1].reason_code == NEEDS_APPROVAL]
        known = asked if asked and pick % 3 else known
        if not known:
            return
        of, record = known[pick % len(known)]
        approval = ToolApproval.signed(
            ME if pick % 5 else OTHERS[0],
            request_id=record.request_id,
            tool_call_id=record.tool_call_id,
            attestation_hash=record.digest,
            args_hash=of.args_hash,
            shown_hash=of.args_hash,
            decision=decision,
            decided_by="anna",
            decided_at_ms=self.now,
            expires_at_ms=self.now + MINUTE,
            nonce=f"{pick:032x}",
        )
        if approval.signer == ME.peer_id:
            self.issued.approvals[approval.to_bytes()] = approval
        self.approvals.append(approval.to_bytes())

    async def execute(self, of: Call, pick: int) -> None:
        if not self.heap:
            return
        true_ones = list(self.issued.attestations)
        shown = true_ones[pick % len(true_ones)] if true_ones and pick % 4 else self.heap[pick % len(self.heap)]
        approval = self.approvals[pick // 7 % len(self.approvals)]
        if pick % 3 and shown in self.issued.attestations:  # mostly for the call that it was made for
            of, record = self.issued.attestations[shown]
            fitting = [data for data, word in self.issued.approvals.items() if word.attestation_hash == record.digest]
            approval = fitting[0] if fitting and pick % 5 else approval

        async def run() -> tuple[None, str]:
            self.ran[of.key] = self.ran.get(of.key, 0) + 1
            self.judge(of, shown, approval)
            return None, "sha256:" + "0" * 64

        try:
            await self.gate().execute(of, dry_run(of), shown, approval, run)
        except ToolBlocked:
            return

    def judge(self, of: Call, shown: bytes, approval: bytes | None) -> None:
        """The oracle: says by other means than the gate's that this execution had every right."""
        assert shown in self.issued.attestations, "it ran on an attestation that was never given"
        meant, record = self.issued.attestations[shown]
        assert (meant.key, meant.proposal, meant.plan, meant.policy) == (of.key, of.proposal, of.plan, of.policy)
        assert record.safe_to_execute
        assert record.sanitizer_version == SANITIZER
        assert self.now < record.expires_at_ms
        assert self.now < of.plan.expires_at_ms
        if record.reason_code == NEEDS_APPROVAL:
            assert approval in self.issued.approvals, "it ran without a person's word"
            given_word = self.issued.approvals[approval]
            assert given_word.attestation_hash == record.digest
            assert given_word.decision is Decision.APPROVE
            assert self.now < given_word.expires_at_ms
        assert self.ran[of.key] == 1, "it ran twice"


async def play(path: Path, moves: list[tuple[str, int, int, int]]) -> World:
    async with open_store(path, map_size=2**22) as store:
        world = World(await Ledger.open(store, NOW))
        for name, number, arguments, pick in moves:
            of = variant(number, arguments, pick)
            match name:
                case "attest":
                    world.attest(of, pick)
                case "forge":
                    world.forge(of, pick)
                case "tamper":
                    world.tamper(of, pick)
                case "approve" | "deny":
                    world.decide(pick, Decision.APPROVE if name == "approve" else Decision.DENY)
                case "execute":
                    await world.execute(of, pick)
                case "wait":
                    world.now += (pick % 4) * MINUTE
                case _:  # the process dies and comes back: only the store is left of the ledger
                    world.ledger = await Ledger.open(store, world.now)
        return world


@pytest.mark.requirement("G-TI-5", "G-TI-11")
@given(moves=steps)
@settings(max_examples=150)
def test_nothing_runs_without_a_valid_attestation_for_just_this_call(moves: list[tuple[str, int, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trio.run(play, Path(folder), moves)


@pytest.mark.parametrize(
    "moves",
    [
        [("attest", 0, 0, 0), ("execute", 0, 0, 1)],
        [("attest", 0, 0, 1), ("execute", 0, 0, 1), ("approve", 0, 0, 1), ("execute", 0, 0, 1), ("execute", 0, 0, 1)],
    ],
    ids=["nobody asked", "approved"],
)
def test_the_honest_way_through_is_open(moves: list[tuple[str, int, int, int]]) -> None:
    """Else the property above would hold of a gate that is always shut."""
    with tempfile.TemporaryDirectory() as folder:
        world = trio.run(play, Path(folder), moves)
    assert list(world.ran.values()) == [1]


@pytest.mark.requirement("G-ROLE-4")
def test_a_node_that_is_no_intermediary_any_more_makes_no_calls() -> None:
    async def run(path: Path) -> None:
        async with open_store(path, map_size=2**22) as store:
            world = World(await Ledger.open(store, NOW))
            of = variant(0, 0, 0)
            world.attest(of, 0)
            world.roster = Roster.solo(ME.peer_id, [role for role in Role if role is not Role.INTERMEDIARY])
            await world.execute(of, 0)
            assert world.ran == {}
            world.roster = ROSTER
            await world.execute(of, 0)
            assert world.ran == {of.key: 1}

    with tempfile.TemporaryDirectory() as folder:
        trio.run(run, Path(folder))
