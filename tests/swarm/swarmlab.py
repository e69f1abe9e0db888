"""Swarms of real nodes, founded and joined by the commands of a user; what may happen to them; a chat client."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from scripts.lab.lab import Host
from tests.swarm.harness import NodeProcess, gnusnode

PATIENCE = 60.0
"""Seconds after which a test gives up; no promise of the product."""
LOOK = 0.1
"""Between two looks at another process: there is nothing to await but the next one."""
APART = {
    "GNUSNODE_NET__MDNS": "false",
    "GNUSNODE_NET__DHT": "false",
    "GNUSNODE_MODELS__EMBEDDING": "none",
    "GNUSNODE_OBSERVE__LOG_FORMAT": "json",
}
"""Settings of every node: it finds others through its swarm alone, and loads no model that nobody asks for."""
QUICK = APART | {
    "GNUSNODE_NET__HEARTBEAT_SECONDS": "2",
    "GNUSNODE_NET__TTL_SECONDS": "6",
    "GNUSNODE_NET__PING_SECONDS": "1",
}
"""The same with the product's times shortened: a test waits for what they do, not for their length."""
QUESTION = [{"role": "user", "content": "Tell a long story about a lighthouse keeper and the sea."}]


class Member:
    """A node of a swarm. Its home, key and peer port stay over restarts."""

    def __init__(self, home: Path, flags: Sequence[str], env: dict[str, str], host: Host | None) -> None:
        self.home = home
        self.name = home.name
        self.flags = list(flags)
        self.env = env
        self.prefix = host.prefix if host else []
        self.listen = f"/ip4/{host.address}/tcp/8478" if host else f"/ip4/127.0.0.1/tcp/{free_port()}"
        self.process: NodeProcess | None = None

    @property
    def address(self) -> str:
        """Where others dial it, as ``--peer`` takes it."""
        return f"{self.listen}/p2p/{self.peer_id}"

    @cached_property
    def peer_id(self) -> str:
        return self.command("id").strip()

    # --- commands -----------------------------------------------------------------------------------------------------

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A ``gnusnode`` command on this node's home, to its end."""
        return gnusnode(*arguments, "--home", str(self.home), env=self.env, prefix=self.prefix)

    def command(self, *arguments: str) -> str:
        """The output of a command that must succeed."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"{self.name}: gnusnode {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.command(*arguments, "--json"))

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self, *more: str) -> None:
        """Starts the process; ``await_ready`` says when it serves."""
        assert self.process is None or self.process.process.poll() is not None, f"{self.name} runs already"
        flags = ["--listen", self.listen, *self.flags, *more]
        self.process = NodeProcess(self.home, *flags, env=self.env, prefix=self.prefix)

    @property
    def running(self) -> NodeProcess:
        assert self.process is not None, f"{self.name} was never started"
        return self.process

    def stop(self) -> None:
        self.running.stop()

    def kill(self) -> None:
        """Like a power cut: nothing is said to anybody."""
        self.running.process.kill()
        self.running.process.wait()

    def restart(self) -> None:
        self.start()
        self.await_ready()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Alive to the kernel, which keeps its connections, and dead to everybody else; its children too."""
        pids = [self.running.process.pid, *self.running.children()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    # --- questions ----------------------------------------------------------------------------------------------------

    def request(self, method: str, path: str, body: Any = None, timeout: float = PATIENCE) -> tuple[int, Any]:
        """Status and decoded answer, over the unix socket: it reaches into network namespaces."""
        with _connection(self.running, timeout) as connection:
            headers = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            data = response.read()
            is_json = "json" in (response.getheader("content-type") or "")
            return response.status, json.loads(data) if is_json else data.decode()

    def status(self) -> dict[str, Any]:
        """Of the swarm: name, id, state, and the counters of its peers beside them: discovered, usable and so on."""
        swarm = self.request("GET", "/gnus/v1/status")[1]["swarm"]
        return swarm | swarm["peers"]

    def peers(self) -> dict[str, dict[str, Any]]:
        """The peer table by PeerID."""
        listed = self.request("GET", "/gnus/v1/peers")[1]
        return {entry["peer"]: entry for entry in listed["data"]}

    def streams_active(self) -> float:
        """Generations that hold a slot of this node's models."""
        text = self.request("GET", "/metrics")[1]
        lines = [line for line in text.splitlines() if line.startswith("gnusnode_streams_active{")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def await_alive(self) -> None:
        """Until it answers at all; it may be withheld its roles."""
        self.running.run_info()
        self.until(lambda: self.request("GET", "/healthz")[0] == 200, "answers")

    def await_ready(self) -> None:
        self.running.run_info()
        self.until(lambda: self.request("GET", "/readyz")[0] == 200, "is ready")

    def await_usable(self, count: int) -> None:
        """Until exactly ``count`` peers are usable."""
        self.until(lambda: self.status()["usable"] == count, f"has {count} usable peers")

    def await_answer(self, **fields: Any) -> dict[str, Any]:
        """A short chat answer, as soon as somebody can give one."""
        got: list[dict[str, Any]] = []

        def ask() -> bool:
            status, answer = self.request("POST", "/v1/chat/completions", chat(**({"max_tokens": 4} | fields)))
            assert status in {200, 404, 502, 503, 504}, answer  # nobody has it yet; anything else will not pass
            got.append(answer)
            return status == 200

        self.until(ask, "gets an answer")
        return got[-1]

    def until(self, holds: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
        """Waits until ``holds``; the message of a failure has the swarm's state and the end of the log."""
        deadline = time.monotonic() + patience
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if holds():
                    return
            code = self.running.process.poll()
            assert code is None, f"{self.name} ended with {code}: {self.running.tail()}"
            if time.monotonic() > deadline:
                raise AssertionError(f"never: {self.name} {what}; {self._state()}; {self.running.tail()}")
            time.sleep(LOOK)

    def _state(self) -> str:
        with contextlib.suppress(OSError, http.client.HTTPException, KeyError, TypeError):
            return f"swarm {self.status()}, peers {self.peers()}"
        return "it does not say its state"


@dataclass
class Swarm:
    """Nodes in ``folder``, all with the settings ``env``. ``swarm`` ends all of them."""

    folder: Path
    env: Mapping[str, str]
    members: list[Member] = field(default_factory=list[Member])

    @property
    def first(self) -> Member:
        return self.members[0]

    def node(self, name: str, *flags: str, env: dict[str, str] | None = None, host: Host | None = None) -> Member:
        """A node that belongs to nothing and does not run yet."""
        home = self.folder / name
        member = Member(home, flags, {**self.env, **(env or {})}, host)
        member.command("init")
        self.members.append(member)
        return member

    def found(
        self,
        *flags: str,
        name: str = "founder",
        options: Sequence[str] = (),
        env: dict[str, str] | None = None,
        host: Host | None = None,
    ) -> Member:
        """The first node, running: it takes requests and has no model unless ``flags`` say otherwise."""
        flags = flags or ("--roles", "ingress,router,core", "--no-model")
        member = self.node(name, *flags, env=env, host=host)
        member.command("swarm", "init", "lab", *options)
        member.start()
        member.await_ready()
        return member

    def join(
        self,
        name: str,
        *flags: str,
        roles: str = "core,elm",
        env: dict[str, str] | None = None,
        host: Host | None = None,
        start: bool = True,
    ) -> Member:
        """A node that was invited by the first one, joined and started; ``await_ready`` says when it serves."""
        member = self.node(name, "--roles", roles, *flags, env=env, host=host)
        member.command("swarm", "join", self.invite(roles))
        if start:
            member.start()
        return member

    def invite(self, roles: str = "core,elm") -> str:
        """A token of the first node."""
        return self.first.json("swarm", "invite", "--roles", roles)["token"]


@contextmanager
def swarm(folder: Path, env: Mapping[str, str] = QUICK) -> Iterator[Swarm]:
    """A swarm without nodes; at the end every process is gone, however the test ended."""
    made = Swarm(folder, env)
    try:
        yield made
    finally:
        for member in made.members:
            if member.process is not None and member.process.process.poll() is None:
                member.process.process.terminate()
        for member in made.members:
            if member.process is not None:
                try:
                    member.process.process.wait(10)
                except subprocess.TimeoutExpired:
                    member.kill()


# --- chats ------------------------------------------------------------------------------------------------------------


def chat(**fields: Any) -> dict[str, Any]:
    """The body of a repeatable chat request."""
    return {
        "model": "gnus",
        "messages": QUESTION,
        "temperature": 0,
        "max_tokens": 96,
        "gnus": {"profile": "canonical"},
    } | fields


@dataclass
class Streamed:
    """What a client saw of a streamed answer."""

    status: int
    node: str
    """``x-gnus-node``."""
    text: str = ""
    times: list[float] = field(default_factory=list[float])
    """``time.monotonic`` of each piece of text."""
    end: str = "hung up"
    """``done`` (with ``[DONE]``), ``error`` (an error event), ``hung up`` or ``silent`` (nothing for too long)."""
    ended: float = 0.0
    error: dict[str, Any] = field(default_factory=dict[str, Any])
    gnus: dict[str, Any] = field(default_factory=dict[str, Any])
    finish_reason: str | None = None


def stream(
    member: Member,
    body: dict[str, Any] | None = None,
    *,
    at: int = 0,
    then: Callable[[Streamed], None] | None = None,
    silence: float = PATIENCE,
) -> Streamed:
    """Reads a streamed answer to its end, whichever; ``then`` is called once, after ``at`` pieces of text.

    Args:
        silence: seconds without a token, an event or the end after which the stream counts as hung.
    """
    with _connection(member.running, silence) as connection:
        request = (body or chat()) | {"stream": True}
        connection.request("POST", "/v1/chat/completions", json.dumps(request), {"Content-Type": "application/json"})
        response = connection.getresponse()
        seen = Streamed(response.status, response.getheader("x-gnus-node") or "")
        if response.status != 200:
            seen.end, seen.error = "error", json.loads(response.read())["error"]
            return seen
        try:
            for line in _lines(response, silence):
                if line.startswith(b"data:") and _take(seen, line[5:].strip()):
                    break
                if then is not None and len(seen.times) >= at:
                    then(seen)
                    then = None
        except TimeoutError:
            seen.end = "silent"
        except (OSError, http.client.HTTPException):
            seen.end = "hung up"
        seen.ended = time.monotonic()
        return seen


def _lines(response: http.client.HTTPResponse, silence: float) -> Iterator[bytes]:
    """Lines of the stream; keep-alive comments do not count as signs of life. Raises ``TimeoutError``."""
    deadline = time.monotonic() + silence
    while line := response.readline():
        if line.startswith(b"data:"):
            deadline = time.monotonic() + silence
        elif time.monotonic() > deadline:
            raise TimeoutError
        yield line


def _take(seen: Streamed, data: bytes) -> bool:
    """One event; whether it is the last."""
    if data == b"[DONE]":
        seen.end = "done"
        return True
    event = json.loads(data)
    if "error" in event:
        seen.end, seen.error = "error", event["error"]
        return True
    seen.gnus |= event.get("gnus") or {}
    for choice in event.get("choices", ()):
        seen.finish_reason = choice.get("finish_reason") or seen.finish_reason
        if text := choice["delta"].get("content"):
            seen.text += text
            seen.times.append(time.monotonic())
    return False


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@contextmanager
def _connection(node: NodeProcess, timeout: float) -> Iterator[http.client.HTTPConnection]:
    connection = _UnixConnection(node.run_info()["socket"], timeout)
    try:
        yield connection
    finally:
        connection.close()


def free_port() -> int:
    """A port that nobody listens on, and that no outgoing connection gets.

    Below the range of those: a node that dials a stopped neighbour's port there may end up connected to itself, and
    then holds the port.
    """
    for port in random.sample(range(20_000, 32_000), 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")
