"""What a manifest grants, what a request gets, and the signed account of it."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from gnusnode.contracts import canonical, ids
from gnusnode.contracts.generation import CapabilityRequest
from gnusnode.contracts.tools import CapabilityManifest, RequiredCapability, SandboxRequirements
from gnusnode.errors import DataError, RecordRefused
from gnusnode.identity import NodeIdentity
from sandbox.host.grants import grants_of, judge
from sandbox.host.session import MAX_RANDOM, account_entry, decode_request
from sandbox.host.types import MAX_ANSWER, MAX_REQUEST, Answer, Code, Denial, Grant, Grants, HostAudit, Refusal
from tests.fakes.wasm_modules import request, session_for

ARTIFACT = ids.sha256(b"module")
RETRIEVE = Grant(
    capability="memory.retrieve", scope="readonly", constraints={"memory_mode": ["policy_scoped", "trusted_only"]}
)


def manifest(signer: NodeIdentity, **changes: Any) -> CapabilityManifest:
    fields: dict[str, Any] = {
        "module_name": "grounding-elm",
        "module_version": "1.2.0",
        "artifact_hash": ARTIFACT,
        "required_capabilities": (
            RequiredCapability(name="memory.retrieve", scope="readonly", constraints=RETRIEVE.constraints),
            RequiredCapability(
                name="tool.web.fetch", scope="proposal_only", constraints={"domains": ["docs.example.org"]}
            ),
        ),
        "issued_at_ms": 1,
        **changes,
    }
    return CapabilityManifest.signed(signer, **fields)


def grants(*capabilities: Grant, **words: Any) -> Grants:
    return Grants(artifact_hash=ARTIFACT, capabilities=capabilities, **words)


def refusal(granted: Grants, name: str, scope: str = "readonly", **arguments: Any) -> Refusal | None:
    verdict = judge(granted, CapabilityRequest(name=name, scope=scope, arguments=arguments))
    return verdict.refusal if isinstance(verdict, Denial) else None


# --- manifest to grants -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("G-EX-6", "G-IF-4")
def test_each_capability_and_requirement_of_a_manifest_becomes_one_grant(signer: NodeIdentity) -> None:
    record = manifest(signer)
    granted = grants_of(record, ARTIFACT)
    assert [(g.capability, g.scope, g.constraints) for g in granted.capabilities] == [
        (need.name, need.scope, need.constraints) for need in record.required_capabilities
    ]
    assert (granted.clock, granted.randomness) == ("coarse", "host_attested")


@pytest.mark.requirement("G-TI-12")
def test_a_manifest_that_asks_for_nothing_gets_nothing(signer: NodeIdentity) -> None:
    needs = SandboxRequirements(clock="disabled", randomness="disabled")
    granted = grants_of(manifest(signer, required_capabilities=(), sandbox_requirements=needs), ARTIFACT)
    assert granted == Grants(artifact_hash=ARTIFACT)


@pytest.mark.parametrize(
    ("field", "word"),
    [
        ("network", "enabled"),
        ("network", "coarse"),
        ("filesystem", "readonly"),
        ("clock", "precise"),
        ("randomness", "direct"),
    ],
)
@pytest.mark.requirement("G-EX-6")
def test_a_requirement_that_no_host_fulfils_refuses_the_artifact(signer: NodeIdentity, field: str, word: str) -> None:
    needs = SandboxRequirements(**{field: word})
    with pytest.raises(RecordRefused, match=field):
        grants_of(manifest(signer, sandbox_requirements=needs), ARTIFACT)


@pytest.mark.parametrize(
    "name", ["clock.precise", "random.bytes", "net.connect", "fs.read", "network", "wasi.fd_write", "module.output"]
)
def test_a_capability_cannot_smuggle_in_what_the_requirements_rule(signer: NodeIdentity, name: str) -> None:
    with pytest.raises(RecordRefused, match="sandbox requirements"):
        grants_of(manifest(signer, required_capabilities=(RequiredCapability(name=name, scope="readonly"),)), ARTIFACT)


def test_a_manifest_for_another_artifact_or_with_a_bad_signature_grants_nothing(signer: NodeIdentity) -> None:
    with pytest.raises(RecordRefused, match="another artifact"):
        grants_of(manifest(signer), ids.sha256(b"other"))
    forged = manifest(signer).model_copy(update={"required_capabilities": ()})
    with pytest.raises(RecordRefused, match="signature"):
        grants_of(forged, ARTIFACT)


def test_the_same_capability_twice_is_refused_since_nobody_could_say_which_constraints_hold(
    signer: NodeIdentity,
) -> None:
    twice = (
        RequiredCapability(name="memory.retrieve", scope="readonly", constraints={"memory_mode": ["trusted_only"]}),
        RequiredCapability(name="memory.retrieve", scope="readonly"),
    )
    with pytest.raises(RecordRefused, match="twice"):
        grants_of(manifest(signer, required_capabilities=twice), ARTIFACT)


def test_plans_only_take_grants_away_and_change_the_digest() -> None:
    granted = grants(RETRIEVE, Grant(capability="tool.web.fetch", scope="readonly"))
    narrow = granted.narrowed({"memory.retrieve", "tool:code.run"})
    assert narrow.capabilities == (RETRIEVE,)
    assert narrow.digest != granted.digest


# --- request to verdict -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("G-IF-4", "G-EX-5", "G-TI-12")
def test_what_is_not_granted_is_denied() -> None:
    nothing = grants()
    for name in ("memory.retrieve", "clock.now", "random.bytes", "net.connect", "fs.read", "process.spawn", "x" * 128):
        assert refusal(nothing, name) is Refusal.NOT_GRANTED


def test_a_grant_holds_for_its_scope_and_its_constraints_only() -> None:
    granted = grants(RETRIEVE)
    assert refusal(granted, "memory.retrieve", memory_mode="trusted_only", query="x") is None
    assert refusal(granted, "memory.retrieve", memory_mode=["trusted_only", "policy_scoped"]) is None
    assert refusal(granted, "memory.retrieve", "readwrite", memory_mode="trusted_only") is Refusal.OTHER_SCOPE
    for mode in ("all", None, [], ["trusted_only", "all"], {"trusted_only": 1}, [["trusted_only"]], 1):
        assert refusal(granted, "memory.retrieve", memory_mode=mode) is Refusal.OUTSIDE_CONSTRAINTS, mode
    assert refusal(granted, "memory.retrieve") is Refusal.OUTSIDE_CONSTRAINTS


def test_numbers_that_python_holds_equal_are_different_values() -> None:
    granted = grants(Grant(capability="rank.top", scope="readonly", constraints={"k": 1}))
    assert refusal(granted, "rank.top", k=1) is None
    assert refusal(granted, "rank.top", k=True) is Refusal.OUTSIDE_CONSTRAINTS
    assert refusal(granted, "rank.top", k=1.0) is Refusal.OUTSIDE_CONSTRAINTS


def test_what_may_only_be_proposed_cannot_be_called(signer: NodeIdentity) -> None:
    granted = grants_of(manifest(signer), ARTIFACT)
    verdict = refusal(granted, "tool.web.fetch", "proposal_only", domains=["docs.example.org"])
    assert verdict is Refusal.PROPOSAL_ONLY


def test_clock_and_randomness_have_one_scope_each() -> None:
    granted = grants(clock="coarse", randomness="host_attested")
    assert refusal(granted, "clock.now", "coarse") is None
    assert refusal(granted, "clock.now", "precise") is Refusal.OTHER_SCOPE
    assert refusal(granted, "random.bytes", "host_attested", count=8) is None
    assert refusal(granted, "random.bytes", "coarse", count=8) is Refusal.OTHER_SCOPE


# --- a session --------------------------------------------------------------------------------------------------------


async def rows(_request: CapabilityRequest) -> dict[str, Any]:
    return {"rows": ["one"]}


async def broken(_request: CapabilityRequest) -> None:
    raise DataError("the index is damaged")


async def endless(_request: CapabilityRequest) -> bytes:
    return bytes(MAX_ANSWER)


@pytest.mark.requirement("G-TI-12")
async def test_the_clock_is_coarse_and_there_is_none_unless_granted() -> None:
    asked = request("clock.now", "coarse")
    granted = await session_for(b"m", clock="coarse").answer(asked)
    assert canonical.decode(granted.body) == {"seconds": 1_700_000_000}
    assert await session_for(b"m").answer(asked) == Answer(Code.DENIED)


@pytest.mark.parametrize("count", [0, -1, MAX_RANDOM + 1, True, 1.0, "8", None])
async def test_randomness_is_given_in_bounded_amounts(count: Any) -> None:
    session = session_for(b"m", randomness="host_attested")
    good = await session.answer(request("random.bytes", "host_attested", count=MAX_RANDOM))
    assert len(canonical.decode(good.body)["bytes"]) == MAX_RANDOM
    assert (await session.answer(request("random.bytes", "host_attested", count=count))).code is Code.FAILED


async def test_an_operation_runs_only_under_a_grant_and_its_failure_is_a_code() -> None:
    session = session_for(
        b"m",
        RETRIEVE,
        *(Grant(capability=name, scope="readonly") for name in ("index.broken", "index.endless", "index.absent")),
        operations={"memory.retrieve": rows, "index.broken": broken, "index.endless": endless, "other": rows},
    )
    good = await session.answer(request("memory.retrieve", memory_mode="trusted_only"))
    assert canonical.decode(good.body) == {"rows": ["one"]}
    assert (await session.answer(request("index.broken"))).code is Code.FAILED
    assert (await session.answer(request("index.endless"))).code is Code.FAILED
    assert (await session.answer(request("index.absent"))).code is Code.DENIED
    assert (await session.answer(request("other"))).code is Code.DENIED


async def test_bytes_that_are_no_request_get_a_code_of_their_own() -> None:
    session = session_for(b"m", RETRIEVE, operations={"memory.retrieve": rows})
    good = request("memory.retrieve", memory_mode="trusted_only")
    more = canonical.encode({**canonical.decode(good), "also": 1})
    less = canonical.encode({"name": "x", "scope": "y"})
    wrong = canonical.encode({"name": 7, "scope": "y", "arguments": {}})
    for bad in (b"", b"\xff", good + b"\0", good[:-1], more, less, wrong, b'{"name":"x"}', bytes(MAX_REQUEST + 1)):
        assert (await session.answer(bad)).code is Code.BAD_REQUEST


async def test_input_comes_in_pieces_and_output_is_bounded() -> None:
    session = session_for(b"m", data=b"0123456789", max_output=6)
    piece = await session.answer(request("module.input", "own", offset=8, length=100))
    assert canonical.decode(piece.body) == {"bytes": b"89", "total": 10}
    for offset, length in ((-1, 1), (0, -1), (True, 1), (0, None)):
        answer = await session.answer(request("module.input", "own", offset=offset, length=length))
        assert answer.code is Code.FAILED
    for data, code in ((b"abcd", None), (b"efg", Code.FAILED), ("ef", Code.FAILED), (b"ef", None)):
        assert (await session.answer(request("module.output", "own", bytes=data))).code is code
    assert session.output == b"abcdef"


@pytest.mark.requirement("G-IF-4")
async def test_the_account_is_signed_and_can_be_computed_again_from_requests_and_answers(signer: NodeIdentity) -> None:
    session = session_for(b"m", clock="coarse", randomness="host_attested")
    asked = [request("clock.now", "coarse"), request("net.connect"), b"junk"]
    asked.append(request("random.bytes", "host_attested", count=4))
    chain = bytes(32)
    for encoded in asked:
        answer = await session.answer(encoded)
        verdict = None if encoded == b"junk" else judge(session.grants, decode_request(encoded))
        chain = hashlib.sha256(chain + account_entry(encoded, verdict, answer)).digest()
    audit = session.attest(signer, 7)
    assert audit.signature_is_valid()
    assert HostAudit.from_bytes(audit.to_bytes()) == audit
    assert (audit.calls, audit.denied) == (4, 1)
    assert audit.grants_hash == session.grants.digest
    assert audit.digest_of_calls == f"sha256:{chain.hex()}"


async def test_another_random_answer_another_order_or_another_verdict_is_another_account(signer: NodeIdentity) -> None:
    clock, dice = request("clock.now", "coarse"), request("random.bytes", "host_attested", count=4)

    async def account(*asked: bytes, **options: Any) -> str:
        session = session_for(b"m", **{"clock": "coarse", "randomness": "host_attested", **options})
        for encoded in asked:
            await session.answer(encoded)
        return session.attest(signer, 7).digest_of_calls

    first = await account(clock, dice)
    assert await account(clock, dice) == first
    assert await account(dice, clock) != first
    assert await account(clock) != first
    assert await account(clock, dice, now_ms=1_700_000_001_000) != first
    assert await account(clock, dice, randomness="disabled") != first


@pytest.mark.requirement("G-IF-4")
def test_the_same_grants_rule_an_engine_child(signer: NodeIdentity) -> None:
    session = session_for(b"m", RETRIEVE, operations={"memory.retrieve": rows})
    yes = session.verdict(
        CapabilityRequest(name="memory.retrieve", scope="readonly", arguments={"memory_mode": "trusted_only"})
    )
    no = session.verdict(CapabilityRequest(name="net.fetch", scope="example.org"))
    assert (yes.granted, no.granted) == (True, False)
    assert "not granted" in no.reason
    audit = session.attest(signer, 7)
    assert (audit.calls, audit.denied) == (2, 1)
