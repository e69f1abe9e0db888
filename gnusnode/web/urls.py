"""URLs as a browser reads them, but strict: what two parsers could read in two ways is refused. Pure.

The host comes out in one spelling: names in ASCII and lower case, IPv4 addresses dotted whatever base or number of
parts they were written in, IPv6 addresses compressed. So a comparison with an allow-list is one of strings.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final
from urllib.parse import quote

import idna

from gnusnode.web.addresses import Address, is_public, parse_address
from gnusnode.web.refusals import Reason, WebRefused

MAX_URL: Final = 4000
"""Characters. A request line with it still fits the record of a dry-run."""
PORTS: Final = {"http": 80, "https": 443}

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_AUTHORITY_END: Final = re.compile(r"[/?#]")
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PATH_KEPT: Final = "/!$&'()*+,;=:@-._~%"
_QUERY_KEPT: Final = _PATH_KEPT + "?"


@dataclass(frozen=True, slots=True)
class Url:
    """An http or https URL in its one spelling; a fragment is never part of it."""

    scheme: str
    host: str
    """IPv6 addresses without brackets."""
    port: int
    path: str
    query: str | None
    address: Address | None
    """The address that the host spells; None: it is a name."""

    @property
    def authority(self) -> str:
        """Host and port as they stand in the URL and in the ``Host`` header; the default port is left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def target(self) -> str:
        """Path and query: what is asked for at the origin."""
        return self.path if self.query is None else f"{self.path}?{self.query}"

    def __str__(self) -> str:
        return self.origin + self.target


def parse(text: str) -> Url:
    """The URL that ``text`` spells.

    Raises:
        WebRefused: not an absolute http(s) URL, or one that parsers could read differently.
    """
    _check_characters(text)
    scheme = _SCHEME.match(text)
    if scheme is None:
        raise _refused(Reason.URL_MALFORMED, "not an absolute URL", text)
    return _absolute(scheme[1].lower(), text[scheme.end() :], text)


def join(base: Url, reference: str) -> Url:
    """The URL to which ``reference``, a link or redirect found at ``base``, leads.

    Raises:
        WebRefused: see ``parse``.
    """
    _check_characters(reference)
    if _SCHEME.match(reference):
        return parse(reference)
    if reference.startswith("//"):
        return _absolute(base.scheme, reference, reference)
    rest = reference.partition("#")[0]
    if rest.startswith("/"):
        return parse(base.origin + rest)
    if rest.startswith("?"):
        return parse(base.origin + base.path + rest)
    if not rest:
        return base
    return parse(base.origin + base.path.rpartition("/")[0] + "/" + rest)


def require_public(url: Url, domains: Collection[str] | None = None) -> None:
    """Refuses what can be seen without asking any name server to be out of reach.

    Args:
        domains: hosts that may be reached, compared exactly; None: every public host.

    Raises:
        WebRefused: a special address or name, another port than the scheme's own, or a host outside ``domains``.
    """
    local = url.host == "localhost" or url.host.endswith(".localhost")
    if local or (url.address is not None and not is_public(url.address)):
        raise _refused(Reason.SSRF_ADDRESS, f"{url.host} is not a public address", str(url))
    if url.address is None and "." not in url.host:
        raise _refused(Reason.URL_HOST, f"{url.host!r} is a name of the local network", str(url))
    if url.port != PORTS[url.scheme]:
        raise _refused(Reason.URL_PORT, f"port {url.port} is not the port of {url.scheme}", str(url))
    require_domain(url, domains)


def require_domain(url: Url, domains: Collection[str] | None) -> None:
    """Refuses a host outside ``domains``; see ``require_public``.

    Raises:
        WebRefused: DOMAIN_NOT_ALLOWED.
    """
    if domains is not None and url.host not in domains:
        raise _refused(Reason.DOMAIN_NOT_ALLOWED, f"{url.host} is not among the allowed domains", str(url))


def _check_characters(text: str) -> None:
    if len(text) > MAX_URL:
        raise _refused(Reason.URL_MALFORMED, f"longer than {MAX_URL} characters", text)
    for character in text:
        # Browsers drop, turn or trim these; others do not.
        if character in " \\" or unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp", "Zs"):
            raise _refused(Reason.URL_MALFORMED, f"a character U+{ord(character):04X} in a URL", text)


