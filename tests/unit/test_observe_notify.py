"""The notification protocol of systemd, with a real socket in the place of systemd."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from collections.abc import Iterator

import pytest

from gnusnode.observe.notify import notify, watchdog_seconds


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, str]]:
    with tempfile.TemporaryDirectory(prefix="g") as directory, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = f"{directory}/notify" if request.param == "path" else f"\0gnusnode-{secrets.token_hex(8)}"
        sock.bind(name)
        yield sock, name.replace("\0", "@")


def test_a_state_reaches_the_service_manager(listener: tuple[socket.socket, str]) -> None:
    sock, name = listener
    assert notify("READY=1\nSTATUS=läuft", {"NOTIFY_SOCKET": name})
    assert sock.recv(100).decode() == "READY=1\nSTATUS=läuft"


def test_a_manager_that_does_not_listen_never_blocks_the_node(listener: tuple[socket.socket, str]) -> None:
    _, name = listener
    sent = [notify("WATCHDOG=1", {"NOTIFY_SOCKET": name}) for _ in range(5000)]
    assert sent[0] is True
    assert sent[-1] is False


@pytest.mark.parametrize("address", [None, "", "relative", "/nowhere/at/all", "/" + "x" * 300, "vsock:2:1", "/a\0b"])
def test_without_a_manager_nothing_happens(address: str | None) -> None:
    assert notify("READY=1", {} if address is None else {"NOTIFY_SOCKET": address}) is False


@pytest.mark.parametrize(
    ("env", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "²"}, None),
    ],
)
def test_the_watchdog_is_fed_twice_as_often_as_asked(env: dict[str, str], seconds: float | None) -> None:
    assert watchdog_seconds(env) == seconds
