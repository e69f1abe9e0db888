"""A person is asked, once, about exactly what will run; silence is a no; a restart changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from gnusnode.contracts.ids import sha256
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.tools import NEEDS_APPROVAL, Decision, SimulatedEffects
from gnusnode.errors import Conflict, NotFound, ToolBlocked
from gnusnode.store.db import Store, open_store
from roles.intermediary.approvals import KEEP_MS, MAX_WAITING, ApprovalDesk, Pending, Standing
from roles.intermediary.call import Call
from roles.intermediary.gate import Gate
from roles.intermediary.ledger import Ledger, State
from tests.fakes.toolcalls import MINUTE, SANITIZER, attestation, call, dry_run
from tests.property.records import ME, NOW, OTHERS, ROSTER

KEY_OF_ANNA = "anna"


class Clock:
    """Wall clock of a test."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


class House:
    """A store with its desk, ledger and gate; ``ran`` are the calls that were made."""

    def __init__(self, store: Store, desk: ApprovalDesk, ledger: Ledger, clock: Clock) -> None:
        self.store, self.desk, self.ledger, self.clock = store, desk, ledger, clock
        self.gate = Gate(ME.peer_id, lambda: ROSTER, ledger, sanitizer=SANITIZER, now_ms=clock)
        self.ran: list[dict[str, Any]] = []

    async def execute(self, of: Call, asked: Pending) -> str:
        approval = self.desk.get(asked.key).approval

        async def run() -> tuple[str, str]:
            self.ran.append(of.proposal.arguments)
            return "done", "sha256:" + "0" * 64

        return await self.gate.execute(
            of, dry_run(of), asked.attestation.to_bytes(), approval.to_bytes() if approval else None, run
        )


@asynccontextmanager
async def house(path: Path, clock: Clock) -> AsyncIterator[House]:
    async with open_store(path, map_size=2**24) as store:
        desk = await ApprovalDesk.open(store, ME, clock)
        yield House(store, desk, await Ledger.open(store, clock()), clock)


def pending(of: Call, **fields: Any) -> Pending:
    return Pending(
        call=of,
        attestation=attestation(of, reason_code=NEEDS_APPROVAL),
        dry_run=dry_run(of),
        why=("it changes something outside",),
        shown_hash=sha256(b"shown"),
        asked_at_ms=NOW,
        expires_at_ms=NOW + MINUTE,
        **fields,
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.requirement("G-TI-11")
async def test_a_call_waits_through_a_restart_and_runs_once_when_it_is_approved_twice(
    tmp_path: Path, clock: Clock
) -> None:
    one = pending(call())
    async with house(tmp_path, clock) as first:
        await first.desk.ask(one)
        with pytest.raises(ToolBlocked, match=NEEDS_APPROVAL):
            await first.execute(one.call, one)
    async with house(tmp_path, clock) as second:
        assert second.desk.waiting() == (one,)
        approval = await second.desk.decide(one.key, Decision.APPROVE, KEY_OF_ANNA)
        assert await second.desk.decide(one.key, Decision.APPROVE, KEY_OF_ANNA) == approval
        assert await second.execute(one.call, one) == "done"
        with pytest.raises(ToolBlocked, match="ALREADY_EXECUTED"):
            await second.execute(one.call, one)
        assert len(second.ran) == 1
    async with house(tmp_path, clock) as third:
        with pytest.raises(ToolBlocked, match="ALREADY_EXECUTED"):
            await third.execute(one.call, one)


@pytest.mark.parametrize("changed", [{"url": "https://example.org/2"}, {"url": "https://example.org/1", "n": "5"}])
async def test_an_approval_is_for_the_bytes_that_were_shown(
    tmp_path: Path, clock: Clock, changed: dict[str, Any]
) -> None:
    one = pending(call())
    other = call(arguments=changed)
    async with house(tmp_path, clock) as here:
        await here.desk.ask(one)
        await here.desk.decide(one.key, Decision.APPROVE, KEY_OF_ANNA)
        with pytest.raises(ToolBlocked, match="ATTESTATION_MISMATCH"):
            await here.execute(other, one)
        approval = here.desk.get(one.key).approval
        assert approval is not None
        shown = attestation(other, reason_code=NEEDS_APPROVAL).to_bytes()
        with pytest.raises(ToolBlocked, match="APPROVAL_MISMATCH"):
            await here.gate.execute(other, dry_run(other), shown, approval.to_bytes(), _never)
        assert here.ran == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"plan": call(expires_at_ms=NOW + 1).plan}, "ATTESTATION_MISMATCH"),
        ({"policy": PolicyEnvelope(step_by_step=True)}, "ATTESTATION_MISMATCH"),
        ({"manifest": call().manifest.model_copy(update={"module_version": "2"})}, "ATTESTATION_MISMATCH"),
    ],
)
async def test_an_attestation_is_for_one_plan_policy_and_manifest(
    tmp_path: Path, clock: Clock, changes: dict[str, Any], reason: str
) -> None:
    of = call()
    fields = {name: getattr(of, name) for name in Call.model_fields}
    async with house(tmp_path, clock) as here:
        with pytest.raises(ToolBlocked, match=reason):
            await here.gate.execute(Call(**(fields | changes)), dry_run(of), attestation(of).to_bytes(), None, _never)


