"""Expert cards as a router sees them."""

from __future__ import annotations

from typing import Any

from gnusnode.contracts import ids
from gnusnode.contracts.generation import EngineInfo, EngineState
from gnusnode.contracts.services import ExpertCard
from gnusnode.identity import NodeIdentity
from roles.router.facts import Swarm

HERE = NodeIdentity(bytes([1] * 32)).peer_id
THERE = NodeIdentity(bytes([2] * 32)).peer_id
FAR = NodeIdentity(bytes([3] * 32)).peer_id


def card(name: str, *, peer: str = HERE, service: Any = "core", role: str | None = None, **engine: Any) -> ExpertCard:
    domains = engine.pop("domains", ())
    capabilities = engine.pop("capabilities", ())
    fields: dict[str, Any] = {
        "model": name,
        "artifact_hash": ids.sha256(name.encode()),
        "state": EngineState.READY,
        "slots": 2,
        "free_slots": 2,
        "decode_rate": 50.0,
        "prefill_rate": 500.0,
    }
    return ExpertCard(
        expert_id=name,
        version="1",
        service=service,
        role=role or ("semantic_core" if service == "core" else "domain_expert"),
        domains=domains,
        capabilities=capabilities,
        engine=EngineInfo(**{**fields, **engine}),
        peer=peer,
    )


def elm(name: str, *domains: str, **engine: Any) -> ExpertCard:
    return card(name, service="elm", domains=domains, **engine)


def swarm(*services: str, members: tuple[str, ...] = (HERE,), boundary: tuple[str, ...] = (HERE,)) -> Swarm:
    return Swarm(HERE, frozenset(members), frozenset(boundary), frozenset(("core", "elm", *services)))
