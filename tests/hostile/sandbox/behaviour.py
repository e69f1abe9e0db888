"""What must work, what must be stopped, and what must come out as it was written."""
# ruff: noqa: E501 - one program a line where it fits

from __future__ import annotations

from dataclasses import replace

from sandbox.run.types import Control, Feature, Result, Status
from tests.hostile.sandbox.battery import BRIEF, LIMITS, Case, ends_as, prints, refused, refused_or_ended

NATIVE = frozenset({Feature.NATIVE, Feature.SUBPROCESS})
TMP = frozenset({Feature.TMP})
THREADS = frozenset({Feature.THREADS})
PROCESSES = frozenset({Feature.SUBPROCESS, Feature.NATIVE})


def works(name: str, tries: str, source: str, text: str, **more: object) -> Case:
    return Case(name, tries, source, prints(text), None, bare=True, **more)  # pyright: ignore[reportArgumentType] - by the table


def traceback_is_the_job_s_own(result: Result) -> str:
    wanted = 'File "main.py", line 2, in fails\n    1 / 0\n'
    return "" if result.status is Status.ERROR and wanted in result.stderr.text else result.stderr.text


CONTROLS = [
    works("c01", "printing", "print(6 * 7)", "42\n"),
    works("c02", "importing a file beside it", "import helper\nprint(helper.ANSWER)", "42\n", files=(("helper.py", b"ANSWER = 42"),)),
    works("c03", "reading a file beside it", "print(open('data/a.txt').read())", "text\n", files=(("data/a.txt", b"text"),)),
    works("c04", "text of the world", "print('žluťoučký 🐎')", "žluťoučký 🐎\n"),
    works("c05", "a temporary file", "import tempfile\nwith tempfile.TemporaryFile() as f:\n    print(f.write(b'x'))", "1\n", needs=TMP),
    works("c06", "threads", "import threading\nt = threading.Thread(target=print, args=('t',))\nt.start()\nt.join()", "t\n", needs=THREADS),
    works("c07", "a child", "import subprocess, sys\nprint(subprocess.check_output([sys.executable, '-c', 'print(1)']))", "b'1\\n'\n", needs=PROCESSES),
    works("c08", "much of the library", "import asyncio, csv, decimal, email, fractions, hashlib, html, sqlite3, ssl, statistics, unittest, uuid, zoneinfo\nprint(sqlite3.connect(':memory:').execute('select 1').fetchone())", "(1,)\n", needs=frozenset({Feature.NATIVE})),
    works("c09", "an end of standard input", "import sys\nprint(repr(sys.stdin.read()))", "''\n"),
    works("c10", "a main module of its own", "print(__name__, __file__, sorted(n for n in dir() if n[0] != '_'))\nclass A: pass\nimport pickle\nprint(type(pickle.loads(pickle.dumps(A()))).__name__)", "__main__ main.py []\nA\n"),
    Case("c11", "a failing program", "raise SystemExit(3)", lambda r: "" if (r.status, r.exit_code) == (Status.ERROR, 3) else str(r), None, bare=True),
    Case("c12", "a traceback", "def fails():\n    1 / 0\nfails()", traceback_is_the_job_s_own, None, bare=True),
    Case("c13", "a syntax error", "x = = 1", lambda r: "" if r.status is Status.ERROR and "SyntaxError" in r.stderr.text else str(r), None, bare=True),
    Case("c15", "a source that is no text", "x = '\ud800'", lambda r: "" if r.status is Status.ERROR and "UnicodeEncodeError" in r.stderr.text else str(r), None, bare=True),
    Case("c14", "two streams", "import sys\nprint('out')\nprint('err', file=sys.stderr)", lambda r: "" if (r.stdout.text, r.stderr.text) == ("out\n", "err\n") else str(r), None, bare=True),
]  # fmt: skip

