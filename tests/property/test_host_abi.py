"""For any request, any grants and any memory layout: nothing raises, nothing leaks, nothing is written out of place."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from gnusnode.contracts import canonical, ids
from gnusnode.contracts.generation import CapabilityRequest
from sandbox.host.grants import judge
from sandbox.host.memory import span
from sandbox.host.session import decode_request, encode_request
from sandbox.host.types import MAX_REQUEST, Code, Denial, Grant, Grants
from tests.fakes.wasm_modules import session_for

ARTIFACT = ids.sha256(b"m")
NAMES = ("memory.retrieve", "rank.top", "clock.now", "random.bytes", "module.input", "module.output", "net.connect")
SCOPES = ("readonly", "coarse", "host_attested", "own", "proposal_only")
atoms = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["a", "b", ""]) | st.sampled_from([0.0, 1.0, 1.5])
)
values = atoms | st.lists(atoms, max_size=3)
requests = st.builds(
    CapabilityRequest,
    name=st.sampled_from(NAMES),
    scope=st.sampled_from(SCOPES),
    arguments=st.dictionaries(
        st.sampled_from(["k", "mode", "count", "offset", "length", "bytes"]), values | st.binary(max_size=8), max_size=4
    ),
)
capabilities = st.lists(
    st.builds(
        Grant,
        capability=st.sampled_from(NAMES[:2]),
        scope=st.sampled_from(SCOPES),
        constraints=st.dictionaries(st.sampled_from(["k", "mode"]), values, max_size=2),
    ),
    max_size=3,
    unique_by=lambda grant: (grant.capability, grant.scope),
).map(tuple)
all_grants = st.builds(
    Grants,
    artifact_hash=st.just(ARTIFACT),
    capabilities=capabilities,
    clock=st.sampled_from(["disabled", "coarse"]),
    randomness=st.sampled_from(["disabled", "host_attested"]),
)


def granted(grants: Grants, request: CapabilityRequest) -> bool:
    return not isinstance(judge(grants, request), Denial)


def allowed(value: Any, constraint: Any) -> bool:
    """The rule said another way: everything asked for is one of what may be, type for type."""
    asked = value if isinstance(value, list) else [value]
    may = constraint if isinstance(constraint, list) else [constraint]
    return value is not None and asked != [] and all(any(type(a) is type(m) and a == m for m in may) for a in asked)


@given(all_grants, requests)
@pytest.mark.requirement("G-IF-4", "G-TI-12")
def test_granted_is_exactly_what_a_grant_says(grants: Grants, request: CapabilityRequest) -> None:
    own = {
        ("module.input", "own"): True,
        ("module.output", "own"): True,
        ("clock.now", "coarse"): grants.clock == "coarse",
        ("random.bytes", "host_attested"): grants.randomness == "host_attested",
    }
    expected = own.get((request.name, request.scope), False) or any(
        (grant.capability, grant.scope) == (request.name, request.scope)
        and grant.scope != "proposal_only"
        and all(allowed(request.arguments.get(name), rule) for name, rule in grant.constraints.items())
        for grant in grants.capabilities
    )
    assert granted(grants, request) is expected


@given(all_grants, requests, st.sets(st.sampled_from(NAMES)))
@pytest.mark.requirement("G-TI-12")
def test_narrowing_never_grants_more(grants: Grants, request: CapabilityRequest, kept: set[str]) -> None:
    if granted(grants.narrowed(kept), request):
        assert granted(grants, request)


@given(requests)
def test_a_request_has_one_encoding(request: CapabilityRequest) -> None:
    encoded = encode_request(request)
    assert decode_request(encoded) == request
    assert encode_request(decode_request(encoded)) == encoded


@given(st.binary(max_size=64) | requests.map(encode_request), st.integers(0, 63), st.integers(0, 255))
def test_any_bytes_get_an_answer_and_are_accounted(encoded: bytes, at: int, byte: int) -> None:
    damaged = bytearray(encoded)
    if damaged:
        damaged[at % len(damaged)] = byte
    session = session_for(b"m", clock="coarse", randomness="host_attested", data=b"input")
    for data in (encoded, bytes(damaged)):
        answer = trio.run(session.answer, data)
        assert answer.code is None or (answer.code in Code and answer.body == b"")
        if answer.code is None:
            canonical.decode(answer.body)
    assert session.calls == 2


i32 = st.integers(-(2**31), 2**31 - 1) | st.integers(-20, 20) | st.integers(65_500, 65_560)


@given(i32, i32, st.integers(0, 2**32) | st.integers(-2, 2).map(lambda delta: (delta,)))
@pytest.mark.requirement("G-IF-4")
def test_a_span_lies_inside_or_is_none(pointer: int, length: int, size: int | tuple[int]) -> None:
    start, count = pointer % 2**32, length % 2**32
    if isinstance(size, tuple):  # close to the end of the span, where mistakes are made
        size = start + count + size[0]
    found = span(pointer, length, size)
    if start + count <= size:
        assert found == slice(start, start + count)
    else:
        assert found is None


@settings(max_examples=150)
@given(i32, i32, i32, i32, st.binary(max_size=40), st.sampled_from([None, *Code]))
@pytest.mark.requirement("G-IF-4")
def test_a_call_writes_the_answer_where_it_was_wanted_and_nothing_else(
    pointer: int, length: int, out: int, room: int, body: bytes, code: Code | None
) -> None:
    wasmtime = pytest.importorskip("wasmtime", reason="WebAssembly modules need the extra `wasm`")
    from sandbox.host.execution import HostFunction

    store = wasmtime.Store()
    memory = wasmtime.Memory(store, wasmtime.MemoryType(wasmtime.Limits(1, 1)))
    before = bytes(range(256)) * 256
    memory.write(store, before)

    class Caller:
        _context = store._context

        def __getitem__(self, name: str) -> Any:
            return {"memory": memory}[name]

    asked: list[bytes] = []

    class Host:
        def ask(self, request: bytes) -> tuple[int | None, bytes]:
            asked.append(request)
            return code, body

    said = HostFunction(Host(), 1)(Caller(), pointer, length, out, room)
    after = bytes(memory.read(store, 0, len(before)))
    source, target = span(pointer, length, 65_536), span(out, room, 65_536)
    if source is None or target is None:
        assert (said, asked, after == before) == (Code.FAULT, [], True)
        return
    assert asked == [before[source][: MAX_REQUEST + 1]]
    if code is not None or len(body) > target.stop - target.start:
        assert said == (code if code is not None else Code.TOO_SMALL)
        assert after == before
    else:
        assert said == len(body)
        assert after == before[: target.start] + body + before[target.start + len(body) :]
