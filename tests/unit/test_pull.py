"""Pulling models: what is fetched, resumed, refused. A real client against a real server on the loopback interface."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from gnusnode.errors import (
    Conflict,
    DiskFull,
    Forbidden,
    ModelInvalid,
    NotFound,
    RequestError,
    TooLarge,
    Unavailable,
)
from gnusnode.inference.artifacts import fetch as fetch_module
from gnusnode.inference.artifacts import filework
from gnusnode.inference.artifacts.fetch import FetchLimits, new_client
from gnusnode.inference.artifacts.models import ModelStore
from gnusnode.inference.artifacts.partial import Partial
from gnusnode.inference.artifacts.pull import PullSettings, pull
from tests.fakes.fileserver import FileServer, serve
from tests.fakes.ggufs import tiny_gguf

DATA = tiny_gguf()
SHA256 = "sha256:" + hashlib.sha256(DATA).hexdigest()
CHUNK = 512
LIMITS = FetchLimits(chunk=CHUNK, reserve=0, attempts=1, backoff=0.0, window=20.0)


@pytest.fixture
async def store(tmp_path: Path) -> ModelStore:
    made = ModelStore(tmp_path / "models", reserve=0)
    await made.prepare()
    return made


@pytest.fixture
async def client() -> AsyncGenerator[httpx2.AsyncClient]:
    async with new_client() as made:
        yield made


@pytest.fixture(autouse=True)
def small_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces smaller than the test file, so that it takes several."""
    monkeypatch.setattr(fetch_module, "_WRITE_BYTES", 300)


def limits(**changes: Any) -> PullSettings:
    return PullSettings(limits=FetchLimits(**{**vars(LIMITS), **changes}))


async def pulled(server: FileServer, store: ModelStore, client: httpx2.AsyncClient, **options: Any) -> str:
    """Pulls the server's file with its pin; the digest of what the store has."""
    options = {"sha256": SHA256, "settings": limits()} | options
    return (await pull(server.url, store, client, **options)).sha256


def leftovers(store: ModelStore) -> list[str]:
    return sorted(path.suffix for path in store.partial.iterdir())


async def test_a_pulled_file_is_registered_under_its_file_name(store: ModelStore, client: httpx2.AsyncClient) -> None:
    steps: list[tuple[int, int | None]] = []
    async with serve(FileServer(DATA)) as server:
        model = await pull(
            f"{server.url}#sha256={SHA256[7:].upper()}",
            store,
            client,
            settings=limits(),
            progress=lambda done, total: steps.append((done, total)),
        )
    assert (model.name, model.sha256, model.source) == ("tiny-model", SHA256, server.url)
    assert steps[-1] == (len(DATA), len(DATA))
    assert (await store.resolve("tiny-model")).path.read_bytes() == DATA
    assert leftovers(store) == []


async def test_a_broken_connection_is_resumed_where_the_last_chunk_ended(
    store: ModelStore, client: httpx2.AsyncClient
) -> None:
    async with serve(FileServer(DATA, cuts=[1300])) as server:
        assert await pulled(server, store, client, settings=limits(attempts=3)) == SHA256
    assert [request.get("range") for request in server.requests] == [None, "bytes=1300-"]
    assert server.requests[1]["if-range"] == '"v1"'


async def test_a_failed_pull_goes_on_at_the_next_call(store: ModelStore, client: httpx2.AsyncClient) -> None:
    async with serve(FileServer(DATA, cuts=[1300])) as server:
        with pytest.raises(Unavailable, match="goes on where it stopped"):
            await pulled(server, store, client)
        assert leftovers(store) == [".json", ".part"]
        assert await pulled(server, store, client) == SHA256
    # 1300 bytes are two complete chunks: only what was hashed as a whole counts.
    assert server.requests[1]["range"] == f"bytes={2 * CHUNK}-"
    assert leftovers(store) == []


