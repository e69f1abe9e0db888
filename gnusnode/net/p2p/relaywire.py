"""Messages of circuit relay v2, as others speak it: HOP asks a relay, STOP is what the relay tells the target."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any, Final, TypeVar, cast

import trio
from google.protobuf.message import DecodeError, Message
from libp2p.abc import IHost, INetStream
from libp2p.connection_types import ConnectionType
from libp2p.custom_types import TProtocol
from libp2p.exceptions import BaseLibp2pError
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Status, StopMessage
from libp2p.utils.varint import encode_varint_prefixed, read_varint_prefixed_bytes_limited
from multiaddr import Multiaddr

HOP: Final = TProtocol("/libp2p/circuit/relay/0.2.0/hop")
STOP: Final = TProtocol("/libp2p/circuit/relay/0.2.0/stop")

OK: Final = Status.OK
REFUSED: Final = Status.RESERVATION_REFUSED
FULL: Final = Status.RESOURCE_LIMIT_EXCEEDED
DENIED: Final = Status.PERMISSION_DENIED
FAILED: Final = Status.CONNECTION_FAILED
NO_RESERVATION: Final = Status.NO_RESERVATION
MALFORMED: Final = Status.MALFORMED_MESSAGE

REASONS: Final = {
    REFUSED: "the relay refused the reservation",
    FULL: "the relay is full",
    DENIED: "the relay does not serve this node",
    FAILED: "the relay could not reach the peer",
    NO_RESERVATION: "the peer has no reservation at the relay",
    MALFORMED: "the relay did not understand",
}

NETWORK_FAULTS: Final = (BaseLibp2pError, DecodeError, OSError, trio.TooSlowError)
"""What a stream of the library raises when the other side, or the wire, is at fault."""

_MAX_MESSAGE: Final = 8 * 1024

M = TypeVar("M", HopMessage, StopMessage)


async def read(stream: INetStream, kind: type[M]) -> M:
    """The next message.

    Raises:
        NETWORK_FAULTS: there is none, or it is none.
    """
    message = kind()
    message.ParseFromString(await read_varint_prefixed_bytes_limited(stream, _MAX_MESSAGE))
    return message


async def write(stream: INetStream, message: Message) -> None:
    await stream.write(encode_varint_prefixed(message.SerializeToString()))


def peer_of(raw: bytes) -> ID | None:
    """The PeerID that a message names; None: it is none."""
    return ID(raw) if 32 <= len(raw) <= 64 else None


def directly_connected(host: IHost) -> list[ID]:
    return [peer for peer in host.get_connected_peers() if has_direct(host, peer)]


def has_direct(host: IHost, peer: ID) -> bool:
    return any(not is_relayed(each) for each in _connections(host, peer))


def is_relayed(connection: Any) -> bool:
    return connection.get_connection_type() is ConnectionType.RELAYED


def connection_of(host: IHost, muxed: Any) -> Any | None:
    """The connection of the network that ``muxed`` is the inside of; None: it is gone."""
    return next((each for each in _connections(host, muxed.peer_id) if each.muxed_conn is muxed), None)


def _connections(host: IHost, peer: ID) -> list[Any]:
    return cast("list[Any]", host.get_network().get_connections(peer))


def circuit(relay: ID, target: ID, at: Multiaddr | None = None) -> Multiaddr:
    """The address of ``target`` through ``relay``, which can be dialled itself at ``at``."""
    return Multiaddr(f"{at or ''}/p2p/{relay}/p2p-circuit/p2p/{target}")
