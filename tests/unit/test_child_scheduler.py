"""What one step feeds, and what becomes of jobs when a step fails: a scripted context in the place of llama.cpp."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnusnode.errors import ContextTooLong
from gnusnode.inference.child.calibrate import Speed
from gnusnode.inference.child.channel import Outbox
from gnusnode.inference.child.jobs import Job
from gnusnode.inference.child.kv import KvCache, State
from gnusnode.inference.child.native import Batch, NativeError, Outcome, Row
from gnusnode.inference.child.scheduler import Scheduler
from gnusnode.inference.frames import Unpacker
from tests.fakes.cells import CellMemory

Fed = list[tuple[int, int, int]]
"""(sequence, position, token) of one decode."""


class ScriptedContext:
    """Answers decodes from a script, then with OK; remembers what each was given."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.decodes: list[Fed] = []
        self.removed: list[tuple[int, int]] = []

    def decode(self, batch: Batch) -> Outcome:
        rows = range(batch.size)
        self.decodes.append([(int(batch._seq[r]), int(batch._pos[r]), int(batch._token[r])) for r in rows])
        return self.outcomes.pop(0) if self.outcomes else Outcome.OK

    def logits(self, row: int) -> Row:
        return np.full(4, row, np.float32)

    def remove(self, seq: int, start: int = 0) -> bool:
        self.removed.append((seq, start))
        return True

    def copy(self, source: int, target: int, length: int) -> None:
        pass

    def save(self, seq: int) -> State | None:
        return None

    def load(self, seq: int, state: State) -> bool:
        return False


