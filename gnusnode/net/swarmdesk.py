"""What a person asks of a node about its swarm, answered in plain data: the same with and without a running daemon.

The API puts it behind ``/gnus/v1/swarm``; the command line uses it on the files of a node that does not run.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

import trio
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from gnusnode.contracts.base import describe
from gnusnode.contracts.ids import Name, public_key
from gnusnode.contracts.invite import MAX_TOKEN, SwarmName
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.roster import Grant
from gnusnode.contracts.swarm import Revocation, RevocationKind, Role, Tier
from gnusnode.errors import NotFound, RequestError
from gnusnode.net import issuing
from gnusnode.net.invites import MAX_USES, Invites, NewInvite, StoredInvite
from gnusnode.net.join import read_token, state_of
from gnusnode.net.membership import Membership, no_swarm

JOIN_SECONDS: Final = 15.0
"""How long a running node is given to redeem a token before the answer says that it goes on trying."""
_SHORTEST_NAME: Final = 4

Hours = Annotated[float, Field(gt=0, le=24 * 365)]
Days = Annotated[float, Field(gt=0, le=3650)]
PeerName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
"""A PeerID, or the end of a member's."""
RoleSet = Annotated[frozenset[Role], Field(min_length=1)]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FoundSwarm(_Body):
    """A new swarm."""

    name: SwarmName
    open: bool = False
    """Whether nodes without a certificate may offer experts."""
    operator: Name | None = None


class InviteNode(_Body):
    """An invite to make."""

    roles: RoleSet
    tier: Tier | None = None
    operator: Name | None = None
    hours: Hours = 24
    uses: Annotated[int, Field(ge=1, le=MAX_USES)] = 1
    days: Days = 90


class JoinSwarm(_Body):
    """A token to redeem."""

    token: Annotated[str, StringConstraints(min_length=1, max_length=2 * MAX_TOKEN)]
    operator: Name | None = None


class SetRoles(_Body):
    """What a member is to hold, in place of what it holds."""

    peer: PeerName
    roles: RoleSet
    tier: Tier | None = None


class Revoke(_Body):
    """What is to be taken back: a peer, or a certificate by its serial or digest."""

    target: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    reason: Annotated[str, StringConstraints(max_length=200)] = ""


class MakeAdmin(_Body):
    """Who is to decide with the founder, and over what."""

    peer: PeerName
    roles: RoleSet = frozenset(Role)
    tier: Tier = Tier.B


