"""The KV cache's bookkeeping, checked against a model of the cache that knows which cell holds what."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gnusnode.inference.child.kv import KvCache, Lease
from tests.fakes.cells import CellMemory


def cache(cells: int = 100, *, slots: int = 4, kept: int = 4) -> tuple[KvCache, CellMemory]:
    memory = CellMemory()
    return KvCache(memory, cells, slots + kept, cells, kept=kept), memory


def feed(memory: CellMemory, lease: Lease, tokens: list[int], upto: int | None = None) -> None:
    for position in range(lease.fed, len(tokens) if upto is None else upto):
        memory.write(lease.seq, position, tokens[position])
        lease.fed = position + 1


def serve(kv: KvCache, memory: CellMemory, tokens: list[int], total: int) -> Lease:
    lease = kv.acquire(tokens, total)
    assert lease is not None
    feed(memory, lease, tokens)
    kv.release(lease, tokens)
    return lease


def test_a_finished_prompt_serves_the_next_one_with_the_same_beginning() -> None:
    kv, memory = cache()
    serve(kv, memory, list(range(30)), 40)
    lease = kv.acquire([*range(20), 99, 98], 40)
    assert lease is not None
    assert lease.cached == 20
    assert memory.tokens(lease.seq) == list(range(20))


def test_one_token_is_always_left_to_compute() -> None:
    kv, memory = cache()
    serve(kv, memory, list(range(30)), 40)
    lease = kv.acquire(list(range(30)), 40)
    assert lease is not None
    assert lease.cached == 29


def test_a_running_job_shares_what_it_has_fed() -> None:
    kv, memory = cache()
    first = kv.acquire(list(range(40)), 50)
    assert first is not None
    feed(memory, first, list(range(40)))
    second = kv.acquire([*range(35), 99], 45)
    assert second is not None
    assert second.cached == 35
    assert kv.free_cells == 100 - 50 - (45 - 35)


def test_a_job_waits_for_a_prefill_that_it_will_share() -> None:
    kv, memory = cache(400)
    prompt = list(range(120))
    first = kv.acquire(prompt, 130)
    assert first is not None
    assert kv.acquire([*prompt, 7], 130) is None
    feed(memory, first, prompt)
    second = kv.acquire([*prompt, 7], 130)
    assert second is not None
    assert second.cached == 120


def test_a_job_waits_until_its_whole_budget_fits() -> None:
    kv, memory = cache(100)
    first = kv.acquire(list(range(10)), 60)
    assert first is not None
    assert kv.acquire(list(range(50, 60)), 41) is None
    kv.release(first, list(range(10)))
    assert kv.acquire(list(range(50, 60)), 100) is not None
    assert memory.used <= 100


def test_the_least_recently_used_prefix_goes_first() -> None:
    kv, memory = cache(400, kept=3)
    old, used, new = (list(range(base, base + 20)) for base in (0, 100, 200))
    for tokens in (old, used, new):
        serve(kv, memory, tokens, 20)
    serve(kv, memory, [*used[:19], 500], 20)  # touches the second
    big = kv.acquire(list(range(300, 310)), 345)
    assert big is not None
    kv.release(big, [])
    assert kv.acquire([*old, 1], 21).cached == 0  # type: ignore[union-attr]  # there is room: a lease comes
    assert kv.acquire([*used[:19], 2], 20).cached == 19  # type: ignore[union-attr]  # as above


def test_what_is_remembered_holds_no_cells_and_is_bounded() -> None:
    kv, memory = cache(400, kept=4)
    for base in (0, 1000, 2000):
        serve(kv, memory, list(range(base, base + 45)), 50)
    assert (kv.kept_tokens, memory.used) == (90, 0)
    serve(kv, memory, list(range(3000, 3200)), 200)
    assert (kv.kept_tokens, memory.used) == (200, 0)  # one is kept, however long


def test_without_sharing_nothing_is_kept() -> None:
    kv, memory = cache(kept=0)
    serve(kv, memory, list(range(30)), 40)
    assert memory.used == 0
    lease = kv.acquire(list(range(30)), 40)
    assert lease is not None
    assert lease.cached == 0


def test_the_same_text_is_kept_once() -> None:
    kv, memory = cache(200, kept=4)
    for _ in range(4):
        serve(kv, memory, list(range(30)), 40)
    assert kv.kept_tokens == 30


def test_a_lease_grows_while_there_are_cells() -> None:
    kv, memory = cache(100)
    serve(kv, memory, list(range(20)), 20)
    lease = kv.acquire(list(range(50, 60)), 30)
    assert lease is not None
    assert kv.grow(lease, 64)
    assert (len(lease.cells), kv.free_cells, memory.used) == (94, 6, 0)
    assert kv.grow(lease, 64)
    assert len(np.unique(lease.cells)) == 100
    assert not kv.grow(lease, 64)


def test_spare_cells_are_left_for_others() -> None:
    kv, _ = cache(100)
    assert kv.acquire(list(range(10)), 60, spare=41) is None
    assert kv.acquire(list(range(10)), 60, spare=40) is not None
    assert kv.free_cells == 40


class KvMachine(RuleBasedStateMachine):
    """Random jobs with common beginnings: the count of free cells is right, and no sequence holds foreign tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.kv, self.memory = cache(120, slots=3, kept=3)
        self.jobs: list[tuple[Lease, list[int], int]] = []

    @precondition(lambda self: len(self.jobs) < 3)
    @rule(family=st.integers(0, 2), shared=st.integers(0, 40), own=st.integers(1, 10), answer=st.integers(1, 20))
    def begin(self, family: int, shared: int, own: int, answer: int) -> None:
        tokens = [family * 1000 + i for i in range(shared)] + [9000 + own * 10 + i for i in range(own)]
        lease = self.kv.acquire(tokens, len(tokens) + answer)
        if lease is not None:
            assert lease.cached < len(tokens)
            assert self.memory.tokens(lease.seq) == tokens[: lease.cached]
            self.jobs.append((lease, tokens, answer))

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 2), step=st.integers(1, 30))
    def run_on(self, which: int, step: int) -> None:
        lease, tokens, answer = self.jobs[which % len(self.jobs)]
        while len(tokens) < len(lease.tokens) + answer and lease.fed == len(tokens):
            tokens.append(5000 + len(tokens))
        feed(self.memory, lease, tokens, min(len(tokens), lease.fed + step))

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 2), count=st.integers(1, 30))
    def grow(self, which: int, count: int) -> None:
        lease, tokens, answer = self.jobs[which % len(self.jobs)]
        before = len(lease.cells)
        assert self.kv.grow(lease, count) == (len(lease.cells) > before)
        self.jobs[which % len(self.jobs)] = lease, tokens, answer + len(lease.cells) - before

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 2))
    def end(self, which: int) -> None:
        lease, tokens, _ = self.jobs.pop(which % len(self.jobs))
        self.kv.release(lease, tokens)

    @rule(count=st.integers(1, 4))
    def borrow(self, count: int) -> None:
        sequences = self.kv.borrow_sequences(count)
        assert all(not self.memory.sequences.get(seq) for seq in sequences)
        self.kv.give_back(sequences)

    @invariant()
    def free_cells_are_exact(self) -> None:
        owed = sum(len(lease.cells) - lease.fed for lease, _, _ in self.jobs)
        assert self.kv.free_cells == 120 - self.memory.used - owed

    @invariant()
    def sequences_hold_their_own_tokens(self) -> None:
        for lease, tokens, _ in self.jobs:
            assert self.memory.tokens(lease.seq) == tokens[: lease.fed]
            assert len(np.unique(lease.cells)) == len(lease.cells)


TestKvMachine = KvMachine.TestCase
TestKvMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
