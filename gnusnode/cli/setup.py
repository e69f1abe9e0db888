"""Making a home, and waiting for the end of the node that ran on it."""

from __future__ import annotations

import time
from typing import Any

from gnusnode.config.files import replace_file
from gnusnode.config.load import load, profiles
from gnusnode.config.lock import HomeLock
from gnusnode.config.paths import Home
from gnusnode.config.resources import configs_dir
from gnusnode.errors import AlreadyRunning, ConfigError, NotRunning, storage_error
from gnusnode.identity import NodeIdentity

EXAMPLE = "gnusnode.toml.example"


def initialise(home: Home, profile: str | None) -> dict[str, Any]:
    """Makes folders, key and a commented configuration; keeps what is there.

    Raises:
        ConfigError: no such profile, or the existing file is not valid.
        DataError, DiskFull: the home cannot be made or its key is not safe.
    """
    if profile is not None and profile not in profiles():
        raise ConfigError(f"there is no profile {profile!r}", where="--profile", hint=f"one of {', '.join(profiles())}")
    home.ensure()
    identity = NodeIdentity.load_or_create(home.key)
    if not home.config.exists():
        text = (configs_dir() / EXAMPLE).read_text("utf-8")
        if profile:
            text = _with_profile(text, profile)
        try:
            replace_file(home.config, text.encode("utf-8"))
        except OSError as error:
            raise storage_error(error, home.config, "cannot write the configuration") from error
    loaded = load(home)
    return {
        "peer_id": identity.peer_id,
        "home": str(home.root),
        "config": str(home.config),
        "profile": loaded.settings.profile,
    }


def _with_profile(text: str, profile: str) -> str:
    """The example with the profile's line in force."""
    lines = text.splitlines(keepends=True)
    for index, line in enumerate(lines):
        if line.startswith("# profile = "):
            lines[index] = f'profile = "{profile}"\n'
            return "".join(lines)
    return f'profile = "{profile}"\n{text}'


def await_end(home: Home, timeout: float) -> None:
    """Returns once no node holds the home any more.

    Raises:
        NotRunning: it still runs after ``timeout`` seconds (code 7: timeout).
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            HomeLock.acquire(home).close()
            return
        except AlreadyRunning as error:
            if time.monotonic() >= deadline:
                raise NotRunning(
                    f"the node has not ended after {timeout:g} s", where=str(home.root), hint="stop it with a signal"
                ) from error
        time.sleep(0.05)  # another process: flock offers nothing to await with a time limit
