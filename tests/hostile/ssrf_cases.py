"""Tricks that make a fetcher reach what it must not, each with the reason for which it has to be refused."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

PUBLIC = "93.184.216.34"
PUBLIC_V6 = "2606:2800:220:1::34"
OWN_PUBLIC = "93.184.216.99"
"""A public address of the machine on which the fetcher runs."""

ZONE: dict[str, tuple[str, ...]] = {
    "pub.example": (PUBLIC,),
    "two.example": (PUBLIC, PUBLIC_V6),
    "int.example": ("127.0.0.1",),
    "int6.example": ("::1",),
    "lan.example": ("192.168.7.7",),
    "meta.example": ("169.254.169.254",),
    "mixed.example": (PUBLIC, "127.0.0.1"),
    "mixed6.example": (PUBLIC, "::1"),
    "many.example": (*(f"93.184.216.{last}" for last in range(34, 44)), "10.0.0.1"),
    "zero.example": ("0.0.0.0",),
    "unspecified.example": ("::",),
    "mapped.example": ("::ffff:127.0.0.1",),
    "nat64.example": ("64:ff9b::7f00:1",),
    "localnat64.example": ("64:ff9b:1::7f00:1",),
    "sixtofour.example": ("2002:7f00:1::1",),
    "teredo.example": ("2001:0:5db8:d822::1",),
    "compat.example": ("::127.0.0.1",),
    "translated.example": ("::ffff:0:127.0.0.1",),
    "unique.example": ("fd00:ec2::254",),
    "linklocal.example": ("fe80::1",),
    "site.example": ("fec0::1",),
    "doc6.example": ("2001:db8::1",),
    "doc6b.example": ("3fff::1",),
    "mcast.example": ("224.0.0.1",),
    "mcast6.example": ("ff02::1",),
    "oracle.example": ("192.0.0.192",),
    "cgnat.example": ("100.64.9.9",),
    "bench.example": ("198.18.0.9",),
    "relay.example": ("192.88.99.9",),
    "azure.example": ("168.63.129.16",),
    "broadcast.example": ("255.255.255.255",),
    "own.example": (OWN_PUBLIC,),
    "alias.example": ("127.0.0.1",),
    "evil.example": ("127.0.0.1",),
    "localhost.evil.example": ("127.0.0.1",),
    "docs.gnus.ai": (PUBLIC,),
    "docs.gnus.ai.evil.example": (PUBLIC,),
    "wiki.corp.evil.example": (PUBLIC,),  # what the search list would make of wiki.corp
}
REBINDING: dict[str, tuple[tuple[str, ...], ...]] = {
    "rebind.example": ((PUBLIC,), ("127.0.0.1",)),
    "flip.example": ((PUBLIC,), ("169.254.169.254",), (PUBLIC,)),
}
"""Names that answer differently each time; the last answer stays."""


@dataclass(frozen=True)
class Case:
    """``reason`` empty: the page has to arrive. ``domains``: the allow-list, if there is one."""

    name: str
    url: str
    reason: str
    domains: tuple[str, ...] | None = None


def _via(target: str) -> str:
    return f"http://pub.example/redir?to={quote(target, safe='')}"


ADDRESS = "SSRF_ADDRESS"
LITERAL = [
    Case(f"literal {url}", url, ADDRESS)
    for url in (
        "http://127.0.0.1/",
        "http://127.0.0.53/",
        "http://127.255.255.254/",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://api.localhost/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7F.0x0.0x0.0x1/",
        "http://0177.0.0.1/",
        "http://00000177.0.0.1/",
        "http://017700000001/",
        "http://127.1/",
        "http://127.0.1/",
        "http://0/",
        "http://0.0.0.0/",
        "http://0x/",
        "http://2852039166/",
        "http://0xa9fea9fe/",
        "http://169.254.169.254/latest/meta-data/",
        "http://169.254.43518/",
        "http://10.0.0.1/",
        "http://172.16.5.5/",
        "http://192.168.7.7/",
        "http://100.100.100.200/",
        "http://192.0.0.192/",
        "http://198.18.0.9/",
        "http://203.0.113.9/",
        "http://240.0.0.1/",
        "http://255.255.255.255/",
        "http://224.0.0.251/",
        "http://168.63.129.16/",
        f"http://{OWN_PUBLIC}/",
        "http://[::]/",
        "http://[::1]/",
        "http://[0:0:0:0:0:0:0:1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[::ffff:169.254.169.254]/",
        "http://[::127.0.0.1]/",
        "http://[::ffff:0:127.0.0.1]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[64:ff9b:1::7f00:1]/",
        "http://[2002:a9fe:a9fe::]/",
        "http://[2002:7f00:1::1]/",
        "http://[2001:0:5db8:d822::1]/",
        "http://[fd00:ec2::254]/",
        "http://[fe80::1]/",
        "http://[fec0::1]/",
        "http://[ff02::1]/",
        "http://[2001:db8::1]/",
        "http://[3fff::1]/",
        "http://[100::1]/",
        "http://[5f00::1]/",
        "http://１２７.０.０.１/",
        "http://127。0。0。1/",
        "http://①②⑦.⓪.⓪.①/",
        "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/",
    )
]
PARSER = [
    Case("user name", "http://pub.example@127.0.0.1/", "URL_USERINFO"),
    Case("password", "http://a:b@int.example/", "URL_USERINFO"),
    Case("empty user name", "http://@int.example/", "URL_USERINFO"),
    Case("two at signs", "http://pub.example@int.example@pub.example/", "URL_USERINFO"),
    Case("backslash before at", "http://pub.example\\@127.0.0.1/", "URL_MALFORMED"),
    Case("backslash for slash", "http:\\\\127.0.0.1/", "URL_MALFORMED"),
    Case("fragment trick", "http://127.0.0.1#@pub.example/", ADDRESS),
    Case("query trick", "http://127.0.0.1?@pub.example/", ADDRESS),
    Case("port trick", "http://127.0.0.1:80#:@pub.example:80/", ADDRESS),
    Case("NUL", "http://pub.example\x00.evil.example/", "URL_MALFORMED"),
    Case("line break", "http://pub.example/\r\nHost: int.example", "URL_MALFORMED"),
    Case("tab in the host", "http://127.0.\t0.1/", "URL_MALFORMED"),
    Case("leading blank", " http://127.0.0.1/", "URL_MALFORMED"),
    Case("zero-width in the host", "http://local\u200bhost/", "URL_MALFORMED"),
    Case("soft hyphen", "http://local\u00adhost/", "URL_MALFORMED"),
    Case("percent in the host", "http://%31%32%37.0.0.1/", "URL_HOST"),
    Case("percent localhost", "http://%6c%6f%63alhost/", "URL_HOST"),
    Case("zone id", "http://[fe80::1%25eth0]/", "URL_HOST"),
    Case("scoped loopback", "http://[::1%25lo]/", "URL_HOST"),
    Case("open bracket", "http://[::1/", "URL_HOST"),
    Case("IPv6 without brackets", "http://::1/", "URL_HOST"),
    Case("five numbers", "http://127.0.0.0.1/", "URL_HOST"),
    Case("number too large", "http://127.0.0.256/", "URL_HOST"),
    Case("overflowing integer", "http://4294967297/", "URL_HOST"),
    Case("overflowing hex", "http://0x17f000001/", "URL_HOST"),
    Case("broken octal", "http://0189.0.0.1/", "URL_HOST"),
    Case("empty label", "http://int..example/", "URL_HOST"),
    Case("no host", "http:///127.0.0.1/", "URL_MALFORMED"),
    Case("single slash", "http:/127.0.0.1/", "URL_MALFORMED"),
    Case("no slash", "http:127.0.0.1/", "URL_MALFORMED"),
    Case("name of the network", "http://intranet/", "URL_HOST"),
    Case("search list of the resolver", "http://wiki.corp/", "DNS_FAILED"),
    Case("redis port", "http://pub.example:6379/", "URL_PORT"),
    Case("https port on http", "http://pub.example:443/", "URL_PORT"),
    Case("port zero", "http://pub.example:0/", "URL_PORT"),
    Case("port too large", "http://pub.example:65616/", "URL_PORT"),
    Case("file", "file:///etc/passwd", "URL_SCHEME"),
    Case("gopher", "gopher://127.0.0.1:6379/_INFO", "URL_SCHEME"),
    Case("data", "data:text/html,<script>", "URL_SCHEME"),
    Case("ftp", "ftp://127.0.0.1/", "URL_SCHEME"),
    Case("unix socket", "http+unix://%2Frun%2Fdocker.sock/info", "URL_SCHEME"),
    Case("jar", "jar:http://127.0.0.1!/", "URL_SCHEME"),
    Case("relative", "//127.0.0.1/", "URL_MALFORMED"),
]
NAMES = [
    Case(f"name {name}", f"http://{name}/", ADDRESS)
    for name, answers in ZONE.items()
    if any(address not in (PUBLIC, PUBLIC_V6) for address in answers)
]
REDIRECTS = [
    Case(f"redirect to {target!r}", _via(target), reason)
    for target, reason in (
        ("http://127.0.0.1/", ADDRESS),
        ("http://127.0.0.1:8000/", ADDRESS),
        ("http://int.example/", ADDRESS),
        ("http://2130706433/", ADDRESS),
        ("http://[::ffff:169.254.169.254]/", ADDRESS),
        ("http://localhost/", ADDRESS),
        ("//127.0.0.1/", ADDRESS),
        ("//meta.example/latest/", ADDRESS),
        ("/redir?to=http%3A%2F%2F169.254.169.254%2F", ADDRESS),
        ("http://pub.example:6379/", "URL_PORT"),
        ("http://x@127.0.0.1/", "URL_USERINFO"),
        ("http://pub.example\\@127.0.0.1/", "URL_MALFORMED"),
        ("file:///etc/passwd", "URL_SCHEME"),
        ("gopher://127.0.0.1:6379/_", "URL_SCHEME"),
        ("javascript:alert(1)", "URL_SCHEME"),
        ("/loop", "REDIRECT_LIMIT"),
    )
]
REBINDS = [
    Case("rebinding after the first connection", "http://rebind.example/close", ADDRESS),
    Case("rebinding within a redirect", "http://flip.example/again", ADDRESS),
]
DOMAINS = [
    Case("longer name", "http://docs.gnus.ai.evil.example/", "DOMAIN_NOT_ALLOWED", ("docs.gnus.ai",)),
    Case("another name", "http://pub.example/", "DOMAIN_NOT_ALLOWED", ("docs.gnus.ai",)),
    Case("its address", f"http://{PUBLIC}/", "DOMAIN_NOT_ALLOWED", ("docs.gnus.ai",)),
    Case("sub-domain", "http://www.docs.gnus.ai/", "DOMAIN_NOT_ALLOWED", ("docs.gnus.ai",)),
    Case("parent", "http://gnus.ai/", "DOMAIN_NOT_ALLOWED", ("docs.gnus.ai",)),
    Case(
        "redirect out of the list",
        "http://docs.gnus.ai/redir?to=http%3A%2F%2Fpub.example%2F",
        "DOMAIN_NOT_ALLOWED",
        ("docs.gnus.ai",),
    ),
    Case("empty list", "http://pub.example/", "DOMAIN_NOT_ALLOWED", ()),
    Case("allowed name, internal address", "http://int.example/", ADDRESS, ("int.example",)),
]
CONTROLS = [
    Case("control", "http://pub.example/", ""),
    Case("control by address", f"http://{PUBLIC}/", ""),
    Case("control by IPv6 address", f"http://[{PUBLIC_V6}]/", ""),
    Case("control with two kinds of addresses", "http://two.example/", ""),
    Case("control in decimal", "http://1572395042/", ""),
    Case("control with a dot", "http://pub.example./", ""),
    Case("control after a redirect", _via("http://two.example/"), ""),
    Case("control in the list", "http://docs.gnus.ai/", "", ("docs.gnus.ai",)),
]
TRICKS = LITERAL + PARSER + NAMES + REDIRECTS + REBINDS + DOMAINS
