"""A container is compared with what was asked, and every difference is named."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sandbox.run import seccomp
from sandbox.run.docker.container import verdict
from sandbox.run.docker.spec import ContainerSpec
from sandbox.run.types import NO_GRANTS, Grants, Limits, ReadGrant, Status

IMAGE = "sha256:" + "a" * 64
SPEC = ContainerSpec(
    image_id=IMAGE,
    runtime="runc",
    seccomp=seccomp.compact(),
    limits=Limits(),
    grants=NO_GRANTS,
    labels={"gnusnode.sandbox": "node"},
    image_environment=("LD_LIBRARY_PATH=/usr/lib/sandbox", "PATH=/somewhere"),
)


def described(spec: ContainerSpec = SPEC) -> dict[str, Any]:
    """What an engine says of the container that it made exactly as asked."""
    body = copy.deepcopy(spec.body())
    host = body.pop("HostConfig")
    body["Env"] = ["LD_LIBRARY_PATH=/usr/lib/sandbox", *body["Env"]]
    host |= {"ShmSize": 67_108_864, "Isolation": "", "CapAdd": None}
    host |= {"ConsoleSize": [0, 0], "Privileged": False, "CpuShares": 0, "Devices": []}
    return {"Image": IMAGE, "Config": body, "HostConfig": host, "Mounts": []}


def test_a_container_as_it_was_asked_has_no_differences() -> None:
    assert SPEC.differences(described()) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("NetworkMode", "bridge"),
        ("ReadonlyRootfs", False),
        ("CapDrop", None),
        ("CapDrop", []),
        ("CapAdd", ["SYS_ADMIN"]),
        ("SecurityOpt", ["no-new-privileges:true"]),
        ("SecurityOpt", None),
        ("PidsLimit", None),
        ("Memory", 0),
        ("MemorySwap", -1),
        ("NanoCpus", 0),
        ("IpcMode", "private"),
        ("LogConfig", {"Type": "json-file", "Config": {}}),
        ("Tmpfs", {"/tmp": "rw"}),
        ("Ulimits", []),
        ("Runtime", "other"),
        ("RestartPolicy", {"Name": "always", "MaximumRetryCount": 0}),
        ("CgroupnsMode", "host"),
        ("OomScoreAdj", -1000),
        # what nobody asked for
        ("Privileged", True),
        ("Binds", ["/:/host"]),
        ("PidMode", "host"),
        ("UTSMode", "host"),
        ("UsernsMode", "host"),
        ("Devices", [{"PathOnHost": "/dev/kmsg"}]),
        ("DeviceRequests", [{"Driver": "nvidia"}]),
        ("ExtraHosts", ["a:1.2.3.4"]),
        ("Sysctls", {"net.ipv4.ip_forward": "1"}),
        ("GroupAdd", ["docker"]),
        ("VolumesFrom", ["x"]),
        ("CgroupParent", "/elsewhere"),
        ("OomKillDisable", True),
        ("MaskedPaths", []),
        ("MaskedPaths", None),
        ("ReadonlyPaths", ["/proc/bus"]),
        ("SomethingThatANewerEngineHas", "on"),
    ],
)
def test_each_difference_of_the_host_configuration_is_noticed(field: str, value: object) -> None:
    found = described()
    found["HostConfig"][field] = value
    assert any(f"HostConfig.{field}" in line for line in SPEC.differences(found))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("User", ""),
        ("User", "0"),
        ("Image", "python:latest"),
        ("Entrypoint", ["/bin/sh"]),
        ("Cmd", ["-c", "true"]),
        ("Env", ["LD_PRELOAD=/x"]),
        ("Volumes", {"/data": {}}),
        ("ExposedPorts", {"80/tcp": {}}),
        ("Labels", {}),
        ("Tty", True),
        ("Healthcheck", {"Test": ["CMD", "x"]}),
    ],
)
def test_each_difference_of_the_configuration_is_noticed(field: str, value: object) -> None:
    found = described()
    found["Config"][field] = value
    assert any(line.startswith(field) for line in SPEC.differences(found))


def test_another_image_and_an_unasked_mount_are_noticed() -> None:
    assert SPEC.differences({**described(), "Image": "sha256:" + "b" * 64})
    assert SPEC.differences({**described(), "Mounts": [{"Type": "volume"}]})


def test_an_empty_description_is_refused() -> None:
    assert SPEC.differences({})


def test_a_grant_is_a_read_only_mount_and_nothing_else() -> None:
    grants = Grants(read=(ReadGrant("/srv/data", "/data"),))
    spec = ContainerSpec(
        image_id=IMAGE, runtime="runc", seccomp=None, limits=Limits(), grants=grants, labels={}, image_environment=()
    )
    mount = {"Type": "bind", "Source": "/srv/data", "Target": "/data", "ReadOnly": True}
    assert spec.body()["HostConfig"]["Mounts"] == [mount]
    found = described(spec)
    found["Config"]["Env"].remove("LD_LIBRARY_PATH=/usr/lib/sandbox")
    assert spec.differences({**found, "Mounts": [mount]}) == []
    found["HostConfig"]["Mounts"] = [{**mount, "ReadOnly": False}]
    assert spec.differences({**found, "Mounts": [mount]})


def test_an_image_may_have_labels_and_its_python_elsewhere() -> None:
    spec = ContainerSpec(
        image_id=IMAGE, runtime="runc", seccomp=None, limits=Limits(), grants=NO_GRANTS, labels={"ours": "1"},
        image_labels={"theirs": "2"}, interpreter="/usr/local/bin/python3",
    )  # fmt: skip
    found = described(spec)
    found["Config"]["Env"].remove("LD_LIBRARY_PATH=/usr/lib/sandbox")
    assert found["Config"]["Entrypoint"][0] == "/usr/local/bin/python3"
    assert spec.differences(found)
    found["Config"]["Labels"] = {"ours": "1", "theirs": "2"}
    assert spec.differences(found) == []


def test_memory_for_the_runtime_is_added_to_the_job_s_own() -> None:
    spec = ContainerSpec(
        image_id=IMAGE, runtime="r", seccomp=None, limits=Limits(memory_bytes=100), grants=NO_GRANTS, labels={},
        image_environment=(), extra_memory_bytes=50,
    )  # fmt: skip
    assert spec.body()["HostConfig"]["Memory"] == spec.body()["HostConfig"]["MemorySwap"] == 150


@pytest.mark.parametrize(
    ("state", "limit_hit", "status"),
    [
        ({"ExitCode": 0}, None, Status.OK),
        ({"ExitCode": 3}, None, Status.ERROR),
        ({"ExitCode": 200}, None, Status.ERROR),
        ({"ExitCode": 139}, None, Status.KILLED),
        ({"ExitCode": 137}, None, Status.KILLED),
        ({"ExitCode": 137, "OOMKilled": True}, None, Status.OOM),
        ({"ExitCode": 1, "OOMKilled": True}, None, Status.OOM),
        ({"ExitCode": 0, "OOMKilled": True}, None, Status.OK),
        ({"ExitCode": 137}, Status.TIMEOUT, Status.TIMEOUT),
        ({"ExitCode": 0}, Status.OUTPUT_LIMIT, Status.OUTPUT_LIMIT),
        ({"ExitCode": 0, "Error": "no such file"}, None, Status.INFRA),
        ({"ExitCode": 0, "Running": True}, None, Status.INFRA),
    ],
)
def test_the_engine_s_word_decides_how_a_job_ended(
    state: dict[str, Any], limit_hit: Status | None, status: Status
) -> None:
    assert verdict(state, limit_hit, Limits())[0] is status