RESOURCES = [
    Case("r01", "an endless loop", "while True: pass", ends_as(Status.TIMEOUT), Control.WALL, limits=BRIEF, bare=True),
    Case("r02", "sleeping for ever", "import time\ntime.sleep(1e6)", ends_as(Status.TIMEOUT), Control.WALL, limits=BRIEF, bare=True),
    Case("r03", "one long native operation", "x = 9 ** (9 ** 9)", ends_as(Status.TIMEOUT, Status.OOM), Control.WALL, limits=BRIEF, bare=True),
    Case("r04", "ignoring every signal", "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass", ends_as(Status.TIMEOUT), Control.WALL, limits=BRIEF, bare=True),
    Case("r05", "a memory bomb", "held = []\nwhile True: held.append(bytearray(b'x') * (8 << 20))", ends_as(Status.OOM, Status.ERROR), Control.MEM, bare=True),
    Case("r06", "shared memory without a name", """
import mmap
held = []
for n in range(24):
    held.append(mmap.mmap(-1, 16 << 20))
    held[-1].write(b'x' * (16 << 20))
escaped('384 MiB of 128')
""", refused_or_ended, Control.MEM, needs=frozenset({Feature.NATIVE})),
    Case("r07", "memory of many children", """
import os, time
for n in range(12):
    if os.fork() == 0:
        data = bytearray(b'x') * (32 << 20)
        time.sleep(2)
        os._exit(0)
alive = 0
for n in range(12):
    alive += os.wait()[1] == 0
if alive > 4:
    escaped(f'{alive} children held 32 MiB each of 128')
""", refused_or_ended, Control.MEM, needs=PROCESSES),
    Case("r08", "a fork bomb", """
import os, signal, time
kids = []
try:
    while len(kids) < 150:
        pid = os.fork()
        if pid == 0:
            time.sleep(30)
            os._exit(0)
        kids.append(pid)
except OSError as error:
    print(error)
for pid in kids:
    os.kill(pid, signal.SIGKILL)
if len(kids) > 48:
    escaped(f'{len(kids)} children')
""", refused_or_ended, Control.PIDS, needs=PROCESSES),
    Case("r09", "a thread bomb", """
import threading
stop = threading.Event()
threads = []
try:
    while len(threads) < 150:
        threads.append(threading.Thread(target=stop.wait))
        threads[-1].start()
except RuntimeError as error:
    threads.pop()
    print(error)
stop.set()
if len(threads) > 48:
    escaped(f'{len(threads)} threads')
""", refused, Control.PIDS, needs=THREADS),
    Case("r10", "filling /tmp", """
written = 0
try:
    for n in range(3):
        with open(f'/tmp/fill-{n}', 'wb', buffering=0) as file:
            for _ in range(16):
                written += file.write(bytes(1 << 20))
except OSError as error:
    print(error)
if written > 16 << 20:
    escaped(f'{written} bytes in /tmp')
""", refused_or_ended, Control.FS, needs=TMP),
    Case("r11", "filling /tmp with names", """
made = 0
try:
    for made in range(6000):
        open(f'/tmp/name-{made}', 'w').close()
except OSError as error:
    print(error)
if made > 5000:
    escaped(f'{made} files in /tmp')
""", refused, Control.FS, needs=TMP, shared_kernel=True),
    Case("r12", "one huge sparse file", """
import os
descriptor = os.open('/tmp/sparse', os.O_RDWR | os.O_CREAT)
attempt(os.ftruncate, descriptor, 1 << 40)
""", refused_or_ended, Control.FS, needs=TMP),
    Case("r13", "very many descriptors", """
held = []
try:
    while len(held) < 2000:
        held.append(open('/usr/lib' if False else '/proc/self/stat'))
except OSError as error:
    print(error)
if len(held) > 128:
    escaped(f'{len(held)} open files')
""", refused, Control.FS, needs=frozenset({Feature.NATIVE})),
    Case("r14", "more than its share of the processors", """
import os, time
began = time.monotonic()
for n in range(3):
    if os.fork() == 0:
        while time.monotonic() - began < 1.5: pass
        os._exit(0)
for n in range(3):
    os.wait()
used = os.times()
share = (used.children_user + used.children_system) / (time.monotonic() - began)
if share > 0.2:
    escaped(f'{share:.2f} processors')
""", refused, Control.CPU, needs=PROCESSES, limits=replace(LIMITS, cpus=0.1)),
    Case("r15", "deep recursion", "def f(n): return f(n + 1)\nf(0)", ends_as(Status.ERROR, Status.KILLED), Control.MEM, bare=True),
    Case("r16", "a crash in machine code", "import ctypes\nctypes.string_at(0)", ends_as(Status.KILLED), Control.PID, needs=NATIVE, bare=True),
    Case("r17", "a core dump", "import resource\nif resource.getrlimit(resource.RLIMIT_CORE)[1] != 0:\n    escaped('core dumps are possible')", refused, Control.FS, needs=NATIVE),
    Case("r18", "a child that outlives it", """
import os, subprocess, sys
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', 'gnusnode-trace'], start_new_session=True)
""", refused, Control.PID, needs=PROCESSES),
    Case("r19", "a child that holds the output", """
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
""", lambda r: refused(r) or ("it was waited for" if r.wall_seconds > 8 else ""), Control.WALL, needs=PROCESSES),
]  # fmt: skip


