"""``gnusnode keys``: API keys of this node. A key is shown once; only its hash is kept."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from gnusnode.cli import output
from gnusnode.cli.connect import connect
from gnusnode.cli.output import HomeOption, JsonOption, guarded

app = typer.Typer(no_args_is_help=True, help="API keys: create, list, revoke.")


@app.command("create")
@guarded
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is.")],
    scopes: Annotated[str, typer.Option("--scopes", help="Comma separated: read, chat, approve, admin.")] = "read,chat",
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="More get 429.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, help="Prompts and answers together.")] = None,
    in_flight: Annotated[int | None, typer.Option(min=1, help="Requests under way at a time.")] = None,
    days: Annotated[int | None, typer.Option("--days", min=1, help="How long it holds; else until revoked.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a key and print it, once."""
    body = {
        "name": name,
        "scopes": [scope.strip() for scope in scopes.split(",") if scope.strip()],
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "in_flight": in_flight,
        "expires_in_seconds": days and days * 86_400,
    }
    made = connect(home).post("/gnus/v1/keys", {key: value for key, value in body.items() if value is not None})
    if as_json:
        output.emit(made)
        return
    output.say(made["key"])
    output.note("Keep it now: the node stores only its hash.")


@app.command("list")
@guarded
def list_keys(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List keys, never their secrets."""
    keys = connect(home).get("/gnus/v1/keys")["data"]
    if as_json:
        output.emit(keys)
        return
    output.table([_row(key) for key in keys], ["id", "name", "scopes", "limits", "created", "expires"])
    if not keys:
        output.note(
            "No keys. Until the first is made, programs on this machine may chat, unless api.require_key is on."
        )


@app.command("revoke")
@guarded
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The id that `keys list` shows.")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a key at once."""
    client = connect(home)
    answer = client.delete(f"/gnus/v1/keys/{quote(key_id, safe='')}")
    output.emit(answer) if as_json else output.say(f"revoked {key_id}")
    if not client.get("/gnus/v1/keys")["data"]:
        output.note("That was the last key: nobody can use the API over TCP until you create another.")


def _row(key: dict[str, Any]) -> dict[str, Any]:
    limits = [f"{value} {name.replace('_', ' ')}" for name, value in key["limits"].items() if value is not None]
    return key | {"created": output.day(key["created"]), "expires": output.day(key["expires"]), "limits": limits}
