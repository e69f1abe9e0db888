"""Proof that confinement holds on this machine: a throw-away child confines itself and then tries to break out.

``python -m sandbox.selfcheck`` is the child; ``self_check`` starts it and reads its answers. ``doctor`` shows them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandbox import confine

TIMEOUT: Final = 20.0


@dataclass(frozen=True)
class SelfCheck:
    """What a confined child could and could not do.

    Attributes:
        denied: attempt -> whether it was refused; every value should be True.
        works: ability that must survive -> whether it does; every value should be True.
        controls: the child's ``ConfineReport`` in plain form.
        error: why there is no answer, when there is none.
    """

    denied: dict[str, bool]
    works: dict[str, bool]
    controls: dict[str, Any]
    error: str = ""

    @property
    def holds(self) -> bool:
        return not self.error and all(self.denied.values()) and all(self.works.values())


def self_check(*, timeout: float = TIMEOUT) -> SelfCheck:
    """Runs the child and waits for it; blocks up to ``timeout`` seconds. Never raises."""
    with tempfile.TemporaryDirectory(prefix="gnusnode-check-") as directory:
        os.chmod(directory, 0o755)  # noqa: S103 - open to all, so that a refusal is confinement's doing
        (Path(directory) / "allowed").write_text("x")
        (Path(directory) / "other").write_text("x")
        try:
            done = subprocess.run(
                confine.launch_command("sandbox.selfcheck", directory),
                env=confine.launch_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout,
                check=True,
            )
            answer = json.loads(done.stdout)
            return SelfCheck(answer["denied"], answer["works"], answer["controls"])
        except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
            return SelfCheck({}, {}, {}, error=f"the check did not finish: {error}")


def _attempts(directory: str) -> dict[str, Callable[[], object]]:
    root = Path(directory)

    def connect() -> None:
        with socket.create_connection(("127.0.0.1", 9), timeout=1):
            pass

    def fork() -> None:
        if os.fork() == 0:
            os._exit(0)

    return {
        "network": connect,
        "read outside": (root / "other").read_text,
        "list outside": lambda: os.listdir(directory),
        "other processes": lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
        "write": lambda: (root / "allowed").write_text("y"),
        "create": lambda: (root / "new").write_text("y"),
        "delete": (root / "other").unlink,
        "exec": lambda: os.execv(sys.executable, [sys.executable, "-c", ""]),  # noqa: S606 - to be refused
        "fork": fork,
        "signal parent": lambda: os.kill(os.getppid(), 0),
    }


def _refused(attempt: Callable[[], object]) -> bool:
    # A refused connection is no proof: something answered. Only a want of permission counts.
    try:
        attempt()
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _thread_starts() -> bool:
    ran = threading.Event()
    thread = threading.Thread(target=ran.set)
    thread.start()
    thread.join()
    return ran.is_set()


def main() -> None:
    directory = sys.argv[1]
    allowed = str(Path(directory) / "allowed")
    attempts = _attempts(directory)
    report = confine.apply(confine.ConfineProfile(read_paths=(allowed,)))
    answer = {
        "denied": {name: _refused(attempt) for name, attempt in attempts.items()},
        "works": {"read model": Path(allowed).read_text() == "x", "threads": _thread_starts()},
        "controls": report.to_plain(),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
