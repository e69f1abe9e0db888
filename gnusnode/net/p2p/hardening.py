"""Cures for py-libp2p: each is one function that names the symptom, and has a test that fails without it.

``apply`` is called once before the first host is made; it changes the library's modules, so it holds for the process.
What could be cured without touching the library stands elsewhere: streams in ``yamux`` (our own muxer), connections in
``swarm`` (a subclass), admission in ``gates``, dialling in ``dial``, Noise alone in ``host``.

Every cure is written against one version of the library, which ``require_version`` insists on.
"""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from gnusnode.errors import ConfigError
from gnusnode.net.port import NetStatistics

VERSION: Final = "0.8.1"
RESTART_SECONDS: Final = (0.1, 5.0)
"""First and longest pause before a failed background task of the library is run again."""
OWN_RECORD_SECONDS: Final = 5.0
PEER_RECORD_SECONDS: Final = 60.0
MAX_PEER_RECORDS: Final = 1024
PUSH_SECONDS: Final = 10.0

_log = logging.getLogger(__name__)
_observers: list[NetStatistics] = []


def apply() -> None:
    """All cures of this module. A second call does nothing."""
    require_version()
    for cure in (
        quiet_logging,
        fence_tasks,
        read_whole_messages,
        own_the_port,
        see_ipv6_peers,
        complete_protected_connections,
        keep_own_key,
        remember_own_record,
        remember_peer_records,
        own_up_to_bad_pushes,
    ):
        _once(cure)


def count_into(statistics: NetStatistics) -> Callable[[], None]:
    """Counts faults of the library into ``statistics`` until the returned function is called."""
    _observers.append(statistics)
    return lambda: _observers.remove(statistics)


def library_fault(where: str, error: BaseException) -> None:
    """Counts and logs an exception inside the library. The message may quote a peer: it is not logged above debug."""
    for statistics in _observers:
        statistics.library_faults += 1
    _log.warning("libp2p failed in %s: %s", where, type(error).__name__)
    _log.debug("details", exc_info=error)


def require_version(installed: str | None = None) -> None:
    """Refuses another version of the library than the one that the cures were written and measured against.

    Raises:
        ConfigError: with how to put it right.
    """
    found = installed if installed is not None else importlib.metadata.version("libp2p")
    if found != VERSION:
        raise ConfigError(
            f"libp2p {found} is installed, but this release works with libp2p {VERSION} alone",
            where="libp2p",
            hint=f"pip install 'libp2p=={VERSION}', or set net.enabled to off",
        )


# --- cures ------------------------------------------------------------------------------------------------------------


def quiet_logging() -> None:
    """Symptom: a log line per finished stream, and a second handler on the root logger.

    The library logs warnings for what peers do every second, to a logger of its own that has no handler and so writes
    to stderr; and one module logs by ``logging.debug``, which adds a handler to the root logger where there is none:
    from then on each of our lines appears twice. Cure: only critical lines, and a logger of its own for that module.
    """
    logging.getLogger("libp2p").setLevel(logging.CRITICAL)
    module: Any = importlib.import_module("libp2p.network.connection.swarm_connection")
    module.logging = logging.getLogger(module.__name__)


def fence_tasks() -> None:
    """Symptom: one malformed message of any peer ends the process.

    Swarm, Pubsub, GossipSub and KadDHT run their work as tasks of a manager that ends the service, and with it the
    whole program, when any of them raises: a bad protobuf on ``/meshsub``, a message with a malformed key, a validator
    that raises. Cure: a failed task is counted and logged; one that should run for ever is run again, after a pause.
    """
    from libp2p.tools.anyio_service.trio_manager import TrioManager

    manager: Any = TrioManager
    run_task = manager.run_task

    def fenced_run_task(
        self: Any,
        async_fn: Callable[..., Awaitable[None]],
        *args: Any,
        daemon: bool = False,
        name: str | None = None,
        _internal: bool = False,
    ) -> None:
        label: str = name or getattr(async_fn, "__qualname__", type(async_fn).__name__)
        if not _internal:  # the service's own ``run`` only waits; when that ends, the service has ended
            async_fn = _fenced(async_fn, label, again=lambda: daemon and self.is_running)
        run_task(self, async_fn, *args, daemon=daemon, name=label, _internal=_internal)

    manager.run_task = fenced_run_task


