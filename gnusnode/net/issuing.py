"""Making membership records: who may sign what, and nothing that a receiver would refuse. Pure.

The root key may grant anything. A delegated admin may grant what its delegation names, up to its tier and its end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from gnusnode.contracts.dsse import Signer
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.roster import Grant, Roster
from gnusnode.contracts.swarm import (
    LOWEST_TIER,
    AdminDelegation,
    MembershipCertificate,
    Revocation,
    RevocationKind,
    Role,
    Tier,
)
from gnusnode.contracts.verify import MAX_SKEW_MS
from gnusnode.errors import Forbidden, NotFound, RequestError
from gnusnode.net.records import SwarmRecord

DAY_MS: Final = 24 * 3600 * 1000
CERTIFICATE_MS: Final = 90 * DAY_MS
DELEGATION_MS: Final = 365 * DAY_MS
RENEW_AT: Final = 1 / 3
"""Share of its lifetime that is left when a certificate is renewed."""


@dataclass(frozen=True)
class Authority:
    """With whose key this node may grant, and how much."""

    signer: Signer
    roles: frozenset[Role]
    tier: Tier
    """The highest it may grant."""
    since_ms: int
    until_ms: int
    """Nothing that it grants begins earlier or holds longer."""
    is_root: bool

    def check(self, roles: Collection[Role], tier: Tier) -> None:
        """
        Raises:
            Forbidden: more than this node may grant. RequestError: the roles need a higher tier.
        """
        for role in roles:
            if tier.value > LOWEST_TIER[role].value:
                needed = LOWEST_TIER[role]
                raise RequestError(
                    f"a node of tier {tier} cannot hold the role {role}",
                    hint=f"give tier {needed} with --tier {needed}, or leave the role out",
                )
        beyond = sorted(set(roles) - self.roles)
        if beyond or tier.value < self.tier.value:
            what = f"the roles {', '.join(beyond)}" if beyond else f"tier {tier}"
            raise Forbidden(
                f"this node may not grant {what}",
                hint=f"it may grant {', '.join(sorted(self.roles))} up to tier {self.tier}; ask the swarm's founder",
            )


def authority(roster: Roster, identity: Signer, root_key: Signer | None, now_ms: int) -> Authority | None:
    """How this node may grant at ``now_ms``: by the root key, else by its delegation; None: it may not."""
    if root_key is not None:
        return Authority(root_key, frozenset(Role), Tier.A, 0, 2**53 - 1, is_root=True)
    held = delegation_of(roster, identity.peer_id, now_ms)
    if held is None:
        return None
    return Authority(identity, frozenset(held.roles), held.tier, held.not_before, held.not_after, is_root=False)


def delegation_of(roster: Roster, peer: str, now_ms: int) -> AdminDelegation | None:
    """The widest delegation of ``peer`` that is in force."""
    if any(roster.is_revoked(kind, peer, now_ms) for kind in (RevocationKind.DELEGATION, RevocationKind.PEER)):
        return None
    held = [one for one in roster.admins.get(peer, ()) if one.not_before <= now_ms < one.not_after]
    return max(held, key=lambda one: (len(one.roles), one.not_after), default=None)


def lowest_tier(roles: Iterable[Role]) -> Tier:
    """The tier that suffices for all of ``roles``: nobody is trusted more than the work needs."""
    return min((LOWEST_TIER[role] for role in roles), key=lambda tier: tier.value)


def certificate(
    by: Authority,
    roster: Roster,
    peer: str,
    *,
    roles: Collection[Role],
    tier: Tier,
    operator: str,
    now_ms: int,
    lifetime_ms: int = CERTIFICATE_MS,
) -> MembershipCertificate:
    """A certificate for ``peer``. It begins a minute ago, for nodes whose clocks are behind.

    Raises:
        Forbidden, RequestError: see ``Authority.check``; or the node was revoked, which is for good.
    """
    by.check(roles, tier)
    if roster.is_revoked(RevocationKind.PEER, peer, now_ms):
        raise Forbidden(
            "this node was revoked, which is for good",
            where=peer,
            hint="let it start on a new `--home`, which has a new key, and invite that; `id rotate` does not help",
        )
    return MembershipCertificate.signed(
        by.signer,
        swarm_id=roster.swarm_id,
        peer_id=peer,
        operator=operator,
        roles=tuple(sorted(set(roles))),
        tier=tier,
        not_before=max(now_ms - MAX_SKEW_MS, by.since_ms),
        not_after=min(now_ms + lifetime_ms, by.until_ms),
        serial=next_serial(roster, by.signer.peer_id),
    )


def regranted(
    by: Authority, roster: Roster, peer: str, *, roles: Collection[Role], tier: Tier, now_ms: int
) -> list[SwarmRecord]:
    """Records that give ``peer`` exactly ``roles``: a new certificate, and the end of those that grant more.

    Raises:
        NotFound: it is no member. Forbidden, RequestError: see ``certificate``.
    """
    standing = roster.standing(peer, now_ms)
    if standing.outcome is not Outcome.OK or not standing.operators:
        raise NotFound("this peer is no member", where=peer, hint="see them with: gnusnode swarm members")
    operator = sorted(standing.operators)[0]
    made: list[SwarmRecord] = [certificate(by, roster, peer, roles=roles, tier=tier, operator=operator, now_ms=now_ms)]
    made += [
        revocation(by, roster, RevocationKind.CERTIFICATE, grant.digest, reason="roles changed", now_ms=now_ms)
        for grant in roster.grants_of(peer, now_ms)
        if grant.not_after > now_ms and (not grant.roles <= set(roles) or grant.tier.value < tier.value)
    ]
    return made


def revocation(
    by: Authority, roster: Roster, kind: RevocationKind, target: str, *, reason: str, now_ms: int
) -> Revocation:
    """Takes back trust from now on.

    Raises:
        Forbidden: what touches admins is for the root key alone.
    """
    made = Revocation.signed(
        by.signer,
        swarm_id=roster.swarm_id,
        kind=kind,
        target=target,
        effective_at_ms=now_ms,
        reason=reason,
        issued_at_ms=now_ms,
    )
    if roster.may_revoke(made) is not Outcome.OK:
        raise Forbidden(
            "only the swarm's root key may take this back",
            where=target,
            hint="run the command on the founder's node, which holds the root key",
        )
    return made


def delegation(
    by: Authority, roster: Roster, peer: str, *, roles: Collection[Role], tier: Tier, now_ms: int
) -> AdminDelegation:
    """Lets ``peer`` grant ``roles`` up to ``tier`` for a year.

    Raises:
        Forbidden: only the root key may, and not to whom it was taken back from.
    """
    if not by.is_root:
        raise Forbidden("only the swarm's root key makes admins", hint="run the command on the founder's node")
    for kind in (RevocationKind.DELEGATION, RevocationKind.PEER):
        if roster.is_revoked(kind, peer, now_ms):
            raise Forbidden("this was taken back from that node for good", where=peer, hint="choose another node")
    return AdminDelegation.signed(
        by.signer,
        swarm_id=roster.swarm_id,
        peer_id=peer,
        roles=tuple(sorted(set(roles))),
        tier=tier,
        not_before=now_ms - MAX_SKEW_MS,
        not_after=now_ms + DELEGATION_MS,
        serial=1 + max((one.serial for held in roster.admins.values() for one in held), default=0),
    )


def newest(grants: Iterable[Grant], now_ms: int) -> Grant | None:
    """The grant in force that holds longest."""
    held = [grant for grant in grants if grant.not_before <= now_ms < grant.not_after]
    return max(held, key=lambda grant: grant.not_after, default=None)


def is_due(not_before: int, not_after: int, now_ms: int) -> bool:
    """Whether it is time to renew what holds from ``not_before`` to ``not_after``."""
    return not_after - now_ms < RENEW_AT * (not_after - not_before)


def next_serial(roster: Roster, signer: str) -> int:
    return 1 + max(
        (grant.serial for held in roster.grants.values() for grant in held if grant.issuer == signer), default=0
    )
