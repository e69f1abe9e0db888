"""What must be refused: the network, the host's files, other processes, rights, the kernel's doors."""
# ruff: noqa: E501 - one program a line where it fits

from __future__ import annotations

from sandbox.run.types import Control, Feature
from tests.hostile.sandbox.battery import Case, refused, refused_or_ended

NATIVE = frozenset({Feature.NATIVE, Feature.SUBPROCESS})


def closed(name: str, tries: str, source: str, control: Control, **more: object) -> Case:
    return Case(name, tries, source, more.pop("judge", refused), control, **more)  # pyright: ignore[reportArgumentType] - by the table


def call_closed(name: str, tries: str, *call: int) -> Case:
    source = f"attempt(lambda: apart(lambda: door{call!r}))"
    return closed(name, tries, source, Control.SECCOMP, needs=NATIVE, shared_kernel=True)


NETWORK = [
    closed("n01", "the loopback", "import socket\nattempt(connect, socket.AF_INET, 1, ('127.0.0.1', W['tcp']))", Control.NET),
    closed("n02", "an abstract socket", "import socket\nattempt(connect, socket.AF_UNIX, 1, '\\0' + W['abstract'])", Control.NET),
    closed("n03", "a socket file", "import socket\nattempt(connect, socket.AF_UNIX, 1, W['socket'])", Control.FS),
    closed("n04", "interfaces besides the loopback", """
names = [line.split(':')[0].strip() for line in open('/proc/net/dev').read().splitlines()[2:]]
if set(names) - {'lo'}:
    escaped(names)
""", Control.NET, shared_kernel=True),
    closed("n05", "a route to the world", """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
    attempt(client.connect, ('192.0.2.1', 9))
""", Control.NET),
    closed("n06", "a name server", "import socket\nattempt(socket.getaddrinfo, 'example.com', 80)", Control.NET),
    closed("n07", "the hypervisor by vsock", "import socket\nattempt(socket.socket, 40, 1)", Control.NET, shared_kernel=True),
    closed("n08", "netlink", "import socket\nattempt(socket.socket, 16, 3)", Control.SECCOMP, shared_kernel=True),
    closed("n09", "raw packets", """
import socket
attempt(socket.socket, 17, socket.SOCK_RAW)
attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
""", Control.NET, shared_kernel=True),
    closed("n10", "the metadata service", "import socket\nattempt(connect, socket.AF_INET, 1, ('169.254.169.254', 80))", Control.NET),
    closed("n11", "other socket families", """
import socket
for family in (4, 5, 9, 21, 26, 29, 30, 31, 35, 38, 39, 41, 43, 44):
    attempt(socket.socket, family, 1)
    attempt(socket.socket, family, 2)
    attempt(socket.socket, family, 5)
""", Control.SECCOMP, shared_kernel=True),
]  # fmt: skip

