"""A real Docker Engine for tests: one that is running, or one of our own that ends with the tests.

Needs root and the program ``dockerd`` (Debian: ``docker.io``) to start one. ``GNUSNODE_TEST_DOCKER`` names the socket
of another; one that was started by hand for many runs is found at ``gnusnode-dockerd/docker.sock`` under the temporary
directory. Where there is none, the tests that need one are skipped with the reason written.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
import trio

from sandbox.run.docker import images
from sandbox.run.docker.engine import Engine
from sandbox.run.image import Image

USUAL = ("/var/run/docker.sock", f"{tempfile.gettempdir()}/gnusnode-dockerd/docker.sock")
START_WITHIN = 60.0


def answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(path)
        except OSError:
            return False
    return True


def another_runs() -> bool:
    """A second engine without a bridge would take the first one's away."""
    names = [path.read_text().strip() for path in Path("/proc").glob("[0-9]*/comm") if path.exists()]
    return "dockerd" in names


@cache
def find() -> tuple[str, str]:
    """The socket of an engine, or an empty text and the reason why there is none."""
    if named := os.environ.get("GNUSNODE_TEST_DOCKER"):
        return (named, "") if answers(named) else ("", f"nothing answers at GNUSNODE_TEST_DOCKER={named}")
    for usual in USUAL:
        if answers(usual):
            return usual, ""
    program = shutil.which("dockerd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if program is None:
        return "", "no Docker Engine: there is no dockerd here (Debian: docker.io)"
    if os.geteuid():
        return "", "no Docker Engine: starting one needs root"
    if another_runs():
        return "", "no Docker Engine: one runs already, but not where GNUSNODE_TEST_DOCKER says"
    return start(program)


def start(program: str) -> tuple[str, str]:
    """Starts an engine in a directory of its own; it ends with this process."""
    home = Path(tempfile.mkdtemp(prefix="gnusnode-dockerd-"))
    ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ready.bind(str(home / "notify"))
    ready.settimeout(START_WITHIN)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program, "--bridge=none", "--iptables=false", "--ip6tables=false", f"--data-root={home}/data",
                f"--exec-root={home}/exec", f"--pidfile={home}/pid", f"--host=unix://{home}/socket",
            ],
            env={**os.environ, "NOTIFY_SOCKET": str(home / "notify")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )  # fmt: skip
    atexit.register(stop, process, home)
    try:
        while b"READY=1" not in ready.recv(4096):
            pass
    except TimeoutError:
        last = (home / "log").read_text("utf-8", "replace").strip().splitlines()[-1:]
        return "", f"no Docker Engine: dockerd did not start: {''.join(last)[:300]}"
    finally:
        ready.close()
    return f"{home}/socket", ""


def stop(process: subprocess.Popen[bytes], home: Path) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shutil.rmtree(home, ignore_errors=True)


@cache
def loaded_image(path: str) -> Image:
    directory = Path(tempfile.mkdtemp(prefix="gnusnode-image-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return trio.run(images.provide, Engine(path), directory / "image.tar")


@pytest.fixture(scope="session")
def docker_socket() -> str:
    """The socket of a Docker Engine."""
    path, reason = find()
    if not path:
        pytest.skip(reason)
    return path


@pytest.fixture(scope="session")
def docker_image(docker_socket: str) -> Image:
    """The image of this Python, made and loaded."""
    return loaded_image(docker_socket)
