"""``gnusnode id``: who this node is, and how it changes its key."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from gnusnode.cli import output
from gnusnode.cli.connect import home_of
from gnusnode.cli.output import HomeOption, JsonOption, guarded
from gnusnode.clock import unix_ms

if TYPE_CHECKING:
    from gnusnode.config.paths import Home
    from gnusnode.identity import NodeIdentity

app = typer.Typer(invoke_without_command=True, help="The node's identity: show it, rotate its key.")


@app.callback()
@guarded
def show(context: typer.Context, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show the node's PeerID, also while it does not run."""
    if context.invoked_subcommand is not None:
        return
    identity = load_identity(home_of(home))
    output.emit({"peer_id": identity.peer_id}) if as_json else output.say(identity.peer_id)


@app.command("rotate")
@guarded
def rotate(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Replace the node's key; the old one signs a statement that hands over to the new one. Stop the node first."""
    from gnusnode import identity
    from gnusnode.config.lock import HomeLock

    place = home_of(home)
    load_identity(place)
    with HomeLock.acquire(place):
        statement = identity.rotate(place.key, now_ms=unix_ms())
    output.emit(statement.to_plain())
    if not as_json:
        output.note("The old key stays beside the new one: certificates that name it hold until they are renewed.")


def load_identity(home: Home) -> NodeIdentity:
    """The identity of a home.

    Raises:
        NotFound: the home has none yet. DataError: its key is damaged or others can read it.
    """
    from gnusnode.errors import NotFound
    from gnusnode.identity import NodeIdentity

    if not os.path.lexists(home.key):  # a link to nowhere is a damaged key, not an absent one
        raise NotFound("there is no identity here yet", where=str(home.key), hint="make one: gnusnode init")
    return NodeIdentity.load(home.key)
