"""The narrow port to the network: everything that the house knows of libp2p is what stands here.

``net.memory`` is the in-memory twin, ``net.p2p`` the real one; the same tests run on both. Peers are named by their
PeerID in base58 (``12D3KooW…``), addresses are multiaddrs in text. What a remote peer sends is untrusted: the port only
promises that it came from the holder of the peer's key, whole and in order.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol

MAX_MESSAGE: Final = 8 * 1024 * 1024 + 64 * 1024
"""Largest message of a stream, in bytes: the largest record of the contracts and its envelope."""

MAX_GOSSIP: Final = 192 * 1024
"""Largest gossip message, in bytes."""


class MessageStream(Protocol):
    """A bidirectional stream of messages with one peer. Ends with ``close`` or ``reset``; garbage collection is no end.

    One task may send while another receives; two tasks must not send, or receive, at once. Cancelling either leaves the
    connection whole; a message whose ``send`` was cancelled may or may not arrive.
    """

    @property
    def peer(self) -> str:
        """The authenticated PeerID of the other side."""
        ...

    @property
    def protocol(self) -> str: ...

    async def send(self, message: bytes) -> None:
        """Hands over one message; waits while the peer's window is closed.

        Raises:
            PeerUnreachable: the stream or the connection is gone, or the peer read nothing for five seconds.
            TooLarge: over ``MAX_MESSAGE``.
        """
        ...

    async def receive(self) -> bytes | None:
        """The next message; None: the peer closed its side in order.

        Raises:
            PeerUnreachable: the stream was reset, or the connection is gone.
            ProtocolViolation: the peer announced a message over ``MAX_MESSAGE``; the stream is reset.
        """
        ...

    async def close(self) -> None:
        """Says that nothing more will be sent. The other direction stays open until the peer closes it too."""
        ...

    async def reset(self) -> None:
        """Ends both directions at once. May be called at any time, also twice."""
        ...


StreamHandler = Callable[[MessageStream], Awaitable[None]]
"""Serves one incoming stream. When it returns, the stream is closed; when it raises, it is reset and counted."""

Accept = Callable[[str, bytes], bool]
"""``(publisher, data)``: whether a gossip message is to be believed and passed on. Must be quick; raising means no."""


@dataclass(frozen=True)
class PeerAddresses:
    """Where a peer says, or others say, that it can be reached. A hint."""

    peer: str
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Connected:
    peer: str
    address: str
    """The remote address of the connection, as far as it is known."""
    inbound: bool
    relayed: bool = False


@dataclass(frozen=True)
class Disconnected:
    """The last connection to the peer is gone."""

    peer: str


NetEvent = Connected | Disconnected


@dataclass
class NetStatistics:
    """Counts since start; gauges where it says so."""

    connections: int = 0
    """Now."""
    inbound_refused: dict[str, int] = field(default_factory=dict[str, int])
    """By reason: ``denied``, ``per-ip``, ``per-peer``, ``full``, ``banned``, ``handshake``."""
    handler_failures: int = 0
    streams_refused: int = 0
    protocol_violations: int = 0
    gossip_refused: int = 0
    gossip_dropped: int = 0
    library_faults: int = 0
    """Exceptions inside the library that would have ended the process."""
    bytes_in: int = 0
    bytes_out: int = 0


class Net(Protocol):
    """A running network endpoint. Whoever opened it owns it; leaving its context says goodbye and closes everything."""

    @property
    def peer_id(self) -> str: ...

    def addresses(self) -> tuple[str, ...]:
        """Where others can dial this node now, each ending in ``/p2p/<peer id>``; never an unspecified address."""
        ...

    def serve(self, protocol: str, handler: StreamHandler) -> AbstractAsyncContextManager[None]:
        """Hands incoming streams of ``protocol`` to ``handler`` while the context is open; then running ones are ended.

        Raises:
            Conflict: the protocol is served already.
        """
        ...

    async def connect(self, peer: str, addresses: Sequence[str]) -> None:
        """A connection to ``peer``: the one that there is, or a new one to whichever address answers first.

        All addresses are tried at once, each with a timeout of its own; one that answers as another peer is none.

        Raises:
            PeerUnreachable: none answered; the text says what each did.
            Forbidden: the peer is banned here.
        """
        ...

    async def disconnect(self, peer: str) -> None:
        """Closes all connections to ``peer``; does nothing where there is none."""
        ...

    def ban(self, peers: frozenset[str]) -> None:
        """The peers that get no connection, in place of those named before. Connections to them are closed soon."""
        ...

    def connected(self) -> frozenset[str]:
        """Peers with a living connection."""
        ...

    async def open_stream(self, peer: str, protocol: str) -> MessageStream:
        """A new stream over the connection to ``peer``.

        Raises:
            PeerUnreachable: there is no connection, or it died.
            UnsupportedProtocol: the peer does not serve ``protocol``.
        """
        ...

    async def ping(self, peer: str) -> float:
        """Seconds for a round trip over the living connection.

        Raises:
            PeerUnreachable: no answer.
        """
        ...

    async def publish(self, topic: str, data: bytes) -> None:
        """Gossips ``data`` to everyone who subscribes. Delivery is likely, not certain.

        Raises:
            TooLarge: over ``MAX_GOSSIP``.
        """
        ...

    def subscribe(self, topic: str, accept: Accept) -> AbstractAsyncContextManager[AsyncIterator[tuple[str, bytes]]]:
        """``(publisher, data)`` of accepted messages of others, while the context is open; a slow reader loses the
        oldest ones, which is counted. ``publisher`` is authenticated end to end.
        """
        ...

    def gossip_with(self, allows: Callable[[str], bool]) -> None:
        """The neighbours that gossip is handed to from now on; asked for each message. At first: all of them."""
        ...

    async def provide(self, key: str) -> None:
        """Says in the DHT that this node offers ``key`` (any text). Keep keys few: nobody can take one back.

        Does nothing where the DHT is off.
        """
        ...

    async def find(self, key: str) -> tuple[PeerAddresses, ...]:
        """Other peers that once said they offer ``key``. A hint: probe them. Empty where the DHT is off."""
        ...

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[NetEvent]]:
        """Comings and goings from now on, after one ``Connected`` for each peer that is there already."""
        ...

    def statistics(self) -> NetStatistics: ...
