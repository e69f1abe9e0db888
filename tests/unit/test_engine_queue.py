"""The fair queue and the crash ledger: pure, so every order of events can be tried."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnusnode.errors import Overloaded, RateLimited
from gnusnode.inference.crashes import CrashLedger, CrashPolicy
from gnusnode.inference.queue import Cost, FairQueue, QueueLimits, Rates, Ticket

UNKNOWN = Rates()


def offer(
    queue: FairQueue[str],
    item: str,
    *,
    tenant: str = "a",
    priority: int = 5,
    tokens: int = 10,
    now: float = 0.0,
    within: float | None = None,
    rates: Rates = UNKNOWN,
) -> Ticket[str]:
    return queue.offer(
        item, tenant=tenant, priority=priority, cost=Cost(tokens, 0), now=now, within=within, rates=rates
    )


def drain(queue: FairQueue[str], now: float = 0.0) -> list[str]:
    """Everything in the order in which one slot would serve it."""
    served = []
    while (ticket := queue.take(now)) is not None:
        served.append(ticket.item)
        queue.release(ticket)
    return served


def test_one_tenant_is_served_in_order() -> None:
    queue = FairQueue[str](1)
    for item in "abc":
        offer(queue, item)
    assert drain(queue) == ["a", "b", "c"]


def test_a_tenant_with_many_requests_does_not_hold_up_one_with_few() -> None:
    queue = FairQueue[str](1)
    for index in range(20):
        offer(queue, f"many{index}", tenant="many")
    offer(queue, "one", tenant="one")
    assert "one" in drain(queue)[:2]


def test_one_tenants_long_line_is_no_reason_to_refuse_another_tenant() -> None:
    queue = FairQueue[str](1)
    rates = Rates(prefill=10, decode=10)
    for index in range(21):
        offer(queue, f"many{index}", tenant="many", tokens=100)
    queue.take(0.0)
    assert offer(queue, "one", tenant="one", within=60, rates=rates).tenant == "one"
    with pytest.raises(Overloaded):
        offer(queue, "more", tenant="many", within=60, rates=rates)


def test_long_requests_count_for_what_they_take() -> None:
    queue = FairQueue[str](1)
    for index in range(4):
        offer(queue, f"long{index}", tenant="long", tokens=1000)
    for index in range(10):
        offer(queue, f"short{index}", tenant="short", tokens=10)
    assert sum(item.startswith("short") for item in drain(queue)[:11]) == 10


def test_weights_give_shares() -> None:
    queue = FairQueue[str](1, QueueLimits(weights={"heavy": 3.0}))
    for index in range(40):
        offer(queue, f"heavy{index}", tenant="heavy")
        offer(queue, f"light{index}", tenant="light")
    first = Counter(item[:5] for item in drain(queue)[:40])
    assert first["heavy"] == pytest.approx(30, abs=2)


def test_a_lower_class_goes_first_and_waiting_lifts_the_others() -> None:
    queue = FairQueue[str](1, QueueLimits(lift_after=10.0))
    offer(queue, "background", tenant="b", priority=9, now=0.0)
    offer(queue, "urgent", tenant="a", priority=0, now=1.0)
    first = queue.take(1.0)
    assert first is not None
    assert first.item == "urgent"
    queue.release(first)
    offer(queue, "later", tenant="a", priority=5, now=60.0)
    assert drain(queue, 60.0) == ["background", "later"]


def test_slots_are_handed_out_once_and_come_back() -> None:
    queue = FairQueue[str](2)
    for item in "abc":
        offer(queue, item)
    first, second = queue.take(0.0), queue.take(0.0)
    assert first is not None
    assert second is not None
    assert queue.take(0.0) is None
    queue.release(first)
    queue.release(first)
    third = queue.take(0.0)
    assert third is not None
    assert third.item == "c"
    assert queue.free_slots == 0


def test_a_tenant_cannot_hold_more_slots_than_it_may() -> None:
    queue = FairQueue[str](4, QueueLimits(left_to_others=3))
    for item in "abc":
        offer(queue, item)
    assert queue.take(0.0) is not None
    assert queue.take(0.0) is None
    offer(queue, "other", tenant="b")
    assert queue.take(0.0) is not None


def test_what_is_put_back_is_first_again() -> None:
    queue = FairQueue[str](1)
    for item in "ab":
        offer(queue, item)
    ticket = queue.take(0.0)
    assert ticket is not None
    queue.put_back(ticket)
    assert drain(queue) == ["a", "b"]


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    queue = FairQueue[str](1, QueueLimits(waiting=3, waiting_per_tenant=2))
    offer(queue, "1")
    offer(queue, "2")
    with pytest.raises(RateLimited):
        offer(queue, "3")
    offer(queue, "4", tenant="b")
    with pytest.raises(Overloaded) as caught:
        offer(queue, "5", tenant="c")
    assert caught.value.retry_after is not None
    assert caught.value.retry_after >= 1.0


def test_work_that_cannot_be_begun_within_the_deadline_is_refused_at_once() -> None:
    queue = FairQueue[str](1)
    rates = Rates(prefill=100.0, decode=10.0)
    queue.offer("now", tenant="a", priority=5, cost=Cost(0, 100), now=0.0, within=1.0, rates=rates)
    queue.take(0.0)
    offer(queue, "waits", tokens=1000, within=60.0, rates=rates)
    with pytest.raises(Overloaded) as caught:
        offer(queue, "late", within=10.0, rates=rates)
    assert caught.value.retry_after == pytest.approx(5.0)  # 100/2 tokens at 10/s and 1000 at 100/s, less 10 s


def test_an_idle_engine_refuses_nothing_for_time() -> None:
    queue = FairQueue[str](1)
    offer(queue, "huge", tokens=10**6, within=0.001, rates=Rates(1.0, 1.0))
    assert drain(queue) == ["huge"]


def test_a_job_that_had_a_turn_goes_behind_new_ones_of_any_class_until_it_waited_long() -> None:
    queue = FairQueue[str](1, QueueLimits(lift_after=10.0))
    offer(queue, "long")
    ticket = queue.take(0.0)
    assert ticket is not None
    queue.end_turn(ticket, 64, Cost(74, 64), 0.0)
    offer(queue, "new", priority=9, now=1.0)
    assert drain(queue, 1.0) == ["new", "long"]


def test_tenants_are_charged_for_what_they_were_given() -> None:
    queue = FairQueue[str](2)
    for index in range(2):
        offer(queue, f"wordy{index}", tenant="wordy")
        offer(queue, f"brief{index}", tenant="brief")
    wordy, brief = queue.take(0.0), queue.take(0.0)
    assert wordy is not None
    assert brief is not None
    queue.release(wordy, 100)
    queue.release(brief, 5)
    assert drain(queue) == ["brief1", "wordy1"]


def test_only_what_comes_first_counts_as_work_before_a_request() -> None:
    queue = FairQueue[str](1)
    rates = Rates(prefill=10, decode=10)
    offer(queue, "running")
    queue.take(0.0)
    offer(queue, "background", priority=9, tokens=10_000)
    offer(queue, "urgent", priority=5, within=1.0, rates=rates)
    with pytest.raises(Overloaded):
        offer(queue, "later", priority=9, within=60.0, rates=rates)


def test_patience_is_lost_by_those_only_who_may_have_a_slot() -> None:
    queue = FairQueue[str](2, QueueLimits(patience=3.0, left_to_others=1))
    for index in range(2):
        offer(queue, f"a{index}")
    queue.take(0.0)
    assert not queue.is_pressed(100.0)
    offer(queue, "b", tenant="b", now=100.0)
    assert not queue.is_pressed(102.9)
    assert queue.is_pressed(103.0)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("offer"), st.sampled_from("abc"), st.integers(0, 9), st.integers(1, 500)),
            st.tuples(st.just("take")),
            st.tuples(st.just("release"), st.integers(0, 20)),
            st.tuples(st.just("put back"), st.integers(0, 20)),
            st.tuples(st.just("end turn"), st.integers(0, 20)),
        ),
        max_size=60,
    )
)
def test_no_job_is_lost_or_served_twice_whatever_happens(steps: list[tuple]) -> None:
    queue = FairQueue[str](3, QueueLimits(waiting=10, waiting_per_tenant=5))
    offered, finished = 0, []
    running: list[Ticket[str]] = []
    for now, step in enumerate(steps):
        match step:
            case ("offer", tenant, priority, tokens):
                try:
                    offer(queue, f"{offered}", tenant=tenant, priority=priority, tokens=tokens, now=now)
                    offered += 1
                except (Overloaded, RateLimited):
                    pass
            case ("take",):
                if (ticket := queue.take(now)) is not None:
                    running.append(ticket)
            case ("release", index) if index < len(running):
                ticket = running.pop(index)
                queue.release(ticket)
                finished.append(ticket.item)
            case ("put back", index) if index < len(running):
                queue.put_back(running.pop(index))
            case ("end turn", index) if index < len(running):
                queue.end_turn(running.pop(index), 7, Cost(5, 64), now)
            case _:
                pass
        assert len(running) <= 3
        assert queue.free_slots == 3 - len(running)
        assert len(queue) + len(running) + len(finished) == offered
    for ticket in running:
        queue.release(ticket)
        finished.append(ticket.item)
    assert sorted(finished + drain(queue, 1e9), key=int) == [f"{index}" for index in range(offered)]


# --- the crash ledger ------------------------------------------------------------------------------------------------


def test_a_request_is_poisoned_by_the_second_crash() -> None:
    ledger = CrashLedger()
    ledger.record("m", ["guilty", "bystander"], now=0.0, reason="r")
    assert not ledger.poisoned("guilty")
    ledger.record("m", ["guilty"], now=1.0, reason="r")
    assert ledger.poisoned("guilty")
    assert not ledger.poisoned("bystander")


def test_crashes_far_apart_do_not_quarantine() -> None:
    ledger = CrashLedger(CrashPolicy(quarantine_after=3, window=60.0))
    for now in (0.0, 50.0, 100.0, 150.0):
        ledger.record("m", [], now=now, reason="r")
    assert ledger.quarantine("m", now=150.0) is None


def test_quarantine_has_a_reason_and_an_end() -> None:
    ledger = CrashLedger(CrashPolicy(quarantine_after=2, window=60.0, quarantine_for=100.0))
    ledger.record("m", [], now=0.0, reason="was killed by SIGABRT")
    ledger.record("m", [], now=1.0, reason="was killed by SIGSEGV")
    held = ledger.quarantine("m", now=2.0)
    assert held is not None
    assert held[0] == 101.0
    assert "SIGSEGV" in held[1]
    assert ledger.quarantine("other", now=2.0) is None
    assert ledger.quarantine("m", now=101.0) is None


def test_an_operator_ends_a_quarantine_and_the_count_starts_anew() -> None:
    ledger = CrashLedger(CrashPolicy(quarantine_after=2))
    ledger.record("m", [], now=0.0, reason="r")
    ledger.record("m", [], now=0.0, reason="r")
    ledger.clear("m")
    assert ledger.quarantine("m", now=0.0) is None
    ledger.record("m", [], now=0.0, reason="r")
    assert ledger.quarantine("m", now=0.0) is None


def test_the_ledger_forgets_the_oldest_requests_first() -> None:
    ledger = CrashLedger(CrashPolicy(poison_after=1))
    ledger.record("m", ["old"], now=0.0, reason="r")
    for index in range(5000):
        ledger.record("m", [f"r{index}"], now=0.0, reason="r")
    assert not ledger.poisoned("old")
    assert ledger.poisoned("r4999")


def test_a_tenant_at_its_limit_presses_its_own_jobs_only() -> None:
    queue = FairQueue[str](8, QueueLimits(left_to_others=7, patience=3))
    offer(queue, "first", tenant="a")
    offer(queue, "second", tenant="a")
    assert queue.take(0.0) is not None
    assert not queue.is_pressed(9.0)
    assert not queue.is_pressed(9.0, leaving="b")
    assert queue.is_pressed(9.0, leaving="a")
