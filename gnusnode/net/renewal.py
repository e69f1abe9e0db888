"""Membership that ends is renewed in time: an admin's node renews its own, and that of any member who asks.

Nothing grows by it: a new certificate says what the old one said, within what the admin may grant. A member that was
revoked, or whose membership is over, gets none.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import trio

from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.roster import Grant, Roster
from gnusnode.contracts.swarm import Role, Tier
from gnusnode.errors import Forbidden, GnusError
from gnusnode.net import issuing
from gnusnode.net.membership import Membership
from gnusnode.net.port import Net
from gnusnode.net.records import SwarmRecord
from gnusnode.net.rostersync import RosterSync
from gnusnode.observe.health import MEMBERSHIP_ENDING, MEMBERSHIP_REVOKED
from gnusnode.observe.observer import Observer

CHECK_SECONDS: Final = 3600.0
RETRY_SECONDS: Final = 60.0
"""How soon it is tried again where no admin was there."""
_WARN_AT: Final = 1 / 6
"""Share of the lifetime that is left when the health warning begins."""


def due(roster: Roster, peer: str, now_ms: int) -> list[Grant]:
    """The grants of ``peer`` that have to be renewed: in force, near their end, and not covered by a later one.

    A grant to a key that the node had before counts as due: a certificate of its own ends the dependence on that key.
    """
    held = [grant for grant in roster.grants_of(peer, now_ms) if roster.is_in_force(grant, now_ms)]
    own = roster.grants.get(peer, ())
    fresh = [one for one in held if one in own and not issuing.is_due(one.not_before, one.not_after, now_ms)]
    return [one for one in held if one not in fresh and not any(_covers(other, one) for other in fresh)]


async def renew(membership: Membership, peer: str) -> Sequence[SwarmRecord]:
    """New certificates for ``peer``, as far as any are due; the delegation too, where this node holds the root key.

    Raises:
        Forbidden, RequestError: the peer is no member, or this node may not grant what it holds.
    """
    by, roster, now = membership.required_authority(), membership.roster, membership.now_ms()
    standing = roster.standing(peer, now)
    if standing.outcome is not Outcome.OK or not standing.operators:
        raise Forbidden("only a member's certificate is renewed", where=peer, hint="ask for a new invite")
    made: list[SwarmRecord] = [
        issuing.certificate(
            by,
            roster,
            peer,
            roles=grant.roles,
            tier=grant.tier,
            operator=grant.operator,
            now_ms=now,
            lifetime_ms=max(grant.not_after - grant.not_before, issuing.DAY_MS),
        )
        for grant in due(roster, peer, now)
    ]
    held = issuing.delegation_of(roster, peer, now)
    if by.is_root and held is not None and issuing.is_due(held.not_before, held.not_after, now):
        made.append(issuing.delegation(by, roster, peer, roles=held.roles, tier=held.tier, now_ms=now))
    return (await membership.add(made)).added


class Upkeep:
    """Looks after this node's own membership. ``run`` for as long as there is a net."""

    def __init__(self, membership: Membership, sync: RosterSync, observer: Observer) -> None:
        self._membership = membership
        self._sync = sync
        self._observer = observer

    async def run(self, net: Net) -> None:
        while True:
            renewed = await self._look(net)
            async with self._membership.changes() as changes:
                with trio.move_on_after(CHECK_SECONDS if renewed else RETRY_SECONDS):
                    await anext(changes)

    async def _look(self, net: Net) -> bool:
        """Renews what is due; False: something is still due."""
        outcome = self._membership.standing(self._membership.peer_id).outcome
        self._observer.health.update(MEMBERSHIP_REVOKED, outcome is Outcome.REVOKED, self._membership.peer_id)
        if self._membership.swarm is None:
            self._observer.health.clear(MEMBERSHIP_ENDING)
            return True
        try:
            await self._renew_here()
        except GnusError as error:  # such as a full disk: the certificate still holds for weeks
            self._observer.health.warn(MEMBERSHIP_ENDING, error.what)
            return False
        for admin in sorted(self._membership.admins() & net.connected()):
            if not self._is_due():
                break
            await self._sync.exchange(net, admin, renew=True)
        still_due = self._is_due()
        self._observer.health.update(MEMBERSHIP_ENDING, self._ends_soon(still_due), self._membership.peer_id)
        return not still_due

    async def _renew_here(self) -> None:
        membership = self._membership
        by = membership.authority()
        if by is None:
            return
        if by.is_root and issuing.delegation_of(membership.roster, membership.peer_id, membership.now_ms()) is None:
            await self._become_admin()
        if self._is_due():
            await renew(membership, membership.peer_id)

    async def _become_admin(self) -> None:
        """The node that holds the root key is an admin under its present key, so that members find whom to ask."""
        membership = self._membership
        with suppress(Forbidden):  # it was taken back for good: this node grants by the root key alone
            await membership.delegate(membership.peer_id, tuple(Role), Tier.A)

    def _is_due(self) -> bool:
        return bool(due(self._membership.roster, self._membership.peer_id, self._membership.now_ms()))

    def _ends_soon(self, still_due: bool) -> bool:
        """Whether a person has to be told: the last sixth of the time runs, or it is over."""
        if not still_due:
            return self._membership.standing(self._membership.peer_id).outcome is Outcome.CERTIFICATE_EXPIRED
        now = self._membership.now_ms()
        held = issuing.newest(self._membership.roster.grants_of(self._membership.peer_id, now), now)
        return held is None or held.not_after - now < _WARN_AT * (held.not_after - held.not_before)


def _covers(one: Grant, other: Grant) -> bool:
    return one.roles >= other.roles and one.tier.value <= other.tier.value
