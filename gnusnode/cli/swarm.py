"""``gnusnode swarm``: found one, invite, join, see and decide who belongs. With the running node or on its files."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from gnusnode.cli import output
from gnusnode.cli.connect import home_of
from gnusnode.cli.output import HomeOption, JsonOption, guarded

if TYPE_CHECKING:
    from gnusnode.cli.client import NodeClient
    from gnusnode.net.swarmdesk import SwarmDesk

app = typer.Typer(no_args_is_help=True, help="The swarm: found it, invite, join, see and decide who belongs.")
admins = typer.Typer(invoke_without_command=True, help="Who decides besides the founder: list, add, remove.")
app.add_typer(admins, name="admins")

RolesOption = Annotated[str, typer.Option("--roles", help="Comma separated, such as core,elm; or 'all'.")]
TierOption = Annotated[str | None, typer.Option("--tier", help="A, B or C; else the lowest that the roles need.")]
OperatorOption = Annotated[str | None, typer.Option("--operator", help="Who runs the node; quorums count operators.")]

_ALONE = "This node belongs to no swarm. Found one: gnusnode swarm init NAME, or: gnusnode swarm join TOKEN"
_UNITS = {"m": 1 / 60, "h": 1.0, "d": 24.0}


# --- coming and going -------------------------------------------------------------------------------------------------


@app.command("init")
@guarded
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the swarm is called.")],
    open_: Annotated[bool, typer.Option("--open", help="Let nodes without a certificate offer experts.")] = False,
    operator: OperatorOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Found a swarm. Its root key is made on this node and stays here."""
    from gnusnode.net.swarmdesk import FoundSwarm, checked

    asked = checked(FoundSwarm, name=name, open=open_, operator=operator)
    answer = _ask(
        home, lambda node: node.post(_PATH + "/init", _body(asked)), lambda desk: desk.swarm_init(asked), new=True
    )
    if _shown(answer, as_json):
        return
    output.say(f"founded {answer['name']}")
    output.note(f"Its root key is {home_of(home).root / 'swarm' / 'root.key'}: keep a copy in a safe place.")
    output.note("Invite a node with: gnusnode swarm invite --roles core,elm")


@app.command("join")
@guarded
def join(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="The line that begins with gnus1-.")],
    operator: OperatorOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Join the swarm of a token. Where the inviting node cannot be reached, the token is kept for the next start."""
    from gnusnode.clock import unix_ms
    from gnusnode.net.join import read_token
    from gnusnode.net.swarmdesk import JoinSwarm, checked

    asked = checked(JoinSwarm, token=token, operator=operator)
    read_token(asked.token, unix_ms())  # what cannot be redeemed is said before anybody waits
    if not as_json:
        output.aside("Asking the inviting node; where it does not answer this takes up to 20 s.")
    answer = _running(home, lambda node: node.post(_PATH + "/join", _body(asked)))
    if answer is None:
        from gnusnode.cli import swarmfiles

        answer = _without_restart(swarmfiles.join(home_of(home), asked))
    if _shown(answer, as_json):
        return
    if answer["state"] == "joining":
        output.say(f"the token of {answer['name']} is kept")
        if "why" in answer:
            output.note(f"Not a member yet: {answer['why']}.")
            output.note("It is redeemed as soon as the node runs and the inviting node can be reached: gnusnode start")
        elif not answer.get("restart"):
            output.note("Not a member yet; `gnusnode status` says why.")
    elif answer["state"] == "member":
        output.say(f"joined {answer['name']}: {', '.join(answer['roles'])}, tier {answer['tier']}")
    else:
        output.say(f"{answer['name']}: {answer['state']}")


@app.command("leave")
@guarded
def leave(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Forget the swarm. Others drop this node when its certificate ends or is revoked."""
    answer = _ask(home, lambda node: node.post(_PATH + "/leave"), lambda desk: desk.swarm_leave())
    if _shown(answer, as_json):
        return
    output.say(f"left {answer['left']}")
    if answer["root_key"]:
        output.note(f"The swarm's root key was put aside: {answer['root_key']}")


# --- looking ----------------------------------------------------------------------------------------------------------


