"""What sites say about programs, and that it is heard on every way to the web."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from gnusnode.web.exchange import Limits
from gnusnode.web.pacing import Pacer
from gnusnode.web.refusals import Reason, WebFailed, WebRefused
from gnusnode.web.robots import parse_rules
from tests.unit.web.server import answer, client_for, get, site

RULES = b"User-agent: *\nDisallow: /private\nAllow: /private/but\n\nUser-agent: other\nDisallow: /\n"


async def test_a_page_that_the_site_closes_to_programs_is_not_asked_for() -> None:
    replies = {"/robots.txt": answer(RULES), "/private/but/not": answer(b"yes"), "/open": answer(b"open")}
    async with site(replies) as server, client_for(server) as client:
        for path in ("/open", "/private/but/not"):
            await client.fetch(get(server.url(path), robots=True))
        with pytest.raises(WebRefused) as caught:
            await client.fetch(get(server.url("/private/x"), robots=True))

    assert caught.value.reason is Reason.ROBOTS_DISALLOWED
    assert server.paths() == ["/robots.txt", "/open", "/private/but/not"]


async def test_a_redirect_leads_to_no_closed_page() -> None:
    replies = {"/robots.txt": answer(RULES), "/a": answer(b"", "Location: /private/x", status=302)}
    async with site(replies) as server, client_for(server) as client:
        with pytest.raises(WebRefused) as caught:
            await client.fetch(get(server.url("/a"), robots=True))

    assert caught.value.reason is Reason.ROBOTS_DISALLOWED
    assert server.paths() == ["/robots.txt", "/a"]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (answer(status=404), None),
        (answer(status=403), None),
        (answer(b"<html>not found</html>", kind="text/html"), None),
        (answer(status=500), Reason.ROBOTS_UNAVAILABLE),
        (answer(status=429), Reason.ROBOTS_UNAVAILABLE),
        (b"nonsense\r\n\r\n", Reason.ROBOTS_UNAVAILABLE),
    ],
)
async def test_a_site_without_rules_is_open_and_one_that_cannot_say_is_closed(
    reply: bytes, reason: Reason | None
) -> None:
    async with site({"/robots.txt": reply, "/": answer(b"x")}) as server, client_for(server) as client:
        found = None
        try:
            await client.fetch(get(server.url("/"), robots=True))
        except WebFailed as error:
            found = error.reason

    assert found is reason


async def test_the_file_may_not_lead_out_of_the_allowed_domains() -> None:
    reply = answer(b"", "Location: http://127.0.0.1/robots.txt", status=301)
    async with site({"/robots.txt": reply, "/": answer(b"x")}) as server, client_for(server) as client:
        with pytest.raises(WebRefused) as caught:
            await client.fetch(get(server.url("/"), robots=True, domains=("site.test",)))

    assert caught.value.reason is Reason.SSRF_ADDRESS


async def test_a_pause_that_the_site_asks_for_is_kept() -> None:
    replies = {"/robots.txt": answer(b"User-agent: *\nCrawl-delay: 20\n"), "/": answer(b"x")}
    settings = {"pacer": Pacer(interval=0, burst=4), "limits": Limits(wait=1)}
    async with site(replies) as server, client_for(server, **settings) as client:
        await client.fetch(get(server.url("/"), robots=True))
        with pytest.raises(WebFailed) as caught:
            await client.fetch(get(server.url("/"), robots=True))

    assert caught.value.reason is Reason.RATE_LIMITED


async def test_rules_are_asked_for_again_after_an_hour(autojump_clock: MockClock) -> None:
    from contextlib import asynccontextmanager

    from gnusnode.web.robots import Robots
    from gnusnode.web.urls import parse

    asked: list[str] = []

    @asynccontextmanager
    async def stream(request):
        asked.append(str(request.url))

        class Missing:
            status = 404

        yield Missing()

    robots = Robots(stream)
    for wait in (0, 3599, 2, 0):
        await trio.sleep(wait)
        await robots.require(parse("https://a.b/x"), None)
    await robots.require(parse("http://a.b/x"), None)

    assert asked == ["https://a.b/robots.txt"] * 2 + ["http://a.b/robots.txt"]


def test_our_own_name_counts_more_than_everybody_and_other_names_do_not_count() -> None:
    rules = parse_rules(b"User-agent: gnusnode\nUser-agent: x\nDisallow: /a\n\nUser-agent: *\nDisallow: /b\n")

    assert not rules.can_fetch("http://a.b/a", "gnusnode")
    assert rules.can_fetch("http://a.b/b", "gnusnode")
    assert parse_rules(b"User-agent: gnus\nDisallow: /\n").can_fetch("http://a.b/", "gnusnode")
    assert not parse_rules(b"user agent gnusnode # us\nDisallow: /\n").can_fetch("http://a.b/", "gnusnode")


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        (b"User-agent: *\nDisallow: /\n\nUser-agent: x\nUser-agent: gnusnode\nDisallow: /a\n", True),
        (b"User-agent: x\nDisallow: /\nUser-agent: *\nDisallow: /a\n", True),
        (b"User-agent: *\nUser-agent: x\nDisallow: /\n", False),
        (b"User-agent: *\n# x\n\nSitemap: http://a.b/s\nDisallow: /\n", False),
        (b"\xef\xbb\xbfUser-agent: *\rDisallow: /\r", False),
        (b"USER AGENT gnusnode\nDisallow: /", False),
        (b"Disallow: /\n", True),
        (b"User-agent:\nDisallow: /\n", True),
        (b"User-agent: *\nDisallow:\n", True),
        (b"User-agent: *\nDisallow: /\nUser-agent: x\nDisallow: /y\nAllow: /\n", False),
    ],
)
def test_only_groups_that_name_us_or_everybody_count(text: bytes, allowed: bool) -> None:
    assert parse_rules(text).can_fetch("http://a.b/b", "gnusnode") is allowed


def test_a_file_of_many_agents_and_rules_does_not_grow_when_it_is_read() -> None:
    agents = b"".join(b"User-agent: a%d\n" % number for number in range(12_000))
    rules = parse_rules(agents + b"Disallow: /*a*a*a*a*a*a*a*a*$\n" * 9_000)

    assert rules.can_fetch("http://a.b/" + "a" * 3000, "gnusnode")
    # Each agent that a group lists gets its own copy of the group's rules: here that would be 10^8 of them.
    assert len(rules._user_agents) == 0


def test_a_site_with_more_rules_than_we_can_keep_to_is_closed() -> None:
    parse_rules(b"User-agent: *\n" + b"Disallow: /a\n" * 1999)
    with pytest.raises(WebFailed) as caught:
        parse_rules(b"User-agent: *\n" + b"Disallow: /a\n" * 2000)
    assert caught.value.reason is Reason.ROBOTS_UNAVAILABLE
