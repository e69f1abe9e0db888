"""WebAssembly modules for tests, written as text, and the host sessions that they talk to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnusnode.contracts import ids
from gnusnode.contracts.generation import CapabilityRequest
from sandbox.host.session import HostSession, encode_request
from sandbox.host.types import Grant, Grants, Operation

IMPORT = '(import "gnus" "call" (func $call (param i32 i32 i32 i32) (result i32)))'
AT = 0
"""Where ``calling`` puts the request."""
OUT = 32768
"""Where it wants the answer."""


def escaped(data: bytes) -> str:
    """Bytes as a string of the text format."""
    return '"' + "".join(f"\\{byte:02x}" for byte in data) + '"'


def assembled(text: str) -> bytes:
    """The binary of a module in the text format; skips the test where there is no wasmtime."""
    import pytest

    wasmtime = pytest.importorskip("wasmtime", reason="WebAssembly modules need the extra `wasm`")
    return bytes(wasmtime.wat2wasm(text))


def calling(request: bytes, *, pointers: str | None = None, body: str | None = None, pages: int = 1) -> bytes:
    """A module whose ``run`` calls the host with ``request`` and returns what the host says.

    Args:
        pointers: the four arguments in the text format, instead of the right ones.
        body: the whole body of ``run``, instead of the one call; may use ``$call``.
    """
    right = f"(i32.const {AT}) (i32.const {len(request)}) (i32.const {OUT}) (i32.const 16384)"
    run = body or f"(call $call {pointers or right})"
    data = f"(data (i32.const {AT}) {escaped(request)})"
    return assembled(f'(module {IMPORT} (memory (export "memory") {pages}) {data} '
                     f'(func (export "run") (result i32) {run}))')  # fmt: skip


def request(name: str, scope: str = "readonly", **arguments: Any) -> bytes:
    return encode_request(CapabilityRequest(name=name, scope=scope, arguments=arguments))


def session_for(
    module: bytes,
    *capabilities: Grant,
    operations: Mapping[str, Operation] | None = None,
    clock: str = "disabled",
    randomness: str = "disabled",
    data: bytes = b"",
    max_output: int = 1024,
    now_ms: int = 1_700_000_000_999,
) -> HostSession:
    """A session for ``module`` with a fixed clock and fixed randomness."""
    grants = Grants.model_validate(
        {
            "artifact_hash": ids.sha256(module),
            "capabilities": capabilities,
            "clock": clock,
            "randomness": randomness,
        }
    )
    return HostSession(
        grants,
        operations or {},
        unix_ms=lambda: now_ms,
        random=lambda count: bytes(range(256))[:count] if count <= 256 else bytes(count),
        data=data,
        max_output=max_output,
    )
