"""The heartbeat: each node signs what it is and how busy it is, gossips that, and hears the others.

An announcement goes out every ``heartbeat`` seconds, and within a second when something changed that others have to
know: a model, a role, no free slot or one again. It is believed once, from its signer, in its swarm, for roles that the
signer holds. The record outlives the table's TTL by the clock difference that is tolerated; how long a silent peer
counts is the receiver's own clock's business.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

import trio

from gnusnode.contracts.base import MalformedRecord
from gnusnode.contracts.hello import Clash, Heartbeat, read_gossip
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.replay import ReplayGuard
from gnusnode.contracts.swarm import MAX_ADDRESS, MAX_ADDRESSES, MAX_ARTIFACTS, NodeAnnouncement, OfferedArtifact
from gnusnode.contracts.verify import MAX_SKEW_MS, verify
from gnusnode.errors import GnusError
from gnusnode.net.context import NetContext
from gnusnode.net.instances import Sighting, is_rival
from gnusnode.net.names import announcements_topic
from gnusnode.observe.events import RecordRefused
from gnusnode.observe.health import DUPLICATE_IDENTITY

JITTER: Final = 0.1
AT_MOST_EVERY: Final = 1.0
"""Seconds between two announcements, and between two looks at what changed."""
CLASH_EVERY: Final = 10.0
ALARM_SECONDS: Final = 90.0
"""How long two instances of one key are warned of after they were last heard."""
_REFUSALS_EVERY: Final = 0.1
"""Seconds between two events about refused announcements: a flood must not fill the log."""
_PARSED: Final = 256
_ARTIFACT_BYTES: Final = NodeAnnouncement.max_bytes - 8 * 1024
"""The rest is for addresses, roles and the signature."""


@dataclass(frozen=True)
class AnnounceOptions:
    """Seconds between two announcements, and how long one holds."""

    heartbeat: float = 10.0
    ttl: float = 30.0


def as_many_as_fit(artifacts: tuple[OfferedArtifact, ...]) -> tuple[OfferedArtifact, ...]:
    """The first of ``artifacts`` that one announcement has room for; the probe tells of the others."""
    room, fitting = _ARTIFACT_BYTES, list[OfferedArtifact]()
    for artifact in artifacts[:MAX_ARTIFACTS]:
        room -= len(artifact.to_bytes())
        if room < 0:
            break
        fitting.append(artifact)
    return tuple(fitting)


class Announcer:
    """Speaks for this node and listens to the others. ``run`` does both until it is cancelled, and says goodbye."""

    def __init__(self, context: NetContext, options: AnnounceOptions = AnnounceOptions()) -> None:
        self._of = context
        self._net = context.net
        self._members = context.members
        self._table = context.table
        self._observer = context.observer
        self._options = options
        self._guard = ReplayGuard()
        self._seq = 0
        self._last: NodeAnnouncement | None = None
        self._last_at = float("-inf")
        self._poked = trio.Event()
        self._parsed: OrderedDict[bytes, Heartbeat | Clash] = OrderedDict()
        self._alarms: dict[str, float] = {}
        self._clashes_told: dict[str, float] = {}
        self._refusal_told = float("-inf")
        self._scope: trio.CancelScope | None = None

    # --- speaking -----------------------------------------------------------------------------------------------------

    def fresh(self) -> NodeAnnouncement | None:
        """An announcement of now; None: this node holds no role in its swarm, so that there is nothing to say."""
        now = trio.current_time()
        if self._last is None or self._last.swarm_id != self._of.swarm_id or now - self._last_at >= AT_MOST_EVERY:
            self._last, self._last_at = self._sign(leaving=False), now
        return self._last

    def poke(self) -> None:
        """Something changed: look now whether others have to know."""
        self._poked.set()

    def moved(self) -> None:
        """The node belongs to another swarm now: speak and listen there."""
        if self._scope is not None:
            self._scope.cancel()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Announces and listens. ``started`` once others can be heard."""
        heard = trio.Event()

        def listening() -> None:
            if not heard.is_set():
                heard.set()
                task_status.started()

        while True:
            with trio.CancelScope() as self._scope:
                await self._run_in(self._of.swarm_id, listening)

    async def _run_in(self, swarm_id: str, listening: Callable[[], None]) -> None:
        topic = announcements_topic(swarm_id)
        async with self._net.subscribe(topic, self._accept) as messages:
            try:
                async with trio.open_nursery() as nursery:
                    listening()
                    nursery.start_soon(self._listen, messages)
                    nursery.start_soon(self._beat, topic)
            finally:
                with trio.move_on_after(AT_MOST_EVERY, shield=True):
                    await self._publish(topic, self._sign(leaving=True, swarm_id=swarm_id))

    async def _beat(self, topic: str) -> None:
        while True:
            told = self._of.facts().news()
            await self._publish(topic, self.fresh())
            quiet = self._options.heartbeat * (1 - JITTER * self._of.rng.random())
            with trio.move_on_after(quiet):
                await self._news_after(told)
            await trio.sleep_until(self._last_at + AT_MOST_EVERY)

    async def _news_after(self, told: object) -> None:
        """Returns when there is something that others have to know at once."""
        while self._of.facts().news() == told:
            # Slots change with every request and tell nobody: looking once a second is cheaper than being told.
            with trio.move_on_after(AT_MOST_EVERY):
                await self._poked.wait()
            self._poked = trio.Event()
            self._end_alarms()

    async def _publish(self, topic: str, record: NodeAnnouncement | None) -> None:
        if record is None:
            return
        try:
            await self._net.publish(topic, Heartbeat(announcement=record).to_bytes())
        except GnusError:
            # The next heartbeat is the retry.
            self._observer.metrics.gossip_failures.inc()

    def _sign(self, *, leaving: bool, swarm_id: str | None = None) -> NodeAnnouncement | None:
        roles, now = self._of.own_roles(), self._of.now_ms()
        if leaving:
            roles = list(self._last.roles) if self._last is not None and self._last.swarm_id == swarm_id else []
        if not roles:
            return None
        self._seq += 1
        return NodeAnnouncement.signed(
            self._of.signer,
            swarm_id=swarm_id or self._of.swarm_id,
            instance=self._of.start.instance,
            seq=self._seq,
            leaving=leaving,
            addresses=tuple(a for a in self._net.addresses() if len(a) <= MAX_ADDRESS)[:MAX_ADDRESSES],
            roles=tuple(roles),
            artifacts=() if leaving else as_many_as_fit(self._of.facts().artifacts),
            version=self._of.start.version,
            issued_at_ms=now,
            expires_at_ms=now + round(self._options.ttl * 1000) + MAX_SKEW_MS,
            nonce=secrets.token_hex(16),
        )

    # --- listening ----------------------------------------------------------------------------------------------------

    async def hear(self, record: NodeAnnouncement) -> Outcome:
        """Takes an announcement that its signer handed over itself."""
        outcome = verify(record, self._of.now_ms(), self._members.roster)
        if outcome is Outcome.OK:
            await self._take(record)
        else:
            self._refused(record.signer, outcome)
        return outcome

    def hear_rival(self, record: NodeAnnouncement) -> None:
        """Takes what is said to come from another node with our own key."""
        now = self._of.now_ms()
        ours = record.signer == self._of.own and record.expires_at_ms > now
        if (
            ours
            and is_rival(
                record.issued_at_ms, record.instance, own=self._of.start.instance, started_ms=self._of.start.started_ms
            )
            and record.signature_is_valid()
        ):
            where = ", ".join(record.addresses[:3]) or "an unknown address"
            self._alarm(record.signer, f"another node at {where} runs with the key of this one")

    async def clashed(self, peer: str, record: NodeAnnouncement | None) -> None:
        """One key spoke as two instances: warns here, and tells both through the gossip."""
        self._alarm(peer, f"two nodes run with the key of {peer}")
        now = trio.current_time()
        entry = self._table.get(peer)
        heard = (record, entry.announcement if entry else None)
        proofs = tuple({r.instance: r for r in heard if r is not None}.values())
        if not proofs or now - self._clashes_told.get(peer, float("-inf")) < CLASH_EVERY:
            return
        self._clashes_told = {p: at for p, at in self._clashes_told.items() if now - at < CLASH_EVERY} | {peer: now}
        try:
            topic = announcements_topic(self._of.swarm_id)
            await self._net.publish(topic, Clash(announcements=proofs).to_bytes())
        except GnusError:
            self._observer.metrics.gossip_failures.inc()

    def _accept(self, publisher: str, data: bytes) -> bool:
        """The gossip's validator: who says what we believe is passed on, everybody else is not."""
        try:
            message = read_gossip(data)
        except MalformedRecord:
            self._refused(publisher, Outcome.MALFORMED)
            return False
        outcome = self._judge(publisher, message)
        if outcome is not Outcome.OK:
            self._refused(publisher, outcome)
            return False
        self._parsed[data] = message
        while len(self._parsed) > _PARSED:
            self._parsed.popitem(last=False)
        return True

    def _judge(self, publisher: str, message: Heartbeat | Clash) -> Outcome:
        at_ms, roster = self._of.now_ms(), self._members.roster
        if isinstance(message, Clash):
            if self._members.standing(publisher).outcome is not Outcome.OK:
                return Outcome.UNKNOWN_SIGNER
            outcomes = {verify(record, at_ms, roster) for record in message.announcements}
            return next(iter(outcomes - {Outcome.OK}), Outcome.OK)
        record = message.announcement
        if record.signer != publisher:
            return Outcome.BAD_SIGNATURE  # an old one, taken up by somebody else
        if publisher == self._of.own:
            return verify(record, at_ms, roster)  # our own comes by here too; so does our double's
        return verify(record, at_ms, roster, seen=self._guard)

    async def _listen(self, messages: AsyncIterator[tuple[str, bytes]]) -> None:
        async for _, data in messages:
            message = self._parsed.pop(data, None) or read_gossip(data)
            for record in message.announcements if isinstance(message, Clash) else (message.announcement,):
                if record.signer == self._of.own:
                    self.hear_rival(record)
                elif isinstance(message, Heartbeat):
                    await self._take(record)

    async def _take(self, record: NodeAnnouncement) -> None:
        if self._table.announced(record) is Sighting.CLASH:
            await self.clashed(record.signer, record)

    def _refused(self, signer: str, outcome: Outcome) -> None:
        now = trio.current_time()
        if now - self._refusal_told >= _REFUSALS_EVERY:
            self._refusal_told = now
            name = NodeAnnouncement.record_name
            self._observer.bus.publish(RecordRefused(record=name, outcome=outcome.value, signer=signer))

    # --- the alarm about copied keys ----------------------------------------------------------------------------------

    def _alarm(self, peer: str, detail: str) -> None:
        self._alarms[peer] = trio.current_time()
        self._observer.health.warn(DUPLICATE_IDENTITY, detail, about=peer)

    def _end_alarms(self) -> None:
        over = [peer for peer, at in self._alarms.items() if trio.current_time() - at > ALARM_SECONDS]
        for peer in over:
            del self._alarms[peer]
            self._observer.health.clear(DUPLICATE_IDENTITY, about=peer)
