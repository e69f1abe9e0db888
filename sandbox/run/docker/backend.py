"""Docker as a ``SandboxBackend``: one container a job, cold or warm, with our own system call list."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import trio

from gnusnode.errors import GnusError, Unavailable
from sandbox.linux import MACHINE
from sandbox.run import boot, seccomp, selftest
from sandbox.run.docker.container import Container
from sandbox.run.docker.engine import Engine
from sandbox.run.docker.spec import ContainerSpec
from sandbox.run.groups import leaves
from sandbox.run.pool import MAX_AGE, WarmPool
from sandbox.run.types import (
    NO_GRANTS,
    Availability,
    Boundary,
    Control,
    Feature,
    Grants,
    Job,
    Limits,
    Result,
    SelfTestReport,
    Status,
    Strength,
)

DEFAULT_SOCKET: Final = "/var/run/docker.sock"
LABEL: Final = "gnusnode.sandbox"
OWNER_LABEL: Final = f"{LABEL}.owner"
DEADLINE_LABEL: Final = f"{LABEL}.deadline"
_START_MARGIN: Final = 120.0
"""Seconds that starting, killing and removing may take besides the job's own."""
_SAFE_RUNC: Final = (1, 1, 12)
_LIMITS_OF_ENGINE: Final = ("MemoryLimit", "SwapLimit", "PidsLimit", "CpuCfsQuota")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """What runs the containers, and what that makes of the boundary.

    Attributes:
        name: the profile's name.
        runtime: the engine's name of it.
        seccomp: the system call list as JSON text; None leaves the engine's own, which the self-test refuses.
        extra_memory_bytes: what the runtime itself needs inside a container's limit.
    """

    name: str
    runtime: str
    boundary: Boundary
    controls: frozenset[Control] = frozenset(Control)
    features: frozenset[Feature] = frozenset(Feature)
    seccomp: str | None
    extra_memory_bytes: int = 0


RUNC: Final = Flavour(name="docker", runtime="runc", boundary=Boundary.SHARED_KERNEL, seccomp=seccomp.compact())


class DockerBackend:
    """Runs jobs in containers of a Docker Engine on this machine.

    Args:
        image_id: ``sha256:<hex>`` of the image; nothing else is ever used.
        interpreter: path of Python in it.
        node: whose containers they are: every container carries it, and ``sweep`` removes by it. One process at a time
            may use a node's name.
        socket: the engine's Unix socket.
        warm: how many sandboxes may wait at once while ``keep_warm`` runs.
        warm_limits: the limits of those; a job with other ones gets a cold sandbox.
        at_once: jobs that may run at the same time; others wait.
        trouble: told why a sandbox could not be prepared.
    """

    def __init__(
        self,
        *,
        image_id: str,
        node: str,
        socket: str = DEFAULT_SOCKET,
        interpreter: str = boot.INTERPRETER,
        flavour: Flavour = RUNC,
        warm: int = 4,
        warm_limits: Limits = Limits(),  # noqa: B008 - frozen
        at_once: int = 4,
        trouble: Callable[[GnusError], None] | None = None,
    ) -> None:
        self.engine = Engine(socket)
        self._image_id = image_id
        self._interpreter = interpreter
        self._node = node
        self._flavour = flavour
        self._owner = secrets.token_hex(8)
        self._slots = trio.CapacityLimiter(at_once)
        self._warm_limits = warm_limits
        self._pool = WarmPool(self._open_warm, most=warm, failed=trouble)
        self._image_config: dict[str, Any] | None = None
        self._closed = False

    @property
    def name(self) -> str:
        return self._flavour.name

    @property
    def waiting(self) -> int:
        """Sandboxes that wait for a job."""
        return self._pool.waiting

    @property
    def is_full(self) -> bool:
        """As many wait as are wanted."""
        return self._pool.waiting >= self._pool.wanted

    async def probe(self) -> Availability:
        """Whether the engine is there, can enforce every limit, and has the image. Never raises."""
        try:
            version, info = await self.engine.version(), await self.engine.info()
            image = await self.engine.image(self._image_id)
        except GnusError as error:
            return Availability(available=False, reason=str(error))
        if reason := _missing(info, self._flavour):
            return Availability(available=False, reason=reason)
        if image is None:
            return Availability(
                available=False, reason=f"the image {self._image_id} is not loaded: run `gnusnode sandbox image`"
            )
        parts = _parts(version)
        strength = Strength(
            boundary=self._flavour.boundary,
            engine=f"docker+{self._flavour.runtime}",
            engine_version=", ".join(f"{name} {parts[name]}" for name in sorted(parts)),
            image_digest=self._image_id,
            seccomp_digest=seccomp.digest_of(self._flavour.seccomp) if self._flavour.seccomp else None,
            controls=self._flavour.controls,
            features=self._flavour.features,
        )
        return Availability(available=True, strength=strength, warnings=_warnings(parts))

    async def self_test(self) -> SelfTestReport:
        """Proves the declared strength with a row of containers. Never raises."""
        return await selftest.prove(self)

    async def run(self, job: Job, limits: Limits, grants: Grants = NO_GRANTS) -> Result:
        """Runs ``job`` in a container of its own, a waiting one when its limits are the warm ones."""
        since = time.monotonic()
        result = Result(status=Status.INFRA, reason="this backend is closed")
        if self._closed:
            return result
        async with self._slots:
            try:
                result = await self._run(job, limits, grants, since)
            except* GnusError as errors:
                reason = "; ".join(str(error) for error in leaves(errors))
                result = Result(status=Status.INFRA, reason=reason, wall_seconds=time.monotonic() - since)
        return result

    async def _run(self, job: Job, limits: Limits, grants: Grants, since: float) -> Result:
        container = self._take_warm(limits, grants)
        warm = container is not None
        if container is None:
            container = await Container.start(self.engine, await self._spec(limits, grants, limits.wall_seconds))
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(container)  # removes it, whatever happens
            result = await container.perform(job, limits, since=since, warm=warm)
            if self._pool.retire(container):
                stack.pop_all()
            return result

    async def keep_warm(self) -> None:
        """Keeps sandboxes ready, and removes used ones behind the callers' backs, until cancelled; leaves none then."""
        await self._pool.serve()

    async def sweep(self) -> int:
        """Removes this node's containers that another process made, or that have outlived their time.

        Returns:
            How many they were.

        Raises:
            Unavailable: the engine does not answer.
        """
        found = await self.engine.with_label(f"{LABEL}={self._node}")
        stale = [container["Id"] for container in found if self._is_stale(container.get("Labels") or {})]
        for container in stale:
            await self.engine.remove(container)
        return len(stale)

    async def aclose(self) -> None:
        """Ends the sandboxes that wait; ``run`` answers ``infra`` from now on. Never raises."""
        self._closed = True
        await self._pool.drain()

    def _take_warm(self, limits: Limits, grants: Grants) -> Container | None:
        """A waiting container that is made as this job's must be. Wall time and output are not part of a container."""
        if grants != NO_GRANTS or not _made_alike(limits, self._warm_limits):
            return None
        return self._pool.take()

    async def _open_warm(self) -> Container:
        spec = await self._spec(self._warm_limits, NO_GRANTS, MAX_AGE + self._warm_limits.wall_seconds)
        return await Container.start(self.engine, replace(spec, warm=True))

    async def _spec(self, limits: Limits, grants: Grants, lifetime: float) -> ContainerSpec:
        if self._image_config is None:
            image = await self.engine.image(self._image_id)
            if image is None:
                raise Unavailable(f"the image {self._image_id} is not loaded", hint="run `gnusnode sandbox image`")
            self._image_config = image["Config"]
        config = self._image_config or {}
        return ContainerSpec(
            image_id=self._image_id,
            runtime=self._flavour.runtime,
            seccomp=self._flavour.seccomp,
            limits=limits,
            grants=grants,
            labels={
                LABEL: self._node,
                OWNER_LABEL: self._owner,
                DEADLINE_LABEL: str(int(time.time() + lifetime + _START_MARGIN)),
            },
            image_environment=tuple(config.get("Env") or ()),
            image_labels=config.get("Labels") or {},
            interpreter=self._interpreter,
            extra_memory_bytes=self._flavour.extra_memory_bytes,
        )

    def _is_stale(self, labels: dict[str, str]) -> bool:
        deadline = labels.get(DEADLINE_LABEL, "")
        return labels.get(OWNER_LABEL) != self._owner or not deadline.isdigit() or int(deadline) < time.time()


