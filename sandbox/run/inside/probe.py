"""The self-test's program: tries, from inside a sandbox, everything that must not work there.

Reads on standard input what the node has put up for it to find (``canaries.Targets``), and prints one JSON object:
``denied`` has, for each attempt, whether it was refused and what was found; ``facts`` what the sandbox says of itself.
"""
# ruff: noqa: S108 - it is there to try such places

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def optional(name: str) -> Any:
    """A module that not every Python has; what needs it is then out of reach."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


ctypes, mmap, socket, subprocess, threading = map(optional, ("ctypes", "mmap", "socket", "subprocess", "threading"))

TARGETS = json.loads(sys.stdin.read())
SECRET = TARGETS["secret"]
WAIT = 1.0

UNSHARE, KEYCTL, BPF, IO_URING_SETUP, PTRACE, USERFAULTFD, SYSLOG = 272, 250, 321, 425, 101, 323, 103
NEW_USER = 0x1000_0000
IA32_GETPID = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"  # mov eax, 20; int 0x80; ret
AF_NETLINK, AF_PACKET, AF_VSOCK, AF_ALG = 16, 17, 40, 38
PLACES = (
    "/",
    "/code",
    "/dev",
    "/dev/shm",
    "/etc",
    "/proc/sys/kernel",
    "/root",
    "/run",
    "/sys",
    "/usr",
    "/usr/lib",
    "/var/tmp",
)


class Reached(Exception):
    """An attempt found what it must not find."""


def syscall(number: int, *arguments: int) -> int:
    """A system call by its x86_64 number."""
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(number, *(ctypes.c_long(argument) for argument in arguments))
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def listener(family: int, address: "str | tuple[str, int]") -> str:
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(WAIT)
        client.connect(address)
        return repr(client.recv(64))


def interfaces() -> str:
    names = [line.partition(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    if others := [name for name in names if name != "lo"]:
        return " ".join(others)
    raise OSError("only the loopback")


def route() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("192.0.2.1", 9))  # documentation's own network; nothing is sent
        return repr(client.getsockname())


def family(number: int, kind: str = "SOCK_STREAM") -> str:
    with socket.socket(number, getattr(socket, kind)):
        return f"a socket of family {number}"


def secret_in(path: str) -> str:
    if SECRET in Path(path).read_bytes().decode("utf-8", "replace"):
        return path
    raise OSError("another file")


def first(attempt: Callable[[str], str], places: "tuple[str, ...] | list[str]") -> str:
    """What the first of ``places`` that works gives; the last refusal when none does."""
    refusal: OSError = OSError("nothing to try")
    for place in places:
        try:
            return attempt(place)
        except OSError as error:
            refusal = error
    raise refusal


def exists(path: str) -> str:
    os.stat(path)
    return path


def write_in(place: str) -> str:
    with open(os.path.join(place, "gnusnode-probe"), "w"):
        return place


def in_environment() -> str:
    for name, value in os.environ.items():
        if SECRET in value:
            return name
    raise OSError("not in the environment")


def segment() -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.shmget(TARGETS["segment"], 0, 0) == -1:
        raise OSError(ctypes.get_errno(), "no such segment")
    return "a System V segment of the host"


def see_marker() -> str:
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
    return first(secret_in, [f"/proc/{pid}/cmdline" for pid in pids])


def signal_marker() -> str:
    os.kill(TARGETS["marker"], 0)
    return "the marker process"


def become_root() -> str:
    if os.getuid():
        os.setuid(0)
    return f"user {os.getuid()}"


def status(name: str, wanted: str) -> str:
    """Refused (by an error) when the kernel's own word on this process is ``wanted``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            if int(value.strip(), 16) == int(wanted, 16):
                raise OSError(f"{name} is {wanted}")
            return value.strip()
    return "the kernel does not say"