class SwarmDesk:
    """One node's swarm affairs.

    Args:
        addresses: where others can dial this node, each ending in ``/p2p/<peer>``.
        operator: who runs this node, where a request does not say.
        fits: whether the network that runs is that of the present swarm, so that no restart is needed.
    """

    def __init__(
        self,
        membership: Membership,
        invites: Invites,
        *,
        addresses: Callable[[], Sequence[str]],
        operator: str,
        fits: Callable[[], bool],
    ) -> None:
        self._membership = membership
        self._invites = invites
        self._addresses = addresses
        self._operator = operator
        self._fits = fits

    # --- looking ------------------------------------------------------------------------------------------------------

    def swarm_status(self) -> dict[str, Any]:
        """The swarm and this node's place in it."""
        membership, swarm = self._membership, self._membership.swarm
        standing = membership.standing(membership.peer_id)
        answer: dict[str, Any] = {
            "state": "alone" if swarm is None else "joining" if swarm.pending else _state(standing.outcome),
            "name": None if swarm is None else swarm.name,
            "swarm_id": membership.swarm_id,
            "peer_id": membership.peer_id,
        }
        if swarm is None:
            return answer
        held = self._newest(membership.peer_id)
        return answer | {
            "open": swarm.open_to_all,
            "network_key": swarm.network_key is not None,
            "roles": sorted(standing.roles),
            "tier": standing.tier.value,
            "operator": ", ".join(sorted(standing.operators)) or swarm.operator,
            "expires": held and held.not_after // 1000,
            "founder": membership.folder.holds_root_key,
            "admin": membership.peer_id in membership.admins(),
            "members": sum(row["state"] == "member" for row in self.swarm_members()),
            "admins": sorted(membership.admins()),
            "records": len(membership.records.records),
            "bootstrap": list(swarm.bootstrap),
        }

    def swarm_members(self) -> list[dict[str, Any]]:
        """Everybody who was ever granted anything here and is not forgotten yet, members first."""
        membership, roster = self._membership, self._membership.roster
        if membership.swarm is None:
            return []
        admins = membership.admins()
        peers = {*roster.grants, *(one.new_peer_id for one in roster.rotations)}
        rows: list[dict[str, Any]] = []
        for peer in peers:
            standing, held = membership.standing(peer), self._newest(peer)
            rows.append(
                {
                    "peer_id": peer,
                    "state": _state(standing.outcome),
                    "operator": held and held.operator,
                    "tier": standing.tier.value if standing.operators else held and held.tier.value,
                    "roles": sorted(standing.roles),
                    "serial": held and held.serial,
                    "certificate": held and held.digest,
                    "issuer": held and ("root" if held.issuer == roster.root else held.issuer),
                    "expires": held and held.not_after // 1000,
                    "admin": peer in admins,
                    "self": peer == membership.peer_id,
                }
            )
        return sorted(rows, key=lambda row: (row["state"] != "member", row["operator"] or "", row["peer_id"]))

    async def swarm_invites(self) -> list[dict[str, Any]]:
        """The invites that this node made, without their secrets."""
        now = self._membership.now_ms()
        return [_plain(invite, now) for invite in await self._invites.list()]

    # --- coming and going ---------------------------------------------------------------------------------------------

    async def swarm_init(self, asked: FoundSwarm) -> dict[str, Any]:
        operator = asked.operator or self._operator
        await self._membership.init(asked.name, operator=operator, open_to_all=asked.open)
        return self.swarm_status() | {"restart": not self._fits()}

    async def swarm_join(self, asked: JoinSwarm) -> dict[str, Any]:
        """Takes on the swarm of a token. A running node redeems it now where its network fits, else once restarted."""
        invite = read_token(asked.token, self._membership.now_ms())
        state = state_of(invite, asked.token, asked.operator or self._operator)
        async with self._membership.changes() as changes:
            await self._membership.begin_join(state)
            restart = not self._fits()
            with trio.move_on_after(0 if restart else JOIN_SECONDS):
                while self._membership.swarm is not None and self._membership.swarm.pending is not None:
                    await anext(changes)
        return self.swarm_status() | {"restart": restart}

    async def swarm_leave(self) -> dict[str, Any]:
        name = None if self._membership.swarm is None else self._membership.swarm.name
        kept = await self._membership.leave()
        return {"left": name, "root_key": kept and str(kept), "restart": not self._fits()}

    # --- deciding -----------------------------------------------------------------------------------------------------

    async def swarm_invite(self, asked: InviteNode) -> dict[str, Any]:
        """An invite with its token, which is shown this once."""
        self._membership.required_authority()
        addresses = list(self._addresses())
        if not addresses:
            raise RequestError(
                "nobody can dial this node, so nobody could redeem the invite",
                hint="set net.listen, or net.announce for a forwarded port; where the port is 0, start the node first",
            )
        new = NewInvite(asked.roles, asked.tier, asked.operator, asked.hours, asked.uses, asked.days)
        invite, invite_id = await self._invites.create(new, addresses)
        return {
            "token": invite.to_token(),
            "id": invite_id,
            "swarm": invite.swarm,
            "roles": sorted(invite.roles),
            "tier": invite.tier.value,
            "uses": asked.uses if invite_id else None,
            "expires": invite.expires_at_ms // 1000,
            "addresses": list(invite.bootstrap),
        }

    async def swarm_withdraw(self, invite_id: str) -> dict[str, Any]:
        return _plain(await self._invites.withdraw(invite_id), self._membership.now_ms())

    async def swarm_roles(self, asked: SetRoles) -> dict[str, Any]:
        peer = self._peer(asked.peer)
        await self._membership.set_roles(peer, asked.roles, tier=asked.tier)
        return self._member(peer)

    async def swarm_revoke(self, asked: Revoke) -> dict[str, Any]:
        kind, target = self._target(asked.target)
        return _taken(await self._membership.revoke(kind, target, reason=asked.reason))

    async def swarm_admin(self, asked: MakeAdmin) -> dict[str, Any]:
        made = await self._membership.delegate(self._peer(asked.peer), asked.roles, asked.tier)
        return {
            "peer_id": made.peer_id,
            "roles": sorted(made.roles),
            "tier": made.tier.value,
            "expires": made.not_after // 1000,
        }

    async def swarm_unadmin(self, peer: str) -> dict[str, Any]:
        return _taken(await self._membership.revoke(RevocationKind.DELEGATION, self._peer(peer)))

    def swarm_admins(self) -> list[dict[str, Any]]:
        """Who may decide, besides the holder of the root key."""
        membership = self._membership
        if membership.swarm is None:
            raise no_swarm()
        rows: list[dict[str, Any]] = []
        for peer in sorted(membership.admins()):
            held = issuing.delegation_of(membership.roster, peer, membership.now_ms())
            if held is not None:
                row = {"roles": sorted(held.roles), "tier": held.tier.value, "expires": held.not_after // 1000}
                rows.append({"peer_id": peer, **row, "self": peer == membership.peer_id})
        return rows

    # ------------------------------------------------------------------------------------------------------------------

    def _newest(self, peer: str) -> Grant | None:
        """The grant that says most of ``peer``: one in force, else the last one that there was."""
        now, roster = self._membership.now_ms(), self._membership.roster
        held = roster.grants_of(peer, now)
        return max(held, key=lambda one: (roster.is_in_force(one, now), one.not_after), default=None)

    def _member(self, peer: str) -> dict[str, Any]:
        return next((row for row in self.swarm_members() if row["peer_id"] == peer), {"peer_id": peer})

    def _peer(self, text: str) -> str:
        """The PeerID that ``text`` is, or the only one among those who were ever granted anything that ends with it.

        Raises:
            NotFound: it is that of nobody. RequestError: it is the end of several.
        """
        with suppress(ValueError):
            public_key(text)
            return text
        known = [row["peer_id"] for row in self.swarm_members()]
        found = [peer for peer in known if peer.endswith(text)] if len(text) >= _SHORTEST_NAME else []
        if len(found) == 1:
            return found[0]
        hint = "see them with: gnusnode swarm members"
        if found:
            raise RequestError(f"{len(found)} members have a PeerID that ends with {text!r}", hint=hint)
        if len(text) < _SHORTEST_NAME:
            hint = f"give at least the last {_SHORTEST_NAME} characters; {hint}"
        raise NotFound(f"there is no member whose PeerID is {text!r}, or ends so", hint=hint)

    def _target(self, text: str) -> tuple[RevocationKind, str]:
        """What a person means by a PeerID, a serial, or the beginning of a certificate's digest.

        Raises:
            NotFound: nothing here is called so. RequestError: several certificates are.
        """
        if not text.isdecimal() and not text.startswith("sha256:"):
            return RevocationKind.PEER, self._peer(text)
        every = [grant for held in self._membership.roster.grants.values() for grant in held]
        if text.isdecimal():
            found = [grant for grant in every if grant.serial == int(text)]
        else:
            found = [grant for grant in every if grant.digest.startswith(text)]
        if not found:
            raise NotFound(f"there is no certificate {text}", hint="see them with: gnusnode swarm members --json")
        if len(found) > 1:
            digests = ", ".join(grant.digest[:23] for grant in found[:4])
            raise RequestError(f"{len(found)} certificates are called {text}", hint=f"give the digest: {digests}")
        return RevocationKind.CERTIFICATE, found[0].digest


def own_operator(name: str, peer_id: str) -> str:
    """Who is said to run a node of which nobody says it: a name that no other node has.

    Two nodes of one operator share private requests, so that hosts that happen to be called alike must not be one.
    """
    return f"{name or platform.node() or 'node'}-{peer_id[-6:]}"


def checked(model: type[Any], **fields: Any) -> Any:
    """A request of the command line.

    Raises:
        RequestError: a value is wrong; says which.
    """
    try:
        return model.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise RequestError(describe(error), hint="see the command's --help") from error


def _state(outcome: Outcome) -> str:
    return "member" if outcome is Outcome.OK else outcome.value


def _taken(made: Revocation) -> dict[str, Any]:
    return {"kind": made.kind.value, "target": made.target, "reason": made.reason, "digest": made.digest}


def _plain(invite: StoredInvite, now_ms: int) -> dict[str, Any]:
    return {
        "id": invite.id,
        "state": invite.state(now_ms),
        "roles": sorted(invite.roles),
        "tier": invite.tier.value,
        "operator": invite.operator,
        "used": f"{len(invite.redeemed)}/{invite.uses}",
        "by": [one.peer_id for one in invite.redeemed],
        "created": invite.created_at_ms // 1000,
        "expires": invite.expires_at_ms // 1000,
    }