async def test_an_approval_is_for_the_attestation_that_was_shown_and_not_for_a_later_one(
    tmp_path: Path, clock: Clock
) -> None:
    one = pending(call())
    later = attestation(one.call, reason_code=NEEDS_APPROVAL, nonce="9" * 32)
    async with house(tmp_path, clock) as here:
        await here.desk.ask(one)
        approval = await here.desk.decide(one.key, Decision.APPROVE, KEY_OF_ANNA)
        with pytest.raises(ToolBlocked, match="APPROVAL_MISMATCH"):
            await here.gate.execute(one.call, one.dry_run, later.to_bytes(), approval.to_bytes(), _never)


async def test_a_node_makes_no_call_on_the_word_of_another_intermediary(tmp_path: Path, clock: Clock) -> None:
    of = call()
    async with house(tmp_path, clock) as here:
        gate = Gate(OTHERS[0].peer_id, lambda: ROSTER, here.ledger, sanitizer=SANITIZER, now_ms=clock)
        with pytest.raises(ToolBlocked, match="ATTESTATION_FOREIGN"):
            await gate.execute(of, dry_run(of), attestation(of).to_bytes(), None, _never)


async def test_a_tool_is_held_to_the_prediction_that_was_judged(tmp_path: Path, clock: Clock) -> None:
    of = call()
    other = dry_run(of).model_copy(update={"simulated_effects": SimulatedEffects()})
    async with house(tmp_path, clock) as here:
        with pytest.raises(ToolBlocked, match="ATTESTATION_MISMATCH"):
            await here.gate.execute(of, other, attestation(of).to_bytes(), None, _never)


async def test_a_plan_that_is_over_takes_its_attestations_along(tmp_path: Path, clock: Clock) -> None:
    of = call(expires_at_ms=NOW + 1)
    async with house(tmp_path, clock) as here:
        clock.now = NOW + 1
        with pytest.raises(ToolBlocked, match="PLAN_REFUSED: its plan is not in force: expired"):
            await here.gate.execute(of, dry_run(of), attestation(of).to_bytes(), None, _never)


async def test_nobody_answers_and_the_call_is_denied(
    tmp_path: Path, clock: Clock, autojump_clock: trio.testing.MockClock
) -> None:
    one = pending(call())
    async with house(tmp_path, clock) as here, trio.open_nursery() as nursery:
        await here.desk.ask(one)
        clock.now = one.expires_at_ms
        await nursery.start(here.desk.run)
        assert (await here.desk.decided(one.key)).standing is Standing.EXPIRED
        with pytest.raises(ToolBlocked, match="APPROVAL_EXPIRED"):
            await here.desk.decide(one.key, Decision.APPROVE, KEY_OF_ANNA)
        with pytest.raises(ToolBlocked, match=NEEDS_APPROVAL):
            await here.execute(one.call, one)
        nursery.cancel_scope.cancel()


