"""The list of system calls as the kernel's program: run here, number by number, against what the list says."""

from __future__ import annotations

import copy
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from sandbox.run import seccomp
from sandbox.run.bwrap.filter import numbers, program

X86_64, I386, ALLOW, KILL = 0xC000003E, 0x40000003, 0x7FFF_0000, 0x8000_0000
HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


def errno(number: int) -> int:
    return 0x0005_0000 | number


def kernel(code: bytes, number: int, *arguments: int, arch: int = X86_64) -> int:
    """What the kernel returns for a call: an interpreter of classic BPF over ``struct seccomp_data``."""
    padded = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", number & 0xFFFF_FFFF, arch, 0, *padded)
    steps = list(struct.iter_unpack("=HBBI", code))
    at, held = 0, 0
    while True:
        kind, yes, no, value = steps[at]
        at += 1
        match kind:
            case 0x20:
                (held,) = struct.unpack_from("<I", data, value)
            case 0x54:
                held &= value
            case 0x06:
                return value
            case 0x15 | 0x35 | 0x25:
                holds = {0x15: held == value, 0x35: held >= value, 0x25: held > value}[kind]
                at += yes if holds else no
            case _:
                raise AssertionError(f"an instruction that is not ours: {kind:#x}")


@pytest.fixture(scope="module")
def code() -> bytes:
    return program(seccomp.profile())


def listed() -> tuple[set[str], set[str]]:
    """Names that are allowed whatever their arguments, and names with a rule of their own."""
    plain: set[str] = set()
    special: set[str] = set()
    for rule in seccomp.profile()["syscalls"]:
        (special if rule.get("args") or rule["action"] != "SCMP_ACT_ALLOW" else plain).update(rule["names"])
    return plain, special


def test_every_number_gets_what_the_list_says(code: bytes) -> None:
    plain, special = listed()
    names = {number: name for name, number in numbers().items()}
    for number in range(600):
        if names.get(number) in special:
            continue
        expected = ALLOW if names.get(number) in plain else errno(1)
        assert kernel(code, number) == expected, names.get(number, number)


def test_rules_on_arguments_hold(code: bytes) -> None:
    number = numbers()
    for family in range(64):
        assert (kernel(code, number["socket"], family) == ALLOW) is (family in (1, 2, 10)), family
        assert (kernel(code, number["socketpair"], family) == ALLOW) is (family == 1), family
    assert kernel(code, number["socket"], 1 << 32 | 2) == errno(1)
    assert kernel(code, number["clone"], 0x3D0F00) == ALLOW
    for bit in range(32):
        flag = 1 << bit
        assert (kernel(code, number["clone"], flag) == ALLOW) is (not flag & 0x7E02_0000), hex(flag)
    assert kernel(code, number["clone3"]) == errno(38)


@pytest.mark.parametrize("number", [0, 1, 20, 59, 102, 0x4000_0000, 0x4000_0000 + 59, 0xFFFF_FFFF])
def test_other_conventions_end_the_process(code: bytes, number: int) -> None:
    assert kernel(code, number, arch=I386) == KILL
    if number >= 0x4000_0000:
        assert kernel(code, number) == KILL


def test_the_program_is_one_that_a_kernel_accepts(code: bytes) -> None:
    steps = list(struct.iter_unpack("=HBBI", code))
    assert len(steps) <= 4096
    assert steps[-1][0] == 0x06
    for at, (kind, yes, no, _) in enumerate(steps):
        if kind in (0x15, 0x25, 0x35):
            assert at + 1 + max(yes, no) < len(steps)


@pytest.mark.skipif(not HEADER.exists(), reason="the kernel's headers are not installed")
def test_the_numbers_are_those_of_the_kernels_header() -> None:
    header = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text())}
    assert {name: numbers().get(name) for name in header} == header


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"defaultAction": "SCMP_ACT_ALLOW"}, "default"),
        ({"archMap": []}, "x86_64"),
        ({"syscalls": [{"names": ["no_such_call"], "action": "SCMP_ACT_ALLOW"}]}, "no number"),
        ({"syscalls": [{"names": ["read"], "action": "SCMP_ACT_TRACE"}]}, "action"),
        (
            {
                "syscalls": [
                    {"names": ["read"], "action": "SCMP_ACT_ALLOW"},
                    {
                        "names": ["read"],
                        "action": "SCMP_ACT_ALLOW",
                        "args": [{"index": 0, "value": 1, "valueTwo": 0, "op": "SCMP_CMP_EQ"}],
                    },
                ]
            },
            "with and without",
        ),
        (
            {
                "syscalls": [
                    {
                        "names": ["read"],
                        "action": "SCMP_ACT_ALLOW",
                        "args": [{"index": 0, "value": 1, "valueTwo": 0, "op": "SCMP_CMP_LT"}],
                    }
                ]
            },
            "comparison",
        ),
    ],
)
def test_what_the_compiler_does_not_know_it_refuses(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        program({**copy.deepcopy(seccomp.profile()), **change})
