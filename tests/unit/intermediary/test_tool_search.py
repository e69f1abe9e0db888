"""``web.search``: one interface to several sources; what they answer is read strictly and in time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gnusnode.errors import DataError
from gnusnode.web.client import open_client
from gnusnode.web.exchange import Limits, Page, WebRequest
from gnusnode.web.pacing import Pacer
from gnusnode.web.refusals import Reason, WebFailed
from gnusnode.web.urls import parse
from roles.intermediary.tools.base import Scope, reason_of
from roles.intermediary.tools.search.arxiv import Arxiv
from roles.intermediary.tools.search.duckduckgo import DuckDuckGo
from roles.intermediary.tools.search.local import Document, LocalIndex, load_index
from roles.intermediary.tools.search.provider import Hit, Provider, UnreadableAnswer, plain
from roles.intermediary.tools.search.wikipedia import Wikipedia
from roles.intermediary.tools.web_search import WebSearch
from tests.unit.intermediary.proposals import proposal
from tests.unit.web.server import answer, client_for, site

NOTHING = Scope()
ALL = (DuckDuckGo(), Arxiv(), Wikipedia("de"))
DUCK = """
<div class="result results_links"><h2><a rel="nofollow" class="result__a"
 href="//duckduckgo.com/l/?uddg=https%3A%2F%2Fpub.example%2Fa%3Fb%3Dc&amp;rut=1">A <b>fine</b> page</a></h2>
<a class="result__snippet" href="//duckduckgo.com/l/?uddg=x">Words &amp; <b>more</b></a></div>
<div class="result result--ad"><a class="result__a" href="https://duckduckgo.com/y.js?ad=1">Buy</a></div>
<div class="result"><a class="result__a" href="//duckduckgo.com/l/?uddg=javascript%3Aalert(1)">Evil</a></div>
<div class="result"><a class="result__a" href="https://two.example/">Second</a></div>
"""
ATOM = """<?xml version="1.0" encoding="UTF-8"?><feed xmlns="http://www.w3.org/2005/Atom"><title>query</title>
<entry><id>http://arxiv.org/abs/2503.18813v1</id><title>Defeating
  Prompt Injections</title><summary> By design. </summary></entry>
<entry><id>file:///etc/passwd</id><title>x</title></entry></feed>"""
WIKI = {
    "batchcomplete": True,
    "query": {"search": [{"title": "Trio (music)", "snippet": "<span>Three</span> players"}]},
}


def page(request: WebRequest, body: str | bytes) -> Page:
    data = body.encode() if isinstance(body, str) else body
    return Page(request.url, (str(request.url),), 200, (), "text/html", "utf-8", data)


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("A-TOOL-1")
@pytest.mark.parametrize(
    ("provider", "url"),
    [
        (ALL[0], "https://html.duckduckgo.com/html/?q=a+%26b%3D%22c%22"),
        (
            ALL[1],
            "https://export.arxiv.org/api/query?search_query=all%3Aa+AND+all%3Ab+AND+all%3Ac&start=0&max_results=3",
        ),
        (
            ALL[2],
            "https://de.wikipedia.org/w/api.php?action=query&format=json&formatversion=2&list=search&srlimit=3"
            "&srprop=snippet&srsearch=a+%26b%3D%22c%22",
        ),
    ],
)
async def test_a_query_is_predicted_as_the_one_request_that_it_makes(provider: Provider, url: str) -> None:
    call = proposal("web.search", query=' a &b="c"', source=provider.name, results=3)
    async with open_client(leaks=lambda u, h, b: ()) as web:
        result = await WebSearch(web, ALL).dry_run(call, NOTHING)

    assert result.simulated_effects.network_requests == (f"GET {url}",)
    assert result.dry_run_ok
    assert provider.request("x", 1).domains == (provider.domain,)