async def test_an_approval_that_comes_too_late_is_none_even_if_nobody_looked_at_the_clock(
    tmp_path: Path, clock: Clock
) -> None:
    one = pending(call())
    async with house(tmp_path, clock) as here:
        await here.desk.ask(one)
        clock.now = one.expires_at_ms
        with pytest.raises(ToolBlocked, match="APPROVAL_EXPIRED"):
            await here.desk.decide(one.key, Decision.APPROVE, KEY_OF_ANNA)
        assert here.desk.waiting() == ()


async def test_a_denial_stands_against_a_later_approval(tmp_path: Path, clock: Clock) -> None:
    one = pending(call())
    async with house(tmp_path, clock) as here:
        await here.desk.ask(one)
        await here.desk.decide(one.key, Decision.DENY, KEY_OF_ANNA)
        with pytest.raises(Conflict, match="denied already"):
            await here.desk.decide(one.key, Decision.APPROVE, "bert")
        with pytest.raises(ToolBlocked, match=f"DENIED: {KEY_OF_ANNA}"):
            await here.execute(one.call, one)


async def test_who_waits_hears_of_the_decision(tmp_path: Path, clock: Clock) -> None:
    one = pending(call())
    heard: list[Standing] = []
    async with house(tmp_path, clock) as here:
        await here.desk.ask(one)

        async def wait() -> None:
            heard.append((await here.desk.decided(one.key)).standing)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert heard == []
            await here.desk.decide(one.key, Decision.APPROVE, KEY_OF_ANNA)
    assert heard == [Standing.APPROVED]


async def test_a_call_that_was_cut_off_may_have_happened_and_is_never_tried_again(tmp_path: Path, clock: Clock) -> None:
    one = call()
    async with house(tmp_path, clock) as here:
        entered = trio.Event()

        async def hang() -> tuple[str, str]:
            entered.set()
            await trio.sleep_forever()
            raise AssertionError

        async def lost() -> None:
            # As a kill would leave it: claimed, and nothing after.
            await here.gate.execute(one, dry_run(one), attestation(one).to_bytes(), None, hang)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lost)
            await entered.wait()
            entry = here.ledger.get(one.key)
            nursery.cancel_scope.cancel()
        assert entry is not None
        assert entry.state is State.CLAIMED
        await here.store.put(_calls(), one.key.encode(), entry.to_bytes())
    async with house(tmp_path, clock) as again:
        found = again.ledger.get(one.key)
        assert found is not None
        assert found.state is State.UNKNOWN
        with pytest.raises(ToolBlocked, match="ALREADY_EXECUTED"):
            await again.gate.execute(one, dry_run(one), attestation(one, nonce="2" * 32).to_bytes(), None, _never)


async def test_the_queue_is_bounded_and_old_decisions_are_forgotten(tmp_path: Path, clock: Clock) -> None:
    async with house(tmp_path, clock) as here:
        await here.desk.ask(pending(call(0)))
        with pytest.raises(Conflict):
            await here.desk.ask(pending(call(0)))
        for number in range(1, MAX_WAITING):
            await here.desk.ask(pending(call(number)))
        with pytest.raises(ToolBlocked, match="APPROVAL_QUEUE_FULL"):
            await here.desk.ask(pending(call(MAX_WAITING)))
        await here.desk.decide(pending(call(0)).key, Decision.DENY, KEY_OF_ANNA)
    clock.now = NOW + MINUTE + KEEP_MS + 1
    async with house(tmp_path, clock) as later:
        with pytest.raises(NotFound):
            later.desk.get(pending(call(0)).key)


async def test_only_what_needs_a_person_is_put_before_one(tmp_path: Path, clock: Clock) -> None:
    of = call()
    async with house(tmp_path, clock) as here:
        with pytest.raises(ValueError, match="asks for approval"):
            await here.desk.ask(pending(of).model_copy(update={"attestation": attestation(of)}))


async def _never() -> tuple[str, str]:
    raise AssertionError("it ran")


def _calls() -> Any:
    from gnusnode.store.tables import TOOL_CALLS

    return TOOL_CALLS
