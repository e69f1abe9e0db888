"""``gnusnode audit``: the chain of what this node did. Asks the running node, else reads the store itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnusnode.cli import output
from gnusnode.cli.connect import home_of
from gnusnode.cli.output import HomeOption, JsonOption, guarded

if TYPE_CHECKING:
    from gnusnode.config.paths import Home

app = typer.Typer(no_args_is_help=True, help="The audit chain: verify, tail, export.")


@app.command("verify")
@guarded
def verify(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Walk the whole chain: every link, every signature, the head. Exit code 6 when it is broken."""
    from gnusnode.errors import DataError

    report = _ask(home, "/gnus/v1/audit/verify", "verify")
    output.emit(report) if as_json else output.say(f"{report['checked']} of {report['length']} events verified")
    if report["broken"]:
        raise DataError(
            f"the chain is broken at event {report['broken']['seq']}: {report['broken']['why']}",
            where=str(home_of(home).data),
            hint="keep a copy of the home, then export what is readable: gnusnode audit export --salvage FILE",
        )


@app.command("tail")
@guarded
def tail(
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=500, help="How many.")] = 20,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the last events."""
    events = _ask(home, f"/gnus/v1/audit/events?count={count}", "tail", count)["data"]
    if as_json:
        output.emit(events)
        return
    from datetime import UTC, datetime

    for event in events:
        when = datetime.fromtimestamp(event["issued_at_ms"] / 1000, UTC).isoformat(timespec="seconds")
        fields = " ".join(f"{key}={value}" for key, value in event["fields"].items())
        output.say(f"{event['seq']:>6}  {when}  {event['event']}  {fields}")


@app.command("export")
@guarded
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file; one JSON object a line.")],
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Write every readable entry of a damaged store; the node must be stopped.")
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the chain to a file."""
    from gnusnode.cli import offline

    place = home_of(home)
    output.new_file(file)
    if salvage:
        result = offline.salvage_store(place, file)
        if as_json:
            output.emit(result)
            return
        found = ", ".join(f"{count} {table}" for table, count in result["entries"].items())
        output.fields({"file": file, "entries": found or "none", "damage": result["damage"] or "none found"})
        return
    count = _export(place, file)
    output.emit({"events": count, "file": str(file)}) if as_json else output.say(f"{count} events in {file}")


def _export(place: Home, file: Path) -> int:
    """All events and the signed head, from the running node page by page, else from the store."""
    from gnusnode.cli import offline
    from gnusnode.cli.client import NodeClient
    from gnusnode.errors import NotRunning

    try:
        client = NodeClient.of(place.root, timeout=None)
        page = client.get("/gnus/v1/audit/events?first=0")["data"]
    except NotRunning:
        return offline.read_audit(place, "export", file)["events"]
    count = 0
    with file.open("x", encoding="utf-8") as out:
        try:
            while page:
                out.writelines(json.dumps(event) + "\n" for event in page)
                count += len(page)
                page = client.get(f"/gnus/v1/audit/events?first={count}")["data"]
            out.write(json.dumps(client.get("/gnus/v1/audit/head")) + "\n")
        except BaseException:
            file.unlink()  # half a chain looks like a whole one
            raise
    return count


def _ask(home: str | None, path: str, task: str, *arguments: Any) -> Any:
    """The node's answer; when none runs, that of the store itself."""
    from gnusnode.cli import offline
    from gnusnode.cli.client import NodeClient
    from gnusnode.errors import NotRunning

    place = home_of(home)
    try:
        return NodeClient.of(place.root, timeout=None).get(path)
    except NotRunning:
        return offline.read_audit(place, task, *arguments)
