"""``gnusnode start``: settings, logging, signals and the exit code around the daemon."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from gnusnode import __version__
from gnusnode.cli import output
from gnusnode.config.load import Loaded, load
from gnusnode.config.paths import Home
from gnusnode.daemon import run_daemon
from gnusnode.errors import GnusError, InternalError
from gnusnode.node import Node
from gnusnode.observe import logs

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_node(home: Home, profile: str | None, flags: Mapping[str, Any], *, config: Path | None = None) -> int:
    """Runs a node in the foreground until it is told to stop; returns the exit code.

    Raises:
        GnusError: the node could not start, with its documented exit code.
    """
    loaded = load(home, flags={"profile": profile, **flags}, config=config)
    observe = loaded.settings.observe
    logs.configure(observe.log_level, observe.log_format)
    try:
        trio.run(_main, home, loaded, strict_exception_groups=True)
    except* GnusError as group:
        raise _first(group) from group
    return 0


async def _main(home: Home, loaded: Loaded) -> None:
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        # Signals first: from here on Ctrl-C is an orderly stop, also in the middle of opening things.
        await nursery.start(_obey_signals, stop)
        await run_daemon(home, loaded, stop=stop, on_ready=_greet)
        nursery.cancel_scope.cancel()


async def _obey_signals(stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """First signal: drain and stop. Second: end at once; engine children die with this process."""
    with trio.open_signal_receiver(*SIGNALS) as received:
        task_status.started()
        async for _ in received:
            if stop.is_set():
                sys.stderr.flush()
                os._exit(130)
            stop.set()


def _greet(node: Node) -> None:
    """What a person at a terminal wants to know; ``gnusnode status`` says the same to everybody else."""
    if not sys.stderr.isatty():
        return
    output.note(f"gnusnode {__version__}  {node.peer_id}")
    output.note(f"  API    {node.api_url}/v1")
    output.note(f"  home   {node.home.root}")
    swarm = node.swarm.status()
    if swarm["state"] != "alone":
        output.note(f"  swarm  {swarm['name']}, {swarm['state']}; peers: {', '.join(swarm['addresses']) or 'nowhere'}")
    output.note("  try    gnusnode chat   (in another terminal; Ctrl-C here stops the node)")


def _first(group: BaseExceptionGroup[GnusError]) -> GnusError:
    """The failure that ended the node: the first one in the tree."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return _first(error)
        return error
    return InternalError("the node ended without saying why")
