"""Which addresses count as public."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from gnusnode.web.addresses import is_public, parse_address


@pytest.mark.parametrize(
    "text",
    ["1.1.1.1", "8.8.8.8", "93.184.216.34", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0",
     "192.0.1.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "2606:2800:220:1::34", "2a00:1450::1",
     "2001:200::1", "2003::1"],
)  # fmt: skip
def test_a_public_unicast_address_may_be_reached(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize(
    "text",
    ["0.0.0.0", "0.255.255.255", "10.0.0.0", "10.255.255.255", "100.64.0.0", "100.127.255.255", "127.0.0.1",
     "127.255.255.255", "168.63.129.16", "169.254.0.0", "169.254.169.254", "172.16.0.0", "172.31.255.255",
     "192.0.0.0", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.255.255", "198.18.0.0", "198.19.255.255",
     "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
     "::", "::1", "::ffff:127.0.0.1", "::ffff:93.184.216.34", "::127.0.0.1", "::ffff:0:127.0.0.1",
     "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:1ff::1", "2001:db8::1", "2002:a9fe:a9fe::1",
     "3fff::1", "3fff:fff::1", "4000::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0",
     "2606::1%eth0", "fec0::1", "ff02::1"],
)  # fmt: skip
def test_everything_else_may_not(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize("text", ["", "127.1", "0x7f.0.0.1", "0177.0.0.1", "1.2.3.4 ", "name", "1::2::3", "1.2.3.4\0"])
def test_other_spellings_are_no_addresses(text: str) -> None:
    assert parse_address(text) is None
