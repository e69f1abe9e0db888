"""Starts a node that claims a model which it does not have: ``liar.py … gnusnode start …``, with ``LIE`` as its lie.

``announced``: it names the expert in its announcements only. ``listed``: it also lists it when it is asked what it
serves, so that only a draft shows the lie. Both claim to be fast, idle and ready.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from gnusnode.contracts.generation import EngineInfo, EngineState
from gnusnode.contracts.plan import ExpertRole
from gnusnode.contracts.services import ExpertCard


def claimed(peer: str) -> ExpertCard:
    """The card of a model that is not there."""
    name, artifact = os.environ["LIE_MODEL"], os.environ["LIE_ARTIFACT"]
    engine = EngineInfo(
        model=name,
        artifact_hash=artifact,
        state=EngineState.READY,
        n_ctx=8192,
        slots=64,
        free_slots=64,
        prefill_rate=100_000.0,
        decode_rate=10_000.0,
        determinism="A",
    )
    role = ExpertRole.SEMANTIC_CORE.value
    return ExpertCard(expert_id=name, version=artifact, service="core", role=role, engine=engine, peer=peer)


def lie() -> None:
    """Changes what this process offers."""
    from gnusnode.offering import Offering
    from roles.experts.hosting import Host

    if os.environ["LIE"] == "announced":
        offered = Offering.cards
        Offering.cards = lambda self: (*offered(self), claimed(self._peer_id))  # type: ignore[method-assign]  # the lie
        return
    listed: Any = Host.cards

    def cards(self: Host, peer: str) -> tuple[ExpertCard, ...]:
        return (*listed(self, peer), *((claimed(peer),) if self.service == "core" else ()))

    Host.cards = cards  # type: ignore[method-assign]  # the lie


if __name__ == "__main__":
    from gnusnode.cli import main

    sys.argv = ["gnusnode", *sys.argv[sys.argv.index("gnusnode") + 1 :]]
    lie()
    main()