def _absolute(scheme: str, rest: str, text: str) -> Url:
    if scheme not in PORTS:
        raise _refused(Reason.URL_SCHEME, f"the scheme {scheme!r} is not http or https", text)
    if not rest.startswith("//") or rest.startswith("///"):
        raise _refused(Reason.URL_MALFORMED, "the scheme is not followed by two slashes", text)
    end = _AUTHORITY_END.search(rest, 2)
    authority, tail = (rest[2 : end.start()], rest[end.start() :]) if end else (rest[2:], "")
    if "@" in authority:
        raise _refused(Reason.URL_USERINFO, "a user name before the host", text)
    host_text, port = _split_port(authority, scheme, text)
    host, address = _host(host_text, text)
    path, mark, query = tail.partition("#")[0].partition("?")
    url = Url(
        scheme=scheme,
        host=host,
        port=port,
        path=_path(path),
        query=quote(query, safe=_QUERY_KEPT) if mark else None,
        address=address,
    )
    if len(str(url)) > MAX_URL:  # percent-encoding makes it longer
        raise _refused(Reason.URL_MALFORMED, f"longer than {MAX_URL} characters", text)
    return url


def _split_port(authority: str, scheme: str, text: str) -> tuple[str, int]:
    host, colon, port = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        return authority, PORTS[scheme]
    if not port:
        return host, PORTS[scheme]
    if not (port.isascii() and port.isdecimal()) or len(port) > 5 or not 0 < int(port) < 65_536:
        raise _refused(Reason.URL_PORT, f"{port!r} is not a port", text)
    return host, int(port)


def _host(host: str, text: str) -> tuple[str, Address | None]:
    if host.startswith("["):
        address = _ipv6(host, text)
        return str(address), address
    if not host or len(host) > 253 or "%" in host or ":" in host:
        raise _refused(Reason.URL_HOST, f"{host[:64]!r} is not a host", text)
    name = _ascii_name(host, text).removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        address = _ipv4(labels)
        if address is None:
            raise _refused(Reason.URL_HOST, f"{name[:64]!r} ends in a number and is no address", text)
        return str(address), address
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise _refused(Reason.URL_HOST, f"{name[:64]!r} is not a host name", text)
    return name, None


def _ascii_name(host: str, text: str) -> str:
    lowered = host.lower()
    if lowered.isascii() and "xn--" not in lowered:
        return lowered
    try:
        return idna.encode(host, uts46=True, transitional=False).decode("ascii")
    except (idna.IDNAError, UnicodeError) as error:
        raise _refused(Reason.URL_HOST, f"{host[:64]!r} is not an internationalised host name", text) from error


def _ipv6(host: str, text: str) -> IPv6Address:
    address = parse_address(host[1:-1]) if host.endswith("]") and "%" not in host else None
    if not isinstance(address, IPv6Address):
        raise _refused(Reason.URL_HOST, f"{host[:64]!r} is not an IPv6 address", text)
    return address


def _ipv4(labels: list[str]) -> IPv4Address | None:
    """The address that one to four decimal, octal or hexadecimal numbers spell, as browsers and resolvers read them."""
    if len(labels) > 4:
        return None
    numbers = [_number(label) for label in labels]
    if any(number is None for number in numbers):
        return None
    *heads, last = [number for number in numbers if number is not None]
    if any(head > 255 for head in heads) or last >= 256 ** (4 - len(heads)):
        return None
    value = last + sum(head << 8 * (3 - place) for place, head in enumerate(heads))
    try:
        return IPv4Address(value)
    except AddressValueError:
        return None


def _number(label: str) -> int | None:
    if not 0 < len(label) <= 16:
        return None
    try:
        if label.startswith("0x"):
            return int(label[2:] or "0", 16)
        return int(label, 8 if label.startswith("0") and len(label) > 1 else 10)
    except ValueError:
        return None


def _path(path: str) -> str:
    """The path with non-ASCII percent-encoded and dot segments gone, in whatever spelling they came."""
    done: list[str] = []
    segments = quote(path, safe=_PATH_KEPT).split("/")[1:] or [""]
    for place, segment in enumerate(segments):
        last = place == len(segments) - 1
        match segment.lower().replace("%2e", "."):
            case ".":
                if last:
                    done.append("")
            case "..":
                del done[-1:]
                if last:
                    done.append("")
            case _:
                done.append(segment)
    return "/" + "/".join(done)


def _refused(reason: Reason, what: str, text: str) -> WebRefused:
    shown = text[:200].encode("ascii", "backslashreplace").decode("ascii")
    return WebRefused(reason, what, where=shown, hint="use the address of a public web page")
