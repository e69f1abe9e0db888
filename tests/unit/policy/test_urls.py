"""Which host an address names: exactly one reading, or none."""

from __future__ import annotations

import pytest

from gnusnode.policy import urls


@pytest.mark.parametrize(
    ("text", "host", "rest"),
    [
        ("https://docs.gnus.ai", "docs.gnus.ai", ""),
        ("HTTPS://Docs.GNUS.ai:443/", "docs.gnus.ai", ""),
        ("http://docs.gnus.ai:80/a?b#c", "docs.gnus.ai", "/a?b#c"),
        ("docs.gnus.ai/a", "docs.gnus.ai", "/a"),
        ("docs.gnus.ai:443/a", "docs.gnus.ai", "/a"),
        ("//docs.gnus.ai.", "docs.gnus.ai", ""),
        ("https://docs.gnus.ai.evil.example/", "docs.gnus.ai.evil.example", ""),
        ("https://xn--80ak6aa92e.com", "xn--80ak6aa92e.com", ""),
        ("https://evil.example/docs.gnus.ai", "evil.example", "/docs.gnus.ai"),
    ],
)
def test_the_host_is_the_one_that_a_browser_would_ask(text: str, host: str, rest: str) -> None:
    address = urls.parse(text)
    assert isinstance(address, urls.Address)
    assert (address.host, address.rest) == (host, rest)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("https://docs.gnus.ai@evil.example/", "user_name"),
        ("https://docs.gnus.ai\\@evil.example", "divisive_letters"),
        ("https://docs.gnus.ai\t.evil.example", "divisive_letters"),
        ("https://docs.gnus.ai%2eevil.example", "host"),
        ("https://dоcs.gnus.ai", "foreign_letters"),
        ("https://docs。gnus.ai", "foreign_letters"),
        ("file:///etc/passwd", "scheme"),
        ("javascript:alert(1)", "scheme"),
        ("https://docs.gnus.ai:8443/", "port"),
        ("http://169.254.169.254/", "numeric_host"),
        ("http://2852039166/", "numeric_host"),
        ("http://0xa9fea9fe/", "numeric_host"),
        ("http://0xa9.0xfe.0xa9.0xfe/", "numeric_host"),
        ("http://127.1/", "numeric_host"),
        ("http://127.0.0.1./", "numeric_host"),
        ("http://[::ffff:169.254.169.254]/", "numeric_host"),
        ("http://[2002:a9fe:a9fe::]/", "numeric_host"),
        ("http://[64:ff9b::a9fe:a9fe]/", "numeric_host"),
        ("", "host"),
        ("https://", "host"),
        ("https://a..b", "host"),
    ],
)
def test_an_address_that_readers_may_disagree_about_is_none(text: str, reason: str) -> None:
    assert urls.parse(text) == reason


def test_a_scheme_may_be_raised_and_never_lowered() -> None:
    plain, safe = urls.parse("http://a.example/x"), urls.parse("https://a.example/x")
    assert isinstance(plain, urls.Address)
    assert isinstance(safe, urls.Address)
    assert urls.same(safe, plain)
    assert not urls.same(plain, safe)
