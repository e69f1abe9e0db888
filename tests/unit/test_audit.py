"""The audit log: one chain, one writer a family, digests only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from gnusnode.contracts.events import GENESIS
from gnusnode.contracts.swarm import KeyRotation
from gnusnode.errors import DataError, InternalError, RecordRefused
from gnusnode.identity import NodeIdentity
from gnusnode.store import Store, WriteTxn, open_store
from gnusnode.store.audit import AuditLog, open_audit
from gnusnode.store.tables import AUDIT, AUDIT_HEADS, u64

DIGEST = "sha256:" + "ab" * 32
HEAD = b"head"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "store"


async def _fill(log: AuditLog, count: int, family: str = "tool") -> None:
    writer = log.writer(family)
    for number in range(count):
        await writer.append(f"{family}.result", call_count=number, output_sha256=DIGEST)


async def test_events_form_a_chain_that_verifies_and_survives_reopening(home: Path, signer: NodeIdentity) -> None:
    async with open_store(home) as store:
        log = await open_audit(store, signer, now_ms=lambda: 1234)
        await _fill(log, 3)
    async with open_store(home) as store:
        log = await open_audit(store, signer, now_ms=lambda: 1235)
        event = await log.writer("plan").append("plan.signed", plan_hash=DIGEST, ok=True)
        report = await log.verify()
        tail = await log.tail(2)
    assert (report.checked, report.length, report.broken) == (4, 4, None)
    assert [entry.seq for entry in tail] == [2, 3]
    assert tail[-1] == event
    assert event.prev == tail[0].digest
    assert event.issued_at_ms == 1235
    assert event.signature_is_valid()


async def test_an_empty_log_verifies(home: Path, signer: NodeIdentity) -> None:
    async with open_store(home) as store:
        log = await open_audit(store, signer)
        report = await log.verify()
        assert (report.checked, report.broken, log.length, await log.tail(5)) == (0, None, 0, [])


async def test_a_family_has_one_writer(home: Path, signer: NodeIdentity) -> None:
    async with open_store(home) as store:
        log = await open_audit(store, signer)
        log.writer("tool")
        with pytest.raises(InternalError, match="tool"):
            log.writer("tool")
        with pytest.raises(InternalError, match="audit"):
            log.writer("audit")
        log.writer("plan")


async def test_a_writer_cannot_write_events_of_another_family(home: Path, signer: NodeIdentity) -> None:
    async with open_store(home) as store:
        log = await open_audit(store, signer)
        writer = log.writer("tool")
        for event in ("plan.signed", "toolbox.result", "tool", "tool.", "tool.Result"):
            with pytest.raises(RecordRefused):
                await writer.append(event)
        assert log.length == 0


@pytest.mark.parametrize(
    "key", ["output", "content", "text", "prompt", "body", "payload", "message", "arguments", "url"]
)
async def test_a_key_that_names_content_is_refused_and_the_others_in_flight_are_not(
    home: Path, signer: NodeIdentity, key: str
) -> None:
    async with open_store(home) as store:
        log = await open_audit(store, signer)
        writer = log.writer("tool")

        async def refused() -> None:
            with pytest.raises(RecordRefused, match=key):
                await writer.append("tool.result", **{key: DIGEST})

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: writer.append("tool.result", output_sha256=DIGEST))
            nursery.start_soon(refused)
            nursery.start_soon(lambda: writer.append("tool.result", **{f"{key}_sha256": DIGEST}))
        assert log.length == 2
        assert (await log.verify()).broken is None


@pytest.mark.parametrize("value", ["a sentence with spaces", "x" * 200, 2**60, 1.5, None, ["list"]])
async def test_a_value_that_could_carry_content_is_refused(home: Path, signer: NodeIdentity, value: object) -> None:
    async with open_store(home) as store:
        log = await open_audit(store, signer)
        writer = log.writer("tool")
        with pytest.raises(RecordRefused):
            await writer.append("tool.result", outcome=value)  # type: ignore[arg-type]  # that is the test
        assert log.length == 0


async def test_many_tasks_append_to_one_chain(home: Path, signer: NodeIdentity) -> None:
    async with open_store(home) as store:
        log = await open_audit(store, signer)
        async with trio.open_nursery() as nursery:
            for family in ("tool", "plan", "node", "memory"):
                nursery.start_soon(_fill, log, 25, family)
        report = await log.verify()
        assert (report.checked, report.broken) == (100, None)


async def test_an_event_of_a_cancelled_task_is_recorded(home: Path, signer: NodeIdentity) -> None:
    async with open_store(home) as store:
        log = await open_audit(store, signer)
        writer = log.writer("tool")
        with trio.CancelScope() as scope:
            scope.cancel()
            await writer.append("tool.result", output_sha256=DIGEST)
        assert log.length == 1


async def test_a_task_that_does_nothing_but_append_can_be_cancelled(home: Path, signer: NodeIdentity) -> None:
    async with open_store(home) as store:
        log = await open_audit(store, signer)
        writer = log.writer("tool")

        async def append_for_ever() -> None:
            while True:
                await writer.append("tool.result")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(append_for_ever)
            await log.follow(5)
            nursery.cancel_scope.cancel()
        assert (await log.verify()).broken is None


async def test_a_follower_gets_what_is_there_and_then_what_comes(home: Path, signer: NodeIdentity) -> None:
    async with open_store(home) as store:
        log = await open_audit(store, signer)
        writer = log.writer("tool")
        await writer.append("tool.invoked")
        seen: list[str] = []

        async def follow() -> None:
            last = -1
            while len(seen) < 3:
                for event in await log.follow(last):
                    seen.append(event.event)
                    last = event.seq

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await writer.append("tool.dry_run")
            await writer.append("tool.result")
        assert seen == ["tool.invoked", "tool.dry_run", "tool.result"]


async def test_part_of_a_chain_can_be_verified(home: Path, signer: NodeIdentity) -> None:
    async with open_store(home) as store:
        log = await open_audit(store, signer)
        await _fill(log, 10)
        await _tamper(store, 2)
        assert (await log.verify()).broken is not None
        assert (await log.verify(0, 1)).checked == 2
        assert (await log.verify(5, 9)).broken is None
        broken = (await log.verify(1)).broken
        assert broken is not None
        assert broken.seq == 2


@pytest.mark.parametrize("gone", [1, 2, 5])
async def test_cutting_events_off_the_end_is_noticed(home: Path, signer: NodeIdentity, gone: int) -> None:
    async with open_store(home) as store:
        log = await open_audit(store, signer)
        await _fill(log, 5)

        def cut(txn: WriteTxn) -> None:
            for seq in range(5 - gone, 5):
                txn.delete(AUDIT, u64(seq))

        await store.write(cut)
        broken = (await log.verify()).broken
        assert broken is not None
        assert broken.seq == 5 - gone
        assert "5 events" in broken.why
        with pytest.raises(DataError, match="damaged at event"):
            await open_audit(store, signer)


async def test_a_missing_or_foreign_head_is_noticed(home: Path, signer: NodeIdentity, stranger: NodeIdentity) -> None:
    async with open_store(home) as store:
        log = await open_audit(store, signer)
        await _fill(log, 2)
        ours = store.get(AUDIT_HEADS, HEAD)
        assert ours is not None
        await store.delete(AUDIT_HEADS, HEAD)
        assert (await log.verify()).broken is not None
        async with open_store(home.with_name("other")) as other:
            foreign = await open_audit(other, stranger)
            await _fill(foreign, 2)
            theirs = other.get(AUDIT_HEADS, HEAD)
        assert theirs is not None
        await store.put(AUDIT_HEADS, HEAD, theirs)
        broken = (await log.verify()).broken
        assert broken is not None
        assert "not signed by this node" in broken.why
        await store.put(AUDIT_HEADS, HEAD, ours)
        assert (await log.verify()).broken is None


async def test_the_chain_goes_on_after_key_rotation_and_only_with_its_statement(
    home: Path, signer: NodeIdentity, stranger: NodeIdentity
) -> None:
    rotation = KeyRotation.between(signer, stranger, issued_at_ms=5)
    async with open_store(home) as store:
        log = await open_audit(store, signer)
        await _fill(log, 2)
    async with open_store(home) as store:
        with pytest.raises(DataError, match="belongs to") as refused:
            await open_audit(store, stranger)
        assert refused.value.hint
        log = await open_audit(store, stranger, rotations=[rotation])
        await _fill(log, 2)
        assert (await log.verify()).checked == 5
    async with open_store(home) as store:
        log = await open_audit(store, stranger)  # the store remembers the statement
        report = await log.verify()
        events = await log.events(0)
        with pytest.raises(DataError, match="belongs to"):
            await open_audit(store, signer)  # the old key is worth nothing any more
    assert (report.checked, report.broken) == (5, None)
    assert [event.signer for event in events] == [signer.peer_id] * 2 + [stranger.peer_id] * 3
    assert events[2].event == "audit.key_rotated"
    assert events[2].fields == {"old_key": signer.peer_id, "rotation_hash": rotation.digest}


async def test_two_rotations_while_the_node_was_down_are_one_handover(
    home: Path, signer: NodeIdentity, stranger: NodeIdentity
) -> None:
    third = NodeIdentity(bytes(range(2, 34)))
    rotations = [
        KeyRotation.between(signer, stranger, issued_at_ms=5),
        KeyRotation.between(stranger, third, issued_at_ms=6),
    ]
    async with open_store(home) as store:
        await _fill(await open_audit(store, signer), 2)
        log = await open_audit(store, third, rotations=rotations)
        assert (await log.verify()).broken is None
        assert log.length == 3


async def test_the_export_is_json_lines_with_the_head_at_the_end(
    home: Path, tmp_path: Path, signer: NodeIdentity
) -> None:
    out = tmp_path / "audit.jsonl"
    async with open_store(home) as store:
        log = await open_audit(store, signer)
        await _fill(log, 3)
        assert await log.export(out) == 3
        with pytest.raises(DataError):
            await log.export(out)
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [line.get("seq") for line in lines] == [0, 1, 2, None]
    assert lines[0]["prev"] == GENESIS
    assert lines[-1]["length"] == 3


async def _tamper(store: Store, seq: int) -> None:
    def change(txn: WriteTxn) -> None:
        value = txn.get(AUDIT, u64(seq))
        assert value is not None
        txn.put(AUDIT, u64(seq), value[:-1] + bytes([value[-1] ^ 1]))

    await store.write(change)