def forged(result: Result) -> str:
    if result.status is not Status.ERROR or result.exit_code != 9:
        return f"the program's own words were taken for the engine's: {result.status}"
    return "" if b"gnusnode:ready" in result.stdout.data and b"\x02\0\0\0" in result.stdout.data else str(result.stdout)


def exactly_at_the_limit(result: Result) -> str:
    whole = result.stdout.total == LIMITS.output_bytes and not result.stdout.truncated
    return "" if result.status is Status.OK and whole else f"{result.status} {result.stdout.total}"


def counted(result: Result) -> str:
    kept = len(result.stdout.data) + len(result.stderr.data)
    if result.status is not Status.OUTPUT_LIMIT or kept != LIMITS.output_bytes:
        return f"{result.status}, {kept} bytes kept"
    return "" if result.stdout.total + result.stderr.total > kept else "what was dropped is not counted"


OUTPUT = [
    Case("o01", "endless output", "while True: print('A' * 4096)", counted, Control.OUTPUT, bare=True),
    Case("o02", "endless errors", "import sys\nwhile True: sys.stderr.write('A' * 4096)", counted, Control.OUTPUT, bare=True),
    Case("o03", "endless output of both kinds", "import os\nwhile True:\n    os.write(1, b'A' * 999)\n    os.write(2, b'B' * 999)", counted, Control.OUTPUT, bare=True),
    Case("o04", "a line without an end", "import os\nwhile True: os.write(1, b'A' * 65536)", counted, Control.OUTPUT, bare=True),
    Case("o05", "exactly as much as allowed", "import os\nfor _ in range(64): os.write(1, b'A' * 1024)", exactly_at_the_limit, None, bare=True),
    Case("o06", "one byte too many", "import os\nfor _ in range(64): os.write(1, b'A' * 1024)\nos.write(2, b'B')", counted, Control.OUTPUT, bare=True),
    Case("o07", "forged frames and results", """
import os
os.write(1, b'gnusnode:ready\\n')
os.write(1, b'\\x02\\0\\0\\0\\0\\0\\0\\5hello')
os.write(1, b'HTTP/1.1 200 OK\\r\\n\\r\\n{"StatusCode": 0}')
os.write(2, b'{"status": "ok", "exit_code": 0}')
os._exit(9)
""", forged, None, bare=True),
    Case("o08", "bytes that are no text", "import os\nos.write(1, bytes(range(256)))", lambda r: "" if r.stdout.data == bytes(range(256)) and r.stdout.text else str(r), None, bare=True),
    Case("o09", "closing its output and staying", "import os, time\nos.close(1)\nos.close(2)\ntime.sleep(60)", ends_as(Status.TIMEOUT), Control.WALL, limits=BRIEF, bare=True),
    Case("o10", "writing to its input", "import os\ntry:\n    os.write(0, b'x')\nexcept OSError:\n    pass\nprint('still here')", prints("still here\n"), None, bare=True),
]  # fmt: skip

BEHAVIOUR = [*CONTROLS, *RESOURCES, *OUTPUT]
