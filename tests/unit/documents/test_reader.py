"""Documents in a confined process: the same answer as in this one, and a typed refusal for what goes wrong there."""

from __future__ import annotations

import os

import pytest

from gnusnode.documents import passing, worker
from gnusnode.documents.reader import Limits, read_document
from gnusnode.sanitize import document
from gnusnode.sanitize.extract import Extract, Hidden, Refusal, Refused, finding
from gnusnode.sanitize.findings import Kind, Severity
from sandbox import confine, linux
from tests.unit.sanitize import media
from tests.unit.sanitize.pdfs import SECRET, SEEN, data, page, text

BROKEN = "tests.unit.documents.misbehaving"
confined = pytest.mark.skipif(not linux.IS_LINUX, reason="only Linux can confine the parser, elsewhere it refuses")


@confined
async def test_a_pdf_is_read_in_a_process_of_its_own() -> None:
    given = data(page(text(before="1 g")))
    found = await read_document(given, "application/pdf")
    assert found == document.extract(given)
    assert found.text == SEEN
    assert [piece.text for piece in found.hidden] == [SECRET]


@confined
async def test_a_refusal_of_the_parser_comes_back_as_one() -> None:
    with pytest.raises(Refused) as refused:
        await read_document(b"%PDF-1.7\nnothing of the kind")
    assert refused.value.reason is Refusal.MALFORMED


async def test_what_needs_no_native_parser_is_read_in_this_process() -> None:
    found = await read_document(media.png(), "image/png", module="no.such.module")
    assert found.text == "[image: PNG, 2 × 3 pixels]"
    page_found = await read_document(
        b"<a href=/x>y</a>", "text/html", url="https://h.example/", module="no.such.module"
    )
    assert page_found.text == "y <https://h.example/x>"


@pytest.mark.parametrize("way", ["crash", "leave", "garbage", "shape", "unknown", "else"])
async def test_a_parser_that_goes_wrong_is_a_refusal(way: str) -> None:
    with pytest.raises(Refused) as refused:
        await read_document(b"%PDF-1.7 " + way.encode(), module=BROKEN)
    assert refused.value.reason is Refusal.PARSER_FAILED


async def test_a_parser_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused) as refused:
        await read_document(b"%PDF-1.7 hang", module=BROKEN, limits=Limits(seconds=0.5))
    assert refused.value.reason is Refusal.PARSER_TIMEOUT


@confined
async def test_a_parser_that_needs_too_much_memory_is_a_refusal() -> None:
    with pytest.raises(Refused) as refused:
        await read_document(data(page("")), limits=Limits(memory=120 * 1024 * 1024))
    assert refused.value.reason in (Refusal.PARSER_FAILED, Refusal.TOO_LARGE, Refusal.PARSER_MISSING)


def test_without_confinement_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confine, "apply", lambda profile: confine.ConfineReport())
    job = {"data": data(page("")), "declared": "", "url": "", "memory": 1, "cpu_seconds": 1}
    answer = worker._answer(job)  # pyright: ignore[reportPrivateUsage] - applied for real it would confine the tests
    assert (answer["ev"], answer["reason"]) == ("refused", "not_confined")


def test_an_extract_survives_the_passage() -> None:
    extract = Extract(
        text="a\ud800b",
        hidden=(Hidden("pdf_ink", "x", suspect=True),),
        metadata=("m",),
        findings=(finding(Kind.PDF_ACTIVE, "pdf.launch", Severity.FLAG),),
        lower_trust="layer",
    )
    back = passing.from_frame(passing.to_frame(extract))
    assert back == Extract("a?b", extract.hidden, extract.metadata, (), extract.findings, "layer")


def test_the_worker_starts_without_the_secrets_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "API_KEY", "secret")
    assert "API_KEY" not in confine.launch_environment()
