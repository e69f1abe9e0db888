"""Expert artifacts: packed the same each time, refused when anything in them is not as it was signed."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnusnode.contracts.tools import CapabilityManifest, RequiredCapability
from gnusnode.errors import (
    Conflict,
    DataError,
    GnusError,
    ModelInvalid,
    ModelNotFound,
    NotFound,
    RecordRefused,
    RequestError,
)
from gnusnode.identity import NodeIdentity
from gnusnode.inference.artifacts import elm, elmfile
from gnusnode.inference.artifacts.elm import ElmSpec, InstalledElm
from gnusnode.inference.artifacts.modelrecord import GenerationDefaults
from gnusnode.inference.artifacts.models import ModelStore
from tests.fakes.ggufs import tiny_gguf

SPEC = ElmSpec(
    expert_id="poet",
    version="1.0",
    description="Writes verses.",
    domains=("poetry", "prose"),
    required_capabilities=(RequiredCapability(name="memory.retrieve", scope="readonly"),),
    defaults=GenerationDefaults(temperature=0.75, top_p=0.9),
    template="{% for m in messages %}{{ m.content }}☃{% endfor %}",
)
NOW = 1_700_000_000_000


async def made_store(root: Path) -> ModelStore:
    store = ModelStore(root, reserve=0, clock=lambda: NOW / 1000)
    await store.prepare()
    return store


@pytest.fixture
async def store(tmp_path: Path) -> ModelStore:
    """The store of whoever packs, with one model."""
    store = await made_store(tmp_path / "packer")
    file = tmp_path / "tiny.gguf"
    file.write_bytes(tiny_gguf())
    await store.add(file, "tiny")
    return store


@pytest.fixture
async def other(tmp_path: Path) -> ModelStore:
    """The empty store of whoever installs."""
    return await made_store(tmp_path / "installer")


async def packed(
    store: ModelStore, folder: Path, signer: NodeIdentity | None, spec: ElmSpec = SPEC, *, embed: bool = True
) -> Path:
    folder.mkdir(exist_ok=True)
    return await elm.pack(spec, await store.resolve("tiny"), folder, signer, embed=embed, now_ms=NOW)


async def installed(file: Path, store: ModelStore, signer: NodeIdentity, **options: Any) -> InstalledElm:
    return await elm.install(file, store, trusted_signers={signer.peer_id}, now_ms=NOW, **options)


def members(file: Path) -> dict[str, bytes]:
    with tarfile.open(file) as archive:
        return {info.name: archive.extractfile(info).read() for info in archive}  # type: ignore[union-attr]  # files only


def rewritten(file: Path, contents: dict[str, bytes], change: Callable[[tarfile.TarInfo], None] | None = None) -> None:
    """A tar of ``contents`` by the standard library, headers changed on the way."""
    with tarfile.open(file, "w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if change:
                change(info)
            archive.addfile(info, io.BytesIO(data) if info.isreg() else None)
        end = archive.offset
    # The library fills up to 10 KiB; our archives end after two empty blocks.
    file.write_bytes(file.read_bytes()[:end] + bytes(1024))


@pytest.mark.requirement("G-EX-4", "G-EX-6")
async def test_a_packed_expert_is_installed_with_all_that_was_said_of_it(
    store: ModelStore, other: ModelStore, tmp_path: Path, signer: NodeIdentity
) -> None:
    steps: list[int] = []
    file = await packed(store, tmp_path / "out", signer)
    assert file.name == "poet-1.0.elm"
    expert = await installed(file, other, signer, progress=lambda done, _: steps.append(done))
    assert (expert.expert_id, expert.version, expert.signer) == ("poet", "1.0", signer.peer_id)
    assert (expert.manifest.role, expert.manifest.domains) == ("primary_draft", ("poetry", "prose"))
    assert expert.capabilities == ("memory.retrieve",)
    assert expert.capability is not None
    assert expert.capability.artifact_hash == expert.manifest.artifact_hash
    assert expert.capability.sandbox_requirements.network == "disabled"
    assert steps[-1] == expert.manifest.model.size
    model = await other.resolve(expert.model_name)
    assert model.manifest.sha256 == expert.manifest.model.sha256
    assert model.template == SPEC.template
    assert model.manifest.traits.defaults == SPEC.defaults
    found = await elm.installed(other, trusted_signers={signer.peer_id}, require_signature=True)
    assert found.elms == (expert,)
    assert found.problems == ()


async def test_the_same_contents_give_the_same_bytes(store: ModelStore, tmp_path: Path, signer: NodeIdentity) -> None:
    first = await packed(store, tmp_path / "a", signer)
    second = await packed(store, tmp_path / "b", signer)
    assert first.read_bytes() == second.read_bytes()


async def test_any_tar_program_can_read_an_artifact(store: ModelStore, tmp_path: Path, signer: NodeIdentity) -> None:
    contents = members(await packed(store, tmp_path / "out", signer))
    assert list(contents) == ["manifest.json", "capability.cbor", "template.jinja", "model.gguf"]
    assert contents["model.gguf"] == tiny_gguf()
    assert json.loads(contents["manifest.json"])["defaults"]["temperature"] == 0.75
    assert CapabilityManifest.from_bytes(contents["capability.cbor"]).module_name == "poet"


async def test_packing_never_overwrites(store: ModelStore, tmp_path: Path, signer: NodeIdentity) -> None:
    file = await packed(store, tmp_path / "out", signer)
    before = file.read_bytes()
    with pytest.raises(Conflict):
        await packed(store, tmp_path / "out", None)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


async def test_an_artifact_may_name_its_model_only(
    store: ModelStore, other: ModelStore, tmp_path: Path, signer: NodeIdentity
) -> None:
    file = await packed(store, tmp_path / "out", signer, embed=False)
    assert file.stat().st_size < 10_000
    with pytest.raises(ModelNotFound, match="sha256:"):
        await installed(file, other, signer)
    assert (await elm.installed(other, trusted_signers=(), require_signature=False)).elms == ()
    expert = await installed(file, store, signer)
    assert (await store.resolve(expert.model_name)).template == SPEC.template
    assert (await store.resolve("tiny")).template != SPEC.template


async def test_without_its_own_template_the_models_is_used(
    store: ModelStore, tmp_path: Path, signer: NodeIdentity
) -> None:
    spec = SPEC.model_copy(update={"template": None})
    expert = await installed(await packed(store, tmp_path / "out", signer, spec), store, signer)
    assert expert.template is None
    assert (await store.resolve(expert.model_name)).template == "{{ messages }}"


# --- signatures ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G-EX-4")
async def test_an_unsigned_artifact_is_refused_unless_that_is_allowed(
    store: ModelStore, other: ModelStore, tmp_path: Path, signer: NodeIdentity
) -> None:
    file = await packed(store, tmp_path / "out", None)
    with pytest.raises(RecordRefused, match="not signed"):
        await installed(file, other, signer)
    expert = await installed(file, other, signer, require_signature=False)
    assert expert.signer is None
    assert expert.capabilities == ()
    listing = await elm.installed(other, trusted_signers={signer.peer_id}, require_signature=True)
    assert listing.elms == ()
    assert [type(problem) for problem in listing.problems] == [RecordRefused]


@pytest.mark.requirement("G-EX-4")
async def test_a_strangers_signature_is_not_enough(
    store: ModelStore, other: ModelStore, tmp_path: Path, signer: NodeIdentity, stranger: NodeIdentity
) -> None:
    file = await packed(store, tmp_path / "out", stranger)
    with pytest.raises(RecordRefused, match="not trusted"):
        await installed(file, other, signer)
    contents = await elm.verify(file, require_signature=False)
    assert not contents.trusted
    assert contents.capability is not None


def resigned(file: Path, signer: NodeIdentity, **changes: object) -> None:
    contents = members(file)
    old = CapabilityManifest.from_bytes(contents["capability.cbor"])
    fields = {
        name: getattr(old, name) for name in CapabilityManifest.model_fields if name not in ("signer", "signature")
    }
    contents["capability.cbor"] = CapabilityManifest.signed(signer, **fields | changes).to_bytes()
    rewritten(file, contents)


@pytest.mark.requirement("G-EX-4", "G-EX-6")
@pytest.mark.parametrize(
    "change", [{"artifact_hash": "sha256:" + "0" * 64}, {"module_name": "other"}, {"module_version": "2.0"}]
)
async def test_a_signature_for_other_contents_does_not_count(
    store: ModelStore, tmp_path: Path, signer: NodeIdentity, change: dict[str, object]
) -> None:
    file = await packed(store, tmp_path / "out", signer)
    resigned(file, signer)
    await elm.verify(file, trusted_signers={signer.peer_id})
    resigned(file, signer, **change)
    for required in (True, False):
        with pytest.raises(RecordRefused, match="other contents"):
            await elm.verify(file, trusted_signers={signer.peer_id}, require_signature=required)


@pytest.mark.requirement("G-EX-6")
async def test_capabilities_cannot_be_added_without_the_signers_key(
    store: ModelStore, tmp_path: Path, signer: NodeIdentity
) -> None:
    file = await packed(store, tmp_path / "out", signer)
    contents = members(file)
    record = CapabilityManifest.from_bytes(contents["capability.cbor"])
    more = (*record.required_capabilities, RequiredCapability(name="tool:code.run", scope="unlimited"))
    contents["capability.cbor"] = record.model_copy(update={"required_capabilities": more}).to_bytes()
    rewritten(file, contents)
    for required in (True, False):
        with pytest.raises(RecordRefused, match="signature"):
            await elm.verify(file, trusted_signers={signer.peer_id}, require_signature=required)


# --- changed parts ---------------------------------------------------------------------------------------------------


def _other_model(contents: dict[str, bytes]) -> None:
    contents["model.gguf"] = tiny_gguf(b"\x07")


def _longer_model(contents: dict[str, bytes]) -> None:
    contents["model.gguf"] += b"\0" * 100


def _other_template(contents: dict[str, bytes]) -> None:
    contents["template.jinja"] = b"{{ evil }}"


def _no_template(contents: dict[str, bytes]) -> None:
    del contents["template.jinja"]


def _no_manifest(contents: dict[str, bytes]) -> None:
    del contents["manifest.json"]


def _other_manifest(contents: dict[str, bytes]) -> None:
    contents["manifest.json"] = contents["manifest.json"].replace(b"0.75", b"0.25")


def _reformatted_manifest(contents: dict[str, bytes]) -> None:
    contents["manifest.json"] = json.dumps(json.loads(contents["manifest.json"])).encode()


def _key_twice(contents: dict[str, bytes]) -> None:
    contents["manifest.json"] = contents["manifest.json"].replace(b"{\n", b'{\n "version": "9.9",\n', 1)


def _broken_capability(contents: dict[str, bytes]) -> None:
    contents["capability.cbor"] += b"\0"


def _more(contents: dict[str, bytes]) -> None:
    contents["more.txt"] = b"x"


def _climbing(contents: dict[str, bytes]) -> None:
    contents["../model.gguf"] = contents.pop("model.gguf")


def _absolute(contents: dict[str, bytes]) -> None:
    contents["/model.gguf"] = contents.pop("model.gguf")


def _wrong_order(contents: dict[str, bytes]) -> None:
    contents["manifest.json"] = contents.pop("manifest.json")


def _huge_manifest(contents: dict[str, bytes]) -> None:
    contents["manifest.json"] += b" " * 300_000


@pytest.mark.requirement("G-EX-4")
@pytest.mark.parametrize(
    "change",
    [
        _other_model,
        _longer_model,
        _other_template,
        _no_template,
        _no_manifest,
        _other_manifest,
        _reformatted_manifest,
        _key_twice,
        _broken_capability,
        _more,
        _climbing,
        _absolute,
        _wrong_order,
        _huge_manifest,
    ],
)
async def test_an_artifact_with_a_changed_part_is_refused_and_nothing_is_installed(
    store: ModelStore,
    other: ModelStore,
    tmp_path: Path,
    signer: NodeIdentity,
    change: Callable[[dict[str, bytes]], None],
) -> None:
    file = await packed(store, tmp_path / "out", signer)
    contents = members(file)
    rewritten(file, contents)
    await elm.verify(file, trusted_signers={signer.peer_id})
    change(contents)
    rewritten(file, contents)
    with pytest.raises((DataError, RecordRefused)):
        await elm.verify(file, trusted_signers={signer.peer_id})
    with pytest.raises((DataError, RecordRefused)):
        await installed(file, other, signer)
    assert await other.list() == ()
    assert sorted(path.name for path in other.root.iterdir() if not path.name.startswith(".")) == []
    assert list((other.root / ".work").iterdir()) == []


def _kind(letter: bytes) -> Callable[[tarfile.TarInfo], None]:
    def change(info: tarfile.TarInfo) -> None:
        if info.name == "template.jinja":
            info.type, info.linkname = letter, "/etc/passwd"

    return change


@pytest.mark.parametrize(
    "letter",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE],
)
async def test_links_devices_and_directories_are_refused(
    store: ModelStore, tmp_path: Path, signer: NodeIdentity, letter: bytes
) -> None:
    file = await packed(store, tmp_path / "out", signer)
    rewritten(file, members(file), _kind(letter))
    with pytest.raises(DataError, match="ELM archive"):
        await elm.verify(file, trusted_signers={signer.peer_id})


@pytest.mark.parametrize(("name", "strange"), [("mode", 0o4755), ("uid", 1000), ("mtime", 1), ("uname", "root")])
async def test_attributes_that_we_do_not_write_are_refused(
    store: ModelStore, tmp_path: Path, signer: NodeIdentity, name: str, strange: object
) -> None:
    file = await packed(store, tmp_path / "out", signer)
    rewritten(file, members(file), lambda info: setattr(info, name, strange))
    with pytest.raises(DataError, match="plain file"):
        await elm.verify(file, trusted_signers={signer.peer_id})


async def test_an_artifact_cut_or_continued_anywhere_is_refused(
    store: ModelStore, tmp_path: Path, signer: NodeIdentity
) -> None:
    file = await packed(store, tmp_path / "out", signer)
    data = file.read_bytes()
    for changed in (
        b"",
        data[:100],
        data[:512],
        data[:-512],
        data[:-1],
        data + b"\0" * 512,
        data + b"more",
        b"x" * 9000,
    ):
        file.write_bytes(changed)
        with pytest.raises(DataError):
            await elm.verify(file, trusted_signers={signer.peer_id})


async def test_every_single_byte_of_an_artifact_matters(
    store: ModelStore, tmp_path: Path, signer: NodeIdentity
) -> None:
    file = await packed(store, tmp_path / "out", signer)
    data = file.read_bytes()
    for at in range(0, len(data), 61):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(GnusError):
            await elm.verify(file, trusted_signers={signer.peer_id})


@given(data=st.binary(max_size=3000), start=st.integers(0, 3000))
def test_any_bytes_give_an_archive_or_a_refusal(
    data: bytes, start: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.elm"
    good = io.BytesIO()
    with tarfile.open(fileobj=good, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("manifest.json"), io.BytesIO())
    base = good.getvalue()[:1536]
    path.write_bytes(base[:start] + data)
    with path.open("rb") as file:
        try:
            elmfile.read_archive(file.fileno(), path)
        except DataError:
            return


# --- installed experts -----------------------------------------------------------------------------------------------


async def test_installing_again_changes_nothing_but_another_artifact_of_the_version_is_refused(
    store: ModelStore, tmp_path: Path, signer: NodeIdentity
) -> None:
    file = await packed(store, tmp_path / "a", signer)
    first = await installed(file, store, signer)
    assert await installed(file, store, signer) == first
    changed = SPEC.model_copy(update={"template": "{{ other }}"})
    with pytest.raises(Conflict):
        await installed(await packed(store, tmp_path / "b", signer, changed), store, signer)
    assert (await elm.installed(store, trusted_signers={signer.peer_id}, require_signature=True)).elms == (first,)


async def test_an_installed_expert_that_was_altered_serves_nobody(
    store: ModelStore, tmp_path: Path, signer: NodeIdentity
) -> None:
    await installed(await packed(store, tmp_path / "a", signer), store, signer)
    newer = SPEC.model_copy(update={"version": "2.0"})
    kept = await installed(await packed(store, tmp_path / "b", signer, newer), store, signer)
    path = store.root / "elms" / "poet-1.0.json"
    path.write_bytes(path.read_bytes().replace(b"0.75", b"1.75"))
    listing = await elm.installed(store, trusted_signers={signer.peer_id}, require_signature=False)
    assert listing.elms == (kept,)
    assert [problem.where for problem in listing.problems] == [str(path)]
    path.write_bytes(b"{")
    listing = await elm.installed(store, trusted_signers={signer.peer_id}, require_signature=False)
    assert [type(problem) for problem in listing.problems] == [DataError]


async def test_an_expert_is_removed_with_its_name_for_the_model(
    store: ModelStore, tmp_path: Path, signer: NodeIdentity
) -> None:
    expert = await installed(await packed(store, tmp_path / "a", signer), store, signer)
    await elm.uninstall(store, "poet", "1.0")
    assert (await elm.installed(store, trusted_signers=(), require_signature=False)).elms == ()
    with pytest.raises(ModelNotFound):
        await store.get(expert.model_name)
    assert (await store.resolve("tiny")).manifest.sha256 == expert.manifest.model.sha256
    for expert_id, version in (("poet", "1.0"), ("../tiny", ""), ("..", "x/../../tiny")):
        with pytest.raises(NotFound):
            await elm.uninstall(store, expert_id, version)


async def test_an_embedded_model_whose_header_is_refused_is_not_installed(
    store: ModelStore, other: ModelStore, tmp_path: Path, signer: NodeIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = await store.resolve("tiny")
    model.path.write_bytes(b"GGUF" + bytes(2000))
    monkeypatch.setattr(elm, "require_digest", lambda *_, **__: None)
    fake = model.manifest.model_copy(update={"size": 2004})
    folder = tmp_path / "out"
    folder.mkdir()
    loadable = type(model)(fake, model.path, model.header)
    file = await elm.pack(SPEC, loadable, folder, signer, embed=True, now_ms=NOW)
    with pytest.raises(ModelInvalid):
        await installed(file, other, signer)
    assert await other.list() == ()


# --- what people write -----------------------------------------------------------------------------------------------


def test_a_directory_describes_what_to_pack(tmp_path: Path) -> None:
    (tmp_path / "elm.toml").write_text(
        'expert_id = "poet"\nversion = "1.0"\nrole = "refiner"\ndomains = ["poetry"]\n'
        '[defaults]\ntemperature = 0.5\n[[required_capabilities]]\nname = "memory.retrieve"\nscope = "readonly"\n'
    )
    (tmp_path / "template.jinja").write_text("{{ messages }} ☃", "utf-8")
    spec = elm.read_spec(tmp_path)
    assert (spec.expert_id, spec.role, spec.defaults.temperature) == ("poet", "refiner", 0.5)
    assert spec.template == "{{ messages }} ☃"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "expert_id = 1",
        'expert_id = "Poet"\nversion = "1.0"',
        'expert_id = "../poet"\nversion = "1.0"',
        'expert_id = "poet"\nversion = "1-0"',
        'expert_id = "poet"\nversion = "1.0"\nrole = "king"',
        'expert_id = "poet"\nversion = "1.0"\nother = 1',
        'expert_id = "poet"\nversion = "1.0"\n[defaults]\ntemperature = 9',
        "expert_id = ",
    ],
)
def test_a_description_with_a_mistake_is_a_request_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "elm.toml").write_text(text)
    with pytest.raises(RequestError) as caught:
        elm.read_spec(tmp_path)
    assert caught.value.where == str(tmp_path / "elm.toml")


def test_a_directory_without_description_is_a_request_error(tmp_path: Path) -> None:
    with pytest.raises(RequestError):
        elm.read_spec(tmp_path)
