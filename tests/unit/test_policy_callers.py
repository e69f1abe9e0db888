"""Who may call what from another node: only what the table grants, and only to those in good standing."""

from __future__ import annotations

from typing import Any

import pytest

from gnusnode.contracts import services
from gnusnode.contracts.methods import StreamMethod, UnaryMethod
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.roster import Standing
from gnusnode.contracts.swarm import OPEN_ROLES, Role, Tier
from gnusnode.policy.callers import CALLERS, refusal_of, refusal_of_files

METHODS: list[Any] = [method for method in vars(services).values() if isinstance(method, UnaryMethod | StreamMethod)]
PEER = "12D3KooWexample"


def member(*roles: Role, tier: Tier = Tier.B) -> Standing:
    return Standing(Outcome.OK, frozenset(roles), tier, frozenset({"someone"}))


def test_a_router_may_have_experts_draft_and_an_expert_may_not() -> None:
    assert refusal_of(PEER, member(Role.ROUTER), "core", "draft") is None
    refused = refusal_of(PEER, member(Role.CORE, Role.ELM, tier=Tier.C), "core", "draft")
    assert refused is not None
    assert "router" in str(refused)


def test_only_an_ingress_may_have_a_router_run_its_requests() -> None:
    assert refusal_of(PEER, member(Role.INGRESS), "router", "run") is None
    assert refusal_of(PEER, member(Role.ROUTER), "router", "run") is not None


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.service}.{method.name}")
@pytest.mark.requirement("G-ROLE-4")
def test_strangers_may_call_nothing(method: Any) -> None:
    open_swarm = Standing(Outcome.OK, OPEN_ROLES)
    for standing in (Standing(Outcome.UNKNOWN_SIGNER), Standing(Outcome.REVOKED, frozenset(Role), Tier.A), open_swarm):
        assert refusal_of(PEER, standing, method.service, method.name) is not None


@pytest.mark.parametrize("method", [m for m in METHODS if m.service == "ingress"], ids=lambda method: method.name)
def test_nobody_may_use_the_ingress_of_another_node(method: Any) -> None:
    assert refusal_of(PEER, member(*Role, tier=Tier.A), method.service, method.name) is not None


def test_model_files_are_for_members_with_a_certificate_also_on_an_open_swarm() -> None:
    assert refusal_of_files(PEER, member(Role.CORE, tier=Tier.C)) is None
    for standing in (Standing(Outcome.UNKNOWN_SIGNER), Standing(Outcome.REVOKED), Standing(Outcome.OK, OPEN_ROLES)):
        assert refusal_of_files(PEER, standing) is not None


def test_every_line_of_the_table_is_a_method_that_there_is() -> None:
    assert set(CALLERS) <= {(method.service, method.name) for method in METHODS}
