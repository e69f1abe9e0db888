"""Who belongs to the swarm, as this node knows it now: the live roster, and everything that changes it.

Every part that decides about a peer asks ``standing``; whoever acts on a change follows ``changes``. Without a swarm
the node is a swarm of one. Records come in through ``add`` alone, whether they were made here, gossiped or fetched: it
keeps those whose signers had the power to issue them, on the disk first, and makes the new roster from them.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import trio

from gnusnode.clock import unix_ms
from gnusnode.contracts.roster import Roster, Standing
from gnusnode.contracts.swarm import (
    AdminDelegation,
    KeyRotation,
    MembershipCertificate,
    Revocation,
    RevocationKind,
    Role,
    Tier,
)
from gnusnode.errors import Conflict, Forbidden
from gnusnode.identity import NodeIdentity
from gnusnode.net import issuing
from gnusnode.net.issuing import Authority
from gnusnode.net.records import RecordSet, SwarmRecord
from gnusnode.net.roll import AddReport, Roll
from gnusnode.net.swarmfolder import SwarmFolder, SwarmState
from gnusnode.observe.health import SWARM_RECORDS_DAMAGED
from gnusnode.observe.observer import Observer


class Membership:
    """The membership of one node. For the trio thread; make it with ``open``."""

    def __init__(
        self, folder: SwarmFolder, identity: NodeIdentity, observer: Observer, now_ms: Callable[[], int]
    ) -> None:
        self._folder = folder
        self._identity = identity
        self._observer = observer
        self._now_ms = now_ms
        self._swarm: SwarmState | None = None
        self._roll = Roll(folder.records, identity.peer_id, observer, now_ms)
        self._turning = trio.Lock()
        """Held while the node changes its swarm."""

    @classmethod
    async def open(
        cls,
        home: Path,
        identity: NodeIdentity,
        observer: Observer,
        *,
        rotations: Sequence[KeyRotation] = (),
        now_ms: Callable[[], int] = unix_ms,
    ) -> Membership:
        """The membership of the node in ``home``, whose lock the caller holds.

        Args:
            rotations: statements by which this node's earlier keys handed over; see ``identity.rotations``.

        Raises:
            DataError, DiskFull: the swarm's state is damaged. Single damaged records are a health warning only.
        """
        self = cls(SwarmFolder(home), identity, observer, now_ms)
        await trio.to_thread.run_sync(self._folder.clear_leftovers)
        state = await trio.to_thread.run_sync(self._folder.state)
        if state is not None:
            found = await trio.to_thread.run_sync(self._folder.records.load)
            observer.health.update(SWARM_RECORDS_DAMAGED, bool(found.damaged), ", ".join(found.damaged[:3]))
            self._swarm = state
            await self._roll.begin(state.root, state.open_to_all, found.records)
            await self.add(rotations)
        return self

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def peer_id(self) -> str:
        return self._identity.peer_id

    @property
    def swarm(self) -> SwarmState | None:
        """The swarm that this node belongs to, or is about to join; None: it stands alone."""
        return self._swarm

    @property
    def roster(self) -> Roster:
        """Who may do what, as of now. Ask for it each time: it is replaced, never changed."""
        return self._roll.roster

    @property
    def swarm_id(self) -> str:
        return self.roster.swarm_id

    @property
    def records(self) -> RecordSet:
        """The replicated set; empty without a swarm."""
        return self._roll.records

    def records_known(self) -> tuple[SwarmRecord, ...]:
        return tuple(self.records.records.values())

    def standing(self, peer: str) -> Standing:
        """What ``peer`` is and may do now."""
        return self.roster.standing(peer, self._now_ms())

    def own_roles(self, configured: Collection[Role]) -> frozenset[Role]:
        """What this node does: the roles it is configured for, as far as the swarm grants them to it."""
        return self.standing(self.peer_id).roles & frozenset(configured)

    def own_records(self) -> tuple[SwarmRecord, ...]:
        """What a peer that knows nothing of this node needs to judge it: its certificates in force, the delegations of
        their issuers, and the handovers of its earlier keys. A few records; looking for them takes about 1 ms for each
        ten thousand in the set.
        """
        now, roster = self._now_ms(), self.roster
        every = roster.grants_of(self.peer_id, now)
        grants = [grant for grant in every if roster.is_in_force(grant, now)] or every
        issuers = {grant.issuer for grant in grants} | {self.peer_id}
        digests = {grant.digest for grant in grants}
        return tuple(
            record
            for digest, record in self.records.records.items()
            if digest in digests
            or (isinstance(record, AdminDelegation) and record.peer_id in issuers)
            or (isinstance(record, KeyRotation) and self._is_of_own_chain(record))
        )

    def records_against(self, peer: str) -> tuple[SwarmRecord, ...]:
        """The revocations of ``peer``, and the delegations of who signed them: what shows it that it is out."""
        records = self.records.records.values()
        revocations = [each for each in records if isinstance(each, Revocation) and each.target == peer]
        signers = {each.signer for each in revocations}
        delegations = [each for each in records if isinstance(each, AdminDelegation) and each.peer_id in signers]
        return (*revocations, *delegations)

    def admins(self) -> frozenset[str]:
        """Peers that may grant something now."""
        now, roster = self._now_ms(), self.roster
        return frozenset(peer for peer in roster.admins if issuing.delegation_of(roster, peer, now) is not None)

    def authority(self) -> Authority | None:
        """With whose key this node may grant; None: it may not. Reads the root key where there is one.

        Raises:
            DataError: the root key is damaged or open to others.
        """
        if self._swarm is None:
            return None
        root_key = self._folder.root_key(self._swarm.root)
        return issuing.authority(self.roster, self._identity, root_key, self._now_ms())

    @property
    def folder(self) -> SwarmFolder:
        return self._folder

    def now_ms(self) -> int:
        return self._now_ms()

    # --- following, and taking in -------------------------------------------------------------------------------------

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[Roster]]:
        """The new roster after each change from now on. Changes that come while one is being dealt with are one."""
        return self._roll.changes()

    def take_outbox(self) -> list[SwarmRecord]:
        """Records that others should hear of, since the last call. For the one task that gossips them."""
        return self._roll.take_outbox()

    async def add(self, records: Iterable[SwarmRecord | bytes], *, gossiped: bool = False) -> AddReport:
        """Takes in what counts of ``records``: on the disk first, then into the roster, then on to others.

        Args:
            records: bytes are checked; objects must have valid signatures (made here, or opened by ``read_record``).
            gossiped: everybody hears of them anyway.

        Raises:
            DataError, DiskFull: they cannot be written; nothing has changed then.
        """
        return await self._roll.add(records, gossiped=gossiped)

    # --- deciding -----------------------------------------------------------------------------------------------------

    async def grant(
        self, peer: str, roles: Collection[Role], *, tier: Tier | None = None, operator: str, days: float = 90
    ) -> MembershipCertificate:
        """Makes ``peer`` a member.

        Raises:
            Forbidden, RequestError: this node may not grant that, or nobody could.
        """
        made = issuing.certificate(
            self.required_authority(),
            self.roster,
            peer,
            roles=roles,
            tier=tier or issuing.lowest_tier(roles),
            operator=operator,
            now_ms=self._now_ms(),
            lifetime_ms=round(days * issuing.DAY_MS),
        )
        await self.add([made])
        return made

    async def set_roles(
        self, peer: str, roles: Collection[Role], *, tier: Tier | None = None
    ) -> tuple[SwarmRecord, ...]:
        """Gives a member exactly ``roles``; takes effect wherever the records arrive, without a restart.

        Raises:
            Forbidden, RequestError: see ``grant``. NotFound: it is no member.
        """
        made = issuing.regranted(
            self.required_authority(),
            self.roster,
            peer,
            roles=roles,
            tier=tier or issuing.lowest_tier(roles),
            now_ms=self._now_ms(),
        )
        return (await self.add(made)).added

    async def delegate(self, peer: str, roles: Collection[Role], tier: Tier) -> AdminDelegation:
        """Lets ``peer`` invite, grant and revoke within ``roles`` and ``tier``.

        Raises:
            Forbidden: this node does not hold the root key.
        """
        made = issuing.delegation(
            self.required_authority(), self.roster, peer, roles=roles, tier=tier, now_ms=self._now_ms()
        )
        await self.add([made])
        return made

    async def revoke(self, kind: RevocationKind, target: str, *, reason: str = "") -> Revocation:
        """Takes back trust in a peer, a certificate, a delegation or an artifact, for good.

        Raises:
            Forbidden: this node may not.
        """
        made = issuing.revocation(
            self.required_authority(), self.roster, kind, target, reason=reason, now_ms=self._now_ms()
        )
        await self.add([made])
        return made

    def required_authority(self) -> Authority:
        """``authority``, for what cannot go on without.

        Raises:
            Conflict: no swarm. Forbidden: this node may grant nothing.
        """
        if self._swarm is None:
            raise no_swarm()
        found = self.authority()
        if found is None:
            raise Forbidden(
                "this node may not decide who belongs",
                where=self._swarm.name,
                hint="run the command on the founder's node, or let the founder make this one an admin",
            )
        return found

    # --- coming and going ---------------------------------------------------------------------------------------------

    async def init(self, name: str, *, operator: str, open_to_all: bool = False) -> SwarmState:
        """Founds a swarm: a root key of its own, and this node as its first member and admin.

        Raises:
            Conflict: this node belongs to a swarm already. DataError, DiskFull.
        """
        async with self._turning:
            return await self._found(name, operator, open_to_all)

    async def _found(self, name: str, operator: str, open_to_all: bool) -> SwarmState:
        self._must_be_alone()
        root_key = NodeIdentity.generate()
        key = None if open_to_all else secrets.token_bytes(32)
        state = SwarmState(name, root_key.peer_id, open_to_all, key, operator=operator)
        by = Authority(root_key, frozenset(Role), Tier.A, 0, 2**53 - 1, is_root=True)
        empty, now = RecordSet(state.root).roster, self._now_ms()
        every = tuple(Role)
        first = (
            issuing.certificate(by, empty, self.peer_id, roles=every, tier=Tier.A, operator=operator, now_ms=now),
            issuing.delegation(by, empty, self.peer_id, roles=every, tier=Tier.A, now_ms=now),
        )
        create = partial(self._folder.create, state, root_key=root_key, records=first)
        await trio.to_thread.run_sync(create)
        self._swarm = state
        await self._roll.begin(state.root, state.open_to_all, first)
        return state

    async def begin_join(self, state: SwarmState) -> None:
        """Takes on the swarm of a token that still has to be redeemed (``state.pending``).

        Raises:
            Conflict: this node belongs to a swarm already. DataError, DiskFull.
        """
        async with self._turning:
            self._must_be_alone()
            await trio.to_thread.run_sync(partial(self._folder.create, state, root_key=None, records=()))
            self._swarm = state
            await self._roll.begin(state.root, state.open_to_all, ())

    async def finish_join(self) -> None:
        """The token was redeemed, and the records that came with it are added."""
        async with self._turning:
            if self._swarm is not None:
                state = self._swarm.joined()
                await trio.to_thread.run_sync(self._folder.save, state)
                self._swarm = state
                self._roll.tell()

    async def leave(self) -> Path | None:
        """Forgets the swarm. From now on this node stands alone and believes none of its members.

        Returns:
            Where the root key was put, on the founder's node.

        Raises:
            Conflict: there is no swarm to leave. DataError, DiskFull.
        """
        async with self._turning:
            if self._swarm is None:
                raise no_swarm()
            async with self._roll.ending():
                kept = await trio.to_thread.run_sync(self._folder.discard)
                self._swarm = None
        return kept

    # ------------------------------------------------------------------------------------------------------------------

    def _must_be_alone(self) -> None:
        if self._swarm is not None:
            raise Conflict(
                f"this node belongs to the swarm {self._swarm.name!r} already",
                where=str(self._folder.path),
                hint="leave it first: gnusnode swarm leave",
            )

    def _is_of_own_chain(self, record: KeyRotation) -> bool:
        successors = {one.old_peer_id: one.new_peer_id for one in self.roster.rotations}
        peer, steps = record.new_peer_id, 0
        while peer != self.peer_id and peer in successors and steps < len(successors):
            peer, steps = successors[peer], steps + 1
        return peer == self.peer_id


def no_swarm() -> Conflict:
    return Conflict(
        "this node belongs to no swarm", hint="found one: gnusnode swarm init NAME, or: gnusnode swarm join TOKEN"
    )
