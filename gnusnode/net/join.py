"""``/gnus/join/1``: a node shows the secret of its invite and becomes a member.

    joiner  -> {kind: join, secret, operator}
    inviter -> {kind: welcome, certificate, count}, then {kind: records, records} until ``count`` are told
            or {kind: refused, error}

The connection proves who the joiner is, so the certificate is made out to its key. The joiner believes nothing before
the certificate and the records hold under the root key that its token names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import trio

from gnusnode.contracts.base import MalformedRecord
from gnusnode.contracts.invite import Invite
from gnusnode.contracts.outcome import Outcome, refusal
from gnusnode.contracts.verify import MAX_SKEW_MS
from gnusnode.errors import (
    Forbidden,
    GnusError,
    Overloaded,
    PeerUnreachable,
    ProtocolViolation,
    RateLimited,
    RequestError,
    Unavailable,
)
from gnusnode.net.invites import Invites
from gnusnode.net.membership import Membership
from gnusnode.net.port import MessageStream, Net
from gnusnode.net.records import MAX_RECORD_BYTES, MAX_RECORDS, RecordSet, SwarmRecord, read_record
from gnusnode.net.rostermsg import JOIN, MAX_PAGE, pack, pages, receive, refused
from gnusnode.net.swarmfolder import SwarmState
from gnusnode.observe import events
from gnusnode.observe.health import JOIN_PENDING
from gnusnode.observe.observer import Observer

MAX_AT_ONCE: Final = 32
TRIES: Final = 5
"""Wrong secrets that a peer may show within ``TRIES_SECONDS``. None will ever fit; but looking costs time."""
TRIES_SECONDS: Final = 600.0
_REMEMBERED: Final = 4096
_RETRY_SECONDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0)
_NAME: Final = r"[^\x00-\x1f\x7f]{1,128}"


def read_token(token: str, now_ms: int) -> Invite:
    """The invite in ``token``, which may still be redeemed.

    Raises:
        RequestError: it is none, or was changed. Forbidden: it has expired.
    """
    try:
        invite = Invite.from_token(token)
    except MalformedRecord as error:
        raise RequestError(str(error), hint="copy the whole token, from gnus1- to its end") from error
    if now_ms >= invite.expires_at_ms:
        raise Forbidden("this invite has expired", where=invite.swarm, hint="ask for a new one, or check the clocks")
    return invite


def state_of(invite: Invite, token: str, operator: str) -> SwarmState:
    """The swarm as the invite tells of it, with the token still to be redeemed."""
    return SwarmState(
        name=invite.swarm,
        root=invite.root,
        open_to_all=invite.open_to_all,
        network_key=None if invite.network_key is None else bytes.fromhex(invite.network_key),
        bootstrap=invite.bootstrap,
        pending=None if invite.secret is None else "".join(token.split()),
        operator=operator,
    )


# --- the inviting side ------------------------------------------------------------------------------------------------


class JoinServer:
    """Answers those who show an invite. Outsiders are served here, and here only."""

    def __init__(self, membership: Membership, invites: Invites, observer: Observer) -> None:
        self._membership = membership
        self._invites = invites
        self._observer = observer
        self._room = trio.CapacityLimiter(MAX_AT_ONCE)
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    async def handle(self, stream: MessageStream) -> None:
        """Serves one joiner to its end.

        Raises:
            ProtocolViolation, PeerUnreachable: the stream is to be reset.
        """
        try:
            self._room.acquire_on_behalf_of_nowait(stream)
        except trio.WouldBlock:
            await stream.send(refused(Overloaded("too many nodes join at once", hint="try again", retry_after=5)))
            return
        try:
            await self._answer(stream)
        finally:
            self._room.release_on_behalf_of(stream)

    async def _answer(self, stream: MessageStream) -> None:
        asked = await receive(stream, "join")
        secret, operator = asked.text("secret", r"[0-9a-f]{64}"), asked.text("operator", _NAME)
        try:
            self._check_rate(stream.peer)
            certificate = await self._invites.redeem(secret, stream.peer, operator)
        except GnusError as error:
            self._count_failure(stream.peer)
            # Our own troubles, such as a full disk and where it is, are no business of an outsider.
            told = error if isinstance(error, RequestError) else Unavailable("the inviting node cannot do this now")
            await stream.send(refused(told))
            return
        self._failures.pop(stream.peer, None)
        records = [record.to_bytes() for record in self._membership.records_known()]
        await stream.send(pack("welcome", certificate=certificate.to_bytes(), count=len(records)))
        for page in pages(records):
            await stream.send(pack("records", records=page))

    def _check_rate(self, peer: str) -> None:
        count, since = self._failures.get(peer, (0, 0.0))
        left = since + TRIES_SECONDS - trio.current_time()
        if count >= TRIES and left > 0:
            self._observer.bus.publish(events.JoinAttempted(peer_id=peer, outcome="limited"))
            raise RateLimited("too many wrong invites", hint="ask for a new one", retry_after=round(left, 1))

    def _count_failure(self, peer: str) -> None:
        now = trio.current_time()
        count, since = self._failures.pop(peer, (0, now))
        self._failures[peer] = (count + 1, since) if now - since < TRIES_SECONDS else (1, now)
        while len(self._failures) > _REMEMBERED:
            self._failures.popitem(last=False)


# --- the joining side -------------------------------------------------------------------------------------------------


async def redeem(net: Net, invite: Invite, operator: str, now_ms: int) -> tuple[SwarmRecord, ...]:
    """Shows ``invite`` to the node that made it; gives all records of the swarm, this node's certificate among them.

    Raises:
        PeerUnreachable: it cannot be reached; says what each address did. NotFound, Conflict, Forbidden, RateLimited:
        it refused. RecordRefused: what it answered does not hold under the root key of the invite.
    """
    faults: list[str] = []
    for peer, addresses in invite.inviters.items():
        try:
            await net.connect(peer, addresses)
            stream = await net.open_stream(peer, JOIN)
            try:
                return await _show(stream, invite, net.peer_id, operator, now_ms)
            finally:
                with trio.CancelScope(shield=True):
                    await stream.reset()
        except Unavailable as error:
            faults.append(f"{peer}: {error.what}")
    raise PeerUnreachable(
        f"the inviting node cannot be reached: {'; '.join(faults) or 'the invite names no peer'}",
        where=", ".join(invite.bootstrap),
        hint="check that it runs and that its port is open, or ask for an invite with another address",
    )


async def _show(
    stream: MessageStream, invite: Invite, peer: str, operator: str, now_ms: int
) -> tuple[SwarmRecord, ...]:
    await stream.send(pack("join", secret=invite.secret, operator=operator))
    welcome = await receive(stream, "welcome")
    count = welcome.count("count")
    if count > MAX_RECORDS:
        raise ProtocolViolation("more records than a swarm can have", where=stream.peer)
    data = [welcome.data("certificate", multiple=1, most=MAX_RECORD_BYTES)]
    while len(data) <= count:
        page = (await receive(stream, "records", most=MAX_PAGE)).records()
        if not page:
            raise ProtocolViolation("an empty page of records", where=stream.peer)
        data += page
    return await trio.to_thread.run_sync(_believed, data, invite, peer, now_ms)


def _believed(data: Sequence[bytes], invite: Invite, peer: str, now_ms: int) -> tuple[SwarmRecord, ...]:
    """Those records that hold under the invite's root. They must make ``peer`` a member with what was promised."""
    records = [verdict.record for verdict in map(read_record, data) if verdict.record is not None]
    found = RecordSet(invite.root, invite.open_to_all).merged(records, now_ms).result
    standing = found.roster.standing(peer, now_ms)
    # A certificate may begin just now by the inviting node's clock.
    if standing.outcome is Outcome.CERTIFICATE_NOT_YET_VALID:
        standing = found.roster.standing(peer, now_ms + MAX_SKEW_MS)
    if standing.outcome is not Outcome.OK or not standing.operators:
        outcome = Outcome.UNKNOWN_SIGNER if standing.outcome is Outcome.OK else standing.outcome
        raise refusal("membership-certificate", outcome)
    return tuple(found.records.values())


