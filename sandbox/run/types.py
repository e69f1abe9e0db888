"""The one interface of all sandboxes that run foreign code, and the values that go through it.

A backend *declares* a ``Strength``; its self-test *proves* it, or the backend is not registered. Backends differ in how
they isolate, never in what a caller sees: a ``Job`` goes in, a ``Result`` comes out, and nothing of it stays behind.
Pure data: nothing here does I/O.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Final, Protocol

from gnusnode.contracts import canonical, ids

MIB: Final = 1 << 20


class Boundary(StrEnum):
    """What stands between foreign code and this machine. Which ones will do, and in what order, a policy says."""

    SHARED_KERNEL = "shared_kernel"
    """Namespaces, cgroups and a system call filter of the host's own kernel: runc, bubblewrap."""
    USER_KERNEL = "user_kernel"
    """A kernel in user space answers the system calls: gVisor."""
    VM_TCG = "vm_tcg"
    """A virtual machine that is emulated; no hardware isolates it."""
    VM_KVM = "vm_kvm"
    """A virtual machine that the processor isolates."""
    WASM = "wasm"
    """WebAssembly: the code has no system calls at all."""


class Control(StrEnum):
    """One thing that is taken from foreign code, or limited."""

    NET = "net"
    """No network: not the loopback of the host, not its abstract sockets, no vsock."""
    FS = "fs"
    """No file of the host, and nothing writable but ``/tmp``."""
    IPC = "ipc"
    """No System V or POSIX objects shared with the host, no environment of the daemon."""
    PID = "pid"
    """No process of the host can be seen or signalled."""
    MEM = "mem"
    PIDS = "pids"
    CPU = "cpu"
    WALL = "wall"
    OUTPUT = "output"
    NONROOT = "nonroot"
    NOCAPS = "nocaps"
    NNP = "nnp"
    """No program can give more rights (``no_new_privs``)."""
    SECCOMP = "seccomp"
    """Only the listed system calls, in the native calling convention."""


class Feature(StrEnum):
    """What a program may count on besides Python itself; the tool's description tells the model."""

    TMP = "tmp"
    THREADS = "threads"
    SUBPROCESS = "subprocess"
    NATIVE = "native"
    """Machine code: ``ctypes`` and extension modules."""


class Status(StrEnum):
    """How a run ended: the word of the engine, never read out of the program's output."""

    OK = "ok"
    """Exit status 0."""
    ERROR = "error"
    """The program ended by itself with another exit status."""
    TIMEOUT = "timeout"
    OOM = "oom"
    OUTPUT_LIMIT = "output_limit"
    KILLED = "killed"
    """A signal that is none of our limits ended it: a crash in machine code, or the file size limit."""
    INFRA = "infra"
    """The sandbox failed, not the program. Never count it as the program's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strength:
    """What a backend claims to be. Attestations carry it in plain form.

    Attributes:
        boundary: see ``Boundary``.
        engine: what isolates: ``docker+runc``, ``runsc``, ``wasmtime``.
        engine_version: the versions of its parts, as they name themselves.
        image_digest: ``sha256:<hex>`` of what the program finds around it (image id, module); empty: there is none.
        seccomp_digest: ``sha256:<hex>`` of the system call list in force, None without one.
        controls: what is taken or limited.
        features: what a program may use.
        deterministic: the same job gives the same bytes, clock and randomness included.
    """

    boundary: Boundary
    engine: str
    engine_version: str
    image_digest: str
    seccomp_digest: str | None
    controls: frozenset[Control]
    features: frozenset[Feature]
    deterministic: bool = False

    def to_plain(self) -> dict[str, Any]:
        """Plain data with sorted lists: two equal strengths have one encoding."""
        plain = asdict(self)
        plain["controls"] = sorted(self.controls)
        plain["features"] = sorted(self.features)
        return plain

    @property
    def digest(self) -> str:
        """``sha256:<hex>`` of the canonical encoding."""
        return ids.sha256(canonical.encode(self.to_plain()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one job may use; every limit is hard. ``ValueError`` when one of them is not positive."""

    wall_seconds: float = 10.0
    """From the moment the program may start to its end."""
    memory_bytes: int = 256 * MIB
    """All processes of the job together, ``/tmp`` included where it is memory. There is no swap."""
    cpus: float = 1.0
    pids: int = 64
    """Processes and threads together."""
    tmp_bytes: int = 32 * MIB
    output_bytes: int = 64 * 1024
    """Standard output and standard error together; more than that ends the job."""
    open_files: int = 128

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value <= 0:
                raise ValueError(f"limit {name} must be positive, not {value}")


@dataclass(frozen=True, slots=True)
class ReadGrant:
    """A directory of the host that the job may read.

    ``ValueError`` when a path is not absolute or ``inside`` is a place that the sandbox needs itself.
    """

    host: str
    inside: str

    def __post_init__(self) -> None:
        for path in (self.host, self.inside):
            if not path.startswith("/") or ".." in PurePosixPath(path).parts or "\0" in path:
                raise ValueError(f"a granted path must be absolute and without '..': {path!r}")
        if PurePosixPath(self.inside).parts[:2] in {("/", name) for name in _OWN_PLACES} or self.inside == "/":
            raise ValueError(f"a grant may not stand at {self.inside}")


_OWN_PLACES: Final = ("bin", "dev", "etc", "lib", "lib64", "proc", "sys", "tmp", "usr")


@dataclass(frozen=True, slots=True)
class Grants:
    """What a job gets of the host besides its limits. A backend that cannot give one answers ``infra``."""

    read: tuple[ReadGrant, ...] = ()