def test_operators_of_a_source_cannot_be_smuggled_into_a_query() -> None:
    assert Arxiv().request("ti:x ANDNOT (au:y) OR *", 1).url.query == (
        "search_query=all%3Ati+AND+all%3Ax+AND+all%3Aau+AND+all%3Ay&start=0&max_results=1"
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"query": ""}, "ARGUMENTS_INVALID"),
        ({"query": "   "}, "ARGUMENTS_INVALID"),
        ({"query": "x" * 300}, "ARGUMENTS_INVALID"),
        ({"query": "x", "results": 11}, "ARGUMENTS_INVALID"),
        ({"query": "x", "results": "5"}, "ARGUMENTS_INVALID"),
        ({"query": "x", "source": "elsewhere"}, "SOURCE_UNKNOWN"),
        ({"query": "the KEY"}, "CREDENTIAL_LEAK"),
    ],
)
async def test_a_search_that_may_not_be_made_is_denied_with_the_reason(arguments: dict[str, Any], reason: str) -> None:
    async with open_client(leaks=lambda url, headers, body: ["key"] if "KEY" in url else []) as web:
        result = await WebSearch(web, ALL).dry_run(proposal("web.search", **arguments), NOTHING)

    assert reason_of(result) == reason


async def test_without_any_source_a_search_is_denied() -> None:
    async with open_client(leaks=lambda u, h, b: ()) as web:
        assert (
            reason_of(await WebSearch(web, ()).dry_run(proposal("web.search", query="x"), NOTHING)) == "SOURCE_UNKNOWN"
        )


# --- answers ----------------------------------------------------------------------------------------------------------


def test_results_of_duckduckgo_are_read_without_its_counter_advertisements_and_scripts() -> None:
    request = DuckDuckGo().request("x", 5)

    assert DuckDuckGo().read(page(request, DUCK), 5) == (
        Hit("A fine page", "https://pub.example/a?b=c", "Words & more"),
        Hit("Second", "https://two.example/", ""),
    )
    assert len(DuckDuckGo().read(page(request, DUCK), 1)) == 1
    assert DuckDuckGo().read(page(request, "<div class='no-results'>No results.</div>"), 5) == ()


def test_an_entry_of_arxiv_is_read_and_a_link_that_is_no_page_left_out() -> None:
    found = Arxiv().read(page(Arxiv().request("x", 5), ATOM), 5)

    assert found == (Hit("Defeating Prompt Injections", "http://arxiv.org/abs/2503.18813v1", "By design."),)


def test_an_entry_of_wikipedia_is_read() -> None:
    found = Wikipedia().read(page(Wikipedia().request("x", 5), json.dumps(WIKI)), 5)

    assert found == (Hit("Trio (music)", "https://en.wikipedia.org/wiki/Trio_%28music%29", "Three players"),)


BOMB = (
    '<!DOCTYPE feed [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><feed xmlns="http://www.w3.org/2005/Atom">'
    "<entry><id>http://a.b/</id><title>&b;</title></entry></feed>"
)


@pytest.mark.parametrize(
    ("provider", "body"),
    [
        (ALL[0], "<html>please solve this puzzle</html>"),
        (ALL[0], b"\xff\xfe\0"),
        (ALL[1], "<html>"),
        (ALL[1], "<rss/>"),
        (ALL[1], BOMB),
        (ALL[1], BOMB.encode("utf-16")),
        (ALL[1], b"<?xml version='1.0' encoding='cp037'?>" + BOMB.encode("cp037")),
        (ALL[2], "not json"),
        (ALL[2], "[" * 100_000),
        (ALL[2], "{}"),
        (ALL[2], '{"query": {"search": [{"title": 7}]}}'),
        (ALL[2], "null"),
    ],
)
def test_an_answer_that_is_none_of_the_source_is_told_apart_from_no_results(
    provider: Provider, body: str | bytes
) -> None:
    with pytest.raises(UnreadableAnswer):
        provider.read(page(provider.request("x", 5), body), 5)


@pytest.mark.parametrize(
    "body",
    [
        "<a class='result__a'>" * 20_000,
        "result__a" * 50_000,
        '<a class="result__a" href="' * 20_000,
        "<a" * 200_000 + "result__a></a>",
        "<a class=result__a href=x></a>" * 20_000,
    ],
)
def test_a_hostile_result_page_is_read_through_once(body: str) -> None:
    DuckDuckGo().read(page(DuckDuckGo().request("x", 10), body), 10)


def test_markup_in_titles_and_snippets_is_taken_out() -> None:
    assert plain("<b>a</b> &lt;script&gt; b\n\t c &amp;amp;") == "a <script> b c &amp;"
    assert plain("<" * 10_000) == "<" * 10_000


# --- runs -------------------------------------------------------------------------------------------------------------