FILES = [
    closed("f01", "a file of the host", "attempt(lambda: open(W['file']).read())", Control.FS),
    closed("f02", "the host by init's root", """
for pid in ('1', 'self', 'thread-self'):
    attempt(lambda: open(f"/proc/{pid}/root{W['file']}").read())
    attempt(lambda: open(f"/proc/{pid}/cwd/../../../../..{W['file']}").read())
""", Control.FS),
    closed("f03", "descriptors left open", """
import os
own = {os.readlink(f'/proc/self/fd/{n}') for n in (0, 1, 2)}
for name in os.listdir('/proc/self/fd'):
    try:
        target = os.readlink(f'/proc/self/fd/{name}')
    except OSError:
        continue
    if int(name) > 2 and not target.startswith('/proc/') and target not in own:
        escaped(f'{name} -> {target}')
""", Control.FS),
    closed("f04", "the path above the working directory", "attempt(lambda: open('../' * 20 + W['file'].lstrip('/')).read())", Control.FS),
    closed("f05", "writing to the system", """
for place in ('/', '/bin', '/code', '/etc', '/lib', '/sys', '/usr', '/usr/bin', '/usr/lib'):
    attempt(lambda: open(place + '/gnusnode-trace', 'w').write('x'))
""", Control.FS),
    closed("f06", "writing to run-time directories", """
for place in ('/dev', '/dev/shm', '/dev/mqueue', '/home', '/mnt', '/opt', '/root', '/run', '/srv', '/var/tmp', '/var/run'):
    attempt(lambda: open(place + '/gnusnode-trace', 'w').write('x'))
""", Control.FS),
    closed("f07", "the engine's socket", """
import os
for path in ('/var/run/docker.sock', '/run/docker.sock', '/run/containerd/containerd.sock', '/run/dbus', '/run/systemd'):
    attempt(os.stat, path)
""", Control.FS),
    closed("f08", "writable mounts", """
import os
for line in open('/proc/self/mountinfo'):
    point = line.split()[4]
    if point not in ('/tmp', '/dev/pts') and os.path.isdir(point) and os.access(point, os.W_OK):
        escaped(f'{point} is writable')
""", Control.FS, shared_kernel=True),
    closed("f09", "the kernel's switches", """
for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/kernel/hostname', '/proc/sysrq-trigger', '/sys/kernel/uevent_helper',
             '/proc/sys/vm/drop_caches', '/proc/self/uid_map'):
    attempt(lambda: open(path, 'wb', buffering=0).write(b'x'))
""", Control.FS),
    closed("f10", "the kernel's memory and logs", """
for path in ('/proc/kcore', '/proc/kallsyms', '/dev/kmsg', '/dev/mem', '/proc/keys', '/proc/timer_list'):
    attempt(lambda: [open(path, 'rb').read(64).strip(b'\\0 0')][0] or 1 / 0)
""", Control.FS, shared_kernel=True),
    closed("f11", "block devices", """
import os, stat
for name in os.listdir('/dev'):
    mode = os.lstat('/dev/' + name).st_mode
    if stat.S_ISBLK(mode):
        escaped(name)
attempt(os.mknod, '/tmp/node', 0o600 | stat.S_IFBLK, os.makedev(254, 0))
""", Control.FS, needs=frozenset({Feature.NATIVE}), shared_kernel=True),
    closed("f12", "running a file from /tmp", """
import os, shutil, subprocess, sys
shutil.copy(os.path.realpath(sys.executable), '/tmp/python')
os.chmod('/tmp/python', 0o755)
attempt(lambda: subprocess.run(['/tmp/python', '-c', 'pass'], capture_output=True))
""", Control.FS, needs=frozenset({Feature.SUBPROCESS, Feature.TMP})),
    closed("f13", "a link out of /tmp", """
import os
os.symlink(W['file'], '/tmp/link')
attempt(lambda: open('/tmp/link').read())
attempt(os.link, '/etc/passwd', '/tmp/hard')
""", Control.FS, needs=frozenset({Feature.TMP})),
    closed("f14", "programs that give rights", """
import os, stat
for root, _, names in os.walk('/usr'):
    for name in names:
        if os.lstat(os.path.join(root, name)).st_mode & (stat.S_ISUID | stat.S_ISGID):
            escaped(os.path.join(root, name))
""", Control.FS),
    closed("f15", "a file by its handle", "attempt(lambda: apart(lambda: door(304, -100, 0, 0)))", Control.SECCOMP, needs=NATIVE, shared_kernel=True),
    closed("f16", "a root of one's own", "import os\nattempt(lambda: apart(lambda: os.chroot('/tmp')))", Control.NOCAPS, needs=NATIVE),
    closed("f17", "mounting", "attempt(lambda: apart(lambda: door(165, 0, 0, 0, 0, 0)))", Control.SECCOMP, needs=NATIVE, shared_kernel=True),
]  # fmt: skip

