"""What a verdict promises: its conditions, its monotony, its determinism, and what an approval binds."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.tools import ToolPolicy, arguments_hash
from gnusnode.policy import urls
from gnusnode.policy.case import Case, Mutations
from gnusnode.policy.flow import Decision
from gnusnode.policy.judge import Verdict, judge
from gnusnode.policy.labels import Confidentiality, Width
from gnusnode.policy.provenance import How
from gnusnode.policy.sinks import Authors, Effect, SinkKind
from gnusnode.policy.sources import Source, SourceKind
from tests.property.policy_cases import VALUES, fingerprint, random_case
from tests.unit.policy.cases import SEND, approval, case, page

STRICTNESS: Final = (Decision.ALLOW, Decision.ASK, Decision.DENY)
cases = st.integers(0, 2**32).map(lambda seed: random_case(random.Random(seed)))


def allowed_cases(count: int) -> list[tuple[Case, Verdict]]:
    dice = random.Random(4)
    found = []
    while len(found) < count:
        drawn = random_case(dice)
        verdict = judge(drawn)
        if verdict.decision is Decision.ALLOW:
            found.append((drawn, verdict))
    return found


def test_an_unasked_call_keeps_every_invariant() -> None:
    for drawn, verdict in allowed_cases(200):
        _no_ambient_authority(drawn)
        for trace in verdict.traces:
            _answered_for(drawn, trace)
            assert trace.label.confidentiality is not Confidentiality.SECRET
            if trace.label.confidentiality is Confidentiality.PRIVATE and trace.kind is SinkKind.BODY:
                assert trace.width is Width.OWN
        if drawn.mutations is Mutations.ALWAYS_ASK:
            assert drawn.tool.effect is Effect.READ


def _no_ambient_authority(drawn: Case) -> None:
    """I1, I5: plan and policy and manifest, a step left, a dry-run, nobody who asked to be asked."""
    assert drawn.tool.capability in drawn.plan.tool_policy.capability_whitelist
    assert drawn.tool.capability in drawn.policy.tool_policy.capability_whitelist
    assert drawn.tool.capability in [item.name for item in drawn.manifest]
    askers = (drawn.policy.step_by_step, drawn.plan.tool_policy.human_approval, drawn.policy.tool_policy.human_approval)
    assert not any(askers)
    assert not drawn.tool.third_party
    assert drawn.dry_run is not None
    if drawn.tool.effect is not Effect.READ:
        assert drawn.plan.steps
        assert sum(step.times for step in drawn.plan.steps) > len(drawn.plan.spent)


def _answered_for(drawn: Case, trace: Any) -> None:
    """I2, I4, by other means than the tracer's: text search in what may answer for a value."""
    if trace.kind is SinkKind.BODY:
        return
    vouching = [
        source
        for source in drawn.sources
        if source.kind in (SourceKind.QUERY, SourceKind.HIGHER_TRUST) or source.output.authors is not Authors.ANYONE
    ]
    texts = " ".join(source.everything for source in vouching).lower()
    if trace.kind is SinkKind.URL:
        address = urls.parse(trace.value)
        assert isinstance(address, urls.Address)
        lists = (drawn.plan.tool_policy.allowlisted_domains, drawn.policy.tool_policy.allowlisted_domains)
        assert all(address.host in names for names in lists if names or not drawn.open_web)
        assert address.host in texts or any(address.host in names for names in lists)
    elif trace.kind is SinkKind.PATH:
        assert drawn.plan.tool_policy.allowlisted_paths
        assert trace.value.startswith("/srv/notes")
    elif trace.kind is SinkKind.AMOUNT:
        assert float(trace.value) in (12.5, 24)
    elif trace.how is not How.COMPOSED:
        assert trace.value.lower() in texts


STRANGER = Source(id="new", kind=SourceKind.TOOL, text=" ".join(VALUES), output=page("").output)


def restrictions(of: Case) -> list[Case]:
    """The same case with one thing less allowed."""
    narrow = ToolPolicy(human_approval=True, capability_whitelist=of.policy.tool_policy.capability_whitelist)
    changes: list[dict[str, Any]] = [
        {"policy": of.policy.model_copy(update={"step_by_step": True})},
        {"policy": PolicyEnvelope()},
        {"policy": of.policy.model_copy(update={"tool_policy": narrow})},
        {"manifest": ()},
        {"dry_run": None},
        {"mutations": Mutations.ALWAYS_ASK},
        {"open_web": False},
        {"sources": (*of.sources, STRANGER)},
        {"tool": of.tool.model_copy(update={"effect": Effect.DESTROY})},
        {"tool": of.tool.model_copy(update={"third_party": True})},
        {"plan": of.plan.model_copy(update={"spent": (*of.plan.spent, of.tool.name)})},
        {"sources": of.sources[1:]},
    ]
    return [of.model_copy(update=change) for change in changes]


@given(cases)
def test_taking_something_away_never_loosens_a_verdict(drawn: Case) -> None:
    before = STRICTNESS.index(judge(drawn).decision)
    if drawn.policy.tool_policy.allowlisted_domains:
        return  # a list of hosts that is taken away opens the web where the operator wants it open
    for changed in restrictions(drawn):
        assert STRICTNESS.index(judge(changed).decision) >= before


@given(cases)
def test_a_verdict_follows_from_the_bytes_of_its_case(drawn: Case) -> None:
    verdict = judge(drawn)
    again = Case.from_bytes(drawn.to_bytes())
    assert again.digest == drawn.digest == verdict.case_hash
    assert judge(again).to_bytes() == verdict.to_bytes()
    assert Verdict.from_bytes(verdict.to_bytes()) == verdict


def test_two_processes_agree_on_a_thousand_proposals_to_the_byte() -> None:
    script = Path(__file__).with_name("policy_cases.py")
    environment = {**os.environ, "PYTHONPATH": str(script.parents[2])}
    outputs = {
        subprocess.run(
            [sys.executable, str(script), "11", "1000"],
            env={**environment, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert len(outputs.pop()) == 64
    assert fingerprint(11, 50) != fingerprint(12, 50)


arguments = st.fixed_dictionaries({"to": st.text("abc@.", max_size=9), "body": st.text("abc 012", max_size=12)})


@given(arguments, arguments)
def test_another_argument_is_another_hash_and_voids_an_approval(a: dict[str, str], b: dict[str, str]) -> None:
    assume(a != b)
    shown = case(SEND, a, "write", mutations=Mutations.ALWAYS_ASK)
    assert judge(shown.model_copy(update={"approval": approval(shown)})).decision is Decision.ALLOW
    assert arguments_hash(a) != arguments_hash(b)
    swapped = shown.model_copy(
        update={
            "proposal": shown.proposal.model_copy(update={"arguments": b}),
            "approval": approval(shown),
        }
    )
    assert judge(swapped).decision is Decision.DENY


@given(st.binary(min_size=32, max_size=32), st.booleans())
def test_an_approval_with_any_other_digest_is_void(digest: bytes, shown: bool) -> None:
    asking = case(SEND, {"to": "a", "body": "b"}, "write", mutations=Mutations.ALWAYS_ASK)
    field = "shown_hash" if shown else "args_hash"
    forged = approval(asking, **{field: f"sha256:{digest.hex()}"})
    assume(forged != approval(asking))
    assert judge(asking.model_copy(update={"approval": forged})).decision is Decision.DENY


@pytest.mark.parametrize("seed", range(3))
def test_random_cases_reach_every_decision(seed: int) -> None:
    dice = random.Random(seed)
    assert {judge(random_case(dice)).decision for _ in range(400)} == set(Decision)
