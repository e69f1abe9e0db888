"""``gnusnode peers``: whom the running node knows, how far each has come, and what to do about one."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from gnusnode.cli import output
from gnusnode.cli.connect import connect as connect_node
from gnusnode.cli.output import HomeOption, JsonOption, guarded

app = typer.Typer(no_args_is_help=True, help="Other nodes: list, look at, ping, connect, ban.")

PeerArgument = Annotated[str, typer.Argument(metavar="PEER", help="A PeerID, or its last characters.")]

_PATH = "/gnus/v1/peers"
_MEASURED = {
    "rtt_ms": ("round trip", "{:.1f} ms"),
    "skew_ms": ("clock", "{:+.0f} ms"),
    "heartbeat_age_s": ("heartbeat", "{:.0f} s ago"),
    "seen_s_ago": ("seen", "{:.0f} s ago"),
}
"""What is measured, as people read it."""


@app.command("list")
@guarded
def list_(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List all peers, the usable ones first, and say why the others are not."""
    answer = connect_node(home).get(_PATH)
    if as_json:
        output.emit(answer)
        return
    output.say(summary(answer["counts"]))
    if answer["data"]:
        output.say("")
    output.table(
        [_row(peer) for peer in answer["data"]], ["peer", "state", "roles", "experts", "rtt", "seen", "reason"]
    )


@app.command("show")
@guarded
def show(peer: PeerArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show everything that is known of a peer."""
    answer = connect_node(home).get(_path(peer))
    if as_json:
        output.emit(answer)
        return
    plain = {key: value for key, value in answer.items() if key not in ("announcement", "experts", *_MEASURED)}
    for key, (name, form) in _MEASURED.items():
        value = answer.get(key)
        plain[name] = None if value is None else form.format(value)
    plain["reason"] = answer["reason"] or None
    link = answer["connection"]
    if link:
        way = "from there" if link["inbound"] else "from here"
        plain["connection"] = f"{link['address']}, dialled {way}{', relayed' if link['relayed'] else ''}"
    plain["services"] = [f"{name} v{version}" for name, version in sorted(answer["services"].items())]
    output.fields({key.replace("_", " "): value for key, value in plain.items()})
    if answer["experts"]:
        output.say("")
        output.table(answer["experts"], ["id", "service", "state", "slots", "free_slots", "queued", "decode_rate"])


@app.command("ping")
@guarded
def ping(peer: PeerArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Measure one round trip to a connected peer."""
    answer = connect_node(home).post(f"{_path(peer)}/ping")
    output.emit(answer) if as_json else output.say(f"{answer['rtt_ms']:g} ms to {answer['peer']}")


@app.command("connect")
@guarded
def connect(
    address: Annotated[str, typer.Argument(metavar="MULTIADDR", help="Ends with /p2p/ and the node's PeerID.")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Dial an address now and say how the hello went; `net.peers` keeps a peer for good."""
    answer = connect_node(home).post(f"{_PATH}/connect", {"address": address})
    if as_json:
        output.emit(answer)
        return
    output.say(f"{answer['peer']} is {answer['state']}{': ' if answer['reason'] else ''}{answer['reason']}")
    if not answer["dialled"]:
        output.note("It was connected already, so this address was not tried.")


@app.command("ban")
@guarded
def ban(
    peer: PeerArgument,
    reason: Annotated[str, typer.Option("--reason", help="For those who read the list.")] = "",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cut a peer off and keep it out until `unban`, over restarts too."""
    answer = connect_node(home).post(f"{_path(peer)}/ban", {"reason": reason})
    output.emit(answer) if as_json else output.say(f"banned {answer['peer']}")


@app.command("unban")
@guarded
def unban(peer: PeerArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Let a banned peer in again."""
    answer = connect_node(home).post(f"{_path(peer)}/unban")
    output.emit(answer) if as_json else output.say(f"{answer['peer']} may come back")


def summary(counts: dict[str, int]) -> str:
    """How many peers have come how far, in one line."""
    way = ", ".join(
        f"{counts[name]} {name}" for name in ("discovered", "dialled", "connected", "authenticated", "usable")
    )
    aside = ", ".join(f"{counts[name]} {name}" for name in ("refused", "banned") if counts[name])
    return f"{way}; {aside}" if aside else way


def _path(peer: str) -> str:
    return f"{_PATH}/{quote(peer, safe='')}"


def _row(peer: dict[str, Any]) -> dict[str, Any]:
    rtt = peer["rtt_ms"]
    return {
        "peer": peer["peer"],
        "state": peer["state"],
        "roles": peer["roles"],
        "experts": len(peer["experts"]) or None,
        "rtt": None if rtt is None else f"{rtt:.1f} ms",
        "seen": f"{peer['seen_s_ago']:.0f} s ago",
        "reason": peer["reason"],
    }
