"""What a container is asked to be, and whether it became that. Pure.

What the engine says of the container that it made is compared with what was asked, field by field, before anything runs
in it. A field that nobody asked for must be empty, so that a setting which a newer engine adds, or a default of the
operator's, is noticed and refused rather than trusted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from sandbox.run import boot
from sandbox.run.types import Grants, Limits

USER: Final = "65534:65534"
_FILE_BYTES_OVER_TMP: Final = 1 << 20
_CPU_SECONDS_OVER_WALL: Final = 5
_NANO: Final = 1_000_000_000

_MASKED: Final = (
    "/dev/mqueue", "/proc/acpi", "/proc/asound", "/proc/cmdline", "/proc/config.gz", "/proc/diskstats",
    "/proc/interrupts", "/proc/kallsyms", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/modules",
    "/proc/partitions", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys",
)  # fmt: skip
"""What the engine hides by itself, and further what says much of the machine and nothing that a program needs."""
_READ_ONLY: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_ENGINE_DEFAULTS: Final[dict[str, tuple[Any, ...]]] = {
    "MemorySwappiness": (None, -1),
    "Isolation": ("", "default"),
    "ShmSize": (0, 67_108_864),  # of a /dev/shm that does not exist
    "OomKillDisable": (None, False),
}


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """Everything that makes one container.

    Attributes:
        image_id: ``sha256:<hex>``; never a tag.
        runtime: the engine's name of what runs it.
        seccomp: the system call list as JSON text; None leaves the engine's own, which the self-test refuses.
        labels: what the sweeper finds it by.
        image_environment: ``NAME=value`` that the image sets.
        image_labels: the labels that the image has.
        interpreter: path of Python in the image.
        extra_memory_bytes: given to the runtime's own processes besides the job's limit.
        warm: Python imports what most programs need before the job is there.
    """

    image_id: str
    runtime: str
    seccomp: str | None
    limits: Limits
    grants: Grants
    labels: Mapping[str, str]
    image_environment: tuple[str, ...] = ()
    image_labels: Mapping[str, str] = field(default_factory=dict[str, str])
    interpreter: str = boot.INTERPRETER
    extra_memory_bytes: int = 0
    warm: bool = False

    def body(self) -> dict[str, Any]:
        """The body of the engine's call that creates it."""
        return {**self._config(), "HostConfig": self._host_config()}

    def differences(self, found: Mapping[str, Any]) -> list[str]:
        """Where the engine's description of the container is not what was asked; empty: it may start."""
        lines = [
            *_compare("", self._expected_config(), found.get("Config") or {}),
            *_compare("HostConfig.", self._host_config(), found.get("HostConfig") or {}),
        ]
        if found.get("Image") != self.image_id:
            lines.append(f"Image is {found.get('Image')}, not {self.image_id}")
        if len(found.get("Mounts") or []) != len(self.grants.read):
            lines.append("Mounts: there is one that was not asked for")
        return lines + list(_unexpected(self._host_config(), found.get("HostConfig") or {}))

    def _config(self) -> dict[str, Any]:
        return {
            "Image": self.image_id,
            "User": USER,
            "Entrypoint": list(boot.command(self.interpreter, warm=self.warm)),
            "Cmd": [],
            "Env": [f"{name}={value}" for name, value in sorted(boot.ENVIRONMENT.items())],
            "WorkingDir": "/tmp",  # noqa: S108 - inside the sandbox
            "Hostname": "sandbox",
            "Labels": dict(self.labels),
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "OpenStdin": True,
            "StdinOnce": True,
            "Tty": False,
        }

    def _expected_config(self) -> dict[str, Any]:
        wanted = self._config()
        names = {line.partition("=")[0] for line in wanted["Env"]}
        kept = [line for line in self.image_environment if line.partition("=")[0] not in names]
        empty = {"Volumes": None, "ExposedPorts": None, "OnBuild": None, "Healthcheck": None}
        labels = {**self.image_labels, **self.labels}
        return {**wanted, **empty, "Cmd": None, "Labels": labels, "Env": _Unordered([*wanted["Env"], *kept])}

    def _host_config(self) -> dict[str, Any]:
        limits = self.limits
        memory = limits.memory_bytes + self.extra_memory_bytes
        security = ["no-new-privileges:true"]
        if self.seccomp is not None:
            security.append(f"seccomp={self.seccomp}")
        return {
            "Runtime": self.runtime,
            "NetworkMode": "none",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": security,
            "PidsLimit": limits.pids,
            "Memory": memory,
            "MemorySwap": memory,  # memory and swap together: no swap
            "NanoCpus": round(limits.cpus * _NANO),
            "CgroupnsMode": "private",
            "IpcMode": "none",  # no /dev/shm either
            "LogConfig": {"Type": "none", "Config": {}},  # else the whole output goes to the host's disk
            "MaskedPaths": list(_MASKED),
            "ReadonlyPaths": list(_READ_ONLY),
            "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
            "OomScoreAdj": 1000,
            "Tmpfs": {"/tmp": self._tmpfs()},  # noqa: S108 - inside the sandbox
            "Ulimits": [
                {"Name": "core", "Soft": 0, "Hard": 0},
                {"Name": "cpu", "Soft": self._cpu_seconds(), "Hard": self._cpu_seconds()},
                {"Name": "fsize", "Soft": self._file_bytes(), "Hard": self._file_bytes()},
                {"Name": "nofile", "Soft": limits.open_files, "Hard": limits.open_files},
            ],
            **({"Mounts": [_bind(grant.host, grant.inside) for grant in self.grants.read]} if self.grants.read else {}),
        }

    def _tmpfs(self) -> str:
        size = self.limits.tmp_bytes
        return f"rw,noexec,nosuid,nodev,size={size},nr_inodes={max(256, size // 4096)},mode=1777"

    def _cpu_seconds(self) -> int:
        """A backstop for a job whose node was killed: even an endless loop ends by itself."""
        return math.ceil(self.limits.wall_seconds * max(1.0, self.limits.cpus)) + _CPU_SECONDS_OVER_WALL

    def _file_bytes(self) -> int:
        return self.limits.tmp_bytes + _FILE_BYTES_OVER_TMP


class _Unordered(list[str]):
    """A list whose order says nothing."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and sorted(cast("list[str]", other)) == sorted(self)

    __hash__ = None  # pyright: ignore[reportAssignmentType] - a list has none


def _bind(host: str, inside: str) -> dict[str, Any]:
    return {"Type": "bind", "Source": host, "Target": inside, "ReadOnly": True}


def _compare(prefix: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    for name, value in wanted.items():
        if not (value == found.get(name) or (_empty(value) and _empty(found.get(name)))):
            yield f"{prefix}{name} is {str(found.get(name))[:80]}, not {str(value)[:80]}"


def _unexpected(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    for name, value in found.items():
        if name in wanted or _empty(value) or value in _ENGINE_DEFAULTS.get(name, ()):
            continue
        yield f"HostConfig.{name} is {str(value)[:80]}, which nobody asked for"


def _empty(value: object) -> bool:
    match value:
        case None | False | 0 | "":
            return True
        case dict():
            return not cast("dict[object, object]", value)
        case list():
            return all(_empty(item) for item in cast("list[object]", value))
        case _:
            return False