async def test_a_cancelled_pull_goes_on_at_the_next_call(store: ModelStore, client: httpx2.AsyncClient) -> None:
    async with serve(FileServer(DATA, stall_after=1300)) as server:
        with trio.CancelScope() as scope:
            await pulled(server, store, client, progress=lambda done, _: done >= 2 * CHUNK and scope.cancel())
        assert scope.cancelled_caught
        server.stall_after = None
        assert await pulled(server, store, client) == SHA256
    assert server.requests[1]["range"] == f"bytes={2 * CHUNK}-"


PULL_SCRIPT = """
import sys, trio
from pathlib import Path
from gnusnode.inference.artifacts import fetch, pull
from gnusnode.inference.artifacts.models import ModelStore
fetch._WRITE_BYTES = 300
async def main(url, sha256, root):
    store = ModelStore(Path(root), reserve=0)
    await store.prepare()
    settings = pull.PullSettings(limits=fetch.FetchLimits(chunk=512, reserve=0))
    async with fetch.new_client() as client:
        tell = lambda done, _: print(done, flush=True)
        await pull.pull(url, store, client, sha256=sha256, settings=settings, progress=tell)
trio.run(main, *sys.argv[1:])
"""


async def test_a_killed_pull_goes_on_in_the_next_process(store: ModelStore, client: httpx2.AsyncClient) -> None:
    async with serve(FileServer(DATA, stall_after=1300)) as server:
        command = [sys.executable, "-c", PULL_SCRIPT, server.url, SHA256, str(store.root)]
        async with trio.open_nursery() as nursery:
            start = partial(trio.run_process, command, stdout=subprocess.PIPE, check=False)
            process: trio.Process = await nursery.start(start)
            assert process.stdout is not None
            said = b""
            while not any(int(line) >= 2 * CHUNK for line in said.split(b"\n")[:-1]):
                said += await process.stdout.receive_some(100)
            process.send_signal(signal.SIGKILL)
        server.stall_after = None
        assert await pulled(server, store, client) == SHA256
    assert server.requests[1]["range"] == f"bytes={2 * CHUNK}-"


@pytest.mark.parametrize(("at", "kept"), [(0, None), (CHUNK, f"bytes={CHUNK}-"), (2 * CHUNK - 1, f"bytes={CHUNK}-")])
async def test_a_chunk_damaged_on_the_disk_is_fetched_again(
    store: ModelStore, client: httpx2.AsyncClient, at: int, kept: str | None
) -> None:
    async with serve(FileServer(DATA, cuts=[1300])) as server:
        with pytest.raises(Unavailable):
            await pulled(server, store, client)
        (path,) = store.partial.glob("*.part")
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
        assert await pulled(server, store, client) == SHA256
    assert server.requests[1].get("range") == kept


@pytest.mark.parametrize("damage", [b"", b"{", b'{"url": 1}', b"\xff" * 100])
async def test_a_damaged_state_means_a_fresh_start(
    store: ModelStore, client: httpx2.AsyncClient, damage: bytes
) -> None:
    async with serve(FileServer(DATA, cuts=[1300])) as server:
        with pytest.raises(Unavailable):
            await pulled(server, store, client)
        (path,) = store.partial.glob("*.json")
        path.write_bytes(damage)
        assert await pulled(server, store, client) == SHA256
    assert "range" not in server.requests[1]


@pytest.mark.parametrize(
    "change",
    [
        {"ranges": False},
        {"etag": '"v2"', "data": DATA},
        {"etag": '"v2"', "honour_if_range": False},
        {"content_range": f"bytes 0-{len(DATA) - 1}/{len(DATA)}"},
        {"content_range": "bytes 1024-99999/100000"},
        {"content_range": "nonsense"},
    ],
)
async def test_a_server_that_cannot_go_on_is_asked_from_the_start(
    store: ModelStore, client: httpx2.AsyncClient, change: dict[str, Any]
) -> None:
    async with serve(FileServer(DATA, cuts=[1300])) as server:
        with pytest.raises(Unavailable):
            await pulled(server, store, client)
        for name, new in change.items():
            setattr(server, name, new)
        assert await pulled(server, store, client, settings=limits(attempts=2)) == SHA256


