"""Hosts on one machine: network namespaces on a switch whose cables can be delayed, made lossy and cut.

    sudo python scripts/lab/lab.py 3

opens a lab of three hosts with a prompt; ``Lab`` is the same for tests. Needs root, ``ip`` and ``/dev/net/tun``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent))
from switch import Cable, Switch

PREFIX: Final = "gnuslab"
NETWORK: Final = "10.77.0"
"""Inside the namespaces only: it touches no real network."""
HELP: Final = """\
  shape HOST [delay=MS] [loss=0..1] [rate=BYTES/S]    each way; what is not named becomes 0
  cut HOST | mend HOST      frames vanish silently, as behind a cut cable
  down HOST | up HOST       the host's interface loses its carrier
  traffic                   bytes that each host has sent and received
  quit"""


class LabUnavailable(Exception):
    """This machine cannot have a lab; the text says why."""


@dataclass(frozen=True)
class Host:
    """A namespace with one interface, ``eth0``."""

    name: str
    namespace: str
    address: str
    cable: Cable

    @property
    def prefix(self) -> list[str]:
        """What makes a command run on this host; the process keeps its pid."""
        return ["ip", "netns", "exec", self.namespace]

    def shape(self, *, delay: float = 0, loss: float = 0, rate: float = 0) -> None:
        """Milliseconds each way, probability each way, bytes per second each way."""
        self.cable.delay_s, self.cable.loss, self.cable.bytes_per_second = delay / 1000, loss, rate

    def cut(self) -> None:
        self.cable.is_cut = True

    def mend(self) -> None:
        self.cable.is_cut = False

    def down(self) -> None:
        _ip("-n", self.namespace, "link", "set", "eth0", "down")

    def up(self) -> None:
        _ip("-n", self.namespace, "link", "set", "eth0", "up")


def why_not() -> str | None:
    """What this machine lacks for a lab; None: nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the command `ip` (iproute2) is missing"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun is missing: the module tun is not loaded, or this is a container without it"
    return None


@contextmanager
def lab(count: int) -> Iterator[list[Host]]:
    """``count`` hosts that reach each other. At the end namespaces, cables and whatever still runs there are gone.

    Raises:
        LabUnavailable: see ``why_not``, or the kernel refused.
    """
    if reason := why_not():
        raise LabUnavailable(reason)
    sweep()
    with ExitStack() as stack:
        hosts: list[Host] = []
        cables: list[Cable] = []
        try:
            for number in range(1, count + 1):
                namespace = f"{PREFIX}-{os.getpid()}-{number}"
                _ip("netns", "add", namespace)
                stack.callback(_remove, namespace)
                cable = Cable.open(f"gl{os.getpid() % 1_000_000}-{number}")
                cables.append(cable)
                hosts.append(_wire(number, namespace, cable))
        except (OSError, subprocess.CalledProcessError) as error:
            for cable in cables:
                os.close(cable.fd)
            said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
            raise LabUnavailable(f"the kernel refused a namespace or a cable: {said}") from error
        stack.enter_context(Switch(cables))
        yield hosts


def sweep() -> None:
    """Removes the namespaces of labs whose process is gone."""
    for line in _ip("netns", "list").splitlines():
        name = line.split()[0] if line.split() else ""
        found = re.fullmatch(rf"{PREFIX}-(\d+)-\d+", name)
        if found and not Path(f"/proc/{found[1]}").exists():
            _remove(name)


def _wire(number: int, namespace: str, cable: Cable) -> Host:
    address = f"{NETWORK}.{number}"
    _ip("link", "set", cable.name, "netns", namespace, "name", "eth0")
    _ip("-n", namespace, "link", "set", "lo", "up")
    _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
    _ip("-n", namespace, "link", "set", "eth0", "up")
    # Multicast (mDNS) and whoever asks for "the" own address by the way to anywhere.
    _ip("-n", namespace, "route", "add", "default", "dev", "eth0")
    return Host(f"host-{number}", namespace, address, cable)


def _remove(namespace: str) -> None:
    """The namespace, and first the processes in it: they would keep it."""
    with suppress(subprocess.CalledProcessError):
        for pid in _ip("netns", "pids", namespace).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        _ip("netns", "del", namespace)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True, timeout=20).stdout


def main(arguments: Sequence[str] | None = None) -> None:
    """Opens a lab with a prompt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hosts", type=int, help="how many hosts, 1 to 250")
    count = parser.parse_args(arguments).hosts
    if not 1 <= count <= 250:
        parser.error("1 to 250 hosts")
    try:
        with lab(count) as hosts:
            for host in hosts:
                print(f"{host.name}  {host.address}  run there:  {' '.join(host.prefix)} COMMAND")
            print(HELP)
            _prompt(hosts)
    except LabUnavailable as error:
        raise SystemExit(f"no lab here: {error}") from error
    except KeyboardInterrupt:
        print()


def _prompt(hosts: list[Host]) -> None:
    for line in iter(_ask, "quit"):
        words = line.split()
        try:
            if words:
                _obey(hosts, *words)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            print(f"not understood ({error}):\n{HELP}")


def _ask() -> str:
    try:
        return input("lab> ").strip()
    except EOFError:
        return "quit"


def _obey(hosts: list[Host], verb: str, *words: str) -> None:
    if verb == "traffic":
        for host in hosts:
            print(f"{host.name}  sent {host.cable.sent} bytes  received {host.cable.received}")
        return
    number = int(words[0].removeprefix("host-"))
    host = {index: host for index, host in enumerate(hosts, 1)}[number]
    if verb == "shape":
        given = dict(word.split("=", 1) for word in words[1:])
        host.shape(**{key: float(value) for key, value in given.items()})
    else:
        {"cut": host.cut, "mend": host.mend, "down": host.down, "up": host.up}[verb]()


if __name__ == "__main__":
    main()