@app.command("status")
@guarded
def status(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show the swarm and this node's place in it."""
    answer = _ask(home, lambda node: node.get(_PATH), _now(lambda desk: desk.swarm_status()))
    if as_json:
        output.emit(answer)
        return
    output.fields(answer | ({"expires": output.day(answer["expires"])} if answer.get("expires") else {}))
    if answer["state"] == "alone":
        output.note(_ALONE)


@app.command("members")
@guarded
def members(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List everybody who belongs, or did."""
    rows = _ask(home, lambda node: node.get(_PATH + "/members")["data"], _now(lambda desk: desk.swarm_members()))
    if as_json:
        output.emit(rows)
        return
    shown = [row | {"expires": output.day(row["expires"]), "self": "*" if row["self"] else ""} for row in rows]
    output.table(shown, ["self", "operator", "tier", "state", "serial", "expires", "peer_id", "roles"])
    if not rows:
        output.note(_ALONE)


@app.command("invites")
@guarded
def invites(
    withdraw: Annotated[str | None, typer.Option("--withdraw", help="Let nobody come with this one any more.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the invites that this node made, or withdraw one."""
    if withdraw is not None:
        path = f"{_PATH}/invites/{quote(withdraw, safe='')}"
        answer = _ask(home, lambda node: node.delete(path), lambda desk: desk.swarm_withdraw(withdraw))
        output.emit(answer) if as_json else output.say(f"withdrawn {withdraw}")
        return
    rows = _ask(home, lambda node: node.get(_PATH + "/invites")["data"], lambda desk: desk.swarm_invites())
    if as_json:
        output.emit(rows)
        return
    shown = [row | {"expires": output.day(row["expires"])} for row in rows]
    output.table(shown, ["id", "state", "used", "tier", "operator", "expires", "roles", "by"])
    if not rows:
        output.note("No invites. Make one: gnusnode swarm invite --roles core,elm")


# --- deciding ---------------------------------------------------------------------------------------------------------


@app.command("invite")
@guarded
def invite(
    roles: RolesOption,
    tier: TierOption = None,
    operator: OperatorOption = None,
    expires: Annotated[
        str, typer.Option("--expires", help="How long the token holds, such as 30m, 24h or 7d.")
    ] = "24h",
    uses: Annotated[int, typer.Option("--uses", min=1, max=64, help="How many nodes may come with it.")] = 1,
    days: Annotated[
        float, typer.Option("--days", min=1, help="How long a membership holds before it is renewed.")
    ] = 90,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token that lets one more node join. It holds secrets: send it over a channel that you trust."""
    from gnusnode.net.swarmdesk import InviteNode, checked

    asked = checked(
        InviteNode, roles=_roles(roles), tier=tier, operator=operator, hours=_hours(expires), uses=uses, days=days
    )
    answer = _ask(home, lambda node: node.post(_PATH + "/invites", _body(asked)), lambda desk: desk.swarm_invite(asked))
    if _shown(answer, as_json):
        return
    output.say(answer["token"])
    nodes = {1: "one node", None: "any number of nodes"}.get(answer["uses"], f"{answer['uses']} nodes")
    output.note(f"Good for {nodes}, until {output.day(answer['expires'])} UTC")
    output.note(f"It leads to this node at {', '.join(answer['addresses'])}")
    output.note("On the other machine: gnusnode swarm join TOKEN; then: gnusnode start")


@app.command("roles")
@guarded
def set_roles(
    peer: Annotated[str, typer.Argument(metavar="PEER", help="The member's PeerID, or its last characters.")],
    roles: Annotated[
        str, typer.Argument(metavar="ROLES", help="What it is to hold from now on, comma separated; or 'all'.")
    ],
    tier: TierOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a member exactly these roles. It takes effect without a restart."""
    from gnusnode.net.swarmdesk import SetRoles, checked

    asked = checked(SetRoles, peer=peer, roles=_roles(roles), tier=tier)
    answer = _ask(home, lambda node: node.post(_PATH + "/roles", _body(asked)), lambda desk: desk.swarm_roles(asked))
    if not _shown(answer, as_json):
        output.say(f"{answer['peer_id']}: {', '.join(answer['roles'])}, tier {answer['tier']}")


@app.command("revoke")
@guarded
def revoke(
    target: Annotated[
        str,
        typer.Argument(metavar="PEER|SERIAL|DIGEST", help="A PeerID, or its end; or a certificate's serial or digest."),
    ],
    reason: Annotated[str, typer.Option("--reason", help="Why; every member can read it.")] = "",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take back trust in a node, or in one certificate. This is for good."""
    from gnusnode.net.swarmdesk import Revoke, checked

    asked = checked(Revoke, target=target, reason=reason)
    answer = _ask(home, lambda node: node.post(_PATH + "/revoke", _body(asked)), lambda desk: desk.swarm_revoke(asked))
    if not _shown(answer, as_json):
        output.say(f"revoked the {answer['kind']} {answer['target']}")


@admins.callback()
@guarded
def list_admins(context: typer.Context, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List who may invite, grant and revoke besides the holder of the root key."""
    if context.invoked_subcommand is not None:
        return
    rows = _ask(home, lambda node: node.get(_PATH + "/admins")["data"], _now(lambda desk: desk.swarm_admins()))
    if as_json:
        output.emit(rows)
        return
    shown = [row | {"expires": output.day(row["expires"]), "self": "*" if row["self"] else ""} for row in rows]
    output.table(shown, ["self", "tier", "expires", "peer_id", "roles"])


@admins.command("add")
@guarded
def add_admin(
    peer: Annotated[str, typer.Argument(metavar="PEER", help="The member's PeerID, or its last characters.")],
    roles: Annotated[str, typer.Option("--roles", help="What it may grant, comma separated; or 'all'.")] = "all",
    tier: Annotated[str, typer.Option("--tier", help="The highest tier that it may grant.")] = "B",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a member invite, grant and revoke. Only the founder's node can."""
    from gnusnode.net.swarmdesk import MakeAdmin, checked

    asked = checked(MakeAdmin, peer=peer, roles=_roles(roles), tier=tier)
    answer = _ask(home, lambda node: node.post(_PATH + "/admins", _body(asked)), lambda desk: desk.swarm_admin(asked))
    if not _shown(answer, as_json):
        output.say(f"{answer['peer_id']} may grant {', '.join(answer['roles'])} up to tier {answer['tier']}")


@admins.command("remove")
@guarded
def remove_admin(
    peer: Annotated[str, typer.Argument(metavar="PEER", help="The admin's PeerID, or its last characters.")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take an admin's power back, for good; what it granted ends with it. Only the founder's node can."""
    path = f"{_PATH}/admins/{quote(peer, safe='')}"
    answer = _ask(home, lambda node: node.delete(path), lambda desk: desk.swarm_unadmin(peer))
    if not _shown(answer, as_json):
        output.say(f"{answer['target']} is no admin any more")


# ----------------------------------------------------------------------------------------------------------------------

_PATH = "/gnus/v1/swarm"


def _ask(
    home: str | None,
    running: Callable[[NodeClient], Any],
    stopped: Callable[[SwarmDesk], Awaitable[Any]],
    *,
    new: bool = False,
) -> Any:
    """The running node's answer; when none runs, that of its files."""
    answer = _running(home, running)
    if answer is not None:
        return answer
    from gnusnode.cli.swarmfiles import on_files

    answer = on_files(home_of(home), stopped, new=new)
    return _without_restart(answer) if isinstance(answer, dict) else answer  # pyright: ignore[reportUnknownArgumentType]


def _running(home: str | None, ask: Callable[[NodeClient], Any]) -> Any:
    """The answer of the running node; None: none runs. Nothing is done inside the handler, so that what goes wrong
    afterwards has no cause that it does not have.
    """
    from gnusnode.cli.client import NodeClient
    from gnusnode.errors import NotRunning

    with suppress(NotRunning):
        return ask(NodeClient.of(home_of(home).root))
    return None


def _now(look: Callable[[SwarmDesk], Any]) -> Callable[[SwarmDesk], Awaitable[Any]]:
    async def act(desk: SwarmDesk) -> Any:
        return look(desk)

    return act


def _shown(answer: dict[str, Any], as_json: bool) -> bool:
    """Prints JSON where asked for, and says what a running node cannot do while it runs."""
    if as_json:
        output.emit(answer)
    elif answer.get("restart"):
        output.note("The running node changes its network when it is restarted: gnusnode stop; gnusnode start")
    return as_json


def _without_restart(answer: dict[str, Any]) -> dict[str, Any]:
    """For a node that does not run, the next start is the first one. ``answer`` is plain JSON."""
    return {key: value for key, value in answer.items() if key != "restart"}


def _body(asked: Any) -> dict[str, Any]:
    return asked.model_dump(mode="json", exclude_none=True)


def _roles(text: str) -> list[str]:
    """Raises ``RequestError`` for a role that there is not."""
    from gnusnode.contracts.swarm import Role
    from gnusnode.errors import RequestError

    names = [name.strip() for name in text.split(",") if name.strip()]
    every = [role.value for role in Role]
    if names == ["all"]:
        return every
    unknown = [name for name in names if name not in every]
    if unknown or not names:
        what = f"there is no role {unknown[0]!r}" if unknown else "no role was given"
        raise RequestError(what, hint=f"choose among {', '.join(every)}")
    return names


def _hours(text: str) -> float:
    """``90m``, ``24h``, ``7d``. Raises ``RequestError``."""
    from gnusnode.errors import RequestError

    found = re.fullmatch(r"(\d{1,6})([mhd])", text.strip())
    if not found or int(found[1]) == 0:
        raise RequestError(f"{text!r} is no length of time", hint="write minutes, hours or days: 30m, 24h, 7d")
    return int(found[1]) * _UNITS[found[2]]
