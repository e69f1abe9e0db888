"""``devnet``: a whole swarm on this machine."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnusnode.cli import output
from gnusnode.cli.output import JsonOption, guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gnusnode.devnet import NodePlan, UsableNode


@guarded
def devnet(
    count: Annotated[int, typer.Argument(metavar="N", help="How many nodes.")],
    folder: Annotated[
        Path | None,
        typer.Option("--dir", help="Where homes and logs lie, and stay; else a folder that goes with the devnet."),
    ] = None,
    model_nodes: Annotated[int, typer.Option("--model-nodes", min=0, help="How many of them load a model.")] = 2,
    no_model: Annotated[bool, typer.Option("--no-model", help="None of them does.")] = False,
    base_port: Annotated[
        int, typer.Option("--base-port", min=0, max=65_535, help="First port; 0 lets the system choose all of them.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Run a whole swarm on this machine, each node a process. Ctrl-C ends all of them.

    With --json one line is printed for each node once it is usable.
    """
    import os

    from gnusnode.devnet import lay_out

    models = 0 if no_model else model_nodes
    with _place(folder) as place:
        plans = lay_out(count, place, model_nodes=models, base_port=base_port, cores=os.cpu_count() or 1)
        _run(plans, _lines if as_json else _rows(plans))


def _run(plans: Sequence[NodePlan], told: Callable[[UsableNode], None]) -> None:
    """Runs them until a signal comes.

    Raises:
        GnusError: they could not be started.
    """
    import trio

    from gnusnode.cli.nodes import run_until_signalled

    trio.run(run_until_signalled, plans, told, _ended, _all_there, strict_exception_groups=True)


@contextmanager
def _place(given: Path | None) -> Generator[Path]:
    """Where the devnet lies. One that was not named goes at the end, except after a failure: its logs tell why."""
    import shutil
    import tempfile

    if given is not None:
        yield given.absolute()
        return
    place = Path(tempfile.mkdtemp(prefix="gnusnode-devnet-"))
    try:
        yield place
    except BaseException:  # Ctrl-C in the middle of a start too; it is raised on
        if any(place.iterdir()):
            output.note(f"homes and logs stay in {place}")
        else:
            place.rmdir()
        raise
    shutil.rmtree(place, ignore_errors=True)


def _lines(node: UsableNode) -> None:
    """One JSON object a line, so that a program can read them one by one."""
    output.write(json.dumps(node.to_plain()) + "\n")


def _rows(plans: Sequence[NodePlan]) -> Callable[[UsableNode], None]:
    """A table that grows as the nodes come: its widths are known before."""
    roles = max(len(",".join(plan.roles)) for plan in plans)
    names = max(4, *(len(plan.name) for plan in plans))

    def line(name: str, role: str, model: str, api: str, peer: str) -> None:
        output.write(f"{name:<{names}}  {role:<{roles}}  {model:<5}  {api:<22}  {peer}\n")

    def row(node: UsableNode) -> None:
        if node.plan is plans[0]:
            line("NODE", "ROLES", "MODEL", "API", "PEER")
        plan = node.plan
        line(plan.name, ",".join(plan.roles), "yes" if plan.model else "-", node.api, node.peer_id)

    return row


def _all_there(plans: Sequence[NodePlan], seconds: float) -> None:
    output.note(f"{len(plans)} nodes are usable after {seconds:.1f} s; homes and logs in {plans[0].home.parent}")
    output.note(f'Ask it:  gnusnode run "Why is the sky blue?" --home {plans[0].home}')
    output.note("Ctrl-C ends all of them")


def _ended(plan: NodePlan, code: int) -> None:
    output.note(f"{plan.name} ended with code {code}: see {plan.log}")
    output.note(f"  to start it again:  gnusnode start --home {plan.home}")