PROCESSES = [
    closed("p01", "capabilities", """
for line in open('/proc/self/status'):
    key, _, value = line.partition(':')
    if key.startswith('Cap') and int(value, 16):
        escaped(line.strip())
""", Control.NOCAPS, shared_kernel=True),
    closed("p02", "becoming root", """
import os
if os.getuid() == 0 or os.geteuid() == 0:
    escaped('it is root')
for call in (os.setuid, os.setgid, os.seteuid):
    attempt(call, 0)
attempt(os.setgroups, [0])
""", Control.NONROOT, needs=frozenset({Feature.NATIVE})),
    closed("p03", "signalling a process of the host", "import os\nattempt(os.kill, W['marker'], 0)", Control.PID),
    closed("p04", "seeing a process of the host", """
import os
for pid in filter(str.isdigit, os.listdir('/proc')):
    if W['secret'] in open(f'/proc/{pid}/cmdline', errors='replace').read():
        escaped(pid)
""", Control.PID, shared_kernel=True),
    closed("p05", "the environment of the node", """
import os
for pid in ('self', *filter(str.isdigit, os.listdir('/proc'))):
    if W['secret'] in open(f'/proc/{pid}/environ', errors='replace').read():
        escaped(pid)
if W['secret'] in str(os.environ):
    escaped('environment')
""", Control.IPC, shared_kernel=True),
    closed("p06", "killing everything", "import os, signal\ntry:\n    os.kill(-1, signal.SIGKILL)\nexcept OSError as error:\n    print(error)", Control.PID, judge=refused_or_ended),
    closed("p07", "running without a filter", """
for line in open('/proc/self/status'):
    if line.startswith('Seccomp:') and line.split()[1] != '2':
        escaped(line)
""", Control.SECCOMP, shared_kernel=True),
    closed("p08", "gaining rights by a program", """
for line in open('/proc/self/status'):
    if line.startswith('NoNewPrivs:') and line.split()[1] != '1':
        escaped(line)
""", Control.NNP, shared_kernel=True),
    closed("p09", "shared memory of the host", "attempt(lambda: open(W['shared']).read())", Control.IPC),
    closed("p10", "a System V segment of the host", "attempt(lambda: syscall(29, W['segment'], 0, 0))", Control.IPC, needs=NATIVE),
    closed("p11", "calls in the 32-bit convention", """
import ctypes, mmap, os
def ia32():
    code = mmap.mmap(-1, 4096, prot=7)
    code.write(bytes.fromhex('b814000000cd80c3'))
    if ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))() != os.getpid():
        raise OSError('no answer')
attempt(lambda: apart(ia32))
""", Control.SECCOMP, needs=NATIVE, shared_kernel=True),
    closed("p12", "calls in the x32 convention", "attempt(lambda: apart(lambda: syscall(0x40000000 + 39)))", Control.SECCOMP, needs=NATIVE, shared_kernel=True),
    closed("p13", "a real-time priority", """
import os
attempt(os.nice, -5)
attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))
""", Control.NOCAPS, needs=frozenset({Feature.NATIVE}), shared_kernel=True),
    call_closed("p14", "a user namespace", 272, 0x10000000),
    call_closed("p15", "tracing", 101, 0, 0, 0, 0),
    call_closed("p16", "the keyring", 250, 0, -3, 1),
    call_closed("p17", "bpf", 321, 5, 0, 0),
    call_closed("p18", "performance events", 298, 0, 0, -1, -1, 0),
    call_closed("p19", "io_uring", 425, 1, 0),
    call_closed("p20", "handling page faults", 323, 1),
    call_closed("p21", "a nameless file in memory", 319, 0, 0),
    call_closed("p22", "the host's name", 170, 0, 0),
    call_closed("p23", "another namespace", 308, 0, 0),
    call_closed("p24", "a kernel module", 313, -1, 0, 0),
    call_closed("p25", "flushing all disks", 162, 0),
]  # fmt: skip

ATTEMPTS = [*NETWORK, *FILES, *PROCESSES]
