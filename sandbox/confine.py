"""What our own children lay on themselves before they touch anything that came from outside.

An engine child, a document parser or a probe calls ``apply`` first thing, while it has one thread, and then works with
a model file, a picture or a page that may be hostile. It can start nothing but its own threads, reach no network, and
open only what its profile names. Nothing here runs tools: that is the sandbox's other room.

Controls are independent: each is applied or reported with the reason why not, and the caller decides which ones it
cannot do without (``ConfineReport.require``). Off Linux only the limits exist.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gnusnode.errors import EngineFailed
from sandbox import landlock, linux, privileges, seccomp

_PROC: Final = ("/proc/self", "/proc/meminfo", "/proc/cpuinfo", "/proc/stat", "/proc/sys/vm/overcommit_memory")
_SYSTEM: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/etc/localtime")
_HARDWARE: Final = ("/sys/devices/system", "/sys/fs/cgroup")
_PLAIN_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_GPU_DEVICES: Final = ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/dri/*", "/dev/kfd", "/dev/dxg")
_GPU_READ: Final = (
    "/sys", "/proc/driver", "/proc/devices", "/proc/modules", "/etc/vulkan", "/etc/OpenCL", "/etc/nvidia",
    "/usr/share/vulkan", "/usr/share/nvidia", "/usr/local/cuda", "/opt/rocm", "/opt/intel",
)  # fmt: skip

_KEPT_ENVIRONMENT: Final = (
    "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "GGML_VK_VISIBLE_DEVICES",
    "ONEAPI_DEVICE_SELECTOR", "LLAMA_CPP_LIB_PATH",
)  # fmt: skip
"""Where libraries and devices are found; nothing that could hold a secret."""


@dataclass(frozen=True)
class ConfineProfile:
    """What a child keeps.

    Attributes:
        read_paths: files and directories it may read, besides Python and the system's libraries.
        devices: device nodes it may use.
        allow_gpu: adds the device nodes and driver files of NVIDIA, AMD and Intel GPUs.
        max_memory: bytes of address space; not applied with ``allow_gpu``, whose drivers map far more than they use.
        max_files: open descriptors.
        max_cpu_seconds: seconds of CPU after which the kernel ends it.
        allow_fork: it may make copies of itself, as confined as it is; other programs stay out of reach.
    """

    read_paths: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    allow_gpu: bool = False
    max_memory: int | None = None
    max_files: int = 128
    max_cpu_seconds: int | None = None
    allow_fork: bool = False


@dataclass(frozen=True)
class Control:
    """One thing that was, or could not be, given up."""

    name: str
    applied: bool
    detail: str


@dataclass(frozen=True)
class ConfineReport:
    controls: tuple[Control, ...] = field(default=())

    @property
    def missing(self) -> tuple[Control, ...]:
        return tuple(control for control in self.controls if not control.applied)

    def require(self, *names: str) -> None:
        """Fails closed.

        Raises:
            EngineFailed: one of ``names`` is not in force.
        """
        found = {control.name: control for control in self.controls}
        for name in names:
            control = found.get(name, Control(name, applied=False, detail="it was not tried"))
            if not control.applied:
                raise EngineFailed(
                    f"this machine cannot confine the process: {name}: {control.detail}",
                    hint="see `gnusnode doctor` for what the kernel lacks",
                )

    def to_plain(self) -> dict[str, Any]:
        return {control.name: {"applied": control.applied, "detail": control.detail} for control in self.controls}


def apply(profile: ConfineProfile) -> ConfineReport:
    """Confines this process for good. Call it once, with one thread, before anything from outside is read.

    Files that are open, and libraries that are loaded, stay usable. Never raises: the report says what failed.
    """
    steps = _limits(profile)
    if linux.IS_LINUX:
        steps += _linux_steps(profile)
    else:
        steps += [(name, _absent) for name in ("network-namespace", "identity", "landlock", "seccomp")]
    return ConfineReport(tuple(_attempt(name, step) for name, step in steps))


_Step = tuple[str, Callable[[], str]]


def _limits(profile: ConfineProfile) -> list[_Step]:
    wanted: dict[str, int | None] = {
        "CORE": 0,
        "NOFILE": max(profile.max_files, 1024) if profile.allow_gpu else profile.max_files,
        "AS": None if profile.allow_gpu else profile.max_memory,
        "CPU": profile.max_cpu_seconds,
    }
    return [
        (f"limit-{name.lower()}", lambda name=name, value=value: privileges.limit(name, value))
        for name, value in wanted.items()
        if value is not None
    ]


def _linux_steps(profile: ConfineProfile) -> list[_Step]:
    read = (*runtime_paths(), *profile.read_paths, *(_GPU_READ if profile.allow_gpu else ()))
    gpu = [path for pattern in _GPU_DEVICES for path in glob.glob(pattern)] if profile.allow_gpu else []
    devices = (*profile.devices, *gpu)
    needed = (*profile.read_paths, *_python_paths())

    def files() -> str:
        threads = linux.thread_count()
        version = landlock.restrict(read, (*_PLAIN_DEVICES, *devices))
        if threads > 1:
            raise OSError(11, f"{threads - 1} threads were running already and are not restricted")
        return f"version {version}: besides the runtime only {', '.join(profile.read_paths) or 'nothing'}"

    # The order matters: namespaces need capabilities, a change of identity clears the parent-death signal, and the
    # filter forbids most of what comes before it.
    return [
        ("network-namespace", privileges.leave_network),
        ("identity", lambda: privileges.drop_identity(needed, devices)),
        ("dies-with-parent", privileges.die_with_parent),
        ("no-new-privileges", privileges.no_new_privileges),
        ("landlock", files),
        ("seccomp", lambda: f"{seccomp.install(forks=profile.allow_fork)} instructions"),
    ]


def _attempt(name: str, step: Callable[[], str]) -> Control:
    try:
        return Control(name, applied=True, detail=step())
    except OSError as error:
        return Control(name, applied=False, detail=error.strerror or str(error))


def _absent() -> str:
    raise OSError(38, f"{sys.platform} has no such control")


def runtime_paths() -> tuple[str, ...]:
    """What the interpreter and native libraries read while they run. Not the home, not other processes."""
    return (*_python_paths(), *_SYSTEM, *_PROC, *_HARDWARE)


def _python_paths() -> tuple[str, ...]:
    """The interpreter, its libraries and our own packages; never the directory above a source checkout."""
    packages = Path(__file__).resolve().parent.parent
    paths = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.realpath(sys.executable)}
    paths |= {entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages", "lib-dynload")}
    paths |= {str(packages / name) for name in ("gnusnode", "sandbox")}
    if library := os.environ.get("LLAMA_CPP_LIB_PATH"):
        paths.add(library)
    paths.discard("/usr")  # a system Python: its libraries are under /usr/lib, which is listed
    return tuple(sorted(path for path in paths if os.path.exists(path)))


def launch_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment of a confined child: no PATH, no home, no credentials of the parent.

    Args:
        extra: variables to set besides.
    """
    root = str(Path(__file__).resolve().parent.parent)
    kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    return {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PYTHONPATH": root, "PYTHONUTF8": "1", **kept, **(extra or {})}


def launch_command(module: str, *arguments: str) -> list[str]:
    """The command that runs one of our own modules as a child: nothing from the current directory, no bytecode."""
    return [sys.executable, "-P", "-s", "-B", "-m", module, *arguments]