def _parts(version: dict[str, Any]) -> dict[str, str]:
    """The engine's parts that isolate, and their versions."""
    named = cast("list[dict[str, Any]]", version.get("Components") or [])
    parts = {str(part.get("Name")).lower(): str(part.get("Version")) for part in named}
    return {name: text for name, text in parts.items() if name != "docker-init"}


def _made_alike(a: Limits, b: Limits) -> bool:
    """Whether a container made for ``b`` enforces ``a``."""
    return (
        (a.memory_bytes, a.cpus, a.pids, a.tmp_bytes, a.open_files)
        == (b.memory_bytes, b.cpus, b.pids, b.tmp_bytes, b.open_files)
    ) and a.wall_seconds <= b.wall_seconds


def _missing(info: dict[str, Any], flavour: Flavour) -> str:
    """What this engine lacks to be a sandbox; empty: nothing."""
    if info.get("OSType") != "linux":
        return "the container engine does not run Linux containers"
    if MACHINE != seccomp.MACHINE or info.get("Architecture") != seccomp.MACHINE:
        return f"the system call list is written for {seccomp.MACHINE}, and this machine is {info.get('Architecture')}"
    if lacking := [name for name in _LIMITS_OF_ENGINE if info.get(name) is not True]:
        return f"the container engine cannot enforce {', '.join(lacking)}: enable these cgroup controllers"
    options: list[str] = info.get("SecurityOptions") or []
    if not any("name=seccomp" in option for option in options):
        return "the container engine was built without seccomp"
    if flavour.runtime not in (info.get("Runtimes") or {}):
        return f"the container engine knows no runtime {flavour.runtime}: add it to its configuration"
    return ""


def _warnings(parts: dict[str, str]) -> tuple[str, ...]:
    numbers = tuple(int(number) for number in re.findall(r"\d+", parts.get("runc", ""))[:3])
    if numbers and numbers < _SAFE_RUNC:
        return (
            f"runc {parts['runc']} is older than 1.1.12: unless your distribution patched it, a file descriptor leak "
            "lets a container out (CVE-2024-21626)",
        )
    return ()
