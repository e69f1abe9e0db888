"""``init start stop status wait version``: the life of a node."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from gnusnode.cli import output
from gnusnode.cli.connect import connect, home_of
from gnusnode.cli.output import HomeOption, JsonOption, guarded

ProfileOption = Annotated[
    str | None,
    # Not read from the environment here: the settings read it, and say so when it is wrong.
    typer.Option("--profile", help="solo, lan, gpu-contributor or high-trust; else GNUSNODE_PROFILE."),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="The TOML file; else gnusnode.toml in the home.", envvar="GNUSNODE_CONFIG"),
]


@guarded
def init(
    profile: ProfileOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the home: folders, the node's key and a commented configuration. Safe to repeat."""
    from gnusnode.cli.setup import initialise

    made = initialise(home_of(home), profile)
    if as_json:
        output.emit(made)
        return
    output.fields(made)
    if profile and made["profile"] != profile:
        output.note(f"The file keeps its profile. To change it: gnusnode config set profile {profile}")


@guarded
def start(
    home: HomeOption = None,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    roles: Annotated[str | None, typer.Option("--roles", help="Comma separated, or 'all'.")] = None,
    api: Annotated[str | None, typer.Option("--api", help="HOST:PORT of the HTTP API; port 0 chooses one.")] = None,
    listen: Annotated[list[str] | None, typer.Option("--listen", help="Multiaddr to listen on for peers.")] = None,
    peer: Annotated[list[str] | None, typer.Option("--peer", help="Multiaddr of a peer to dial.")] = None,
    no_mdns: Annotated[bool, typer.Option("--no-mdns", help="Do not look for peers on the local network.")] = False,
    no_dht: Annotated[bool, typer.Option("--no-dht", help="Do not use the distributed hash table.")] = False,
    no_model: Annotated[bool, typer.Option("--no-model", help="Start without a model.")] = False,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model to load, by name.")] = None,
    log_format: Annotated[str | None, typer.Option("--log-format", help="auto, json or console.")] = None,
    log_level: Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")] = None,
) -> None:
    """Run the node in the foreground. Ctrl-C drains and stops it; a second Ctrl-C ends it at once."""
    from gnusnode.cli.start import run_node

    flags: dict[str, Any] = {
        "node.roles": roles,
        "api.listen": api,
        "net.listen": listen or None,
        "net.peers": peer or None,
        "net.mdns": False if no_mdns else None,
        "net.dht": False if no_dht else None,
        "models.default": "none" if no_model else model,
        "models.load": [] if no_model else None,
        "models.embedding": "none" if no_model else None,
        "observe.log_format": log_format,
        "observe.log_level": log_level,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    code = run_node(home_of(home), profile, given, config=config)
    raise typer.Exit(code)


@guarded
def stop(
    home: HomeOption = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for the end.")] = 15.0,
    as_json: JsonOption = False,
) -> None:
    """Stop the node that runs on this home, and wait until it is gone."""
    from gnusnode.cli.setup import await_end

    client = connect(home, timeout=timeout + 5)
    client.post("/gnus/v1/stop")
    await_end(home_of(home), timeout)
    output.emit({"stopped": True}) if as_json else output.say("stopped")


@guarded
def wait(
    home: HomeOption = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait.")] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Wait until the node is ready; exit code 7 when it is not in time."""
    from gnusnode.errors import NotRunning

    deadline = time.monotonic() + timeout
    reasons: Any = {"node": "not running"}
    while True:
        try:
            status, body = connect(home, timeout=5).raw("/readyz")
            reasons = body.get("reasons", {})
            if status == 200:
                output.emit(body) if as_json else output.say("ready")
                return
        except NotRunning:
            reasons = {"node": "not running"}
        if time.monotonic() >= deadline:
            text = "; ".join(f"{part}: {reason}" for part, reason in reasons.items())
            raise NotRunning(
                f"not ready after {timeout:g} s: {text}", hint="look at `gnusnode status` and the node's log"
            )
        time.sleep(0.1)  # another process: there is nothing to await but the next look


def print_version(wanted: bool) -> None:
    """``gnusnode --version``, as everybody tries it first."""
    if wanted:
        version()
        raise typer.Exit


@guarded
def version(as_json: JsonOption = False) -> None:
    """Show the version."""
    from gnusnode import __version__

    output.emit({"version": __version__}) if as_json else output.say(f"gnusnode {__version__}")


@guarded
def status(
    home: HomeOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again when it changes, until Ctrl-C.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what the node is, what it serves and what is wrong with it."""
    from gnusnode.cli.watch import captured, follow

    def show() -> None:
        data = connect(home).get("/gnus/v1/status")
        output.emit(data) if as_json else _show_status(data)

    if watch:
        follow(lambda: captured(show), restless=_RESTLESS)
    else:
        show()


_RESTLESS = ("up ", "memory ", '  "uptime_s"', '  "rss_bytes"', '  "engine_rss_bytes"')
"""Beginnings of the lines of a status that change by themselves."""


def _show_status(data: dict[str, Any]) -> None:
    output.fields(
        {
            "node": f"{data['name']}  {data['peer_id']}",
            "version": data["version"],
            "home": data["home"],
            "api": data["api"],
            **_swarm_lines(data["swarm"]),
            "ready": "yes" if data["ready"] else "no",
            "up": _duration(data["uptime_s"]),
            "memory": f"{output.size(data['rss_bytes'])} node, {output.size(data['engine_rss_bytes'])} models",
        }
    )
    output.say("")
    output.table(data["roles"], ["name", "state", "detail"])
    if data["models"]:
        output.say("")
        output.table(data["models"], ["name", "state", "device", "slots", "queued", "decode"])
        for model in data["models"]:
            output.say(f"  {model['name']}: {model['reason']}")
    if data["reasons"]:
        output.say("")
        output.say("not ready:")
        for part, reason in data["reasons"].items():
            output.say(f"  {part}: {reason}")
    for warning in data["warnings"]:
        output.say("")
        output.say(f"{warning['severity']}: {warning['text']}")
        if warning["detail"]:
            output.say(f"  about: {warning['detail']}")
        output.say(f"  next: {warning['remedy']}")


def _swarm_lines(swarm: dict[str, Any]) -> dict[str, str]:
    """The swarm and, where there is a network, how far its peers have come."""
    from gnusnode.cli.peers import summary

    name = f"{swarm['name']}, " if swarm.get("name") else ""
    lines = {"swarm": f"{name}{swarm['state']}"}
    if swarm.get("peers"):
        lines["peers"] = summary(swarm["peers"])
    return lines


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
