"""The list of system calls as a program for the kernel: classic BPF, made from the same JSON that containers get.

The kernel runs it from the top for every call. Numbers that stand in a row are tested together; a call with a rule on
its arguments comes before those without.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final

_NUMBERS: Final = Path(__file__).resolve().parent.parent.parent / "data" / "syscalls-x86_64.json"
_AUDIT_ARCH: Final = 0xC000003E
_X32: Final = 0x4000_0000
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _AT_LEAST, _GREATER = 0x15, 0x35, 0x25
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF_0000, 0x0005_0000, 0x8000_0000
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16

_Code = list[tuple[int, int, int, int]]


@cache
def numbers() -> dict[str, int]:
    """The kernel's numbers for x86_64, by name."""
    return json.loads(_NUMBERS.read_text("utf-8"))


def program(profile: Mapping[str, Any]) -> bytes:
    """``profile``, in the format of the Open Container Initiative, as packed ``struct sock_filter``.

    Raises:
        ValueError: it asks for what this compiler does not know; nothing is guessed.
    """
    if profile["defaultAction"] != "SCMP_ACT_ERRNO" or profile["archMap"] != [
        {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []}
    ]:
        raise ValueError("only lists for x86_64 whose default is an error number")
    code: _Code = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 1, 0, _AUDIT_ARCH),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL_PROCESS),
    ]
    refuse = (_RETURN, 0, 0, _ERRNO | int(profile["defaultErrnoRet"]))
    plain, conditional = _sorted_out(profile["syscalls"])
    for number, rules in sorted(conditional.items()):
        block = [step for rule in rules for step in _rule(rule)]
        code += [(_EQUAL, 0, len(block) + 1, number), *block, refuse]
    for action, allowed in plain.items():
        for low, high in _runs(allowed):
            code += [(_AT_LEAST, 0, 2, low), (_GREATER, 1, 0, high), (_RETURN, 0, 0, action)]
    code.append(refuse)
    return b"".join(struct.pack("=HBBI", *step) for step in code)


def _sorted_out(rules: Iterable[Mapping[str, Any]]) -> tuple[dict[int, set[int]], dict[int, list[Mapping[str, Any]]]]:
    """Numbers by what is returned for them, and the rules of the numbers whose arguments are looked at."""
    plain: dict[int, set[int]] = {}
    conditional: dict[int, list[Mapping[str, Any]]] = {}
    for rule in rules:
        for name in rule["names"]:
            if name not in numbers():
                raise ValueError(f"no number is known for the system call {name!r}")
            if rule.get("args"):
                conditional.setdefault(numbers()[name], []).append(rule)
            else:
                plain.setdefault(_action(rule), set()).add(numbers()[name])
    if both := conditional.keys() & set().union(*plain.values()):
        raise ValueError(f"system calls with and without a rule on arguments: {sorted(both)}")
    return plain, conditional


def _action(rule: Mapping[str, Any]) -> int:
    match rule["action"]:
        case "SCMP_ACT_ALLOW":
            return _ALLOW
        case "SCMP_ACT_ERRNO":
            return _ERRNO | int(rule["errnoRet"])
        case other:
            raise ValueError(f"the action {other!r} is not known")


def _rule(rule: Mapping[str, Any]) -> _Code:
    """Returns the rule's action when its one condition holds; goes on, with the number loaded again, when not."""
    (condition,) = rule["args"]
    at = _ARGUMENTS_AT + 8 * condition["index"]
    value, other = condition["value"], condition["valueTwo"]
    act = (_RETURN, 0, 0, _action(rule))
    again = (_LOAD, 0, 0, _NUMBER_AT)
    if max(value, other) >= 2**32:
        raise ValueError("a condition on the upper half of an argument")
    match condition["op"]:
        case "SCMP_CMP_EQ":
            upper = [(_LOAD, 0, 0, at + 4), (_EQUAL, 0, 3, 0)]
            return [*upper, (_LOAD, 0, 0, at), (_EQUAL, 0, 1, value), act, again]
        case "SCMP_CMP_MASKED_EQ":  # the mask has no upper half: whatever stands there is allowed
            return [(_LOAD, 0, 0, at), (_AND, 0, 0, value), (_EQUAL, 0, 1, other), act, again]
        case other_op:
            raise ValueError(f"the comparison {other_op!r} is not known")


def _runs(values: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers in a row as (first, last): ``{1, 2, 3, 7}`` -> ``[(1, 3), (7, 7)]``."""
    rows = [[number for _, number in row] for _, row in groupby(enumerate(sorted(values)), lambda x: x[1] - x[0])]
    return [(row[0], row[-1]) for row in rows]