def _fenced(
    task: Callable[..., Awaitable[None]], label: str, *, again: Callable[[], bool]
) -> Callable[..., Awaitable[None]]:
    async def run(*args: Any) -> None:
        pause, longest = RESTART_SECONDS
        while True:
            try:
                await task(*args)
                return
            except Exception as error:  # noqa: BLE001 - the fence: see ``fence_tasks``
                library_fault(label, error)
                if not again():
                    return
            await trio.sleep(pause)
            pause = min(longest, 2 * pause)

    return run


def read_whole_messages() -> None:
    """Symptom: a connection over a slow link dies in the middle of a large message; nothing over 6 MB arrives.

    ``read_exactly`` gives up after a hundred partial reads, and a Noise message of 64 KiB comes in 45 pieces on
    Ethernet and more on a narrower link. It also spins a hundred times at the end of a stream. Cure: read until it is
    there, and stop at the end.
    """
    from libp2p.io.exceptions import IncompleteReadError

    async def read_exactly(reader: Any, n: int, retry_count: int = 0) -> bytes:
        data: bytes = await reader.read(n)
        if len(data) == n:
            return data
        buffer = bytearray(data)
        while len(buffer) < n:
            part: bytes = await reader.read(n - len(buffer))
            if not part:
                raise IncompleteReadError("the stream ended early", expected_bytes=n, received_bytes=len(buffer))
            buffer += part
        return bytes(buffer)

    _replace("libp2p.io.utils", "read_exactly", read_exactly)


def own_the_port() -> None:
    """Symptom: a second daemon listens on the first one's port, and each gets a part of the other's connections.

    The library sets ``SO_REUSEPORT`` on its listeners for hole punching, which we do not do; the kernel then shares the
    port without a word. Cure: only ``SO_REUSEADDR``, so that a taken port is an error.
    """
    import socket

    def set_reuse_flags(sock: Any) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    _replace("libp2p.transport.tcp.tcp", "_set_reuse_flags", set_reuse_flags)


def see_ipv6_peers() -> None:
    """Symptom: peers that come by IPv6 have no address: allow and deny lists and limits per address pass them by.

    The library expects two fields of a remote address, and IPv6 has four. Cure: take the first two.
    """
    from libp2p.io.trio import TrioTCPStream

    def get_remote_address(self: Any) -> tuple[str, int] | None:
        if self._cached_remote_address is None:
            try:
                host, port, *_ = self.stream.socket.getpeername()
            except (OSError, ValueError):
                return None
            self._cached_remote_address = str(host), int(port)
        known: tuple[str, int] = self._cached_remote_address
        return known

    TrioTCPStream.get_remote_address = get_remote_address


def complete_protected_connections() -> None:
    """Symptom: with a network key a connection has neither type nor address, and dies if its first 8 bytes come apart.

    The class leaves out what its base class sets, and expects the nonce in one piece. Cure: ask the connection that it
    wraps, and wait for the whole nonce.
    """
    from Crypto.Cipher import Salsa20
    from libp2p.security.pnet.psk_conn import PskConn

    conn: Any = PskConn
    read = conn.read

    async def read_after_nonce(self: Any, n: int | None = None) -> bytes:
        if self.read_cipher is None:
            nonce = b""
            while len(nonce) < 8:
                part: bytes = await self._conn.read(8 - len(nonce))
                if not part:
                    return b""
                nonce += part
            self.read_cipher = Salsa20.new(key=self._psk, nonce=nonce)
        data: bytes = await read(self, n)
        return data

    def get_connection_type(self: Any) -> Any:
        return self._conn.get_connection_type()

    def get_transport_addresses(self: Any) -> Any:
        return self._conn.get_transport_addresses()

    conn.read = read_after_nonce
    conn.get_connection_type = get_connection_type
    conn.get_transport_addresses = get_transport_addresses


