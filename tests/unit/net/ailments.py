"""The faults of py-libp2p that ``net.p2p.hardening`` cures, each as a question: is the library sound?

Run as a program it prints the answers as JSON; with ``cured`` as argument, those after the cures.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import trio


def logs_without_touching_the_root_logger() -> bool:
    from libp2p.network.connection import swarm_connection

    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    module: Any = swarm_connection
    module.logging.debug("a stream ended")
    return not root.handlers and not logging.getLogger("libp2p.kad_dht").isEnabledFor(logging.WARNING)


def a_failed_task_ends_nothing_else() -> bool:
    from libp2p.tools.anyio_service import Service, TrioManager

    class Gossip(Service):
        beats = 0

        async def run(self) -> None:
            self.manager.run_task(self.fail)
            self.manager.run_daemon_task(self.beat)
            await self.manager.wait_finished()

        async def fail(self) -> None:
            raise ValueError("a malformed message")

        async def beat(self) -> None:
            self.beats += 1
            if self.beats == 1:
                raise ValueError("a malformed message")
            await trio.sleep_forever()

    async def main() -> bool:
        service = Gossip()
        manager = TrioManager(service)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.run)
            await manager.wait_started()
            while service.beats < 2 and manager.is_running:
                await trio.sleep(0.01)
            sound = service.beats == 2 and manager.is_running
            nursery.cancel_scope.cancel()
        return sound

    try:
        return trio.run(main)
    except ExceptionGroup:
        return False


def a_message_in_many_pieces_is_read_whole() -> bool:
    from libp2p.io import msgio

    class Pieces:
        async def read(self, n: int | None = None) -> bytes:
            return b"x"

    async def main() -> bool:
        reader: Any = Pieces()
        return await msgio.read_exactly(reader, 300) == b"x" * 300

    try:
        return trio.run(main)
    except OSError:
        return False
    except Exception as error:
        if type(error).__name__ != "IncompleteReadError":
            raise
        return False


def a_port_has_one_owner() -> bool:
    from libp2p.transport.tcp import tcp

    async def main() -> bool:
        (first,) = await tcp._open_reuseport_listeners("127.0.0.1", 0)
        async with first:
            port = first.socket.getsockname()[1]
            try:
                (second,) = await tcp._open_reuseport_listeners("127.0.0.1", port)
            except Exception:
                return True
            await second.aclose()
            return False

    return trio.run(main)


def a_peer_that_comes_by_ipv6_has_an_address() -> bool:
    from libp2p.io.trio import TrioTCPStream

    class Socket:
        def getpeername(self) -> tuple[str, int, int, int]:
            return ("2001:db8::7", 4001, 0, 0)

    class Stream:
        socket = Socket()

    stream: Any = Stream()

    async def main() -> bool:
        return TrioTCPStream(stream).get_remote_address() == ("2001:db8::7", 4001)

    return trio.run(main)


def the_own_key_stays_in_a_full_peerstore() -> bool:
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.peer.id import ID
    from libp2p.peer.peerstore import PeerStore, PeerStoreError
    from multiaddr import Multiaddr

    own = create_new_key_pair()
    me = ID.from_pubkey(own.public_key)
    store = PeerStore(max_peers=5)
    store.add_key_pair(me, own)
    for number in range(10):
        store.add_addrs(ID(b"peer" + bytes([number])), [Multiaddr("/ip4/192.0.2.1/tcp/1")], 100)
    try:
        return store.privkey(me) == own.private_key
    except PeerStoreError:
        return False


def a_protected_connection_is_a_connection() -> bool:
    from libp2p.connection_types import ConnectionType
    from libp2p.network.connection.raw_connection import RawConnection
    from libp2p.security.pnet.psk_conn import PskConn

    class Pieces:
        """What the other side sent, byte for byte."""

        def __init__(self) -> None:
            self.sent = bytearray()

        async def write(self, data: bytes) -> None:
            self.sent += data

        async def read(self, n: int | None = None) -> bytes:
            part = bytes(self.sent[:1])
            del self.sent[:1]
            return part

    async def main() -> bool:
        pieces: Any = Pieces()
        conn = PskConn(RawConnection(pieces, False), "07" * 32)
        await conn.write(b"hi")
        return await conn.read(1) + await conn.read(1) == b"hi" and conn.get_connection_type() == ConnectionType.DIRECT

    try:
        return trio.run(main)
    except (AttributeError, ValueError):
        return False


class _Host:
    """A host, as far as its own address record concerns it."""

    def __init__(self) -> None:
        from libp2p.crypto.ed25519 import create_new_key_pair
        from libp2p.peer.id import ID
        from libp2p.peer.peerstore import PeerStore

        self.asked = 0
        self.pair = create_new_key_pair()
        self.peer = ID.from_pubkey(self.pair.public_key)
        self.store = PeerStore()
        self.store.add_key_pair(self.peer, self.pair)

    def get_id(self) -> Any:
        return self.peer

    def get_private_key(self) -> Any:
        return self.pair.private_key

    def get_peerstore(self) -> Any:
        return self.store

    def get_addrs(self) -> list[Any]:
        from multiaddr import Multiaddr

        self.asked += 1
        return [Multiaddr("/ip4/192.0.2.1/tcp/1")]


def the_own_record_is_not_built_for_each_message() -> bool:
    from libp2p.pubsub import pubsub

    host = _Host()
    first, _ = pubsub.env_to_send_in_RPC(host)  # type: ignore[arg-type]  # as much of a host as it takes
    asked = host.asked
    second, new = pubsub.env_to_send_in_RPC(host)  # type: ignore[arg-type]  # the same
    return first == second and not new and host.asked == asked


def a_peers_record_is_not_verified_for_each_message() -> bool:
    from libp2p.peer.peerstore import issue_and_cache_local_record
    from libp2p.pubsub import pubsub, utils
    from libp2p.pubsub.pb import rpc_pb2

    peer, here = _Host(), _Host()
    record = issue_and_cache_local_record(peer)  # type: ignore[arg-type]  # as much of a host as it takes
    verified = list[bytes]()
    module: Any = utils
    consume = module.consume_envelope

    def counted(data: bytes, domain: str) -> Any:
        verified.append(data)
        return consume(data, domain)

    module.consume_envelope = counted
    try:
        other: Any = here
        forged = record[:-1] + bytes([record[-1] ^ 1])
        for message in (record, record, forged, record):
            rpc = rpc_pb2.RPC(senderRecord=message)
            accepted = pubsub.maybe_consume_signed_record(rpc, other, peer.peer)
            if accepted != (message == record):
                return False
        # A record of another peer is not believed because it is known.
        if pubsub.maybe_consume_signed_record(rpc_pb2.RPC(senderRecord=record), other, here.peer):
            return False
    finally:
        module.consume_envelope = consume
    return len(verified) == 4  # the first, the forged, the first again after it, and the stranger's


def a_malformed_push_is_an_error() -> bool:
    from libp2p.host import defaults

    class Stream:
        """What the peer sent, a byte at a time, and then its end."""

        muxed_conn = type("Connection", (), {"peer_id": None})
        sent = bytearray(b"\x03\xff\xff\xff")

        async def read(self, n: int | None = None) -> bytes:
            part = bytes(self.sent[:n])
            del self.sent[:n]
            return part

        async def close(self) -> None: ...

    host: Any = _Host()
    handler: Any = defaults.identify_push_handler_for(host)
    try:
        trio.run(handler, Stream())
    except Exception as error:
        if type(error).__name__ != "DecodeError":
            raise
        return True
    return False


AILMENTS: dict[str, Callable[[], bool]] = {
    "quiet_logging": logs_without_touching_the_root_logger,
    "fence_tasks": a_failed_task_ends_nothing_else,
    "read_whole_messages": a_message_in_many_pieces_is_read_whole,
    "own_the_port": a_port_has_one_owner,
    "see_ipv6_peers": a_peer_that_comes_by_ipv6_has_an_address,
    "complete_protected_connections": a_protected_connection_is_a_connection,
    "keep_own_key": the_own_key_stays_in_a_full_peerstore,
    "remember_own_record": the_own_record_is_not_built_for_each_message,
    "remember_peer_records": a_peers_record_is_not_verified_for_each_message,
    "own_up_to_bad_pushes": a_malformed_push_is_an_error,
}
"""By the cure."""


def main() -> None:
    import libp2p.pubsub.gossipsub  # noqa: F401 - as in a daemon: loaded before the cures

    if "cured" in sys.argv:
        from gnusnode.net.p2p import hardening

        hardening.apply()
        hardening.apply()
    print(json.dumps({name: sound() for name, sound in AILMENTS.items()}))


if __name__ == "__main__":
    main()
