"""The store against a dictionary: any mix of writes, failures, reopenings and crashes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import trio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gnusnode.store import Store, WriteTxn, open_store
from gnusnode.store.check import check_data_file
from gnusnode.store.tables import OUTPUTS, PLANS, Table

KEYS = st.binary(min_size=1, max_size=3) | st.sampled_from([b"\xff", b"\xff\xff", b"a" * 511])
VALUES = st.binary(max_size=20) | st.integers(0, 9000).map(bytes)
TABLES = st.sampled_from([PLANS, OUTPUTS])
CHANGES = st.lists(st.tuples(TABLES, KEYS, st.none() | VALUES), min_size=1, max_size=8)


class _Refused(Exception):
    pass


@dataclass
class _Model:
    tables: dict[Table, dict[bytes, bytes]] = field(default_factory=lambda: {PLANS: {}, OUTPUTS: {}})

    def apply(self, changes: list[tuple[Table, bytes, bytes | None]]) -> None:
        for table, key, value in changes:
            if value is None:
                self.tables[table].pop(key, None)
            else:
                self.tables[table][key] = value


def _operation(changes: list[tuple[Table, bytes, bytes | None]], *, fails: bool = False):  # type: ignore[no-untyped-def]  # local
    def run(txn: WriteTxn) -> None:
        for table, key, value in changes:
            if value is None:
                txn.delete(table, key)
            else:
                txn.put(table, key, value)
        if fails:
            raise _Refused

    return run


class StoreMachine(RuleBasedStateMachine):
    """Each rule is one run of the loop on the same directory; the map begins at 1 MiB, so that it grows on the way."""

    def __init__(self) -> None:
        super().__init__()
        self._root = Path(tempfile.mkdtemp())
        self._home = self._root / "0"
        self._model = _Model()

    def teardown(self) -> None:
        shutil.rmtree(self._root)

    def _run(self, body) -> None:  # type: ignore[no-untyped-def]  # an async function of the store
        async def main() -> None:
            async with AsyncExitStack() as stack:
                await body(await stack.enter_async_context(open_store(self._home, map_size=1 << 20)))

        trio.run(main)

    @rule(batches=st.lists(st.tuples(CHANGES, st.booleans()), min_size=1, max_size=6))
    def writes_one_after_another(self, batches: list[tuple[list[tuple[Table, bytes, bytes | None]], bool]]) -> None:
        async def body(store: Store) -> None:
            for changes, fails in batches:
                try:
                    await store.write(_operation(changes, fails=fails))
                except _Refused:
                    assert fails
                else:
                    assert not fails
                    self._model.apply(changes)

        self._run(body)

    @rule(keys=st.lists(KEYS, min_size=2, max_size=12, unique=True), value=VALUES, failing=st.integers(0, 11))
    def writes_at_once_of_which_one_fails(self, keys: list[bytes], value: bytes, failing: int) -> None:
        async def one(store: Store, key: bytes, fails: bool) -> None:
            try:
                await store.write(_operation([(PLANS, key, value)], fails=fails))
            except _Refused:
                assert fails

        async def body(store: Store) -> None:
            async with trio.open_nursery() as nursery:
                for index, key in enumerate(keys):
                    nursery.start_soon(one, store, key, index == failing)

        self._run(body)
        self._model.apply([(PLANS, key, value) for index, key in enumerate(keys) if index != failing])

    @rule(changes=CHANGES)
    def dies_after_an_acknowledged_write(self, changes: list[tuple[Table, bytes, bytes | None]]) -> None:
        crashed = self._root / str(int(self._home.name) + 1)

        async def body(store: Store) -> None:
            await store.write(_operation(changes))
            shutil.copytree(self._home, crashed)  # what a process killed at this moment leaves behind

        self._run(body)
        self._model.apply(changes)
        self._home = crashed

    @rule(
        table=TABLES,
        prefix=st.binary(max_size=2),
        start=st.none() | KEYS,
        limit=st.integers(0, 5),
        reverse=st.booleans(),
    )
    def scans(self, table: Table, prefix: bytes, start: bytes | None, limit: int, reverse: bool) -> None:
        async def body(store: Store) -> None:
            found = store.scan(table, prefix=prefix, start=start, limit=limit, reverse=reverse)
            assert found == list(self._expected(table, prefix, start, reverse))[:limit]

        self._run(body)

    def _expected(
        self, table: Table, prefix: bytes, start: bytes | None, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        for key, value in sorted(self._model.tables[table].items(), reverse=reverse):
            beyond = start is not None and (key > start if reverse else key < start)
            if key.startswith(prefix) and not beyond:
                yield key, value

    @invariant()
    def holds_what_was_acknowledged(self) -> None:
        async def body(store: Store) -> None:
            for table, entries in self._model.tables.items():
                assert dict(store.scan(table, limit=10_000)) == entries
                assert store.count(table) == len(entries)

        self._run(body)
        assert check_data_file(self._home / "data.mdb", budget=None).complete


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=25, stateful_step_count=12, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
