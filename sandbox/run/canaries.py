"""Things of this machine that foreign code must not reach, put up alive for as long as a self-test runs.

"Denied" proves something only where the thing is there and open: each canary is first reached from here, by the user
who runs the node, or there is no test.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from gnusnode.errors import Unavailable
from sandbox.linux import call

_IPC_CREAT_FOR_ALL: Final = 0o1666
_IPC_RMID: Final = 0
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - where the kernel shows it
_VARIABLE: Final = "GNUSNODE_SELFTEST_CANARY"
_GREETING: Final = b"canary"
_REACH_WITHIN: Final = 5.0


@dataclass(slots=True)
class Canaries:
    """What was put up, and who came.

    Attributes:
        secret: a word that stands in the file, the shared memory, the environment and the marker's command line.
        file: path of a file that everybody may read.
        socket: path of a Unix socket on which something listens.
        abstract: name of an abstract Unix socket, likewise.
        tcp: port on the loopback, likewise.
        shared: path of a POSIX shared memory object.
        segment: key of a System V segment.
        marker: a process of the node's user.
        hits: which listeners were reached.
    """

    secret: str
    file: str
    socket: str
    abstract: str
    tcp: int
    shared: str
    segment: int
    marker: int
    hits: list[str] = field(default_factory=list[str])


@asynccontextmanager
async def alive() -> AsyncGenerator[Canaries]:
    """Canaries that live for the block. Nothing of them is left after it.

    Raises:
        Unavailable: one could not be put up, or cannot be reached from here.
    """
    with ExitStack() as stack:
        try:
            canaries, listeners = await _put_up(stack)
        except (OSError, subprocess.SubprocessError) as error:
            raise Unavailable(f"the self-test could not put up its canaries: {error}") from error
        async with trio.open_nursery() as nursery:
            for name, listener in listeners.items():
                await nursery.start(trio.serve_listeners, _greeter(canaries, name), [listener])
            await _reach_all(canaries)
            canaries.hits.clear()
            yield canaries
            nursery.cancel_scope.cancel()


def _write_files(stack: ExitStack, secret: str) -> tuple[Path, Path]:
    """A file in a directory of its own and a shared memory object, both with the secret; and sets the environment."""
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="gnusnode-canary-"))
    os.chmod(directory, 0o755)  # noqa: S103 - open to all, so that a refusal is the sandbox's doing
    file, shared = Path(directory, "file"), _SHARED_MEMORY / f"gnusnode-canary-{secrets.token_hex(8)}"
    for path in (file, shared):
        path.write_text(secret)
        stack.callback(path.unlink)
        path.chmod(0o644)
    os.environ[_VARIABLE] = secret
    stack.callback(os.environ.pop, _VARIABLE)
    return file, shared


async def _put_up(stack: ExitStack) -> tuple[Canaries, dict[str, trio.SocketListener]]:
    secret = f"canary-{secrets.token_hex(12)}"
    file, shared = _write_files(stack, secret)
    socket, abstract = str(file.with_name("socket")), f"gnusnode-canary-{secrets.token_hex(8)}"
    listeners = {
        "tcp listener": (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0],
        "abstract socket": await _unix_listener(stack, "\0" + abstract),
        "socket file": await _unix_listener(stack, socket),
    }
    os.chmod(socket, 0o777)  # noqa: S103 - as above
    canaries = Canaries(
        secret=secret,
        file=str(file),
        socket=socket,
        abstract=abstract,
        tcp=listeners["tcp listener"].socket.getsockname()[1],
        shared=str(shared),
        segment=stack.enter_context(_segment()),
        marker=stack.enter_context(_marker(secret)),
    )
    return canaries, listeners


async def _unix_listener(stack: ExitStack, address: str) -> trio.SocketListener:
    socket = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    stack.callback(socket.close)
    await socket.bind(address)
    socket.listen(8)
    return trio.SocketListener(socket)


@contextmanager
def _segment() -> Generator[int]:
    """A System V shared memory segment that everybody may use; yields its key."""
    key = secrets.randbelow(0x3FFF_FFFF) + 1
    number = call("shmget", key, 4096, _IPC_CREAT_FOR_ALL)
    try:
        yield key
    finally:
        call("shmctl", number, _IPC_RMID, None)


@contextmanager
def _marker(secret: str) -> Generator[int]:
    """A process that does nothing and has the secret on its command line; yields its process id."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "import sys; print(flush=True); sys.stdin.read()", secret],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()  # from now on its command line can be seen
            yield process.pid
        finally:
            process.kill()


def _greeter(canaries: Canaries, name: str) -> Callable[[trio.SocketStream], Awaitable[None]]:
    async def greet(stream: trio.SocketStream) -> None:
        canaries.hits.append(name)
        try:
            await stream.send_all(_GREETING)
        except trio.BrokenResourceError:
            return

    return greet


def _see_all(canaries: Canaries) -> dict[str, bool]:
    return {
        "file": canaries.secret in Path(canaries.file).read_text(),
        "shared memory": canaries.secret in Path(canaries.shared).read_text(),
        "environment": canaries.secret in os.environ.values(),
        "marker": canaries.secret.encode() in Path(f"/proc/{canaries.marker}/cmdline").read_bytes(),
        "segment": call("shmget", canaries.segment, 0, 0) >= 0,
    }


async def _reach_all(canaries: Canaries) -> None:
    """Proof that each canary can be reached by who may reach it."""
    try:
        visible = _see_all(canaries)
    except OSError as error:
        raise Unavailable(f"the self-test cannot reach its own canaries: {error}") from error
    seen = {
        **visible,
        "tcp listener": await _greets(trio.socket.AF_INET, ("127.0.0.1", canaries.tcp)),
        "socket file": await _greets(trio.socket.AF_UNIX, canaries.socket),
        "abstract socket": await _greets(trio.socket.AF_UNIX, "\0" + canaries.abstract),
    }
    if silent := [name for name, reached in seen.items() if not reached]:
        raise Unavailable(f"the self-test cannot reach its own canaries: {', '.join(silent)}")


async def _greets(family: int, address: str | tuple[str, int]) -> bool:
    with trio.move_on_after(_REACH_WITHIN), trio.socket.socket(family, trio.socket.SOCK_STREAM) as client:
        try:
            await client.connect(address)
            return await client.recv(len(_GREETING)) == _GREETING
        except OSError:
            return False
    return False
