"""The command tree. Command modules import nothing heavy at the top, so that ``--help`` stays instant."""

from __future__ import annotations

from typing import Annotated

import typer

from gnusnode.cli import audit, bench, chat, config, devnet, doctor, elm, identity, keys, models, node, peers, swarm

app = typer.Typer(
    name="gnusnode",
    help="A node of a cognitive swarm: serves local models behind an OpenAI-compatible API and proves what it did.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=node.print_version, help="Show the version.")
    ] = False,
) -> None:
    """What comes before a command."""


app.command("init")(node.init)
app.command("start")(node.start)
app.command("stop")(node.stop)
app.command("status")(node.status)
app.command("wait")(node.wait)
app.command("version")(node.version)
app.command("run")(chat.run)
app.command("chat")(chat.chat)
app.command("doctor")(doctor.doctor)
app.command("bench")(bench.bench)
app.command("bugreport")(doctor.bugreport)
app.command("devnet")(devnet.devnet)
app.add_typer(identity.app, name="id")
app.add_typer(models.app, name="models")
app.add_typer(elm.app, name="elm")
app.add_typer(config.app, name="config")
app.add_typer(audit.app, name="audit")
app.add_typer(keys.app, name="keys")
app.add_typer(swarm.app, name="swarm")
app.add_typer(peers.app, name="peers")
