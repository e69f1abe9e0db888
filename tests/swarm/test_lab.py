"""The namespace lab itself: its cables do what the tests of the swarm rely on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from scripts.lab.lab import Host, LabUnavailable, lab, why_not

ECHO = """
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("0.0.0.0", 7000))
print("ready", flush=True)
while True:
    data, sender = server.recvfrom(100)
    server.sendto(data, sender)
"""
ASK = """
import json, socket, sys, time
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(float(sys.argv[3]))
times = []
for number in range(int(sys.argv[2])):
    began = time.monotonic()
    try:
        client.sendto(str(number).encode(), (sys.argv[1], 7000))
        while client.recvfrom(100)[0] != str(number).encode():
            pass
        times.append(time.monotonic() - began)
    except OSError:
        pass
print(json.dumps(times))
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    if reason := why_not():
        pytest.skip(f"no namespace lab on this machine: {reason}")
    try:
        with lab(2) as found:
            server = subprocess.Popen([*found[1].prefix, sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True)
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            yield found
            server.kill()
            server.wait()
            server.stdout.close()
    except LabUnavailable as error:
        pytest.skip(f"no namespace lab on this machine: {error}")


def round_trips(hosts: list[Host], count: int, patience: float = 1.0) -> list[float]:
    """Seconds of each datagram that came back."""
    words = [sys.executable, "-c", ASK, hosts[1].address, str(count), str(patience)]
    done = subprocess.run([*hosts[0].prefix, *words], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_a_delayed_cable_costs_its_delay_each_way(hosts: list[Host]) -> None:
    hosts[1].shape(delay=80)
    try:
        times = round_trips(hosts, 3)
        assert len(times) == 3
        assert min(times) >= 0.16
    finally:
        hosts[1].shape()


def test_a_lossy_cable_loses_some_and_not_all(hosts: list[Host]) -> None:
    round_trips(hosts, 1)  # the addresses of the hosts are known from here on
    hosts[1].shape(loss=0.3)
    try:
        assert 0 < len(round_trips(hosts, 40, patience=0.05)) < 40
    finally:
        hosts[1].shape()


def test_a_cut_cable_carries_nothing_and_a_mended_one_everything(hosts: list[Host]) -> None:
    hosts[1].cut()
    try:
        assert round_trips(hosts, 2, patience=0.2) == []
    finally:
        hosts[1].mend()
    assert len(round_trips(hosts, 2)) == 2


def test_a_link_that_goes_down_comes_back(hosts: list[Host]) -> None:
    hosts[1].down()
    try:
        assert round_trips(hosts, 1, patience=0.2) == []
    finally:
        hosts[1].up()
    assert round_trips(hosts, 8) != []


def test_a_rate_limits_what_passes(hosts: list[Host]) -> None:
    hosts[1].shape(rate=500)  # a datagram takes about 43 bytes, so each way takes some 86 ms
    try:
        assert min(round_trips(hosts, 3)) >= 0.15
    finally:
        hosts[1].shape()
