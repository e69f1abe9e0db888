"""The hello: the first thing on a new connection, and the door behind which everything else happens.

    dialler                                  listener
    Greeting: swarm, instance, clock    ──▶
                                        ◀──  Greeting, and its certificates where the swarm is the same
    HelloVerdict: certificates, welcome
    or refused; what it offers          ──▶
                                        ◀──  HelloVerdict

A stranger learns the id of the swarm and nothing else. Both sides keep both verdicts with their reasons in the peer
table; ``Admission`` answers from there for every later stream. The same hello again, at any time and from either side,
renews what was said.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar

import trio

from gnusnode.contracts.base import MalformedRecord, Record
from gnusnode.contracts.hello import HELLO_PROTOCOL, MAX_CREDENTIALS, Credential, Greeting, HelloVerdict, ServiceOffer
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.roster import Standing
from gnusnode.contracts.swarm import short_id
from gnusnode.contracts.verify import MAX_SKEW_MS
from gnusnode.errors import Forbidden, GnusError, PeerUnreachable, ProtocolViolation, UnsupportedProtocol
from gnusnode.net.announce import Announcer
from gnusnode.net.context import NetContext
from gnusnode.net.instances import Sighting
from gnusnode.net.members import Members
from gnusnode.net.peerentry import Introduction, Refusal
from gnusnode.net.peers import PeerTable
from gnusnode.net.port import MessageStream
from gnusnode.net.text import printable

HELLO_SECONDS: Final = 10.0
ANSWER_EVERY: Final = 0.1
"""Seconds between two hellos of one peer that are answered."""
MAX_SKEW_SECONDS: Final = MAX_SKEW_MS / 1000

R = TypeVar("R", bound=Record)

_NO_MEMBER: Final = {
    Outcome.UNKNOWN_SIGNER: "it is not a member of this swarm; invite it with `gnusnode swarm invite`",
    Outcome.REVOKED: "its membership was revoked",
    Outcome.CERTIFICATE_EXPIRED: "its membership has ended; renew its certificate",
    Outcome.CERTIFICATE_NOT_YET_VALID: "its membership has not begun; wait, or check the clocks",
    Outcome.ROLE_NOT_GRANTED: "its certificate was issued by somebody who could not grant it",
}


def judge(greeting: Greeting, standing: Standing, *, swarm_id: str, skew_ms: float) -> Refusal | None:
    """Whether the sender of ``greeting`` is welcome; None: it is.

    Args:
        skew_ms: its clock minus ours.
    """
    if greeting.swarm_id != swarm_id:
        return Refusal(
            Outcome.WRONG_SWARM.value, f"it names the swarm {short_id(greeting.swarm_id)}, not {short_id(swarm_id)}"
        )
    if abs(skew_ms) > MAX_SKEW_MS:
        where = "ahead of" if skew_ms > 0 else "behind"
        text = (
            f"its clock is {abs(skew_ms) / 1000:.0f} s {where} ours, and records of more than {MAX_SKEW_SECONDS:.0f} s"
        )
        return Refusal(Outcome.CLOCK_SKEW.value, f"{text} difference are refused; set the clocks, for example with NTP")
    return no_member(standing)


def no_member(standing: Standing) -> Refusal | None:
    """Why a node of this standing is not let in; None: it is."""
    outcome = standing.outcome
    return None if outcome is Outcome.OK else Refusal(outcome.value, _NO_MEMBER.get(outcome, outcome.value))


class Admission:
    """Who may ask anything of this node: peers whose hello was accepted, as long as the roster stands by it.

    Hello, join and roster are answered to everybody, and do not ask here.
    """

    def __init__(self, own: str, table: PeerTable, members: Members) -> None:
        self._own = own
        self._table = table
        self._members = members

    def allows(self, peer: str) -> GnusError | None:
        """Why ``peer`` gets no answer; None: it does."""
        if peer == self._own:
            return None
        entry = self._table.get(peer)
        if entry is None or not (entry.admitted or entry.refusal):
            return Forbidden("say hello first", where=peer, hint=f"open a stream of {HELLO_PROTOCOL}")
        if entry.banned is not None:
            return Forbidden("this peer is banned here", where=peer)
        refusal = entry.refusal or no_member(self._members.standing(peer))
        return Forbidden(f"{refusal.code}: {refusal.text}", where=peer) if refusal else None


@dataclass(frozen=True)
class _Met:
    """The other side's greeting, and how its clock stands to ours."""

    greeting: Greeting
    skew_ms: float
    rtt_ms: float | None
    refusal: Refusal | None
    standing: Standing


