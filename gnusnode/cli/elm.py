"""``gnusnode elm``: experts as artifacts: a model, its template and defaults, and a signed capability manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gnusnode.cli import output
from gnusnode.cli.connect import home_of
from gnusnode.cli.models import open_store
from gnusnode.cli.output import HomeOption, JsonOption, guarded
from gnusnode.clock import unix_ms

app = typer.Typer(no_args_is_help=True, help="Experts: pack, verify, install, list, rm.")

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="An .elm file.")]
TrustOption = Annotated[
    list[str] | None, typer.Option("--trust", help="PeerID of a packer to trust, besides this node itself.")
]
UnsignedOption = Annotated[
    bool, typer.Option("--unsigned", help="Also accept an artifact that nobody signed; it gets no capability.")
]


@app.command("pack")
@guarded
def pack(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Holds elm.toml and, if wanted, template.jinja.")],
    model: Annotated[str, typer.Option("--model", "-m", help="Name of its model in this home.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the .elm file.")] = Path(),
    embed: Annotated[bool, typer.Option("--embed", help="Put the model in; else it is named by its hash.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pack an expert, signed by this node."""
    import trio

    from gnusnode.identity import NodeIdentity
    from gnusnode.inference.artifacts import elm

    output.folder(out)
    _, store = open_store(home)
    signer = NodeIdentity.load_or_create(home_of(home).key)
    spec = elm.read_spec(directory)
    with output.progress(spec.expert_id) as progress:

        async def work() -> Path:
            loadable = await store.resolve(model)
            return await elm.pack(spec, loadable, out, signer, embed=embed, now_ms=unix_ms(), progress=progress)

        file = trio.run(work)
    answer = {"file": str(file), "expert_id": spec.expert_id, "version": spec.version, "signer": signer.peer_id}
    output.emit(answer) if as_json else output.say(str(file))


@app.command("verify")
@guarded
def verify(
    file: FileArgument,
    trust: TrustOption = None,
    unsigned: UnsignedOption = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check an artifact completely: parts, hashes, signature, model."""
    import trio

    from gnusnode.inference.artifacts import elm

    with output.progress(file.name) as progress:
        contents = trio.run(
            lambda: elm.verify(
                file, trusted_signers=_trusted(home, trust), require_signature=not unsigned, progress=progress
            )
        )
    manifest = contents.manifest
    answer = {
        "expert_id": manifest.expert_id,
        "version": manifest.version,
        "artifact_hash": manifest.artifact_hash,
        "model": manifest.model.sha256,
        "signer": contents.capability and contents.capability.signer,
        "trusted": contents.trusted,
    }
    output.emit(answer) if as_json else output.fields(answer)


@app.command("install")
@guarded
def install(
    file: FileArgument,
    trust: TrustOption = None,
    unsigned: UnsignedOption = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make an artifact an expert of this node; it serves from the next start on."""
    import trio

    from gnusnode.inference.artifacts import elm

    _, store = open_store(home)
    with output.progress(file.name) as progress:

        async def work() -> elm.InstalledElm:
            await store.prepare()
            return await elm.install(
                file,
                store,
                trusted_signers=_trusted(home, trust),
                require_signature=not unsigned,
                now_ms=unix_ms(),
                progress=progress,
            )

        installed = trio.run(work)
    if as_json:
        output.emit(_row(installed))
        return
    output.say(f"{installed.expert_id} {installed.version} installed")
    output.note("It serves from the next start of the node.")
    if installed.signer and installed.signer not in _trusted(home, None):
        output.note("The node runs it only when models.trusted_packers of its configuration names its packer:")
        output.note(f"  gnusnode config set models.trusted_packers {installed.signer}")


@app.command("list")
@guarded
def list_elms(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the experts of this home."""
    import trio

    from gnusnode.inference.artifacts import elm

    _, store = open_store(home, make=False)
    trusted = _trusted(home, None)
    found = trio.run(lambda: elm.installed(store, trusted_signers=(), require_signature=False))
    rows = [_row(one) | {"trusted": one.signer in trusted} for one in found.elms]
    if as_json:
        output.emit(rows)
    else:
        output.table(rows, ["expert_id", "version", "role", "domains", "trusted", "signer"])
        if not rows:
            output.note("No experts here. docs/models.md says how to pack and install one.")
    for problem in found.problems:
        output.note(f"warning: {problem}")


@app.command("rm")
@guarded
def remove(
    expert_id: Annotated[str, typer.Argument(metavar="EXPERT")],
    version: Annotated[str, typer.Argument(metavar="VERSION")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget an expert and its model."""
    import trio

    from gnusnode.inference.artifacts import elm

    _, store = open_store(home)
    trio.run(elm.uninstall, store, expert_id, version)
    output.emit({"removed": expert_id}) if as_json else output.say(f"removed {expert_id} {version}")


def _trusted(home: str | None, more: list[str] | None) -> tuple[str, ...]:
    """Whose artifacts are good here: those of this node, of the packers that its settings name, and of ``more``."""
    from gnusnode.config.load import load
    from gnusnode.identity import NodeIdentity

    place = home_of(home)
    own = (NodeIdentity.load(place.key).peer_id,) if place.key.exists() else ()
    return (*own, *load(place).settings.models.trusted_packers, *(more or ()))


def _row(one: Any) -> dict[str, Any]:
    return {
        "expert_id": one.expert_id,
        "version": one.version,
        "role": one.manifest.role.value,
        "domains": list(one.manifest.domains),
        "capabilities": list(one.capabilities),
        "model": one.manifest.model.sha256,
        "signer": one.signer,
    }