async def test_a_file_that_changed_meanwhile_is_never_mixed(store: ModelStore, client: httpx2.AsyncClient) -> None:
    other = tiny_gguf(b"\x07")
    async with serve(FileServer(DATA, cuts=[1300])) as server:
        with pytest.raises(Unavailable):
            await pulled(server, store, client)
        server.data, server.etag = other, '"v2"'
        pin = "sha256:" + hashlib.sha256(other).hexdigest()
        assert await pulled(server, store, client, sha256=pin) == pin


async def test_without_validator_and_pin_a_download_starts_anew(store: ModelStore, client: httpx2.AsyncClient) -> None:
    async with serve(FileServer(DATA, etag=None, cuts=[1300])) as server:
        for attempt in range(2):
            part = Partial(store.partial, server.url, CHUNK)
            try:
                with contextlib.nullcontext() if attempt else pytest.raises(Unavailable):
                    await fetch_module.fetch(client, server.url, part, sha256=None, magic=b"GGUF", limits=LIMITS)
            finally:
                part.close()
    assert "range" not in server.requests[1]


async def test_a_pin_makes_a_resume_safe_without_any_validator(store: ModelStore, client: httpx2.AsyncClient) -> None:
    async with serve(FileServer(DATA, etag=None, cuts=[1300])) as server:
        with pytest.raises(Unavailable):
            await pulled(server, store, client)
        assert await pulled(server, store, client) == SHA256
    assert server.requests[1]["range"] == f"bytes={2 * CHUNK}-"
    assert "if-range" not in server.requests[1]


async def test_a_weak_entity_tag_does_not_vouch_for_a_range(store: ModelStore, client: httpx2.AsyncClient) -> None:
    modified = "Mon, 30 Nov 2026 12:00:00 GMT"
    async with serve(FileServer(DATA, etag='W/"v1"', last_modified=modified, cuts=[1300])) as server:
        with pytest.raises(Unavailable):
            await pulled(server, store, client)
        assert await pulled(server, store, client) == SHA256
    assert server.requests[1]["if-range"] == modified


