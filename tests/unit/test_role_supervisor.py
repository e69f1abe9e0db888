"""Roles fail, come back, and stop the node only where it is of no use without them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from gnusnode.contracts.swarm import LOWEST_TIER
from gnusnode.contracts.swarm import Role as RoleName
from gnusnode.errors import DataError
from gnusnode.net.local import LocalRpc
from gnusnode.net.rpc import Service
from gnusnode.observe import events
from gnusnode.observe.observer import Observer
from roles.supervisor import CRITICAL_FAILURES, STEADY_SECONDS, Supervisor
from roles.table import Role, ServingRole


class Scripted:
    """A role that fails with each of ``failures`` in turn, each time ``after`` seconds of serving, and then serves."""

    serves = ("scripted",)

    def __init__(self, *failures: Exception, after: float | None = None, critical: bool = False) -> None:
        self.name = RoleName.CORE
        self.critical = critical
        self.ails: str | None = None
        self.begins: list[float] = []
        self._failures = list(failures)
        self._after = after

    async def run(self, ready: Callable[[], None]) -> None:
        self.begins.append(trio.current_time())
        failure = self._failures.pop(0) if self._failures else None
        if failure is None or self._after is not None:
            ready()
        if failure is None:
            await trio.sleep_forever()
        else:
            await trio.sleep(self._after or 0)
            raise failure

    def statistics(self) -> dict[str, int]:
        return {"runs": len(self.begins)}

    def health(self) -> str | None:
        return self.ails


def states(observer: Observer) -> list[str]:
    return [e.event.state for e in observer.bus.recent() if isinstance(e.event, events.RoleChanged)]


async def run_for(supervisor: Supervisor, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await supervisor.run()


async def test_a_failed_role_comes_back_after_ever_longer_pauses(autojump_clock: trio.testing.MockClock):
    role, observer = Scripted(DataError("a"), ValueError("b"), DataError("c")), Observer.create()
    await run_for(Supervisor([role], observer.bus), 60)
    pauses = [later - earlier for earlier, later in zip(role.begins, role.begins[1:], strict=False)]
    assert pauses == pytest.approx([0.5, 1.0, 2.0])
    assert states(observer) == ["failed", "starting"] * 3 + ["running", "stopped"]


async def test_a_role_that_served_for_long_begins_again_with_a_short_pause(autojump_clock: trio.testing.MockClock):
    role = Scripted(*[DataError("x")] * 3, after=STEADY_SECONDS)
    await run_for(Supervisor([role], Observer.create().bus), 400)
    pauses = [later - earlier for earlier, later in zip(role.begins, role.begins[1:], strict=False)]
    assert pauses == pytest.approx([STEADY_SECONDS + 0.5] * 3)


async def test_a_critical_role_that_keeps_failing_stops_all_with_its_error(autojump_clock: trio.testing.MockClock):
    role = Scripted(*[DataError("disk gone")] * CRITICAL_FAILURES, critical=True)
    supervisor = Supervisor([role], Observer.create().bus)
    with pytest.raises(DataError, match="disk gone"):
        await supervisor.run()
    assert len(role.begins) == CRITICAL_FAILURES


async def test_another_role_may_fail_for_ever(autojump_clock: trio.testing.MockClock):
    role = Scripted(*[DataError("x")] * 50)
    await run_for(Supervisor([role], Observer.create().bus), 600)
    assert len(role.begins) > CRITICAL_FAILURES


async def test_a_role_that_returns_has_failed(autojump_clock: trio.testing.MockClock):
    class Ends(Scripted):
        async def run(self, ready: Callable[[], None]) -> None:
            self.begins.append(trio.current_time())
            ready()

    role, observer = Ends(), Observer.create()
    supervisor = Supervisor([role], observer.bus)
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        await trio.testing.wait_all_tasks_blocked()
        assert "by itself" in supervisor.readiness()["core"]
        nursery.cancel_scope.cancel()


async def test_start_waits_until_each_role_is_ready_or_has_failed():
    order: list[str] = []

    class Slow(Scripted):
        async def run(self, ready: Callable[[], None]) -> None:
            await trio.testing.wait_all_tasks_blocked()
            order.append(self.name.value)
            ready()
            await trio.sleep_forever()

    first, second = Slow(), Slow()
    second.name = RoleName.ELM
    async with trio.open_nursery() as nursery:
        await nursery.start(Supervisor([first, second], Observer.create().bus).run)
        assert order == ["core", "elm"]
        nursery.cancel_scope.cancel()


async def test_readiness_and_status_say_what_each_role_lacks():
    sick, well = Scripted(), Scripted()
    well.name = RoleName.ELM
    sick.ails = "no model is loaded"
    supervisor = Supervisor([sick, well], Observer.create().bus)
    assert supervisor.readiness() == {"core": "starting", "elm": "starting"}
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        assert supervisor.readiness() == {"core": "no model is loaded"}
        status = supervisor.status()
        assert status["elm"] == {
            "state": "running", "serves": ["scripted"], "restarts": 0, "reason": "", "statistics": {"runs": 1},
        }  # fmt: skip
        nursery.cancel_scope.cancel()


async def test_a_serving_role_offers_its_services_while_it_runs():
    rpc = LocalRpc("12D3KooWTestNode")
    services = (Service("a", {}, {}), Service("b", {}, {}))
    role: Role = ServingRole(RoleName.CORE, rpc, services, counts=lambda: {"drafts": 3})
    assert role.serves == ("a", "b")
    async with trio.open_nursery() as nursery:
        await nursery.start(Supervisor([role], Observer.create().bus).run)
        assert rpc.offers("a")
        assert rpc.offers("b")
        nursery.cancel_scope.cancel()
    assert not rpc.offers("a")
    assert role.statistics() == {"drafts": 3}


async def test_the_text_of_a_bug_reaches_neither_log_nor_status(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
):
    role = Scripted(ValueError("a secret prompt"), after=1)
    supervisor = Supervisor([role], Observer.create().bus)
    await run_for(supervisor, 1.2)
    assert "secret" not in caplog.text + str(supervisor.status())
    assert "ValueError" in caplog.text


def test_every_role_has_a_lowest_tier():
    assert set(LOWEST_TIER) == set(RoleName)


async def test_a_role_runs_exactly_while_the_swarm_grants_it(autojump_clock: trio.testing.MockClock):
    role, observer = Scripted(), Observer.create()
    supervisor = Supervisor([role], observer.bus, granted=())
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        assert supervisor.status()["core"]["state"] == "withheld"
        assert supervisor.readiness() == {}, "what is not granted is not missed"
        for _ in range(2):
            supervisor.grant({RoleName.CORE})
            await trio.testing.wait_all_tasks_blocked()
            assert supervisor.running == {RoleName.CORE}
            for lacking in ({RoleName.ELM}, {RoleName.ROUTER}):
                supervisor.grant(lacking)
                await trio.testing.wait_all_tasks_blocked()
                assert supervisor.running == set()
        nursery.cancel_scope.cancel()
    assert len(role.begins) == 2
    assert states(observer) == ["withheld", *["starting", "running", "withheld"] * 2, "stopped"]
