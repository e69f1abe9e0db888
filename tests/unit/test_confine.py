"""Each control of the confinement, alone and together, tried out in a process that is thrown away."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gnusnode.errors import EngineFailed
from sandbox import confine, landlock, linux, seccomp
from sandbox.confine import ConfineReport, Control
from sandbox.selfcheck import self_check

pytestmark = pytest.mark.skipif(not linux.IS_LINUX, reason="the controls are Linux's own")

PRELUDE = """
import errno, json, os, resource, socket, subprocess, sys, threading, mmap, ctypes, signal
from sandbox import confine, landlock, linux, privileges, seccomp
def refused(attempt):
    try:
        attempt()
    except OSError as error:
        return errno.errorcode[error.errno]
    return None
def report(**facts):
    print(json.dumps(facts))
"""


def child(code: str, *arguments: object) -> dict[str, Any]:
    """What a fresh process reports; it dies with the test when it hangs."""
    done = subprocess.run(
        [sys.executable, "-P", "-B", "-c", PRELUDE + code, *map(str, arguments)],
        env=confine.launch_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for path in (*tmp_path.parents, tmp_path):
        if path.stat().st_uid == os.getuid() and path.is_relative_to("/tmp") and path != Path("/tmp"):
            path.chmod(0o755)
    (tmp_path / "model.gguf").write_bytes(b"GGUF" * 4096)
    (tmp_path / "secret").write_text("secret")
    return tmp_path


@pytest.mark.requirement("G-EX-5")
def test_the_self_check_proves_every_denial_and_every_ability() -> None:
    result = self_check()
    assert result.error == ""
    assert result.holds, (result.denied, result.works, result.controls)
    assert {"network", "read outside", "write", "exec", "fork"} <= result.denied.keys()


def test_a_self_check_that_gives_no_answer_does_not_hold() -> None:
    result = self_check(timeout=0.001)
    assert not result.holds
    assert result.error


def test_everything_applies_on_this_kernel_and_is_reported() -> None:
    facts = child("report(**confine.apply(confine.ConfineProfile(max_memory=1 << 33)).to_plain())")
    assert {name: fact["detail"] for name, fact in facts.items() if not fact["applied"]} == {}
    assert {"network-namespace", "identity", "landlock", "seccomp", "no-new-privileges", "limit-as"} <= facts.keys()


def test_the_model_can_be_read_and_mapped_and_nothing_beside_it(files: Path) -> None:
    facts = child(
        """
