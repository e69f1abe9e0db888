"""Properties of URLs and addresses that hold for every input."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

import httpx2
from hypothesis import example, given
from hypothesis import strategies as st

from gnusnode.web.addresses import is_public
from gnusnode.web.refusals import WebRefused
from gnusnode.web.urls import Url, join, parse, require_public

PIECES = st.sampled_from(
    [
        *(
            "http:",
            "https:",
            "//",
            "/",
            "\\",
            "@",
            ":",
            "80",
            "443",
            "8080",
            ".",
            "..",
            "%2e",
            "%00",
            "?",
            "#",
            "[",
            "]",
        ),
        *("::1", "127", "0x7f", "0177", "2130706433", "localhost", "pub.example", "xn--", "。", "①", "ü", "a" * 64),
        *("\u200b", "\t", " "),
    ]
)
URLS = st.one_of(
    st.text(max_size=60),
    st.lists(PIECES, max_size=10).map("".join),
    st.lists(PIECES, max_size=8).map(lambda pieces: "http://" + "".join(pieces)),
    st.tuples(st.text(max_size=20), st.text(max_size=30)).map(
        lambda parts: f"http://pub.example/{parts[0]}?{parts[1]}"
    ),
)


HOSTS = st.sampled_from(
    ["pub.example", "PUB.example.", "127.1", "[2606::0:1]", "münchen.de", "a_b.c-d.e", "0x7f000001"]
)
GOOD = st.tuples(
    st.sampled_from(["http", "https", "HTTP"]),
    HOSTS,
    st.sampled_from(["", ":", ":80", ":443", ":8080"]),
    st.one_of(st.just(""), st.text(max_size=30).map("/{}".format), st.lists(PIECES, max_size=6).map("/".join)),
).map(lambda parts: f"{parts[0]}://{parts[1]}{parts[2]}/{parts[3]}".replace("///", "//"))


def tried(text: str) -> Url | None:
    try:
        return parse(text)
    except WebRefused:
        return None


@given(URLS)
def test_any_text_is_a_url_in_one_spelling_or_refused(text: str) -> None:
    url = tried(text)
    if url is not None:
        assert str(url).isascii()
        assert str(url).isprintable()
        assert parse(str(url)) == url


@given(st.one_of(GOOD, URLS))
def test_the_http_library_reads_every_accepted_url_as_we_do(text: str) -> None:
    url = tried(text)
    if url is None:
        return

    theirs = httpx2.URL(str(url))

    assert theirs.scheme == url.scheme
    assert theirs.raw_host.decode() == url.host
    assert (theirs.port or (443 if url.scheme == "https" else 80)) == url.port
    assert theirs.raw_path.decode() == url.target
    assert str(theirs) == str(url)


@given(st.integers(0, 2**32 - 1), st.data())
@example(0x7F000001, None)
def test_an_ipv4_address_is_the_same_in_every_base_and_number_of_parts(value: int, data: st.DataObject | None) -> None:
    count = data.draw(st.integers(1, 4)) if data else 1
    heads = [value >> 8 * (3 - place) & 255 for place in range(count - 1)]
    numbers = [*heads, value & 256 ** (5 - count) - 1]
    forms = ["{}", "0x{:x}", "0X{:X}", "0{:o}", "000{:o}"]
    spelled = [(data.draw(st.sampled_from(forms)) if data else "{}").format(number) for number in numbers]

    url = parse(f"http://{'.'.join(spelled)}/")

    assert url.address == IPv4Address(value)
    assert url.host == str(IPv4Address(value))
    # What a resolver of the system would have made of it.
    assert socket.inet_aton(".".join(spelled)) == IPv4Address(value).packed


@given(st.integers(0, 2**128 - 1))
def test_an_ipv6_address_is_the_same_compressed_and_written_out(value: int) -> None:
    address = IPv6Address(value)
    assert parse(f"http://[{address.exploded.upper()}]/").address == parse(f"http://[{address}]/").address == address


@given(st.one_of(st.integers(0, 2**32 - 1).map(IPv4Address), st.integers(0, 2**128 - 1).map(IPv6Address)))
def test_what_counts_as_public_is_nothing_that_the_standard_library_calls_special(
    address: IPv4Address | IPv6Address,
) -> None:
    special = address.is_private or address.is_loopback or address.is_link_local or address.is_multicast
    assert not (is_public(address) and (special or address.is_reserved or address.is_unspecified))


@given(st.one_of(GOOD, URLS))
def test_what_may_be_reached_is_a_name_with_a_dot_or_a_public_address(text: str) -> None:
    url = tried(text)
    if url is None:
        return
    try:
        require_public(url)
    except WebRefused:
        return
    assert url.port in (80, 443)
    if url.address is None:
        assert "." in url.host
        assert not url.host.rpartition(".")[2].isdecimal()
    else:
        assert is_public(ip_address(url.host))


@given(GOOD, st.one_of(GOOD, URLS))
def test_a_reference_never_leads_to_another_host_unless_it_names_one(base_text: str, reference: str) -> None:
    base = tried(base_text)
    if base is None:
        return
    try:
        target = join(base, reference)
    except WebRefused:
        return
    if target.origin != base.origin:
        assert reference.startswith("//") or reference.lower().startswith(("http:", "https:"))
    assert parse(str(target)) == target


@given(st.from_regex(r"[a-z]{1,5}(\.[a-z]{1,5}){1,3}", fullmatch=True), st.text("abcdefgh.-@\\:/", max_size=12))
def test_no_suffix_or_prefix_gets_a_host_past_an_allow_list(host: str, extra: str) -> None:
    for text in (f"http://{host}{extra}", f"http://{extra}{host}"):
        url = tried(text)
        if url is None:
            continue
        try:
            require_public(url, (host,))
        except WebRefused:
            continue
        assert url.host == host
        assert httpx2.URL(text).host.removesuffix(".") == host
