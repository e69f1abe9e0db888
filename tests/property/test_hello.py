"""The messages of the hello and of the gossip about nodes: one encoding, bounded, no errors but the promised ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnusnode.contracts.base import MalformedRecord, Record
from gnusnode.contracts.hello import Clash, Greeting, Heartbeat, HelloVerdict, read_gossip
from tests.property.records import records

MESSAGES = (Greeting, HelloVerdict, Heartbeat, Clash)


@pytest.mark.parametrize("kind", MESSAGES)
@given(data=st.data())
@settings(max_examples=20)
def test_a_message_has_one_encoding_and_comes_back_as_it_was(kind: type[Record], data: st.DataObject) -> None:
    made = data.draw(records(kind))
    assert kind.from_bytes(made.to_bytes()) == made


@pytest.mark.parametrize("kind", MESSAGES)
@given(data=st.data())
@settings(max_examples=20)
def test_one_message_never_passes_for_another(kind: type[Record], data: st.DataObject) -> None:
    encoded = data.draw(records(kind)).to_bytes()
    for other in MESSAGES:
        if other is not kind:
            with pytest.raises(MalformedRecord):
                other.from_bytes(encoded)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_gossip_message_or_malformed(data: bytes) -> None:
    with pytest.raises(MalformedRecord):
        read_gossip(data)


@given(st.data())
@settings(max_examples=20)
def test_a_changed_byte_is_malformed_or_breaks_the_signature(data: st.DataObject) -> None:
    message = data.draw(records(Heartbeat)).to_bytes()
    at = data.draw(st.integers(0, len(message) - 1))
    changed = message[:at] + bytes([message[at] ^ data.draw(st.integers(1, 255))]) + message[at + 1 :]
    try:
        read = read_gossip(changed)
    except MalformedRecord:
        return
    assert isinstance(read, Heartbeat)
    assert not read.announcement.signature_is_valid()


def test_gossip_over_its_size_is_refused_before_it_is_read() -> None:
    message: Any = b"\x00" * (Clash.max_bytes + 1)
    with pytest.raises(MalformedRecord, match="more than"):
        read_gossip(message)
