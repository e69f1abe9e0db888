"""``gnusnode doctor`` checks what a node stands on; ``bugreport`` collects what a maintainer needs."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gnusnode.cli import output
from gnusnode.cli.connect import home_of
from gnusnode.cli.output import HomeOption, JsonOption, guarded

Level = Literal["ok", "warning", "problem"]
Finding = tuple[Level, str, str]
"""How bad, what was found, what to do."""

MIN_FREE_BYTES = 1_000_000_000


@guarded
def doctor(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Check installation, home, key, store, models, devices, confinement, swarm. Exit code 1: something is broken."""
    place = home_of(home)
    checks: dict[str, Callable[[], Finding]] = {
        "python": _python,
        "llama.cpp": _llama,
        "home": lambda: _home(place),
        "key": lambda: _key(place),
        "settings": lambda: _settings(place),
        "disk": lambda: _disk(place),
        "store": lambda: _store(place),
        "models": lambda: _models(place),
        "devices": _devices,
        "confinement": _confinement,
        "network": _network,
        "swarm": lambda: _swarm(place),
        "node": lambda: _node(place),
    }
    findings = {name: _guard(check) for name, check in checks.items()}
    if as_json:
        output.emit({name: {"level": f[0], "found": f[1], "next": f[2]} for name, f in findings.items()})
    else:
        for name, (level, found, remedy) in findings.items():
            output.say(f"{level:8} {name:12} {found}")
            if remedy:
                output.say(f"{'':21} next: {remedy}")
    if any(level == "problem" for level, _, _ in findings.values()):
        raise typer.Exit(1)


@guarded
def bugreport(
    out: Annotated[Path | None, typer.Option("--out", help="Write to this file instead of the terminal.")] = None,
    home: HomeOption = None,
) -> None:
    """Collect versions, redacted settings, last events and tasks. No prompts, answers or keys are in it."""
    import json

    from gnusnode.cli.connect import connect
    from gnusnode.errors import NotRunning

    place = home_of(home)
    report: dict[str, Any] = {
        "python": sys.version,
        "platform": platform.platform(),
        "checks": {name: _guard(check)[:2] for name, check in {"llama.cpp": _llama, "devices": _devices}.items()},
    }
    try:
        report["node"] = connect(str(place.root)).get("/gnus/v1/bugreport")
    except NotRunning as error:
        report["node"] = str(error)
    if out is None:
        output.emit(report)
    else:
        out.write_text(json.dumps(report, indent=1), "utf-8")
        output.say(f"written to {out}: look through it before you send it")


def _guard(check: Callable[[], Finding]) -> Finding:
    from gnusnode.errors import GnusError

    try:
        return check()
    except GnusError as error:
        return "problem", f"{error.where}: {error.what}" if error.where else error.what, error.hint or ""


def _python() -> Finding:
    return "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}", ""


def _llama() -> Finding:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return "ok", f"llama-cpp-python {version('llama-cpp-python')}", ""
    except PackageNotFoundError:
        return "problem", "llama-cpp-python is not installed", "run scripts/setup, or pip install 'gnusnode[llama]'"


def _home(place: Any) -> Finding:
    if not place.root.exists():
        return "warning", f"{place.root} does not exist yet", "gnusnode init, or simply gnusnode start"
    place.ensure()
    return "ok", str(place.root), ""


def _key(place: Any) -> Finding:
    if not place.key.exists():
        return "warning", "no key yet", "it is made at the first start"
    from gnusnode.identity import NodeIdentity

    return "ok", NodeIdentity.load(place.key).peer_id, ""


def _settings(place: Any) -> Finding:
    from gnusnode.config.load import load

    loaded = load(place)
    return "ok", f"profile {loaded.settings.profile}, {loaded.file or 'no file'}", ""


def _disk(place: Any) -> Finding:
    import shutil

    where = next(path for path in (place.root, *place.root.parents) if path.exists())
    free = shutil.disk_usage(where).free
    if free < MIN_FREE_BYTES:
        return "warning", f"{output.size(free)} free", "remove models with `gnusnode models rm`, or free space"
    return "ok", f"{output.size(free)} free", ""


