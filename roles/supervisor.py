"""Runs the roles of a node: a failed one restarts with backoff, a critical one that keeps failing stops the node.

A role that the swarm does not grant this node is withheld: it runs as soon as it is granted, and no longer.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

import trio

from gnusnode.contracts.swarm import Role as RoleName
from gnusnode.errors import GnusError, InternalError, raised_at
from gnusnode.observe import events
from gnusnode.observe.bus import EventBus
from roles.table import Role

State = Literal["starting", "running", "failed", "withheld", "stopped"]

FIRST_DELAY: Final = 0.5
LONGEST_DELAY: Final = 30.0
STEADY_SECONDS: Final = 60.0
"""A role that ran this long has recovered: its next failure counts as the first."""
CRITICAL_FAILURES: Final = 5
"""Failures in a row after which a critical role stops the node."""

_log = logging.getLogger(__name__)


@dataclass
class _Watched:
    role: Role
    state: State = "starting"
    failures: int = 0
    """In a row."""
    restarts: int = 0
    reason: str = ""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Supervisor:
    """Owns the tasks of all roles. ``run`` ends when it is cancelled, or with the error of a critical role.

    Args:
        granted: the roles that may run; ``grant`` changes them.
    """

    def __init__(self, roles: Sequence[Role], bus: EventBus, granted: Collection[RoleName] = tuple(RoleName)) -> None:
        names = [role.name for role in roles]
        assert len(set(names)) == len(names), f"a role is listed twice: {names}"
        self._watched = [_Watched(role) for role in roles]
        self._bus = bus
        self._granted = frozenset(granted)
        self._regranted = trio.Event()

    @property
    def running(self) -> frozenset[RoleName]:
        """The roles that can be called now."""
        return frozenset(watched.role.name for watched in self._watched if watched.state == "running")

    def grant(self, roles: Collection[RoleName]) -> None:
        """Lets these roles run and no others, from now on."""
        self._granted = frozenset(roles)
        for watched in self._watched:
            if watched.role.name not in self._granted:
                watched.scope.cancel()
        self._regranted.set()
        self._regranted = trio.Event()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Starts the roles in order, each once the one before is ready or has failed; then reports started.

        Raises:
            GnusError: a critical role failed ``CRITICAL_FAILURES`` times in a row; all roles were stopped.
        """
        fatal: list[GnusError] = []
        async with trio.open_nursery() as nursery:
            for watched in self._watched:
                settled = trio.Event()
                nursery.start_soon(
                    partial(self._keep_running, watched, settled, fatal, nursery.cancel_scope),
                    name=f"role {watched.role.name.value}",
                )
                await settled.wait()
            task_status.started()
        if fatal:
            raise fatal[0]

    def readiness(self) -> dict[str, str]:
        """Why each role that cannot work cannot, by name; empty when all can."""
        expected = [watched for watched in self._watched if watched.role.name in self._granted]
        reasons = {watched.role.name.value: _reason(watched) for watched in expected}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def status(self) -> dict[str, Any]:
        """State and counts of each role, for people."""
        return {
            watched.role.name.value: {
                "state": watched.state,
                "serves": list(watched.role.serves),
                "restarts": watched.restarts,
                "reason": _reason(watched) or "",
                "statistics": watched.role.statistics(),
            }
            for watched in self._watched
        }

    async def _keep_running(
        self, watched: _Watched, settled: trio.Event, fatal: list[GnusError], node: trio.CancelScope
    ) -> None:
        try:
            while not fatal:
                if watched.role.name not in self._granted:
                    watched.failures, watched.reason = 0, "the swarm does not grant it to this node"
                    if watched.state != "withheld":  # a new certificate may grant as little as the last one
                        self._move(watched, "withheld")
                    settled.set()
                    await self._regranted.wait()
                    continue
                if watched.state == "withheld":
                    watched.reason = ""
                    self._move(watched, "starting")
                with trio.CancelScope() as watched.scope:
                    await self._while_granted(watched, settled, fatal, node)
        finally:
            settled.set()
            if watched.state != "failed":
                self._move(watched, "stopped")

    async def _while_granted(
        self, watched: _Watched, settled: trio.Event, fatal: list[GnusError], node: trio.CancelScope
    ) -> None:
        """Runs a role again and again; returns when it has stopped the node."""

        def ready() -> None:
            self._move(watched, "running")
            settled.set()

        while True:
            begin = trio.current_time()
            error = await _run_once(watched.role, ready)
            steady = watched.state == "running" and trio.current_time() - begin >= STEADY_SECONDS
            watched.failures = 1 if steady else watched.failures + 1
            watched.reason = error.what
            self._move(watched, "failed")
            if watched.role.critical and watched.failures >= CRITICAL_FAILURES:
                fatal.append(error)
                node.cancel()
                return
            settled.set()
            await trio.sleep(min(FIRST_DELAY * 2 ** (watched.failures - 1), LONGEST_DELAY))
            watched.restarts += 1
            self._move(watched, "starting")

    def _move(self, watched: _Watched, state: State) -> None:
        watched.state = state
        self._bus.publish(events.RoleChanged(role=watched.role.name.value, state=state, restarts=watched.restarts))


async def _run_once(role: Role, ready: Any) -> GnusError:
    """Why the role ended; a role that returns has failed as well, since it should serve until it is cancelled."""
    try:
        await role.run(ready)
    except GnusError as error:
        _log.warning("role %s failed: %s", role.name.value, error)
        return error
    except Exception as error:  # noqa: BLE001 - the fence: a bug in one role must not end the others
        place = raised_at(error)
        _log.error("role %s failed: %s at %s", role.name.value, type(error).__name__, place)
        return InternalError(f"{type(error).__name__} at {place}", where=f"role {role.name.value}")
    return InternalError("the role ended by itself", where=f"role {role.name.value}")


def _reason(watched: _Watched) -> str | None:
    if watched.state == "running":
        return watched.role.health()
    return f"{watched.state}: {watched.reason}" if watched.reason else watched.state
