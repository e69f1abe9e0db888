"""The backends that are here and prove themselves; whoever adds one adds a maker to ``MAKERS``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sandbox.run.bwrap.recipe import BwrapRecipe
from sandbox.run.docker.backend import DockerBackend
from sandbox.run.gvisor.recipe import GvisorRecipe
from sandbox.run.local.backend import LocalBackend
from sandbox.run.types import SandboxBackend
from sandbox.run.wasmpython.backend import WasmPythonBackend
from tests.fakes import sandbox_root, wasm_python
from tests.fakes.dockerd import docker_image, docker_socket, find, loaded_image  # noqa: F401 - fixtures


def docker() -> SandboxBackend:
    path, reason = find()
    if not path:
        pytest.skip(reason)
    return DockerBackend(image_id=loaded_image(path).image_id, node="battery", socket=path)


def wasm_cpython() -> SandboxBackend:
    return WasmPythonBackend(wasm_python.directory())


def bwrap() -> SandboxBackend:
    return LocalBackend(BwrapRecipe(sandbox_root.directory(BwrapRecipe)), node="battery")


def gvisor() -> SandboxBackend:
    return LocalBackend(GvisorRecipe(sandbox_root.directory(GvisorRecipe)), node="battery")


MAKERS: dict[str, Callable[[], SandboxBackend]] = {
    "docker": docker,
    "wasm-cpython": wasm_cpython,
    "bwrap": bwrap,
    "gvisor": gvisor,
}
"""Name of a backend -> what makes it, or skips with the reason why it cannot be here."""


@pytest.fixture(params=list(MAKERS))
def backends(request: pytest.FixtureRequest) -> SandboxBackend:
    """Each backend in turn."""
    return MAKERS[request.param]()
