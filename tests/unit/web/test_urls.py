"""How URLs are read: as a browser does, or not at all."""

from __future__ import annotations

import pytest

from gnusnode.web.refusals import Reason, WebRefused
from gnusnode.web.urls import MAX_URL, join, parse, require_public


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("HTTP://Pub.Example", "http://pub.example/"),
        ("https://pub.example:443/", "https://pub.example/"),
        ("https://pub.example:/", "https://pub.example/"),
        ("http://pub.example.:80", "http://pub.example/"),
        ("http://pub.example:8080/a", "http://pub.example:8080/a"),
        ("http://MÜNCHEN.de/ä?ö=ü#ß", "http://xn--mnchen-3ya.de/%C3%A4?%C3%B6=%C3%BC"),
        ("http://faß.de/", "http://xn--fa-hia.de/"),
        ("http://XN--MNCHEN-3YA.de/", "http://xn--mnchen-3ya.de/"),
        ("http://pub。example/", "http://pub.example/"),
        ("http://a.b/c/../d/./e", "http://a.b/d/e"),
        ("http://a.b/c/%2E%2e/d", "http://a.b/d"),
        ("http://a.b/../..", "http://a.b/"),
        ("http://a.b/c/..", "http://a.b/"),
        ("http://a.b/c/.", "http://a.b/c/"),
        ("http://a.b//c", "http://a.b//c"),
        ("http://a.b?c", "http://a.b/?c"),
        ("http://a.b/?", "http://a.b/?"),
        ("http://a.b/'\"<>{}|^`", "http://a.b/'%22%3C%3E%7B%7D%7C%5E%60"),
        ("http://0x5d.0270.55330/", "http://93.184.216.34/"),
        ("http://[2606:2800:0220:0:0::34]/", "http://[2606:2800:220::34]/"),
        ("http://_dmarc.a-b.c9/", "http://_dmarc.a-b.c9/"),
    ],
)
def test_a_url_comes_out_in_its_one_spelling(text: str, spelled: str) -> None:
    assert str(parse(text)) == spelled
    assert parse(spelled) == parse(text)


def test_the_parts_are_what_goes_over_the_wire() -> None:
    url = parse("https://Pub.Example:8443/a/b?c=d#e")

    assert (url.scheme, url.host, url.port, url.target) == ("https", "pub.example", 8443, "/a/b?c=d")
    assert (url.authority, url.origin) == ("pub.example:8443", "https://pub.example:8443")
    assert parse("http://[2606::1]:81/").authority == "[2606::1]:81"


@pytest.mark.parametrize(
    ("base", "reference", "target"),
    [
        ("http://a.b/c/d?e", "f", "http://a.b/c/f"),
        ("http://a.b/c/d?e", "../f", "http://a.b/f"),
        ("http://a.b/c/d?e", "/f?g", "http://a.b/f?g"),
        ("http://a.b/c/d?e", "?g", "http://a.b/c/d?g"),
        ("http://a.b/c/d?e", "#g", "http://a.b/c/d?e"),
        ("http://a.b/c/d?e", "", "http://a.b/c/d?e"),
        ("http://a.b/c/d?e", "f:g", None),
        ("https://a.b/c", "//d.e/f", "https://d.e/f"),
        ("http://a.b/c", "https://d.e", "https://d.e/"),
        ("http://a.b:81/c", "/d", "http://a.b:81/d"),
        ("http://a.b/", "./f#x", "http://a.b/f"),
    ],
)
def test_a_reference_leads_where_a_browser_would_go(base: str, reference: str, target: str | None) -> None:
    if target is None:
        with pytest.raises(WebRefused):
            join(parse(base), reference)
    else:
        assert str(join(parse(base), reference)) == target


@pytest.mark.parametrize(
    "text",
    ["http://[2002:a9fe:a9fe::]/", "http://[64:ff9b::a9fe:a9fe]/", "http://2852039166/", "http://0xa9fea9fe/",
     "http://[::ffff:169.254.169.254]/"],
)  # fmt: skip
def test_the_spellings_of_pydantic_ai_cve_2026_25580_are_seen_without_a_socket(text: str) -> None:
    with pytest.raises(WebRefused) as caught:
        require_public(parse(text))

    assert caught.value.reason is Reason.SSRF_ADDRESS


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("https://docs.gnus.ai.evil.example/", Reason.DOMAIN_NOT_ALLOWED),
        ("https://docs.gnus.ai@evil.example/", Reason.URL_USERINFO),
        ("https://docs.gnus.ai\\@evil.example", Reason.URL_MALFORMED),
        ("https://evil.example/docs.gnus.ai", Reason.DOMAIN_NOT_ALLOWED),
        ("https://evil.example?docs.gnus.ai", Reason.DOMAIN_NOT_ALLOWED),
        ("https://DOCS.gnus.ai.\u3002evil.example/", Reason.URL_HOST),
        ("https://xdocs.gnus.ai/", Reason.DOMAIN_NOT_ALLOWED),
        ("https://ai/", Reason.URL_HOST),
    ],
)
def test_an_allow_list_is_compared_to_the_letter_after_parsing(text: str, reason: Reason) -> None:
    # LangChain CVE-2024-0243
    with pytest.raises(WebRefused) as caught:
        require_public(parse(text), ("docs.gnus.ai",))

    assert caught.value.reason is reason
    require_public(parse("https://Docs.Gnus.ai./x"), ("docs.gnus.ai",))


def test_an_entry_of_an_allowed_site_leads_to_no_other_host() -> None:
    # LangChain's sitemap loader, #38814
    site = parse("https://docs.gnus.ai/sitemap.xml")
    for entry in ("https://evil.example/sitemap.xml", "//evil.example/x", "https://docs.gnus.ai.evil.example/"):
        with pytest.raises(WebRefused) as caught:
            require_public(join(site, entry), ("docs.gnus.ai",))
        assert caught.value.reason is Reason.DOMAIN_NOT_ALLOWED
    require_public(join(site, "/nested.xml"), ("docs.gnus.ai",))


def test_a_url_that_grows_too_long_by_its_encoding_is_refused() -> None:
    assert parse("http://a.b/" + "x" * (MAX_URL - 11))
    for text in ("http://a.b/" + "x" * MAX_URL, "http://a.b/" + "ü" * (MAX_URL // 2)):
        with pytest.raises(WebRefused) as caught:
            parse(text)
        assert caught.value.reason is Reason.URL_MALFORMED
        assert len(caught.value.where or "") < 2500