def apart(attempt: Callable[[], str]) -> str:
    """Makes the attempt in a child: one that works may change the process that made it, or end it."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            os.write(writer, b"+" + attempt().encode())
        except OSError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    answer = os.read(reader, 256).decode()
    os.close(reader)
    os.wait()
    if answer.startswith("+"):
        return answer[1:]
    raise OSError(answer or "it ended the process")


def refuses(number: int, *arguments: int) -> Callable[[], str]:
    return lambda: apart(lambda: f"answer {syscall(number, *arguments)}")


def ia32() -> str:
    """A system call in the 32-bit convention, which a filter for 64-bit calls may not see."""
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(IA32_GETPID)
    number = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
    if number == os.getpid():
        return "getpid"
    raise OSError(f"answer {number}")


def attempts() -> "dict[str, Callable[[], str]]":
    found: dict[str, Callable[[], str]] = {
        "tcp listener": lambda: listener(socket.AF_INET, ("127.0.0.1", TARGETS["tcp"])),
        "abstract socket": lambda: listener(socket.AF_UNIX, "\0" + TARGETS["abstract"]),
        "socket file": lambda: listener(socket.AF_UNIX, TARGETS["socket"]),
        "interfaces": interfaces,
        "route": route,
        "vsock": lambda: family(AF_VSOCK),
        "packet socket": lambda: family(AF_PACKET, "SOCK_RAW"),
        "file": lambda: secret_in(TARGETS["file"]),
        "file by init's root": lambda: secret_in("/proc/1/root" + TARGETS["file"]),
        "engine socket": lambda: first(exists, ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd")),
        "writing": lambda: first(write_in, PLACES),
        "environment": in_environment,
        "shared memory": lambda: secret_in(TARGETS["shared"]),
        "segment": segment,
        "seeing the marker": see_marker,
        "signalling the marker": signal_marker,
        "root": become_root,
        "effective capabilities": lambda: status("CapEff", "0"),
        "bounding capabilities": lambda: status("CapBnd", "0"),
        "no new privileges": lambda: status("NoNewPrivs", "1"),
        "filter": lambda: status("Seccomp", "2"),
        "user namespace": refuses(UNSHARE, NEW_USER),
        "keyring": refuses(KEYCTL, 0, -3, 1),
        "bpf": refuses(BPF, 0, 0, 0),
        "io_uring": refuses(IO_URING_SETUP, 1, 0),
        "tracing": refuses(PTRACE, 0, 0, 0, 0),
        "page faults": refuses(USERFAULTFD, 1),
        "kernel log": refuses(SYSLOG, 10, 0, 0),
        "netlink": lambda: family(AF_NETLINK, "SOCK_RAW"),
        "crypto socket": lambda: family(AF_ALG, "SOCK_SEQPACKET"),
        "32-bit calls": lambda: apart(ia32),
    }
    return found


def outcome(attempt: Callable[[], str]) -> "tuple[bool, str]":
    try:
        return False, f"reached: {attempt()}"[:200]
    except Exception as error:  # noqa: BLE001 - whatever is raised, it was not reached
        return True, f"{type(error).__name__}: {error}"[:200]


def forks() -> int:
    """How many processes can be started, up to a number that no limit of ours allows."""
    children: list[int] = []
    try:
        while len(children) < TARGETS["forks"]:
            if (child := os.fork()) == 0:
                time.sleep(30)
                os._exit(0)
            children.append(child)
    except OSError:
        pass
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return len(children)


def tmp_bytes() -> int:
    written = 0
    try:
        for number in range(TARGETS["tmp_files"]):
            with open(f"/tmp/probe-{number}", "wb", buffering=0) as file:
                while written < TARGETS["tmp_bytes"]:
                    written += file.write(bytes(1 << 20))
    except OSError:
        pass
    for number in range(TARGETS["tmp_files"]):
        Path(f"/tmp/probe-{number}").unlink(missing_ok=True)
    return written


def cpu_share() -> float:
    """Seconds of CPU that a busy loop gets in a second."""
    began, used = time.monotonic(), time.process_time()
    while time.monotonic() - began < WAIT:
        pass
    return round((time.process_time() - used) / (time.monotonic() - began), 3)


def thread_runs() -> bool:
    ran = threading.Event()
    thread = threading.Thread(target=ran.set)
    thread.start()
    thread.join()
    return ran.is_set()


def child_runs() -> bool:
    done = subprocess.run([sys.executable, "-I", "-c", "print(6*7)"], capture_output=True, timeout=20, check=False)
    return done.stdout == b"42\n"


def tmp_works() -> bool:
    path = Path("/tmp/probe")
    path.write_text("x")
    return path.read_text() == "x"


def native_works() -> bool:
    return ctypes.CDLL(None).getpid() == os.getpid()


def works(test: Callable[[], bool]) -> bool:
    try:
        return test()
    except Exception:  # noqa: BLE001 - whatever is raised, it does not work
        return False


def main() -> None:
    answer = {
        "works": {
            "tmp": works(tmp_works),
            "threads": works(thread_runs),
            "subprocess": works(child_runs),
            "native": works(native_works),
        },
        "denied": {name: outcome(attempt) for name, attempt in attempts().items()},
        "facts": {"cpu_share": cpu_share(), "tmp_bytes": tmp_bytes(), "forks": forks() if hasattr(os, "fork") else 0},
    }
    print(json.dumps(answer))


main()