class RememberingContext(ScriptedContext):
    """Keeps what it was fed, cell by cell."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = CellMemory()

    def decode(self, batch: Batch) -> Outcome:
        outcome = super().decode(batch)
        for seq, position, token in self.decodes[-1]:
            assert len(self.memory.tokens(seq)) == position, "a sequence grows at its end"
            self.memory.write(seq, position, token)
        return outcome

    def remove(self, seq: int, start: int = 0) -> bool:
        return self.memory.remove(seq, start)

    def copy(self, source: int, target: int, length: int) -> None:
        self.memory.copy(source, target, length)

    def save(self, seq: int) -> State | None:
        return self.memory.save(seq)

    def load(self, seq: int, state: State) -> bool:
        return self.memory.load(seq, state)


class CountingJob(Job):
    """Answers with rising tokens until it has ``answer`` of them."""

    def __init__(self, number: int, prompt: list[int], answer: int = 1) -> None:
        super().__init__(number, prompt, len(prompt) + answer)
        self.closed = 0
        self.fails = False

    def take(self, row: Row, position: int) -> None:
        if self.fails:
            raise NativeError("scripted")
        self.tokens.append(1000 + len(self.tokens))
        self.finished = len(self.tokens) == self.total

    def close(self, cache: KvCache) -> None:
        self.closed += 1


def elastic(number: int, prompt: list[int], answer: int) -> CountingJob:
    job = CountingJob(number, prompt, answer)
    job.elastic = True
    return job


class Bench:
    def __init__(
        self,
        *outcomes: Outcome,
        canonical: bool = False,
        slots: int = 4,
        prefill: float = 1000.0,
        cells: int = 4000,
        remembers: bool = False,
    ) -> None:
        self.context = RememberingContext() if remembers else ScriptedContext(*outcomes)
        self._read, write = os.pipe()
        self.outbox = Outbox(write)
        context: Any = self.context
        self.cache = KvCache(context, cells, 2 * slots, cells // 2, kept=0 if canonical else slots)
        self.scheduler = Scheduler(
            context,
            self.cache,
            self.outbox,
            Speed(prefill, 100.0),
            slots=slots,
            batch=256,
            prefill_per_step=128,
            canonical=canonical,
        )

    def submit(self, *jobs: CountingJob) -> None:
        for job in jobs:
            self.scheduler.submit(job)

    def step(self) -> dict[int, int]:
        """Tokens per sequence of the next decode."""
        self.scheduler.step()
        counts: dict[int, int] = {}
        for seq, _, _ in self.context.decodes[-1]:
            counts[seq] = counts.get(seq, 0) + 1
        return counts

    def run_until(self, *jobs: CountingJob) -> None:
        """Steps until all ``jobs`` are finished."""
        for _ in range(100_000):
            if all(job.finished for job in jobs):
                return
            self.scheduler.step()
        raise AssertionError("no end")

    def events(self) -> list[dict[str, Any]]:
        self.outbox.send({"ev": "end"})
        self.outbox.flush()
        return Unpacker().feed(os.read(self._read, 65536))[1:]


def prompt(family: int, length: int) -> list[int]:
    return [family * 10_000 + n for n in range(length)]


def test_a_prompt_is_fed_in_chunks_then_a_token_a_step() -> None:
    bench = Bench()
    job = CountingJob(1, prompt(1, 200), 3)
    bench.submit(job)
    sizes = [sum(bench.step().values()) for _ in range(4)]
    assert sizes == [128, 72, 1, 1]
    assert job.tokens[-3:] == [1200, 1201, 1202]
    assert not bench.scheduler.busy
    assert job.closed == 1
    positions = [position for fed in bench.context.decodes for _, position, _ in fed]
    assert positions == list(range(202))


def test_answers_keep_their_pace_while_a_prompt_is_fed() -> None:
    bench = Bench(prefill=500.0)
    answering = CountingJob(1, prompt(1, 10), 50)
    bench.submit(answering)
    bench.step()
    long = CountingJob(2, prompt(2, 600))
    bench.submit(long)
    counts = bench.step()
    assert counts[answering.lease.seq] == 1  # type: ignore[union-attr]  # it runs
    assert counts[long.lease.seq] == 50  # type: ignore[union-attr]  # a tenth of a second at 500 tokens a second


def test_prompts_share_the_room_and_short_ones_are_done_first() -> None:
    bench = Bench()
    long, short = CountingJob(1, prompt(1, 600)), CountingJob(2, prompt(2, 20))
    bench.submit(long, short)
    counts = bench.step()
    assert counts[0 if long.lease is None else long.lease.seq] == 108
    assert short.finished
    assert not long.finished


def test_an_aborted_step_is_fed_again_in_full() -> None:
    bench = Bench(Outcome.OK, Outcome.ABORTED)
    answering, prefilling = CountingJob(1, prompt(1, 10), 9), CountingJob(2, prompt(2, 300))
    bench.submit(answering)
    bench.step()
    bench.submit(prefilling)
    bench.step()
    aborted = list(bench.context.decodes[-1])
    before = list(answering.tokens)
    assert set(bench.context.removed[-2:]) == {(answering.lease.seq, 10), (prefilling.lease.seq, 0)}  # type: ignore[union-attr]  # both run
    bench.step()
    assert bench.context.decodes[-1] == aborted
    assert answering.tokens == [*before, 1000 + len(before)]


def test_a_cancel_after_an_abort_leaves_the_other_job_complete() -> None:
    bench = Bench(Outcome.OK, Outcome.ABORTED)
    answering, prefilling = CountingJob(1, prompt(1, 10), 5), CountingJob(2, prompt(2, 300))
    bench.submit(answering)
    bench.step()
    bench.submit(prefilling)
    bench.step()
    bench.scheduler.cancel(2)
    while bench.scheduler.busy:
        bench.step()
    assert answering.tokens[10:] == [1010, 1011, 1012, 1013, 1014]
    assert [event["error"]["code"] for event in bench.events() if event["ev"] == "error"] == ["cancelled"]
    assert bench.cache.free_cells == 4000


def test_a_step_without_room_ends_its_jobs_with_an_error_and_no_other() -> None:
    bench = Bench(Outcome.OK, Outcome.NO_SLOT, Outcome.OK)
    bench.submit(CountingJob(1, prompt(1, 20)))
    bench.step()
    later = CountingJob(2, prompt(2, 20))
    bench.submit(later)
    bench.step()
    assert [(e["id"], e["error"]["code"]) for e in bench.events() if e["ev"] == "error"] == [(2, "engine_failed")]
    last = CountingJob(3, prompt(3, 20))
    bench.submit(last)
    bench.step()
    assert last.finished


def test_what_fails_in_one_job_ends_that_job_only() -> None:
    bench = Bench()
    bad, good = CountingJob(1, prompt(1, 10), 3), CountingJob(2, prompt(2, 10), 3)
    bad.fails = True
    bench.submit(bad, good)
    while bench.scheduler.busy:
        bench.step()
    assert good.tokens[10:] == [1010, 1011, 1012]
    errors = [(event["id"], event["error"]["code"]) for event in bench.events() if event["ev"] == "error"]
    assert errors == [(1, "engine_failed")]
    assert (bad.closed, good.closed) == (1, 1)


def test_no_more_jobs_run_than_there_are_slots() -> None:
    bench = Bench(slots=2)
    bench.submit(*(CountingJob(n, prompt(n, 10), 5) for n in range(1, 5)))
    bench.step()
    assert (bench.scheduler.active, bench.scheduler.queued) == (2, 2)


def test_what_can_never_fit_is_refused() -> None:
    with pytest.raises(ContextTooLong, match="2001 tokens"):
        Bench().scheduler.require_room(1900, 101)


def test_a_canonical_prompt_is_fed_alone_in_fixed_chunks_between_answers() -> None:
    bench = Bench(canonical=True)
    answering = CountingJob(1, prompt(1, 10), 50)
    bench.submit(answering)
    bench.step()
    first, second = CountingJob(2, prompt(2, 200)), CountingJob(3, prompt(3, 20))
    bench.submit(first, second)
    kinds = [bench.step() for _ in range(6)]
    assert all(len(counts) == 1 for counts in kinds)
    assert [sum(counts.values()) for counts in kinds] == [1, 128, 1, 72, 1, 20]


def test_a_prefill_is_named_for_aborts_while_it_runs() -> None:
    bench = Bench()
    seen: list[bool] = []

    class Watching(ScriptedContext):
        def decode(self, batch: Batch) -> Outcome:
            seen.append(bench.scheduler.aborts_for(7))
            return super().decode(batch)

    bench.scheduler._context = Watching()  # type: ignore[assignment]  # a context in all that is used
    bench.submit(CountingJob(7, prompt(1, 20), 3))
    bench.scheduler.step()
    bench.scheduler.step()
    assert seen == [True, False]
    assert not bench.scheduler.aborts_for(7)


def answer(job: CountingJob) -> list[int]:
    return job.tokens[job.prompt_length :]


def counted(job: CountingJob, length: int) -> list[int]:
    """What ``CountingJob`` says when no token is lost or made twice."""
    return [1000 + job.prompt_length + n for n in range(length)]


def test_a_long_answer_begins_without_all_the_cells_that_it_may_need() -> None:
    bench = Bench()
    jobs = [elastic(n, prompt(n, 10), 1900) for n in range(1, 5)]
    bench.submit(*jobs)
    bench.step()
    assert (bench.scheduler.active, bench.scheduler.queued) == (4, 0)


def test_a_short_request_behind_long_ones_that_fill_the_cache_is_served_early() -> None:
    bench = Bench()
    long = [elastic(n, prompt(n, 10), 1990) for n in (1, 2)]
    bench.submit(*long)
    for _ in range(1000):
        bench.scheduler.step()
    short = elastic(3, prompt(3, 10), 20)
    bench.submit(short)
    bench.run_until(short)
    assert max(len(answer(job)) for job in long) < 1100


def test_without_cells_the_job_admitted_last_makes_room_and_goes_on_where_it_was() -> None:
    bench = Bench(cells=1000, remembers=True)
    jobs = [elastic(n, prompt(n, 20), 400) for n in (1, 2, 3)]
    bench.submit(*jobs)
    interrupted: set[int] = set()
    while not all(job.finished for job in jobs):
        bench.scheduler.step()
        interrupted |= {job.number for job in jobs if job.interrupted}
    assert interrupted == {3}
    assert [answer(job) for job in jobs] == [counted(job, 400) for job in jobs]
    assert [job.closed for job in jobs] == [1, 1, 1]


def test_an_interrupted_job_is_the_first_of_those_that_wait() -> None:
    bench = Bench(cells=1000)
    jobs = [elastic(n, prompt(n, 20), 400) for n in (1, 2, 3)]
    later = CountingJob(4, prompt(4, 200), 250)
    bench.submit(*jobs)
    while not jobs[2].interrupted:
        bench.scheduler.step()
        if len(answer(jobs[0])) == 250:
            bench.submit(later)
    assert later.lease is None
    bench.run_until(jobs[0])
    bench.scheduler.step()
    assert jobs[2].lease is not None


def test_interruptions_cost_little() -> None:
    bench = Bench(cells=8192, slots=8)
    lengths = [2000, 3900, 700, 300, 1500, 1000, 2500, 400] * 2
    jobs = [elastic(n, prompt(n, 20), length) for n, length in enumerate(lengths, 1)]
    bench.submit(*jobs)
    bench.run_until(*jobs)
    assert any(job.interrupted for job in jobs)
    assert sum(map(len, bench.context.decodes)) < 1.2 * sum(job.total for job in jobs)


def test_an_interrupted_or_paused_job_can_be_cancelled() -> None:
    bench = Bench(cells=1000)
    jobs = [elastic(n, prompt(n, 20), 400) for n in (1, 2, 3)]
    bench.submit(*jobs)
    while not jobs[2].interrupted:
        bench.scheduler.step()
    bench.scheduler.pause(2)
    bench.scheduler.cancel(3)
    bench.scheduler.cancel(2)
    bench.scheduler.resume(2)
    bench.run_until(jobs[0])
    assert [(event["id"], event["error"]["code"]) for event in bench.events() if event["ev"] == "error"] == [
        (3, "cancelled"),
        (2, "cancelled"),
    ]
    assert [job.closed for job in jobs] == [1, 1, 1]
    assert not bench.scheduler.busy


def test_a_paused_job_holds_no_cells_until_it_is_resumed() -> None:
    bench = Bench(cells=600, remembers=True)
    first, second = elastic(1, prompt(1, 20), 280), elastic(2, prompt(2, 290), 10)
    bench.submit(first)
    for _ in range(100):
        bench.scheduler.step()
    bench.scheduler.pause(1)
    bench.scheduler.step()
    assert not bench.scheduler.busy
    bench.submit(second)
    bench.run_until(second)
    made = len(answer(first))
    bench.scheduler.resume(1)
    bench.run_until(first)
    assert 90 < made < 110
    assert answer(first) == counted(first, 280)


def test_pausing_or_resuming_what_is_not_there_does_nothing() -> None:
    bench = Bench()
    job = elastic(1, prompt(1, 10), 3)
    bench.submit(job)
    bench.scheduler.pause(7)
    bench.scheduler.resume(1)
    bench.scheduler.pause(1)
    bench.scheduler.pause(1)
    bench.scheduler.resume(1)
    bench.run_until(job)
    assert answer(job) == counted(job, 3)


def test_the_rate_of_decoding_is_that_of_all_streams_together(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.submit(*(CountingJob(n, prompt(n, 10), 300) for n in range(1, 5)))
    bench.step()
    clock = iter(float(n) for n in range(1000))
    monkeypatch.setattr("gnusnode.inference.child.scheduler.time.perf_counter", lambda: next(clock))
    for _ in range(100):
        bench.scheduler.step()
    assert bench.scheduler.speed.decode == pytest.approx(4.0, rel=0.01)


def test_answers_that_are_cheaper_alone_alternate_and_none_falls_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    bench = Bench()
    decode = bench.context.decode

    def slow(batch: Batch) -> Outcome:
        nonlocal now
        now += 0.01 if batch.size == 1 else 0.03 * batch.size
        return decode(batch)

    monkeypatch.setattr(bench.context, "decode", slow)
    monkeypatch.setattr("gnusnode.inference.child.scheduler.time.perf_counter", lambda: now)
    jobs = [CountingJob(n, prompt(n, 10), 300) for n in range(1, 4)]
    bench.submit(*jobs)
    for _ in range(100):
        bench.scheduler.step()
    made = [len(job.tokens) - 10 for job in jobs]
    assert max(made) - min(made) <= 1
    assert sum(len(fed) == 1 for fed in bench.context.decodes) > 90


_ACTIONS = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 60), st.integers(1, 90)),
    st.tuples(st.just("step"), st.integers(1, 60)),
    st.tuples(st.sampled_from(("pause", "resume", "cancel")), st.integers(1, 12)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_ACTIONS, max_size=40))
def test_whatever_happens_cells_suffice_and_every_answer_is_whole(actions: list[tuple[Any, ...]]) -> None:
    bench = Bench(cells=300, remembers=True)
    assert isinstance(bench.context, RememberingContext)
    memory = bench.context.memory
    jobs: dict[int, CountingJob] = {}
    cancelled: set[int] = set()

    def step() -> None:
        oldest = next(iter(bench.scheduler._active), None)
        bench.scheduler.step()
        assert memory.used <= 300
        assert oldest is None or oldest.finished or oldest.lease is not None

    for action in actions:
        match action:
            case ("submit", length, extra):
                number = len(jobs) + 1
                kind = CountingJob if number % 4 == 0 else elastic
                jobs[number] = kind(number, prompt(number % 3, length), extra)
                bench.submit(jobs[number])
            case ("step", count):
                for _ in range(count):
                    step()
            case ("cancel", number) if number in jobs and not jobs[number].finished:
                cancelled.add(number)
                bench.scheduler.cancel(number)
            case (name, number):
                getattr(bench.scheduler, name)(number)
    for number in jobs:
        bench.scheduler.resume(number)
    for _ in range(5000):
        if not bench.scheduler.busy:
            break
        step()
    assert all(job.closed == 1 for job in jobs.values())
    for number, job in jobs.items():
        whole = counted(job, job.total - job.prompt_length)
        assert answer(job) == whole[: len(answer(job))]
        assert number in cancelled or len(answer(job)) == len(whole)
