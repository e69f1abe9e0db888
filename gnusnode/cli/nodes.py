"""The processes of a devnet: each node a process with a home and ports of its own.

They are founded and joined by the same commands that a person would type.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import trio

from gnusnode.cli.client import NodeClient, run_file
from gnusnode.devnet import NodePlan, UsableNode, configuration
from gnusnode.errors import GnusError, NotRunning, storage_error
from gnusnode.net.invites import MAX_USES

START_SECONDS: Final = 180.0
"""How long one node may take from its start until it is usable; many of them share few cores."""
GRACE_SECONDS: Final = 4.0
"""After which a node that was told to end is killed. It drains for ``DRAIN_SECONDS``."""
LOOK_SECONDS: Final = 0.2
"""Between two looks at a node that starts: it is another process, there is nothing to await but the next look."""


@asynccontextmanager
async def run_devnet(
    plans: Sequence[NodePlan], *, told: Callable[[UsableNode], None], ended: Callable[[NodePlan, int], None]
) -> AsyncGenerator[None]:
    """The swarm of ``plans`` while the context is open; entered once all nodes are usable, left without any process.

    Args:
        told: called for each node when it is usable, the first node first.
        ended: called with the exit code of a node that ended by itself after that. The others go on.

    Raises:
        GnusError: a node could not start or join; all others are ended before that is raised.
    """
    failure: GnusError | None = None
    async with trio.open_nursery() as nursery:
        devnet = _Devnet(nursery, told, ended)
        try:
            for plan in plans:
                await trio.to_thread.run_sync(_prepare, plan)
            await devnet.bring_up(plans)
            yield
        except GnusError as error:
            # Raised behind the nursery, which would wrap it into a group.
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


class _Devnet:
    """The processes of a running devnet: they live in ``nursery`` and end with it."""

    def __init__(
        self,
        nursery: trio.Nursery,
        told: Callable[[UsableNode], None],
        ended: Callable[[NodePlan, int], None],
    ) -> None:
        self._nursery = nursery
        self._told = told
        self._ended = ended
        self._usable: set[str] = set()

    async def bring_up(self, plans: Sequence[NodePlan]) -> None:
        """Starts the first node, and then the others, as many at a time as there are cores."""
        first, *others = plans
        if not first.joined:
            await _command(first.home, "swarm", "init", "devnet")
        await self._start(first)
        tokens = await _invitations(first, [plan for plan in others if not plan.joined])
        turns = trio.CapacityLimiter(max(1, os.cpu_count() or 1))
        failures: list[GnusError] = []
        async with trio.open_nursery() as starts:

            async def start_one(plan: NodePlan) -> None:
                try:
                    async with turns:
                        if token := tokens.get(plan.name):
                            await _command(plan.home, "swarm", "join", token)
                        await self._start(plan)
                except GnusError as error:
                    failures.append(error)
                    starts.cancel_scope.cancel()

            for plan in others:
                starts.start_soon(start_one, plan)
        if failures:
            raise failures[0]

    async def _start(self, plan: NodePlan) -> None:
        """Starts a node and returns once it is usable.

        Raises:
            GnusError: it ended before, or took too long.
        """
        began = time.monotonic()
        process = await self._nursery.start(self._run, plan)
        try:
            with trio.fail_after(START_SECONDS):
                run = await _until_usable(plan, process, others=bool(self._usable))
        except trio.TooSlowError:
            raise NotRunning(
                f"{plan.name} is not usable after {START_SECONDS:g} s", where=str(plan.log), hint="read its log"
            ) from None
        self._usable.add(plan.name)
        self._told(UsableNode(plan, process.pid, run["peer_id"], run["api"], time.monotonic() - began))

    async def _run(  # noqa: ASYNC128 - run_process is handed the task status, and starts it
        self, plan: NodePlan, task_status: trio.TaskStatus[trio.Process] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with plan.log.open("ab") as log:
            done = await trio.run_process(
                [*_program(), "start", "--home", str(plan.home)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
                env=_environment(),
                # Ctrl-C at the terminal goes to whole process groups; the nodes are told by us, once.
                process_group=0,
                deliver_cancel=_end,
                task_status=task_status,
            )
        if plan.name in self._usable:
            self._ended(plan, done.returncode)


async def _end(process: trio.Process) -> None:
    """Tells a node to end, and kills it when it does not. ``run_process`` waits for the end."""
    process.terminate()
    await trio.sleep(GRACE_SECONDS)
    process.kill()


async def _until_usable(plan: NodePlan, process: trio.Process, *, others: bool) -> dict[str, Any]:
    """What ``run.json`` says, once the node serves and, where there are ``others``, has a usable peer."""
    while True:
        if process.returncode is not None:
            raise NotRunning(
                f"{plan.name} ended with code {process.returncode}: {_last_words(plan.log)}",
                where=str(plan.log),
                hint="read its log",
            )
        run = await trio.to_thread.run_sync(_usable, plan.home, process.pid, others)
        if run is not None:
            return run
        await trio.sleep(LOOK_SECONDS)


def _usable(home: Path, pid: int, others: bool) -> dict[str, Any] | None:
    run = run_file(home)
    if run is None or run.get("pid") != pid:  # what a predecessor that was killed has left
        return None
    client = NodeClient.of(home, timeout=10)
    try:
        ready, _ = client.raw("/readyz")
        swarm = client.get("/gnus/v1/status")["swarm"]
    except NotRunning:  # it is so busy starting that it does not answer yet
        return None
    return run if ready == 200 and (not others or swarm["peers"]["usable"] > 0) else None


async def _invitations(first: NodePlan, joiners: Sequence[NodePlan]) -> dict[str, str]:
    """A token for each of ``joiners``, by name: as many as can come with the same roles share one."""
    tokens: dict[str, str] = {}
    for roles, alike in itertools.groupby(joiners, lambda plan: plan.roles):
        invited = list(alike)
        for start in range(0, len(invited), MAX_USES):
            guests = invited[start : start + MAX_USES]
            asked = ["--roles", ",".join(roles), "--uses", str(len(guests)), "--json"]
            answer = json.loads(await _command(first.home, "swarm", "invite", *asked))
            tokens |= dict.fromkeys((plan.name for plan in guests), cast("str", answer["token"]))
    return tokens


async def _command(home: Path, *arguments: str) -> str:
    """The output of a ``gnusnode`` command on ``home``.

    Raises:
        GnusError: what the command said.
    """
    done = await trio.run_process(
        [*_program(), *arguments, "--home", str(home)],
        capture_stdout=True,
        capture_stderr=True,
        stdin=b"",
        check=False,
        env=_environment(),
        process_group=0,
    )
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise NotRunning(f"`gnusnode {' '.join(arguments[:2])}` failed: {said}", where=str(home))
    return done.stdout.decode("utf-8")


def _prepare(plan: NodePlan) -> None:
    """Home and configuration. Raises ``DataError`` or ``DiskFull``."""
    try:
        plan.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        (plan.home / "gnusnode.toml").write_text(configuration(plan), "utf-8")
    except OSError as error:
        raise storage_error(error, plan.home, "cannot make the node's home") from error


def _program() -> list[str]:
    return [sys.executable, "-m", "gnusnode"]


def _environment() -> dict[str, str]:
    """Ours, without settings that are meant for one node: they would hold for all of them."""
    return {key: value for key, value in os.environ.items() if not key.startswith("GNUSNODE_")}


def _last_words(log: Path) -> str:
    """The error that a node ended with; else its last line."""
    try:
        lines = [line.strip()[:300] for line in log.read_text("utf-8", "replace").split("\n") if line.strip()]
    except OSError:
        return "it left no log"
    if not lines:
        return "it said nothing"
    return next((line for line in reversed(lines) if line.startswith("error:")), lines[-1])


async def run_until_signalled(
    plans: Sequence[NodePlan],
    told: Callable[[UsableNode], None],
    ended: Callable[[NodePlan, int], None],
    complete: Callable[[Sequence[NodePlan], float], None],
) -> None:
    """Runs a devnet until SIGINT or SIGTERM; ``complete`` is called with the seconds after which all were usable.

    Raises:
        GnusError: it could not be started.
    """
    failure: GnusError | None = None
    began = time.monotonic()
    # Around the nursery: a second Ctrl-C does not disturb the nodes' end, which takes a few seconds at most.
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                nonlocal failure
                try:
                    async with run_devnet(plans, told=told, ended=ended):
                        complete(plans, time.monotonic() - began)
                        await trio.sleep_forever()
                except GnusError as error:
                    failure = error
                nursery.cancel_scope.cancel()

            nursery.start_soon(run)
            await anext(signals)
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