async def test_a_complete_partial_that_was_never_registered_is_not_fetched_again(
    store: ModelStore, client: httpx2.AsyncClient
) -> None:
    async with serve(FileServer(DATA[: len(DATA) // CHUNK * CHUNK])) as server:
        pin = "sha256:" + hashlib.sha256(server.data).hexdigest()
        for _ in range(2):
            part = Partial(store.partial, server.url, CHUNK)
            hashed = await fetch_module.fetch(client, server.url, part, sha256=pin, magic=b"GGUF", limits=LIMITS)
            assert hashed.sha256 == pin
            part.close()
    assert len(server.requests) == 2
    assert server.requests[1]["range"] == f"bytes={len(server.data)}-"


# --- bytes that are not what was promised ----------------------------------------------------------------------------


async def test_another_file_than_pinned_is_refused_and_not_kept(store: ModelStore, client: httpx2.AsyncClient) -> None:
    async with serve(FileServer(tiny_gguf(b"\x07"))) as server:
        with pytest.raises(ModelInvalid, match="promised"):
            await pulled(server, store, client)
    assert leftovers(store) == []
    assert await store.list() == ()


async def test_a_file_that_is_no_model_is_refused_at_its_first_bytes(
    store: ModelStore, client: httpx2.AsyncClient
) -> None:
    async with serve(FileServer(b"<!DOCTYPE html>" * 1000, stall_after=600)) as server:
        with pytest.raises(ModelInvalid, match="not a model"):
            await pulled(server, store, client)
    assert leftovers(store) == []


async def test_a_model_with_a_refused_header_is_not_kept(store: ModelStore, client: httpx2.AsyncClient) -> None:
    data = DATA[:-500]
    async with serve(FileServer(data)) as server:
        with pytest.raises(ModelInvalid, match="weights end"):
            await pulled(server, store, client, sha256=hashlib.sha256(data).hexdigest())
    assert leftovers(store) == []
    assert await store.list() == ()


async def test_a_server_that_stops_early_is_not_believed(store: ModelStore, client: httpx2.AsyncClient) -> None:
    async with serve(FileServer(DATA, length=len(DATA) + 1000)) as server:
        with pytest.raises(Unavailable):
            await pulled(server, store, client)
    assert await store.list() == ()


async def test_a_server_that_announces_less_than_it_has_is_not_believed(
    store: ModelStore, client: httpx2.AsyncClient
) -> None:
    async with serve(FileServer(DATA, length=len(DATA) - 1000)) as server:
        with pytest.raises((ModelInvalid, Unavailable)):
            await pulled(server, store, client)
    assert await store.list() == ()


async def test_a_body_without_length_counts_by_its_hash(store: ModelStore, client: httpx2.AsyncClient) -> None:
    async with serve(FileServer(DATA, announce=False)) as server:
        assert await pulled(server, store, client) == SHA256
        assert await store.remove("tiny-model")
        server.cuts = [1500]
        with pytest.raises(ModelInvalid, match="promised"):
            await pulled(server, store, client)


async def test_compressed_bytes_are_refused(store: ModelStore, client: httpx2.AsyncClient) -> None:
    async with serve(FileServer(DATA, headers={"Content-Encoding": "gzip"})) as server:
        with pytest.raises(Unavailable, match="compresses"):
            await pulled(server, store, client)
    assert server.requests[0]["accept-encoding"] == "identity"


# --- sizes, rates, space ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("announce", [True, False])
async def test_a_file_over_the_limit_is_refused(store: ModelStore, client: httpx2.AsyncClient, announce: bool) -> None:
    steps: list[int] = []
    async with serve(FileServer(DATA, announce=announce)) as server:
        with pytest.raises(TooLarge):
            await pulled(server, store, client, settings=limits(max_bytes=1000), progress=lambda n, _: steps.append(n))
    assert all(step <= 1000 for step in steps)
    assert not (announce and steps)
    assert leftovers(store) == []


async def test_a_file_that_the_disk_cannot_hold_is_refused_before_its_first_byte(
    store: ModelStore, client: httpx2.AsyncClient
) -> None:
    async with serve(FileServer(DATA)) as server:
        steps: list[int] = []
        with pytest.raises(DiskFull, match="needed"):
            await pulled(server, store, client, settings=limits(reserve=2**60), progress=lambda n, _: steps.append(n))
    assert steps == []


async def test_a_server_that_dribbles_is_left(store: ModelStore, client: httpx2.AsyncClient) -> None:
    async with serve(FileServer(DATA, stall_after=1300)) as server:
        with pytest.raises(Unavailable, match="bytes per second"):
            # The client's own timeout is as long as the window; patience ends both ways at the same time.
            await pulled(server, store, _patient(client), settings=limits(window=0.3, min_rate=2_000))


def _patient(client: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """The same client without a timeout of its own, so that only the minimum rate is left to act."""
    real = client.stream

    def stream(*args: Any, **options: Any) -> Any:
        return real(*args, **options | {"timeout": None})

    client.stream = stream  # type: ignore[method-assign]  # a test double of one method
    return client


async def test_a_bandwidth_limit_holds_the_download_back(
    store: ModelStore, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def record(deadline: float) -> None:
        slept.append(deadline)
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(trio, "sleep_until", record)
    async with serve(FileServer(DATA)) as server:
        await pulled(server, store, client, settings=limits(bandwidth=1_000))
    # The last pause ends when all bytes but the last piece may have come at 1000 bytes per second.
    assert slept[-1] - slept[0] >= (len(DATA) - 300 - len(DATA)) / 1000
    assert slept == sorted(slept)


# --- what servers answer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "expected"),
    [(404, NotFound), (410, NotFound), (401, Forbidden), (403, Forbidden), (400, Unavailable), (500, Unavailable)],
)
async def test_a_refusal_is_a_typed_error(
    store: ModelStore, client: httpx2.AsyncClient, status: int, expected: type[Exception]
) -> None:
    async with serve(FileServer(DATA, statuses=[(status, {})])) as server:
        with pytest.raises(expected):
            await pulled(server, store, client)


async def test_a_busy_server_is_asked_again(store: ModelStore, client: httpx2.AsyncClient) -> None:
    busy = [(503, {"Retry-After": "0"}), (429, {}), (500, {"Retry-After": "nonsense"})]
    async with serve(FileServer(DATA, statuses=busy)) as server:
        assert await pulled(server, store, client, settings=limits(attempts=5)) == SHA256
    assert len(server.requests) == 4


async def test_failures_without_progress_come_to_an_end(store: ModelStore, client: httpx2.AsyncClient) -> None:
    async with serve(FileServer(DATA, cuts=[10] * 100)) as server:
        with pytest.raises(Unavailable, match="3 times in a row"):
            await pulled(server, store, client, settings=limits(attempts=3))
    assert len(server.requests) == 3


async def test_nobody_at_the_address_is_unavailable(store: ModelStore, client: httpx2.AsyncClient) -> None:
    async with serve(FileServer(DATA)) as server:
        pass
    with pytest.raises(Unavailable):
        await pulled(server, store, client)


async def test_redirects_are_followed_to_a_limit(store: ModelStore, client: httpx2.AsyncClient) -> None:
    async with serve(FileServer(DATA, statuses=[(302, {"Location": "/elsewhere?token=1"})] * 3)) as server:
        assert await pulled(server, store, client) == SHA256
        assert server.requests[-1]["path"] == "/elsewhere?token=1"
        await store.remove("tiny-model")
        server.statuses = [(307, {"Location": server.url})] * 10
        with pytest.raises(Unavailable, match="redirects"):
            await pulled(server, store, client)


@pytest.mark.parametrize("location", ["", "ftp://host/file", "file:///etc/passwd", "http://[::1", "https://"])
async def test_a_redirect_to_no_web_address_is_refused(
    store: ModelStore, client: httpx2.AsyncClient, location: str
) -> None:
    async with serve(FileServer(DATA, statuses=[(302, {"Location": location})])) as server:
        with pytest.raises(Unavailable, match="redirects"):
            await pulled(server, store, client)


async def test_a_redirect_from_https_to_http_is_refused(store: ModelStore) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.url.scheme == "https", "the plain address was asked"
        return httpx2.Response(302, headers={"Location": "http://mirror.example/tiny.gguf"})

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
        with pytest.raises(Forbidden, match="plain http"):
            await pull("https://hub.example/tiny.gguf", store, client, settings=limits())


# --- names, hubs, several at once ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reference", ["org/repo:sub/tiny.gguf", "hf://org/repo/sub/tiny.gguf", "org/repo/sub/tiny.gguf"]
)
async def test_a_hub_id_is_fetched_from_the_hub_of_the_settings(store: ModelStore, reference: str) -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(str(request.url))
        return httpx2.Response(200, stream=httpx2.ByteStream(DATA))

    settings = PullSettings(hub="https://hub.example/", limits=LIMITS)
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
        model = await pull(reference, store, client, settings=settings)
    assert asked == ["https://hub.example/org/repo/resolve/main/sub/tiny.gguf"]
    assert (model.name, model.sha256) == ("tiny", SHA256)


async def test_a_taken_name_is_refused_before_anything_is_fetched(
    store: ModelStore, client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny_gguf(b"\x07"))
    await store.add(other, "tiny-model")
    async with serve(FileServer(DATA)) as server:
        with pytest.raises(Conflict):
            await pulled(server, store, client)
        assert server.requests == []
        assert await pulled(server, store, client, replace=True) == SHA256


async def test_a_pinned_file_that_is_here_is_not_fetched_again(store: ModelStore, client: httpx2.AsyncClient) -> None:
    async with serve(FileServer(DATA)) as server:
        await pulled(server, store, client)
        await pulled(server, store, client)
        await pulled(server, store, client, name="second")
        assert len(server.requests) == 1
    assert [model.name for model in await store.list()] == ["second", "tiny-model"]


async def test_an_unpinned_address_is_fetched_again_only_when_asked(store: ModelStore) -> None:
    contents = [DATA, tiny_gguf(b"\x07")]

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, stream=httpx2.ByteStream(contents.pop(0)))

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
        url = "https://host.example/tiny.gguf"
        first = await pull(url, store, client, settings=limits())
        assert await pull(url, store, client, settings=limits()) == first
        assert (await pull(url, store, client, settings=limits(), replace=True)).sha256 != first.sha256


async def test_a_damaged_file_is_replaced_by_pulling_it_again(store: ModelStore, client: httpx2.AsyncClient) -> None:
    async with serve(FileServer(DATA)) as server:
        await pulled(server, store, client)
        (await store.resolve("tiny-model")).path.write_bytes(b"damaged")
        await pulled(server, store, client)
    assert (await store.verify("tiny-model")).sha256 == SHA256


async def test_one_address_is_downloaded_once_at_a_time(store: ModelStore, client: httpx2.AsyncClient) -> None:
    async with serve(FileServer(DATA, stall_after=1300)) as server, trio.open_nursery() as nursery:
        started = trio.Event()
        nursery.start_soon(partial(pulled, server, store, client, progress=lambda *_: started.set()))
        await started.wait()
        with pytest.raises(Conflict, match="already"):
            await pulled(server, store, client)
        nursery.cancel_scope.cancel()


async def test_a_disk_that_fills_up_keeps_the_partial_for_later(
    store: ModelStore, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = filework.require_space
    calls: list[int] = []

    def shrinking(directory: Path, size: int, reserve: int) -> None:
        calls.append(size)
        real(directory, size, reserve if len(calls) < 2 else 2**60)

    monkeypatch.setattr(fetch_module, "require_space", shrinking)
    async with serve(FileServer(DATA, announce=False)) as server:
        with pytest.raises(DiskFull):
            await pulled(server, store, client)
    assert ".part" in leftovers(store)


@pytest.mark.parametrize(
    "reference",
    [
        "",
        "nonsense",
        "a/b",
        "../../etc/passwd",
        "hf://org/../file.gguf",
        "ftp://host/file.gguf",
        "https://",
        "https://host",
        "https://user:secret@host/file.gguf",
        "https://host/file.gguf#sha256=123",
        "https://[::1/file.gguf",
        "http://host/file.gguf",
        "pypi:package#file.gguf",
        "pypi:package==1.0#file.gguf",
        "pypi:package==1.0#pkg/../../file.gguf",
        "file://host/x.gguf",
        "file:relative.gguf",
    ],
)
async def test_what_names_no_source_is_a_request_error(
    store: ModelStore, client: httpx2.AsyncClient, reference: str
) -> None:
    with pytest.raises(RequestError):
        await pull(reference, store, client, settings=limits())


async def test_two_pins_that_differ_are_refused(store: ModelStore, client: httpx2.AsyncClient) -> None:
    with pytest.raises(RequestError, match="different"):
        await pull(f"https://host/x.gguf#{SHA256}", store, client, sha256="0" * 64, settings=limits())


async def test_secrets_in_a_query_do_not_reach_the_manifest(store: ModelStore) -> None:
    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, stream=httpx2.ByteStream(DATA))

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
        model = await pull("https://host.example/tiny.gguf?token=secret", store, client, settings=limits())
    assert model.source == "https://host.example/tiny.gguf"


async def test_a_file_address_is_added_like_a_file(
    store: ModelStore, client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    path = tmp_path / "mein modell.gguf"
    path.write_bytes(DATA)
    assert (await pull(path.as_uri(), store, client, sha256=SHA256, settings=limits())).sha256 == SHA256
