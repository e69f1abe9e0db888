"""The list of system calls: what it says, whatever enforces it."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox import seccomp as our_children
from sandbox.run import seccomp


def rules(name: str) -> list[dict[str, Any]]:
    return [rule for rule in seccomp.profile()["syscalls"] if name in rule["names"]]


def test_what_is_not_named_is_refused() -> None:
    assert seccomp.profile()["defaultAction"] == "SCMP_ACT_ERRNO"
    assert {rule["action"] for rule in seccomp.profile()["syscalls"]} == {"SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"}


def test_only_the_native_convention_of_x86_64_is_known() -> None:
    assert seccomp.profile()["archMap"] == [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []}]


def test_of_the_socket_families_only_unix_and_the_internet_are_open() -> None:
    assert sorted(rule["args"][0]["value"] for rule in rules("socket")) == [1, 2, 10]
    assert all(rule["args"][0]["op"] == "SCMP_CMP_EQ" for rule in rules("socket"))
    assert [rule["args"][0]["value"] for rule in rules("socketpair")] == [1]


def test_a_new_process_cannot_have_namespaces_of_its_own() -> None:
    (clone,) = rules("clone")
    assert clone["args"] == [{"index": 0, "value": 0x7E02_0000, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]
    assert [(rule["action"], rule["errnoRet"]) for rule in rules("clone3")] == [("SCMP_ACT_ERRNO", 38)]


WANTED_IN_SANDBOXES = {
    "socket", "socketpair", "connect", "bind", "listen", "accept", "accept4", "sendto", "sendmsg", "sendmmsg",
    "recvmsg", "execve", "fork", "vfork", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open",
    "pidfd_send_signal", "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchown", "fchownat",
    "utime", "utimes", "futimesat", "utimensat",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(our_children.DENIED) - WANTED_IN_SANDBOXES))
def test_what_our_own_children_may_not_call_foreign_code_may_not_either(name: str) -> None:
    assert not rules(name)


@pytest.mark.parametrize(
    "name", ["sync", "syncfs", "memfd_create", "timer_create", "splice", "vmsplice", "mknod", "mknodat", "personality"]
)
def test_calls_that_python_does_not_need_are_closed(name: str) -> None:
    assert not rules(name)
