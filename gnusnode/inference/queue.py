"""Who is served next, and who is refused at once: a bounded fair queue before an engine's slots. Pure.

Among the waiting, the lower priority class goes first; a class that waits is lifted with time, so nobody starves.
Within a class tenants take turns by the tokens that they have been given in proportion to their weight, so a tenant
with a hundred requests slows down itself and not the one with one. A slot is held for a turn: a long job that had its
turn gives way to others that wait, new ones before those that had turns. What cannot be begun within its deadline is
refused when it comes, with the time after which trying again makes sense.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from gnusnode.errors import Overloaded, RateLimited

T = TypeVar("T")

_MIN_RETRY: Final = 1.0
_MAX_RETRY: Final = 300.0
_BEHIND: Final = 10
"""Priority classes by which a job that had a turn goes behind those that had none: as many as requests may name."""


@dataclass(frozen=True)
class QueueLimits:
    """
    Attributes:
        waiting: jobs that may wait, over all tenants.
        waiting_per_tenant: jobs of one tenant that may wait.
        left_to_others: slots that one tenant may not hold, though always one.
        weights: shares of tenants that differ from 1.
        lift_after: seconds of waiting that lift a job by one priority class.
        patience: seconds that a job waits before others have to end their turn for it.
    """

    waiting: int = 256
    waiting_per_tenant: int = 64
    left_to_others: int = 0
    weights: dict[str, float] = field(default_factory=dict[str, float])
    lift_after: float = 10.0
    patience: float = 3.0


@dataclass(frozen=True)
class Cost:
    """Tokens that a job is expected to take in its next turn."""

    prompt: int
    output: int

    @property
    def tokens(self) -> int:
        return self.prompt + self.output


@dataclass(frozen=True)
class Rates:
    """Measured tokens per second of the whole engine; 0: not known yet, and then nothing is refused for time."""

    prefill: float = 0.0
    decode: float = 0.0

    def seconds(self, cost: Cost) -> float:
        prefill = cost.prompt / self.prefill if self.prefill > 0 else 0.0
        return prefill + (cost.output / self.decode if self.decode > 0 else 0.0)


@dataclass(frozen=True, eq=False)
class Ticket(Generic[T]):
    """A job in the queue or in a slot."""

    item: T
    tenant: str
    priority: int
    cost: Cost
    since: float
    had_turn: bool = False


@dataclass(eq=False)
class _Tenant(Generic[T]):
    served: float = 0.0
    """Tokens given so far, divided by the weight: the one with least is next."""
    running: int = 0
    waiting: dict[int, deque[Ticket[T]]] = field(default_factory=dict[int, "deque[Ticket[T]]"])

    def count(self) -> int:
        return sum(len(line) for line in self.waiting.values())


class FairQueue(Generic[T]):
    """Hands ``slots`` out to waiting jobs. Not thread-safe and never blocks; the caller owns waking and timing."""

    def __init__(self, slots: int, limits: QueueLimits | None = None) -> None:
        self.slots = slots
        self._limits = limits or QueueLimits()
        self._tenants: dict[str, _Tenant[T]] = {}
        self._running: dict[int, Ticket[T]] = {}

    def __len__(self) -> int:
        return sum(tenant.count() for tenant in self._tenants.values())

    def __iter__(self) -> Iterator[T]:
        """What waits, tenant by tenant."""
        return (ticket.item for state in self._tenants.values() for line in state.waiting.values() for ticket in line)

    @property
    def free_slots(self) -> int:
        return self.slots - len(self._running)

    def offer(
        self, item: T, *, tenant: str, priority: int, cost: Cost, now: float, within: float | None, rates: Rates
    ) -> Ticket[T]:
        """Lets a job wait.

        Args:
            within: seconds that it may take until it is served; None: as long as it takes.

        Raises:
            RateLimited: this tenant has too many waiting.
            Overloaded: the queue is full, or the work before this job takes longer than ``within``.
        """
        ahead = rates.seconds(self._work_before(tenant, priority, cost)) if len(self) >= self.free_slots else 0.0
        retry = min(max(ahead / 2, _MIN_RETRY), _MAX_RETRY)
        state = self._tenants.get(tenant) or _Tenant[T]()
        if state.count() >= self._limits.waiting_per_tenant:
            raise RateLimited(f"{state.count()} requests of {tenant} are waiting already", retry_after=retry)
        if len(self) >= self._limits.waiting:
            raise Overloaded(f"{len(self)} requests are waiting, which is the limit", retry_after=retry)
        if within is not None and ahead > within:
            retry = min(max(ahead - within, _MIN_RETRY), _MAX_RETRY)
            raise Overloaded(
                f"the work before this request takes {ahead:.0f} s, it gives {within:.0f} s", retry_after=retry
            )
        if tenant not in self._tenants:
            # A newcomer starts level with the others: neither owed for the time before nor behind.
            state.served = min((other.served for other in self._tenants.values()), default=0.0)
            self._tenants[tenant] = state
        ticket = Ticket(item, tenant, priority, cost, now)
        state.waiting.setdefault(priority, deque()).append(ticket)
        return ticket

    def take(self, now: float) -> Ticket[T] | None:
        """Gives a slot to the next job; None: no slot is free or nobody may have it."""
        if self.free_slots <= 0:
            return None
        best = min(self._heads(now), key=lambda head: head[:3], default=None)
        if best is None:
            return None
        ticket = best[3]
        state = self._tenants[ticket.tenant]
        self._leave_line(state, ticket)
        state.running += 1
        state.served += ticket.cost.tokens / self._weight(ticket.tenant)
        self._running[id(ticket)] = ticket
        return ticket

    def release(self, ticket: Ticket[T], made: int | None = None) -> None:
        """Frees the slot of a job, or takes it out of the line. Doing so twice does nothing.

        Args:
            made: output tokens of this turn; None: as many as expected.
        """
        state = self._tenants.get(ticket.tenant)
        if state is None:
            return
        if id(ticket) in self._running:
            self._leave_slot(state, ticket, made)
        elif ticket in state.waiting.get(ticket.priority, ()):
            self._leave_line(state, ticket)
        if not state.running and not state.waiting:
            del self._tenants[ticket.tenant]

    def is_pressed(self, now: float, *, leaving: str | None = None) -> bool:
        """Whether somebody who may have a slot, once tenant ``leaving`` gives one up, has lost patience."""
        return any(now - head[2] >= self._limits.patience for head in self._heads(now, leaving))

    def end_turn(self, ticket: Ticket[T], made: int, following: Cost, now: float) -> Ticket[T]:
        """Lets a job that held a slot and ``made`` tokens wait for its next turn, behind those that had none."""
        behind = ticket.priority if ticket.had_turn else ticket.priority + _BEHIND
        later = Ticket(ticket.item, ticket.tenant, behind, following, now, had_turn=True)
        state = self._tenants[ticket.tenant]
        self._leave_slot(state, ticket, made)
        state.waiting.setdefault(behind, deque()).append(later)
        return later

    def put_back(self, ticket: Ticket[T]) -> None:
        """Lets a job that held a slot wait again, as the first of its line."""
        if self._running.pop(id(ticket), None) is None:
            return
        state = self._tenants[ticket.tenant]
        state.running -= 1
        state.served -= ticket.cost.tokens / self._weight(ticket.tenant)
        state.waiting.setdefault(ticket.priority, deque()).appendleft(ticket)

    def _heads(self, now: float, leaving: str | None = None) -> Iterator[tuple[int, float, float, Ticket[T]]]:
        """The first job of each line that may run: (class, tokens served, since, ticket)."""
        most = max(1, self.slots - self._limits.left_to_others)
        for name, state in self._tenants.items():
            if state.running - (name == leaving) >= most:
                continue
            for priority, line in state.waiting.items():
                lifted = int((now - line[0].since) / self._limits.lift_after)
                yield max(0, priority - lifted), state.served, line[0].since, line[0]

    def _leave_slot(self, state: _Tenant[T], ticket: Ticket[T], made: int | None) -> None:
        """Ends a turn: the tenant was charged for what was expected and now is for what was made."""
        del self._running[id(ticket)]
        state.running -= 1
        if made is not None:
            state.served += (made - ticket.cost.output) / self._weight(ticket.tenant)

    def _leave_line(self, state: _Tenant[T], ticket: Ticket[T]) -> None:
        line = state.waiting[ticket.priority]
        line.remove(ticket)
        if not line:
            del state.waiting[ticket.priority]

    def _weight(self, tenant: str) -> float:
        return self._limits.weights.get(tenant, 1.0)

    def _work_before(self, tenant: str, priority: int, cost: Cost) -> Cost:
        """What is done before a new job of ``tenant``: half of what runs, on average, all that this tenant has waiting
        in its class or a lower one, and of every other tenant's lines as much as goes first while tenants alternate."""
        running = sum(ticket.cost.output for ticket in self._running.values()) / 2
        lines = {
            name: _total(line for level, line in state.waiting.items() if level <= priority)
            for name, state in self._tenants.items()
        }
        own = lines.pop(tenant, Cost(0, 0))
        turn = (own.tokens + cost.tokens) / self._weight(tenant)
        prompt, output = float(own.prompt), own.output + running
        for name, line in lines.items():
            share = min(1.0, turn * self._weight(name) / line.tokens) if line.tokens else 0.0
            prompt, output = prompt + share * line.prompt, output + share * line.output
        return Cost(round(prompt), round(output))


def _total(lines: Iterable[Iterable[Ticket[Any]]]) -> Cost:
    costs = [ticket.cost for line in lines for ticket in line]
    return Cost(sum(cost.prompt for cost in costs), sum(cost.output for cost in costs))
