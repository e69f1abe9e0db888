"""What every role is given from outside: whom to believe, what time it is, where to tell what happens."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from gnusnode.contracts.base import SignedRecord
from gnusnode.contracts.dsse import Signer
from gnusnode.contracts.outcome import Outcome, refusal
from gnusnode.observe import events
from gnusnode.observe.observer import Observer
from gnusnode.observe.stage import StageTimer

Verifier: TypeAlias = Callable[[SignedRecord], Outcome]
"""Whether a signed record is to be believed now: signature, swarm, time, authority, revocation."""


@dataclass(frozen=True)
class RoleContext:
    """The node as its roles see it.

    Attributes:
        signer: holds the node's key; signs what the node is answerable for.
        swarm: names the swarm whose plans this node makes and obeys; another one once the node has moved.
        verify: judges records of others, and our own alike.
        now_ms: wall clock, milliseconds since the epoch; for records only, never for timeouts.
    """

    signer: Signer
    swarm: Callable[[], str]
    verify: Verifier
    now_ms: Callable[[], int]
    observer: Observer

    @property
    def peer_id(self) -> str:
        return self.signer.peer_id

    @property
    def swarm_id(self) -> str:
        return self.swarm()

    def timer(self, request_id: str) -> StageTimer:
        return self.observer.timer(request_id)

    def require(self, record: SignedRecord) -> None:
        """Goes on only with a record that is to be believed.

        Raises:
            RecordRefused: it is not; the event says so.
        """
        outcome = self.verify(record)
        if outcome is Outcome.OK:
            return
        self.observer.bus.publish(
            events.RecordRefused(record=record.record_name, outcome=outcome.value, signer=record.signer_peer)
        )
        raise refusal(record.record_name, outcome)


def word(name: str) -> str:
    """``name`` as an event may carry it: identifiers without spaces."""
    return re.sub(r"[^A-Za-z0-9_.:/+-]", "-", name)[:128].lstrip("_.:/+-") or "unnamed"
