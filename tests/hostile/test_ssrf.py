"""Nobody makes the guard reach what is not public: every trick, against real sockets, in a network of the test's own.

Two hosts: on one the fetcher runs, with a name server; the other one is every address there is, public or not. Whatever
listens there tells of each connection, and only the public servers may have any.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.lab.lab import Host, LabUnavailable, lab, why_not
from tests.hostile.ssrf_cases import CONTROLS, OWN_PUBLIC, PUBLIC, PUBLIC_V6, TRICKS, Case

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class World:
    fetcher: Host
    canaries: list[subprocess.Popen[str]]

    def outcomes(self, way: str, cases: list[Case]) -> list[str]:
        """What became of each case."""
        asked = json.dumps([[case.url, case.domains] for case in cases])
        command = [*self.fetcher.prefix, sys.executable, "-m", "tests.hostile.ssrf_probe", way]
        done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=100, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def connections(self) -> list[str]:
        """All connections since the world began, and the end of it."""
        lines: list[str] = []
        for canary in self.canaries:
            out, _ = canary.communicate(timeout=20)
            lines += out.splitlines()
        return lines


@contextmanager
def resolver(namespace: str) -> Iterator[None]:
    """Name resolution of its own for a namespace: ``ip netns exec`` lays these files over those in /etc."""
    folder = Path("/etc/netns") / namespace
    folder.mkdir(parents=True)
    try:
        (folder / "resolv.conf").write_text("nameserver 127.0.0.1\nsearch evil.example\noptions timeout:2 attempts:1\n")
        (folder / "nsswitch.conf").write_text("hosts: files dns\n")
        (folder / "hosts").write_text("127.0.0.1 localhost alias.example\n")
        yield
    finally:
        shutil.rmtree(folder)
        with suppress(OSError):  # other namespaces have theirs
            folder.parent.rmdir()


@pytest.fixture
def world() -> Iterator[World]:
    if reason := why_not():
        pytest.skip(f"no namespace lab on this machine: {reason}")
    with ExitStack() as stack:
        try:
            fetcher, rest = stack.enter_context(lab(2))
        except LabUnavailable as error:
            pytest.skip(f"no namespace lab on this machine: {error}")
        stack.enter_context(resolver(fetcher.namespace))
        wire(fetcher, rest)
        canaries = [
            stack.enter_context(
                subprocess.Popen(
                    [*host.prefix, sys.executable, "-m", "tests.hostile.ssrf_world", part],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=ROOT,
                )
            )
            for host, part in ((fetcher, "FETCHER"), (rest, "REST"))
        ]
        for canary in canaries:
            stack.callback(canary.kill)
            assert canary.stdout is not None
            assert canary.stdout.readline() == "ready\n"
        yield World(fetcher, canaries)


def wire(fetcher: Host, rest: Host) -> None:
    """Every packet of the fetcher goes to the other host, which takes every address for its own."""

    def ip(host: Host, *words: str) -> None:
        subprocess.run(["ip", "-n", host.namespace, *words], check=True, timeout=20, capture_output=True)

    for host, number in ((fetcher, 1), (rest, 2)):
        ip(host, "addr", "add", f"fe80::77:{number}/64", "dev", "eth0", "nodad")
        ip(host, "addr", "add", f"2606:2800:220:77::{number}/64", "dev", "eth0", "nodad")
    ip(fetcher, "addr", "add", f"{OWN_PUBLIC}/32", "dev", "eth0")
    ip(fetcher, "-6", "route", "add", "default", "via", "fe80::77:2", "dev", "eth0")
    # In the table of ordinary routes, so that the way back to the fetcher is not local as well.
    ip(rest, "route", "replace", "local", "0.0.0.0/0", "dev", "lo", "table", "main")
    ip(rest, "-6", "route", "add", "local", "::/0", "dev", "lo", "table", "main")


@pytest.mark.requirement("A-TOOL-2")
def test_no_trick_connects_to_what_is_not_public_and_each_is_refused_with_its_reason(world: World) -> None:
    assert len(TRICKS) >= 60

    found = world.outcomes("CLIENT", CONTROLS + TRICKS)

    reached = {f"reached {PUBLIC}", f"reached {PUBLIC_V6}"}
    assert [(case.name, got) for case, got in zip(CONTROLS, found, strict=False) if got not in reached] == []
    refused = found[len(CONTROLS) :]
    assert [(c.name, c.reason, got) for c, got in zip(TRICKS, refused, strict=True) if got != c.reason] == []
    assert strays(world.connections()) == set()


def test_the_transport_alone_under_a_stock_client_connects_to_nothing_else_either(world: World) -> None:
    cases = [case for case in CONTROLS + TRICKS if case.domains is None]

    found = dict(zip([case.name for case in cases], world.outcomes("TRANSPORT", cases), strict=True))

    reached = {f"reached {PUBLIC}", f"reached {PUBLIC_V6}"}
    let_through = [case.name for case in cases if case.reason and found[case.name].startswith("reached")]
    # It asks for no robots.txt first, so a name that changes its answer later is asked once only.
    assert let_through == ["rebinding after the first connection"]
    assert found["rebinding after the first connection"] in reached
    assert {found[case.name] for case in CONTROLS if case.domains is None} <= reached
    assert strays(world.connections()) == set()


def test_the_canaries_would_tell(world: World) -> None:
    sing = (
        "import urllib.request as r;"
        "[r.urlopen(u, timeout=5).read() for u in ('http://127.0.0.1/', 'http://169.254.169.254/', "
        "'http://[2002:a9fe:a9fe::1]/', 'http://int.example/', 'http://[::1]:8000/', 'http://192.168.7.7:6379/')]"
    )
    subprocess.run([*world.fetcher.prefix, sys.executable, "-c", sing], check=True, timeout=60)

    told = {line.split()[0] for line in strays(world.connections())}

    assert told == {"127.0.0.1", "169.254.169.254", "2002:a9fe:a9fe::1", "::1", "192.168.7.7"}


def strays(connections: list[str]) -> set[str]:
    """Connections that no guarded fetcher may make."""
    allowed = {f"{PUBLIC} 80", f"{PUBLIC_V6} 80"}
    return {line for line in connections if " ".join(line.split()[:2]) not in allowed}