class Greeter:
    """Says hello and answers hellos; the outcome stands in the peer table."""

    def __init__(self, context: NetContext, announcer: Announcer) -> None:
        self._of = context
        self._net = context.net
        self._table = context.table
        self._members = context.members
        self._announcer = announcer
        self._hellos = context.observer.metrics.hellos
        self._answering: set[str] = set()
        self._answered: dict[str, float] = {}

    def serve(self) -> AbstractAsyncContextManager[None]:
        """Answers hellos while the context is open."""
        return self._net.serve(HELLO_PROTOCOL, self._answer)

    async def greet(self, peer: str) -> None:
        """Says hello to a connected peer. Never raises for what a peer does or leaves undone."""
        try:
            with trio.fail_after(HELLO_SECONDS):
                stream = await self._net.open_stream(peer, HELLO_PROTOCOL)
                async with _owned(stream):
                    await self._greet(stream)
        except UnsupportedProtocol:
            entry = self._table.get(peer)
            if entry is not None and entry.hello is not None:
                self._unanswered(peer, "it answers no hello any more: it is stopping")
            else:
                self._failed(peer, Refusal(UnsupportedProtocol.code, "it does not speak the hello of gnusnode"))
        except (MalformedRecord, ProtocolViolation) as error:
            self._failed(peer, Refusal(ProtocolViolation.code, f"it broke the hello's rules: {printable(str(error))}"))
        except trio.TooSlowError:
            self._unanswered(peer, f"no hello within {HELLO_SECONDS:g} s")
        except GnusError as error:
            self._unanswered(peer, f"the hello broke off: {error.what}")

    def reconsider(self) -> None:
        """Judges everybody again by the roster and the time of now."""
        for entry in self._table.entries():
            if entry.hello is None or entry.link is None:
                continue
            standing = self._members.standing(entry.peer)
            if standing == entry.standing:
                continue
            refusal = no_member(standing)
            if refusal is None and (entry.refusal or entry.refused_by):
                self._table.reopened(entry.peer)  # it was not told what we offer, nor we what it does
            else:
                self._table.judged(entry.peer, standing, refusal or entry.refusal)

    # --- the two sides ------------------------------------------------------------------------------------------------

    async def _greet(self, stream: MessageStream) -> None:
        sent = trio.current_time()
        await stream.send(self._greeting(()).to_bytes())
        greeting = await _receive(stream, Greeting)
        rtt = (trio.current_time() - sent) * 1000
        met = await self._meet(
            stream.peer, greeting, greeting.clock_ms + rtt / 2 - self._of.now_ms(), rtt, greeting.records
        )
        if met.refusal is None:
            # Its calls may come as soon as it has our verdict, before we have read its own.
            self._table.admitted(stream.peer, met.standing)
        await stream.send(self._verdict(stream.peer, met, with_records=True).to_bytes())
        verdict = await _receive(stream, HelloVerdict)
        await stream.close()
        await self._conclude(stream.peer, met, verdict)

    async def _answer(self, stream: MessageStream) -> None:
        if stream.peer in self._answering:
            raise ProtocolViolation("a second hello before the first has ended", where=stream.peer)
        self._answering.add(stream.peer)
        try:
            with trio.fail_after(HELLO_SECONDS):
                await self._no_sooner(stream.peer)
                await self._answer_one(stream)
        except MalformedRecord as error:
            raise ProtocolViolation(f"not a hello: {error}", where=stream.peer) from error
        except (PeerUnreachable, trio.TooSlowError):
            # It went away in the middle, or dawdles: that is for it to repair, so there is nothing to count.
            await stream.reset()
        finally:
            self._answering.discard(stream.peer)

    async def _no_sooner(self, peer: str) -> None:
        """Spaces the hellos of one peer: each costs signature checks."""
        now = trio.current_time()
        self._answered = {p: at for p, at in self._answered.items() if now - at < ANSWER_EVERY}
        await trio.sleep_until(self._answered.get(peer, now - ANSWER_EVERY) + ANSWER_EVERY)
        self._answered[peer] = trio.current_time()

    async def _answer_one(self, stream: MessageStream) -> None:
        greeting = await _receive(stream, Greeting)
        arrived_ms, arrived = self._of.now_ms(), trio.current_time()
        same_swarm = greeting.swarm_id == self._of.swarm_id
        await stream.send(self._greeting(self._of.credentials() if same_swarm else ()).to_bytes())
        verdict = await _receive(stream, HelloVerdict)
        # The dialler measured the round trip; it cannot have been longer than all that we waited.
        rtt = min(verdict.rtt_ms or 0.0, (trio.current_time() - arrived) * 1000)
        skew = greeting.clock_ms + rtt / 2 - arrived_ms
        met = await self._meet(stream.peer, greeting, skew, verdict.rtt_ms and rtt, verdict.records)
        answer = self._verdict(stream.peer, met, with_records=False)  # before its own last word replaces its rival's
        await self._conclude(stream.peer, met, verdict)
        await stream.send(answer.to_bytes())
        await stream.close()

    async def _meet(
        self, peer: str, greeting: Greeting, skew: float, rtt: float | None, records: Sequence[Credential]
    ) -> _Met:
        swarm_id = self._of.swarm_id
        if records and greeting.swarm_id == swarm_id:
            await self._members.add([record.to_bytes() for record in records])
        standing = self._members.standing(peer)
        refusal = judge(greeting, standing, swarm_id=swarm_id, skew_ms=skew)
        return _Met(greeting, skew, rtt, refusal, standing)

    async def _conclude(self, peer: str, met: _Met, verdict: HelloVerdict) -> None:
        """Writes down both verdicts and what the peer said of itself."""
        if verdict.refused == Outcome.REVOKED and verdict.records:  # the proof: it need not be taken at its word
            await self._members.add([record.to_bytes() for record in verdict.records])
        offered = MappingProxyType({service.name: service.version for service in verdict.services})
        hello = Introduction(printable(met.greeting.version), met.greeting.instance, frozenset(verdict.roles), offered)
        sighting = self._table.greeted(
            peer,
            hello,
            standing=met.standing,
            refusal=met.refusal,
            refused_by=Refusal(verdict.refused, printable(verdict.detail)) if verdict.refused else None,
            rtt_ms=met.rtt_ms,
            skew_ms=met.skew_ms,
            left_alone="" if verdict.refused else printable(verdict.detail),
        )
        self._hellos.labels(met.refusal.code if met.refusal else "refused_by_peer" if verdict.refused else "ok").inc()
        if verdict.rival is not None:
            self._announcer.hear_rival(verdict.rival)
        if met.refusal is not None:
            return
        if sighting is Sighting.CLASH:
            await self._announcer.clashed(peer, None)
        if verdict.announcement is not None and verdict.announcement.signer == peer:
            await self._announcer.hear(verdict.announcement)

    # --- what we say --------------------------------------------------------------------------------------------------

    def _greeting(self, records: Sequence[Credential]) -> Greeting:
        return Greeting(
            version=self._of.start.version,
            swarm_id=self._of.swarm_id,
            instance=self._of.start.instance,
            clock_ms=self._of.now_ms(),
            records=tuple(records)[:MAX_CREDENTIALS],
        )

    def _verdict(self, peer: str, met: _Met, *, with_records: bool) -> HelloVerdict:
        same_swarm = met.greeting.swarm_id == self._of.swarm_id
        records = tuple(self._of.credentials())[:MAX_CREDENTIALS] if with_records and same_swarm else ()
        if met.refusal is not None:
            if met.refusal.code == Outcome.REVOKED and same_swarm:
                records = (*self._members.records_against(peer), *records)[:MAX_CREDENTIALS]
            return HelloVerdict(
                refused=met.refusal.code, detail=met.refusal.text[:1024], rtt_ms=met.rtt_ms, records=records
            )
        facts, entry = self._of.facts(), self._table.get(peer)
        heard = entry.last_word if entry else None
        return HelloVerdict(
            detail=entry.exclusion[:1024] if entry else "",
            rtt_ms=met.rtt_ms,
            records=records,
            roles=tuple(self._of.own_roles()),
            services=tuple(ServiceOffer(name=name, version=number) for name, number in sorted(facts.services.items())),
            announcement=self._announcer.fresh(),
            rival=heard if heard is not None and heard.instance != met.greeting.instance else None,
        )

    def _failed(self, peer: str, refusal: Refusal) -> None:
        self._hellos.labels(refusal.code).inc()
        self._table.not_greeted(peer, refusal)

    def _unanswered(self, peer: str, why: str) -> None:
        self._hellos.labels("unanswered").inc()
        self._table.hello_missed(peer, why)


async def _receive(stream: MessageStream, kind: type[R]) -> R:
    data = await stream.receive()
    if data is None:
        raise PeerUnreachable("the peer ended the hello too early", where=stream.peer)
    return kind.from_bytes(data)


@asynccontextmanager
async def _owned(stream: MessageStream) -> AsyncGenerator[None]:
    """Ends the stream for certain, also when the hello fails or is cancelled."""
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await stream.reset()