class Here:
    """A source at a server of the test."""

    name = "here"
    domain = "site.test"

    def __init__(self, url: str) -> None:
        self._url = parse(url)

    def request(self, query: str, count: int) -> WebRequest:
        return WebRequest(self._url, domains=(self.domain,), types=("application/json",), robots=False)

    def read(self, page: Page, count: int) -> tuple[Hit, ...]:
        return Wikipedia().read(page, count)


async def test_what_a_source_answers_comes_out_as_results() -> None:
    replies = {
        "/ok": answer(json.dumps(WIKI).encode(), kind="application/json"),
        "/odd": answer(b"{}", kind="application/json"),
    }
    async with site(replies) as server, client_for(server) as web:
        call = proposal("web.search", query="x")

        async def run(path: str) -> bytes:
            tool = WebSearch(web, [Here(server.url(path))])
            return (await tool.run(call, NOTHING, await tool.dry_run(call, NOTHING))).data

        found = json.loads(await run("/ok"))
        for path, reason in (("/odd", Reason.PROTOCOL_ERROR), ("/missing", Reason.HTTP_STATUS)):
            with pytest.raises(WebFailed) as caught:
                await run(path)
            assert caught.value.reason is reason

    assert [entry["title"] for entry in found["results"]] == ["Trio (music)"]


@pytest.mark.requirement("A-TOOL-1")
async def test_a_source_is_asked_at_its_rate_only() -> None:
    replies = {"/ok": answer(json.dumps(WIKI).encode(), kind="application/json")}
    slow = {"pacer": Pacer(interval=1000, burst=1), "limits": Limits(wait=0)}
    async with site(replies) as server, client_for(server, **slow) as web:
        tool, call = WebSearch(web, [Here(server.url("/ok"))]), proposal("web.search", query="x")
        result = await tool.dry_run(call, NOTHING)
        await tool.run(call, NOTHING, result)
        with pytest.raises(WebFailed) as caught:
            await tool.run(call, NOTHING, result)

    assert caught.value.reason is Reason.RATE_LIMITED
    assert server.paths() == ["/ok"]


# --- the node's own index ---------------------------------------------------------------------------------------------

DOCUMENTS = (
    Document(title="Trio", url="http://docs.lan/trio", text="Structured concurrency for Python. " * 3),
    Document(title="Music", url="http://docs.lan/music", text="A trio is three players."),
    Document(title="Bread", url="http://docs.lan/bread", text="Flour and water."),
)


async def test_the_own_index_is_asked_without_any_request() -> None:
    async with open_client(leaks=lambda u, h, b: ()) as web:
        tool = WebSearch(web, (), local=LocalIndex(DOCUMENTS))
        call = proposal("web.search", query="structured concurrency trio")
        result = await tool.dry_run(call, NOTHING)
        found = json.loads((await tool.run(call, NOTHING, result)).data)

    assert result.simulated_effects.network_requests == ()
    assert [entry["url"] for entry in found["results"]] == ["http://docs.lan/trio", "http://docs.lan/music"]
    assert found["results"][1]["snippet"] == "A trio is three players."


def test_rare_words_count_more_than_common_ones_and_no_word_finds_nothing() -> None:
    index = LocalIndex([Document(title=str(n), url=f"u{n}", text="common " * 5) for n in range(5)] + list(DOCUMENTS))

    assert index.search("common flour", 1)[0].title == "Bread"
    assert [hit.title for hit in index.search("common", 3)] == ["0", "1", "2"]
    assert index.search("nowhere", 3) == index.search("", 3) == LocalIndex(()).search("x", 3) == ()


def test_an_index_file_is_read_line_by_line_and_a_fault_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "index.jsonl"
    file.write_text("\n".join(entry.model_dump_json() for entry in DOCUMENTS))
    assert load_index(file).search("flour", 1)[0].url == "http://docs.lan/bread"

    for bad in ("{", '{"title": "x"}', '{"title": "x", "url": "y", "more": 1}'):
        file.write_text(DOCUMENTS[0].model_dump_json() + "\n" + bad)
        with pytest.raises(DataError) as caught:
            load_index(file)
        assert str(caught.value.where) == f"{file}:2"
    with pytest.raises(DataError):
        load_index(tmp_path / "none")
