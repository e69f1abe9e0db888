"""``/gnus/roster/1``: two members compare their sets of membership records, and each gets what it lacks.

    -> {kind: compare, swarm_id, own, total}      own: the records by which the opener proves to be a member
    <- {kind: same} | {kind: differ} | {kind: refused, error}
    -> {kind: sums, sums}                         16 bytes for each of 256 groups of digests
    <- {kind: digests, groups: [[number, digests], …]}     of the groups that differ
    -> {kind: want, digests}                <- {kind: records, records}
    -> {kind: give, records}                <- {kind: took, added, refused}
    -> {kind: renew}                        <- {kind: records, records} | {kind: refused, error}

The opener leads and closes. Nothing is told to a peer that is no member of the same swarm, and nothing but records of
that swarm to one that is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from gnusnode.contracts.outcome import Outcome, refusal
from gnusnode.errors import GnusError, Overloaded, ProtocolViolation, RequestError, Unavailable
from gnusnode.net.membership import Membership
from gnusnode.net.port import MessageStream
from gnusnode.net.records import BUCKETS, RecordSet, SwarmRecord
from gnusnode.net.rostermsg import (
    MAX_DIGESTS,
    MAX_PAGE,
    PAGE,
    Message,
    pack,
    pages,
    receive,
    receive_or_end,
    refused,
)

MAX_MESSAGES: Final = 512
"""Messages that the opener may send on one stream: enough for a full set both ways."""
MAX_OWN: Final = 64
MAX_REFUSED: Final = 512
"""Records without authority that a peer may give on one stream before it is reset."""
TAKEN_AT_ONCE: Final = 2048
"""Records that wait to be taken in together; at most 16 MiB."""
_SUM: Final = 16
_DIGEST: Final = 32

Renew = Callable[[str], Awaitable[Sequence[SwarmRecord]]]
"""Makes new certificates for a member whose old ones end soon."""


@dataclass
class Exchanged:
    """What an exchange moved."""

    received: int = 0
    given: int = 0
    refused: int = 0
    """Records of the peer that do not count here."""


class RosterServer:
    """The side that is asked. One stream a peer at a time."""

    def __init__(self, membership: Membership, renew: Renew) -> None:
        self._membership = membership
        self._renew = renew
        self._busy: set[str] = set()

    async def handle(self, stream: MessageStream) -> None:
        """Serves one stream to its end.

        Raises:
            ProtocolViolation, PeerUnreachable: the stream is to be reset.
        """
        if stream.peer in self._busy:
            await stream.send(refused(Overloaded("one exchange at a time", retry_after=1)))
            return
        self._busy.add(stream.peer)
        try:
            await self._serve(stream)
        finally:
            self._busy.discard(stream.peer)

    async def _serve(self, stream: MessageStream) -> None:
        first = await receive(stream, "compare")
        refusal_of_peer = await self._admit(stream.peer, first)
        if refusal_of_peer is not None:
            await stream.send(refused(refusal_of_peer))
            return
        total = first.text("total", "sha256:[0-9a-f]{64}")
        await stream.send(pack("same" if total == self._membership.records.total else "differ"))
        budget = MAX_REFUSED
        for _ in range(MAX_MESSAGES):
            asked = await receive_or_end(stream, "sums", "want", "give", "renew", most=MAX_PAGE)
            if asked is None:
                return
            if self._membership.standing(stream.peer).outcome is not Outcome.OK:  # revoked meanwhile
                await stream.send(refused(self._refusal(stream.peer)))
                return
            answer, faults = await self._answer(stream.peer, asked)
            budget -= faults
            if budget < 0:
                raise ProtocolViolation("a flood of records that do not count", where=stream.peer)
            await stream.send(answer)
        raise ProtocolViolation("an exchange without end", where=stream.peer)

    async def _admit(self, peer: str, first: Message) -> GnusError | None:
        """Why the peer gets nothing; None: it is a member of the same swarm."""
        swarm = self._membership.swarm
        if swarm is None or first.text("swarm_id", "sha256:[0-9a-f]{64}") != swarm.swarm_id:
            return refusal("roster", Outcome.WRONG_SWARM)
        if self._membership.standing(peer).outcome is not Outcome.OK:
            await self._membership.add(first.records("own", MAX_OWN))
        return None if self._membership.standing(peer).outcome is Outcome.OK else self._refusal(peer)

    def _refusal(self, peer: str) -> GnusError:
        return refusal("roster", self._membership.standing(peer).outcome)

    async def _answer(self, peer: str, asked: Message) -> tuple[bytes, int]:
        """The answer, and how many records were refused."""
        match asked.kind:
            case "sums":
                sums = asked.data("sums", multiple=_SUM, most=_SUM * BUCKETS)
                return pack("digests", groups=differing(self._membership.records, sums)), 0
            case "want":
                wanted = asked.data("digests", multiple=_DIGEST, most=_DIGEST * PAGE)
                return pack("records", records=chosen(self._membership.records, split(wanted))), 0
            case "give":
                report = await self._membership.add(asked.records())
                return pack("took", added=len(report.added), refused=len(report.refused)), len(report.refused)
            case _:
                return await self._renewed(peer), 0

    async def _renewed(self, peer: str) -> bytes:
        try:
            return pack("records", records=[record.to_bytes() for record in await self._renew(peer)])
        except GnusError as error:
            return refused(error if isinstance(error, RequestError) else Unavailable("this admin cannot renew now"))


# --- the side that asks -----------------------------------------------------------------------------------------------


async def exchange(stream: MessageStream, membership: Membership, *, renew: bool = False) -> Exchanged:
    """Leads one exchange over a fresh stream; the caller owns the stream.

    Args:
        renew: also ask for new certificates, which an admin gives when the old ones end soon.

    Raises:
        GnusError: the peer refused, broke the protocol, or is gone. What came before that counts.
    """
    moved = Exchanged()
    own = [record.to_bytes() for record in membership.own_records()][:MAX_OWN]
    await stream.send(pack("compare", swarm_id=membership.swarm_id, own=own, total=membership.records.total))
    if (await receive(stream, "same", "differ")).kind == "differ":
        await stream.send(pack("sums", sums=membership.records.sums))
        theirs = await receive(stream, "digests", most=MAX_DIGESTS)
        lacking, surplus = compared(membership.records, theirs)
        await _fetch(stream, membership, lacking, moved)
        for page in pages(surplus):
            await stream.send(pack("give", records=chosen(membership.records, page)))
            took = await receive(stream, "took")
            moved.given += took.count("added")
            if took.count("refused") == len(page):
                break  # it does not know yet by what they count; another exchange will show
    if renew:
        await stream.send(pack("renew"))
        await _take(membership, (await receive(stream, "records", most=MAX_PAGE)).records(), moved, stream.peer)
    await stream.close()
    return moved


async def _fetch(stream: MessageStream, membership: Membership, lacking: list[bytes], moved: Exchanged) -> None:
    """Asks page by page, and takes in several at a time: each time costs a new roster."""
    waiting: list[bytes] = []
    for page in pages(lacking):
        await stream.send(pack("want", digests=b"".join(page)))
        waiting += (await receive(stream, "records", most=MAX_PAGE)).records()
        if len(waiting) >= TAKEN_AT_ONCE:
            await _take(membership, waiting, moved, stream.peer)
            waiting = []
    await _take(membership, waiting, moved, stream.peer)


async def _take(membership: Membership, records: list[bytes], moved: Exchanged, peer: str) -> None:
    report = await membership.add(records)
    moved.received += len(report.added)
    moved.refused += len(report.refused)
    if moved.refused > MAX_REFUSED:
        raise ProtocolViolation("a flood of records that do not count", where=peer)


# --- comparing --------------------------------------------------------------------------------------------------------


def differing(records: RecordSet, sums: bytes) -> list[list[int | bytes]]:
    """Number and digests of each group whose sum is another than in ``sums``."""
    if len(sums) != _SUM * BUCKETS:
        raise ProtocolViolation("the sums of another number of groups")
    own = records.sums
    return [
        [number, records.buckets[number]]
        for number in range(BUCKETS)
        if own[number * _SUM : (number + 1) * _SUM] != sums[number * _SUM : (number + 1) * _SUM]
    ]


def compared(records: RecordSet, theirs: Message) -> tuple[list[bytes], list[bytes]]:
    """The digests that are lacking here, and those that are lacking there.

    Raises:
        ProtocolViolation: no groups of digests.
    """
    groups = theirs.fields.get("groups")
    if not isinstance(groups, list) or len(cast("list[Any]", groups)) > BUCKETS:
        raise ProtocolViolation("a message 'digests' with a wrong field 'groups'")
    lacking: list[bytes] = []
    surplus: list[bytes] = []
    for group in cast("list[Any]", groups):
        match group:
            case [int(number), bytes(joined)] if 0 <= number < BUCKETS and len(joined) % _DIGEST == 0:
                here, there = set(split(records.buckets[number])), set(split(joined))
                lacking += sorted(there - here)
                surplus += sorted(here - there)
            case _:
                raise ProtocolViolation("a message 'digests' with a wrong field 'groups'")
    return lacking, surplus


def split(digests: bytes) -> list[bytes]:
    return [digests[start : start + _DIGEST] for start in range(0, len(digests), _DIGEST)]


def chosen(records: RecordSet, digests: Sequence[bytes]) -> list[bytes]:
    """The bytes of those records; one that is gone meanwhile is left out."""
    found = (records.records.get(f"sha256:{digest.hex()}") for digest in digests)
    return [record.to_bytes() for record in found if record is not None]