def _store(place: Any) -> Finding:
    from gnusnode.store.check import check_data_file
    from gnusnode.store.opening import DATA_FILE

    file = place.data / DATA_FILE
    if not file.exists():
        return "ok", "empty: made at the first start", ""
    report = check_data_file(file)
    return "ok", f"{output.size(report.bytes)}, {report.pages_checked} pages looked at", ""


def _models(place: Any) -> Finding:
    import trio

    from gnusnode.config.load import load
    from gnusnode.inference.artifacts.models import ModelStore

    settings = load(place).settings
    root = settings.models.path or place.models
    if not root.exists():
        return "ok", "none yet: the packaged one is taken at the first start", ""
    listing = trio.run(ModelStore(root).scan)
    if listing.problems:
        problem = listing.problems[0]
        return "problem", str(problem), "gnusnode models rm the name, then add it again"
    return "ok", ", ".join(model.name for model in listing.models) or "none yet", ""


def _devices() -> Finding:
    import trio

    from gnusnode.inference.devices import probe_devices

    report = trio.run(probe_devices)
    if report.error:
        return "problem", report.error, "run scripts/setup again; `--gpu cpu` always builds"
    names = [f"{one.description or one.name} ({output.size(one.free)} free)" for one in report.devices]
    found = ", ".join(names)
    if report.gpus:
        return "ok", found, ""
    why = "no GPU is in sight" if report.offload else "llama.cpp was built without GPU support"
    return "ok", f"{found}; models run on the CPU: {why}", ""


def _confinement() -> Finding:
    from sandbox.selfcheck import self_check

    result = self_check()
    if result.holds:
        return "ok", f"a confined child was refused: {', '.join(result.denied)}", ""
    if result.error:
        return "problem", result.error, "engine children would run unconfined here"
    open_doors = [name for name, refused in result.denied.items() if not refused]
    broken = [name for name, works in result.works.items() if not works]
    found = "; ".join(
        f"{label}: {', '.join(names)}" for label, names in (("not refused", open_doors), ("broken", broken)) if names
    )
    return "warning", found, "the kernel or container of this machine lacks a control; see docs/architecture.md"


def _network() -> Finding:
    from gnusnode.net.p2p.hardening import VERSION, require_version

    require_version()
    return "ok", f"libp2p {VERSION}", ""


def _swarm(place: Any) -> Finding:
    """What the folder says, and what the running node says of its peers."""
    from gnusnode.cli.client import NodeClient
    from gnusnode.cli.peers import summary
    from gnusnode.errors import NotRunning
    from gnusnode.net.swarmfolder import SwarmFolder

    state = SwarmFolder(place.root).state()
    if state is None:
        return "ok", "belongs to none", ""
    if state.pending:
        return (
            "warning",
            f"{state.name}: the token is not redeemed yet",
            "start a node that can reach the one that invited",
        )
    try:
        swarm = NodeClient.of(place.root, timeout=10).get("/gnus/v1/status")["swarm"]
    except NotRunning:
        return "ok", f"member of {state.name}, not running", ""
    counts = summary(swarm["peers"])
    if swarm["state"] != "member":
        return "warning", f"{swarm['state']} in {state.name}: {counts}", "gnusnode status; gnusnode peers list"
    found = f"member of {state.name}: {counts}"
    alone = state.bootstrap and not swarm["peers"]["usable"]
    return ("warning", found, "gnusnode peers list says why") if alone else ("ok", found, "")


def _node(place: Any) -> Finding:
    from gnusnode.cli.client import NodeClient
    from gnusnode.errors import NotRunning

    try:
        data = NodeClient.of(place.root, timeout=10).get("/gnus/v1/status")
    except NotRunning as error:
        return "ok", error.what, ""
    told = {one["text"]: one["severity"] for one in data["warnings"] if one["severity"] != "info"}
    if not data["ready"]:
        return "warning", "runs, not ready: " + "; ".join(data["reasons"].values()), "gnusnode status"
    if told:
        return "problem" if "critical" in told.values() else "warning", " ".join(told), "gnusnode status"
    return "ok", f"runs at {data['api']}", ""