model, secret = sys.argv[1:]
confine.apply(confine.ConfineProfile(read_paths=(model,)))
with open(model, "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
report(
    head=mapped[:4].decode(),
    secret=refused(lambda: open(secret)),
    append=refused(lambda: open(model, "ab")),
    passwd=refused(lambda: open("/etc/passwd")),
    listing=refused(lambda: os.listdir("/")),
    truncate=refused(lambda: os.truncate(model, 0)),
    rename=refused(lambda: os.rename(model, secret)),
    chmod=refused(lambda: os.chmod(model, 0)),
    times=refused(lambda: os.utime(model)),
    parent=refused(lambda: open(f"/proc/{os.getppid()}/environ")),
)
""",
        files / "model.gguf",
        files / "secret",
    )
    assert facts.pop("head") == "GGUF"
    assert set(facts.values()) <= {"EACCES", "EPERM"}
    assert (files / "model.gguf").stat().st_size == 16384


def test_libraries_that_are_needed_late_can_be_imported_and_threads_start(files: Path) -> None:
    facts = child(
        """
confine.apply(confine.ConfineProfile(read_paths=(sys.argv[1],)))
import numpy, decimal, sqlite3, psutil
done = []
threads = [threading.Thread(target=lambda: done.append(float(numpy.ones((300, 300)).dot(numpy.ones((300, 300))).sum())))
           for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
report(sums=done, rss=psutil.Process().memory_info().rss, urandom=len(os.urandom(8)))
""",
        files / "model.gguf",
    )
    assert facts["sums"] == [27_000_000.0] * 4
    assert facts["rss"] > 0


def test_landlock_alone_denies_files_and_connections(files: Path) -> None:
    facts = child(
        """
model, secret = sys.argv[1:]
privileges.no_new_privileges()
version = landlock.restrict((model,), ())
with socket.socket() as s:
    s.settimeout(1)
    report(
        version=version,
        model=refused(lambda: open(model)),
        secret=refused(lambda: open(secret)),
        run=refused(lambda: os.execv("/bin/true", ["true"])),
        connect=refused(lambda: s.connect(("127.0.0.1", 9))),
    )
""",
        files / "model.gguf",
        files / "secret",
    )
    assert facts["model"] is None
    assert facts["secret"] == "EACCES"
    assert facts["run"] == "EACCES"
    if facts["version"] >= 4:
        assert facts["connect"] == "EACCES"


def test_a_restricted_process_may_use_the_devices_of_its_profile_only() -> None:
    facts = child(
        """
privileges.no_new_privileges()
landlock.restrict((), ("/dev/zero",))
def use(path):
    os.close(os.open(path, os.O_RDWR))
report(zero=refused(lambda: use("/dev/zero")), full=refused(lambda: use("/dev/full")))
"""
    )
    assert facts == {"zero": None, "full": "EACCES"}


def test_seccomp_alone_denies_programs_processes_and_sockets_but_no_threads() -> None:
    facts = child(
        """
privileges.no_new_privileges()
seccomp.install()
parent = os.getppid()
started = threading.Event()
threading.Thread(target=started.set).start()
libc = ctypes.CDLL(None, use_errno=True)
def raw(name, *args):
    def attempt():
        if libc.syscall(seccomp.DENIED[name][0 if linux.MACHINE == "x86_64" else 1], *args) == -1:
            raise OSError(ctypes.get_errno(), name)
    return attempt
report(
    thread=started.wait(10),
    socket=refused(socket.socket),
    pair=refused(socket.socketpair),
    fork=refused(os.fork),
    run=refused(lambda: os.execv("/bin/true", ["true"])),
    spawn=refused(lambda: subprocess.run(["/bin/true"])),
    signal=refused(lambda: os.kill(parent, 0)),
    oneself=refused(lambda: os.kill(os.getpid(), 0)),
    **{name: refused(raw(name, 0, 0, 0, 0, 0)) for name in
       ("ptrace", "mount", "unshare", "setns", "keyctl", "bpf", "io_uring_setup", "perf_event_open", "userfaultfd",
        "process_vm_readv", "pidfd_open", "chroot", "init_module", "reboot", "setuid")},
)
"""
    )
    assert facts.pop("thread") is True
    assert facts.pop("oneself") is None
    assert facts == dict.fromkeys(facts, "EPERM")


def test_a_process_that_may_fork_gets_copies_as_confined_as_itself_and_nothing_else() -> None:
    facts = child(
        """
confine.apply(confine.ConfineProfile(allow_fork=True))
libc = ctypes.CDLL(None, use_errno=True)
clone = seccomp._CLONE[linux.MACHINE]
def namespaced(flag):
    def attempt():
        pid = libc.syscall(clone, flag | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            os._exit(0)
        if pid == -1:
            raise OSError(ctypes.get_errno(), "clone")
    return attempt
def tried():
    return dict(
        socket=refused(socket.socket),
        run=refused(lambda: os.execv("/bin/true", ["true"])),
        spawn=refused(lambda: subprocess.run(["/bin/true"])),
        passwd=refused(lambda: open("/etc/passwd")),
        signal=refused(lambda: os.kill(os.getppid(), 0)),
        unshare=refused(lambda: linux.call("unshare", linux.CLONE_NEWUSER)),
        **{hex(flag): refused(namespaced(flag)) for flag in
           (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)},
    )
own = tried()
read, write = os.pipe()
if os.fork() == 0:
    facts = tried()
    facts.pop("signal")  # its parent is the one process that the filter lets it signal
    os.write(write, json.dumps(facts).encode())
    os._exit(0)
copy = json.loads(os.read(read, 65536))
report(own=own, copy=copy)
"""
    )
    assert set(facts["own"].values()) <= {"EPERM", "EACCES"}
    assert set(facts["copy"].values()) <= {"EPERM", "EACCES"}


def test_a_process_can_still_abort_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", PRELUDE + "confine.apply(confine.ConfineProfile()); os.abort()"],
        env=confine.launch_environment(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -6


def test_without_a_network_namespace_of_the_host_there_is_only_a_dead_loopback() -> None:
    facts = child("report(how=privileges.leave_network(), devices=[name for _, name in socket.if_nameindex()])")
    assert facts["devices"] == ["lo"]


def test_memory_beyond_the_limit_is_refused() -> None:
    facts = child(
        """
confine.apply(confine.ConfineProfile(max_memory=1 << 30))
try:
    bytearray(2 << 30)
    report(refused=False)
except MemoryError:
    report(refused=True)
"""
    )
    assert facts == {"refused": True}


def test_limits_are_lowered_and_never_raised() -> None:
    facts = child(
        """
resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))
confine.apply(confine.ConfineProfile(max_files=100))
report(files=resource.getrlimit(resource.RLIMIT_NOFILE), core=resource.getrlimit(resource.RLIMIT_CORE))
"""
    )
    assert facts == {"files": [50, 50], "core": [0, 0]}


def test_no_capability_is_left() -> None:
    facts = child(
        """
confine.apply(confine.ConfineProfile())
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
report(**{name: status[name].strip() for name in ("CapPrm", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")})
"""
    )
    assert int(facts["CapPrm"], 16) == int(facts["CapEff"], 16) == 0
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")


def test_a_second_thread_makes_the_file_control_count_as_missing() -> None:
    facts = child(
        """
stop = threading.Event()
threading.Thread(target=stop.wait, daemon=True).start()
report(**confine.apply(confine.ConfineProfile()).to_plain())
sys.stdout.flush()
os._exit(0)
"""
    )
    assert not facts["landlock"]["applied"]
    assert "thread" in facts["landlock"]["detail"]


def test_a_required_control_that_is_missing_fails_closed() -> None:
    report = ConfineReport((Control("seccomp", applied=False, detail="no filter"), Control("landlock", True, "")))
    report.require("landlock")
    with pytest.raises(EngineFailed, match="no filter"):
        report.require("landlock", "seccomp")


def test_a_required_control_that_was_never_tried_fails_closed() -> None:
    with pytest.raises(EngineFailed):
        ConfineReport().require("seccomp")


@pytest.mark.requirement("G-EX-5")
def test_a_child_gets_no_path_home_or_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    environment = confine.launch_environment({"OMP_WAIT_POLICY": "passive"})
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert environment["OMP_WAIT_POLICY"] == "passive"
    assert not environment.keys() & {"PATH", "HOME", "USER", "OPENAI_API_KEY", "LD_PRELOAD"}


def test_the_runtime_paths_do_not_open_the_home_or_other_processes() -> None:
    paths = {Path(path) for path in confine.runtime_paths()}
    assert not paths & {Path("/"), Path("/proc"), Path("/etc"), Path.home(), Path("/tmp"), Path.cwd()}


def test_a_machine_without_a_filter_reports_it_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux, "MACHINE", "riscv64")
    with pytest.raises(OSError, match="riscv64"):
        seccomp.install()


def test_a_kernel_without_landlock_reports_it_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    with pytest.raises(OSError, match="no Landlock"):
        landlock.restrict((), ())


@pytest.mark.parametrize(
    ("header", "column"),
    [("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", 0), ("/usr/include/asm-generic/unistd.h", 1)],
)
def test_system_call_numbers_agree_with_the_kernels_headers(header: str, column: int) -> None:
    if not Path(header).exists():
        pytest.skip("the kernel's headers are not installed here")
    found = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\n", Path(header).read_text()))
    named = {name: numbers[column] for name, numbers in seccomp.DENIED.items() if numbers[column] >= 0}
    assert {name: number for name, number in named.items() if int(found.get(name, number)) != number} == {}
    assert len(named.keys() & found.keys()) > 80


@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_programs_of_every_machine_are_well_formed(machine: str, forks: bool) -> None:
    code = seccomp.program(machine, pid=1, forks=forks)
    instructions = [code[index : index + 8] for index in range(0, len(code), 8)]
    assert len(code) % 8 == 0
    assert len(instructions) < 4096
    for index, instruction in enumerate(instructions):
        furthest = index + 1 + max(instruction[2], instruction[3]) if instruction[0] & 7 == 5 else index
        assert furthest < len(instructions)
    assert instructions[-1][0] == 6


def test_a_failing_call_is_an_error_whatever_its_return_type_is() -> None:
    for name, arguments in (("prctl", (9999, 0, 0, 0, 0)), ("shmget", (0x5EC2E7, 0, 0)), ("unshare", (1 << 62,))):
        with pytest.raises(OSError):
            linux.call(name, *arguments)
    with pytest.raises(OSError):
        linux.syscall(9999)