NO_GRANTS: Final = Grants()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A Python program. It runs as ``__main__`` in a working directory of its own that starts with ``files``.

    Attributes:
        source: the program's text; tracebacks call it ``main.py``.
        files: (relative path, content) of files beside it; they can be imported.
        stdin: what the program finds on its standard input.

    ``ValueError`` when a path leaves the working directory or two are the same.
    """

    source: str
    files: tuple[tuple[str, bytes], ...] = ()
    stdin: bytes = b""

    def __post_init__(self) -> None:
        paths = [path for path, _ in self.files]
        if len(set(paths)) != len(paths):
            raise ValueError("two files of a job have the same path")
        for path in paths:
            pure = PurePosixPath(path)
            path.encode()  # a lone surrogate is no name of a file; its error is a ValueError
            if not pure.parts or pure.is_absolute() or ".." in pure.parts or "\0" in path or str(pure) != path:
                raise ValueError(f"a job's file needs a plain relative path, not {path!r}")


@dataclass(frozen=True, slots=True)
class Output:
    """One output stream: the beginning that was kept, and what is known of the whole.

    Attributes:
        data: the first bytes, at most ``Limits.output_bytes`` over both streams.
        total: bytes that arrived, kept or not.
        sha256: ``sha256:<hex>`` of all bytes that arrived.
    """

    data: bytes
    total: int
    sha256: str

    @property
    def truncated(self) -> bool:
        return self.total > len(self.data)

    @property
    def text(self) -> str:
        """As UTF-8, with replacement characters. Not clean: escape sequences and bidi controls are still in it."""
        return self.data.decode("utf-8", "replace")


EMPTY: Final = Output(b"", 0, ids.sha256(b""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a job.

    Attributes:
        status: how it ended.
        exit_code: as a shell shows it (128 + n for signal n); None when there was no end to observe.
        stdout, stderr: what it wrote.
        wall_seconds: from the call of ``run`` to its end.
        reason: for people: what failed (``infra``), or which limit or signal it was; empty for ``ok`` and ``error``.
        warm: a sandbox that waited for the job was used.
    """

    status: Status
    exit_code: int | None = None
    stdout: Output = EMPTY
    stderr: Output = EMPTY
    wall_seconds: float = 0.0
    reason: str = ""
    warm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Whether a backend could be used here: a look at the machine, no promise.

    Attributes:
        available: everything that it needs is here.
        reason: what is missing and what to do, when it is not.
        strength: what it declares to be, when it is.
        warnings: what an operator should know although it works: an engine with known holes, a weak setting.
    """

    available: bool
    reason: str = ""
    strength: Strength | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """One question of the self-test.

    Attributes:
        name: what was tried.
        control: the control that it proves; None for what must work.
        passed: the answer was the one that was wanted.
        found: the answer.
        required: a wrong answer refuses the backend. False where the sandbox has a kernel of its own that may answer
            for itself.
    """

    name: str
    control: Control | None
    passed: bool
    found: str
    required: bool = True


@dataclass(frozen=True, kw_only=True)
class SelfTestReport:
    """The proof, or its failure. ``digest`` goes to the audit log.

    Attributes:
        backend: its name.
        declared: the strength that was to be proved; None when it was not available.
        checks: every question and its answer.
        at_ms: when, milliseconds since the epoch.
        error: why there are no answers, when there are none.
    """

    backend: str
    declared: Strength | None
    checks: tuple[Check, ...]
    at_ms: int
    error: str = ""

    @property
    def faults(self) -> tuple[str, ...]:
        """Why the backend is refused, one line each; empty when it may be registered."""
        lines = [f"{check.name}: {check.found}" for check in self.checks if check.required and not check.passed]
        if self.error:
            lines.insert(0, self.error)
        elif self.declared is None:
            lines.insert(0, "it is not available")
        else:
            lines += [f"nothing proves the control {name}" for name in sorted(self.declared.controls - self.proved)]
        return tuple(lines)

    @property
    def passed(self) -> bool:
        return not self.faults

    @property
    def proved(self) -> frozenset[Control]:
        """The declared controls that at least one check confirms and no required one contradicts."""
        confirmed = {check.control for check in self.checks if check.passed and check.control is not None}
        broken = {check.control for check in self.checks if check.required and not check.passed}
        declared = self.declared.controls if self.declared is not None else frozenset[Control]()
        return declared & confirmed - broken

    def to_plain(self) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "declared": self.declared.to_plain() if self.declared else None,
            "checks": [asdict(check) for check in self.checks],
            "at_ms": self.at_ms,
            "error": self.error,
        }

    @cached_property
    def digest(self) -> str:
        """``sha256:<hex>`` of the canonical encoding."""
        return ids.sha256(canonical.encode(self.to_plain()))


class SandboxBackend(Protocol):
    """A way to run foreign code. Everything is cancel-safe: a caller that leaves takes its sandbox with it."""

    @property
    def name(self) -> str:
        """The profile's name in policies: ``docker``, ``gvisor``, ``wasm-cpython``."""
        ...

    async def probe(self) -> Availability:
        """Looks whether it could work here: cheap, starts no foreign code. Never raises."""
        ...

    async def self_test(self) -> SelfTestReport:
        """Proves the declared strength through the path that jobs take; takes seconds. Never raises."""
        ...

    async def run(self, job: Job, limits: Limits, grants: Grants = NO_GRANTS) -> Result:
        """Runs ``job`` in a sandbox that nobody used before and nobody will use after.

        A failure of the sandbox is a ``Result`` with the status ``infra``. When the caller is cancelled nothing of the
        job is left once ``run`` has returned.
        """
        ...

    async def sweep(self) -> int:
        """Removes what an earlier process of this node left behind, and says how many sandboxes that were.

        Raises:
            Unavailable: the engine does not answer.
        """
        ...

    async def aclose(self) -> None:
        """Ends everything that waits for jobs. Never raises."""
        ...
