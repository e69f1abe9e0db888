"""Messages of ``/gnus/join/1`` and ``/gnus/roster/1``: deterministic CBOR maps with a ``kind``, read with suspicion."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import trio

from gnusnode.contracts import canonical
from gnusnode.errors import GnusError, PeerUnreachable, ProtocolViolation
from gnusnode.net.port import MessageStream
from gnusnode.net.records import MAX_RECORD_BYTES

ROSTER: Final = "/gnus/roster/1"
JOIN: Final = "/gnus/join/1"
REPLY_SECONDS: Final = 15.0
"""How long the other side may take for one message."""
PAGE: Final = 256
"""Records in one message."""
MAX_SMALL: Final = 64 * 1024
MAX_PAGE: Final = PAGE * (MAX_RECORD_BYTES + 8) + 1024
MAX_DIGESTS: Final = 2 * 1024 * 1024
"""Bytes of a message with the digests of whole buckets: 32 for each of ``MAX_RECORDS``, and as much again."""


@dataclass(frozen=True)
class Message:
    """A received message. Every getter checks type and size.

    Raises:
        ProtocolViolation: a getter found something else.
    """

    kind: str
    fields: dict[str, Any]

    def text(self, name: str, pattern: str) -> str:
        value = self.fields.get(name)
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise self._wrong(name)
        return value

    def count(self, name: str) -> int:
        value = self.fields.get(name)
        if type(value) is not int or value < 0:
            raise self._wrong(name)
        return value

    def data(self, name: str, *, multiple: int, most: int) -> bytes:
        """Bytes whose number is a multiple of ``multiple``, at most ``most``."""
        value = self.fields.get(name)
        if not isinstance(value, bytes) or len(value) > most or len(value) % multiple:
            raise self._wrong(name)
        return value

    def records(self, name: str = "records", most: int = PAGE) -> list[bytes]:
        value = self.fields.get(name)
        if not isinstance(value, list):
            raise self._wrong(name)
        items = cast("list[object]", value)
        if len(items) > most or not all(isinstance(item, bytes) for item in items):
            raise self._wrong(name)
        return cast("list[bytes]", items)

    def error(self) -> GnusError:
        """The error that a message of kind ``refused`` carries."""
        wire = self.fields.get("error")
        return GnusError.from_wire(cast("dict[str, Any]", wire) if isinstance(wire, dict) else {})

    def _wrong(self, name: str) -> ProtocolViolation:
        return ProtocolViolation(f"a message {self.kind!r} with a wrong field {name!r}")


def pack(kind: str, **fields: Any) -> bytes:
    return canonical.encode({"kind": kind, **fields})


def refused(error: GnusError) -> bytes:
    return pack("refused", error=error.to_wire())


async def receive(stream: MessageStream, *kinds: str, most: int = MAX_SMALL) -> Message:
    """The peer's next message, which must be one of ``kinds``.

    Raises:
        GnusError: the peer refused, for the reason that it gives.
        ProtocolViolation: too large, malformed, or of another kind. PeerUnreachable: none came.
    """
    message = await receive_or_end(stream, "refused", *kinds, most=most)
    if message is None:
        raise PeerUnreachable("the peer ended the stream without an answer", where=stream.peer)
    if message.kind == "refused":
        raise message.error()
    return message


async def receive_or_end(stream: MessageStream, *kinds: str, most: int = MAX_SMALL) -> Message | None:
    """The peer's next message, which must be one of ``kinds``; None: it has nothing more to say.

    Raises:
        ProtocolViolation, PeerUnreachable: see ``receive``.
    """
    data = None
    with trio.move_on_after(REPLY_SECONDS) as limit:
        data = await stream.receive()
    if limit.cancelled_caught:
        raise PeerUnreachable(f"the peer said nothing for {REPLY_SECONDS:.0f} s", where=stream.peer)
    return None if data is None else unpack(data, *kinds, most=most)


def unpack(data: bytes, *kinds: str, most: int = MAX_SMALL) -> Message:
    """
    Raises:
        ProtocolViolation: too large, malformed, or of another kind than ``kinds``.
    """
    try:
        plain = canonical.decode(data, max_bytes=most)
    except canonical.NotCanonical as error:
        raise ProtocolViolation(f"a malformed message: {error}") from error
    if not isinstance(plain, dict):
        raise ProtocolViolation("a message that is no map")
    fields = cast("dict[str, Any]", plain)
    kind = fields.pop("kind", None)
    if kind not in kinds:
        raise ProtocolViolation(f"a message of the kind {str(kind)[:32]!r}, which has no place here")
    return Message(kind, fields)


def pages(items: Sequence[bytes]) -> list[list[bytes]]:
    return [list(items[start : start + PAGE]) for start in range(0, len(items), PAGE)]