class Joiner:
    """Redeems the token of a node that could not do so when it was given. ``run`` for as long as there is a net."""

    def __init__(self, membership: Membership, observer: Observer) -> None:
        self._membership = membership
        self._observer = observer

    async def run(self, net: Net) -> None:
        """Tries at once and then ever less often; a refusal that will not change is said and ends the tries."""
        async with self._membership.changes() as changes:
            while True:
                swarm = self._membership.swarm
                if swarm is not None and swarm.pending is not None:
                    await self._redeem(net, swarm, swarm.pending)
                else:
                    self._observer.health.clear(JOIN_PENDING)
                await anext(changes)

    async def _redeem(self, net: Net, swarm: SwarmState, token: str) -> None:
        tries = 0
        while self._membership.swarm is swarm:
            try:
                invite = read_token(token, self._membership.now_ms())
                await accept(self._membership, await redeem(net, invite, swarm.operator, self._membership.now_ms()))
            except (Unavailable, RateLimited) as error:
                self._observer.health.warn(JOIN_PENDING, error.what)
                await trio.sleep(error.retry_after or _RETRY_SECONDS[min(tries, len(_RETRY_SECONDS) - 1)])
                tries += 1
            except GnusError as error:
                self._observer.health.warn(JOIN_PENDING, f"{error.what}; leave this swarm and join with a new token")
                return


async def accept(membership: Membership, records: Sequence[SwarmRecord]) -> None:
    """Takes in what ``redeem`` gave: from now on this node is a member.

    Raises:
        DataError, DiskFull.
    """
    await membership.add(records, gossiped=True)
    await membership.finish_join()