def keep_own_key() -> None:
    """Symptom: after a thousand different peers the node can no longer sign, answer identify, or gossip.

    The peerstore drops entries without addresses first when it is full, and this node's own entry, with its private
    key, has none. Cure: entries with a private key stay.
    """
    from libp2p.peer.peerstore import PeerStore

    store: Any = PeerStore
    enforce = store._enforce_peer_limit

    def enforce_peer_limit(self: Any) -> None:
        own = {peer: data for peer, data in self.peer_data_map.items() if data.privkey is not None}
        for peer in own:
            del self.peer_data_map[peer]
        enforce(self)
        self.peer_data_map.update(own)

    store._enforce_peer_limit = enforce_peer_limit


def remember_own_record() -> None:
    """Symptom: half of the time of a gossip message goes into our own signed address record.

    It is built again for each message to compare it with what it was. Cure: believe it for ``OWN_RECORD_SECONDS``.
    """
    peerstore: Any = importlib.import_module("libp2p.peer.peerstore")
    build: Callable[[Any], tuple[bytes, bool]] = peerstore.env_to_send_in_RPC

    def env_to_send_in_rpc(host: Any) -> tuple[bytes, bool]:
        now = time.monotonic()
        known: tuple[float, bytes] | None = getattr(host, "_gnus_own_record", None)
        if known is not None and now < known[0]:
            return known[1], False
        record, new = build(host)
        host._gnus_own_record = (now + OWN_RECORD_SECONDS, record)
        return record, new

    _replace("libp2p.peer.peerstore", "env_to_send_in_RPC", env_to_send_in_rpc)


def remember_peer_records() -> None:
    """Symptom: the other half goes into the same record of the peer, verified with every message it sends.

    Cure: a record that was verified is not verified again, byte for byte the same and of the same peer, for
    ``PEER_RECORD_SECONDS``.
    """
    utils: Any = importlib.import_module("libp2p.pubsub.utils")
    consume: Callable[[Any, Any, Any], bool] = utils.maybe_consume_signed_record

    def maybe_consume_signed_record(msg: Any, host: Any, peer_id: Any) -> bool:
        if not msg.HasField("senderRecord"):
            return True
        known: dict[Any, tuple[bytes, float]] = host.__dict__.setdefault("_gnus_peer_records", {})
        now = time.monotonic()
        record, until = known.get(peer_id, (b"", 0.0))
        if now < until and record == msg.senderRecord:
            return True
        known.pop(peer_id, None)
        if not consume(msg, host, peer_id):
            return False
        if len(known) >= MAX_PEER_RECORDS:
            del known[next(iter(known))]
        known[peer_id] = (msg.senderRecord, now + PEER_RECORD_SECONDS)
        return True

    _replace("libp2p.pubsub.utils", "maybe_consume_signed_record", maybe_consume_signed_record)


def own_up_to_bad_pushes() -> None:
    """Symptom: a malformed identify push leaves no trace.

    The library logs it and closes the stream as if all were well. Cure: whatever it stumbles over is raised, so that
    the fence around all handlers resets the stream and counts it.
    """
    from libp2p.network.stream.exceptions import StreamReset

    module: Any = importlib.import_module("libp2p.identity.identify_push.identify_push")

    def identify_push_handler_for(host: Any, use_varint_format: bool = True) -> Callable[[Any], Awaitable[None]]:
        async def handle(stream: Any) -> None:
            try:
                with trio.fail_after(PUSH_SECONDS):
                    data: bytes = await module.read_length_prefixed_protobuf(stream, use_varint_format)
            except StreamReset:
                return  # the peer thought better of it
            message = module.Identify()
            message.ParseFromString(data)
            await module.update_peerstore_from_identify(host.get_peerstore(), stream.muxed_conn.peer_id, message)

        return handle

    _replace(module.__name__, "identify_push_handler_for", identify_push_handler_for)


# --- how they are applied ---------------------------------------------------------------------------------------------


@functools.cache
def _once(cure: Callable[[], None]) -> None:
    cure()


def _replace(module: str, name: str, new: Any) -> None:
    """Puts ``new`` in the place of a function of the library, also where another of its modules has imported it."""
    old = getattr(importlib.import_module(module), name)
    for key, loaded in list(sys.modules.items()):
        if key.partition(".")[0] == "libp2p" and vars(loaded).get(name) is old:
            setattr(loaded, name, new)
