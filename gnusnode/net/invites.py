"""Invites that this node made: how many may come with each, who has come, and the certificate that each got.

The file holds hashes of the secrets only. Whoever shows a secret gets a certificate that is written down here, durably,
before it is handed out: a crash or a lost answer can neither spend an invite for nothing nor use it twice.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import trio
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from gnusnode.config.files import replace_file
from gnusnode.contracts import ids
from gnusnode.contracts.fields import Moment
from gnusnode.contracts.ids import Name, PeerId, Sha256
from gnusnode.contracts.invite import MAX_BOOTSTRAP, Invite
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.swarm import OPEN_ROLES, MembershipCertificate, Role, Roles, Tier
from gnusnode.errors import Conflict, DataError, Forbidden, GnusError, NotFound, Overloaded, RequestError, storage_error
from gnusnode.net import issuing
from gnusnode.net.membership import Membership
from gnusnode.net.swarmfolder import SwarmState
from gnusnode.observe import events
from gnusnode.observe.health import INVITE_REUSED
from gnusnode.observe.observer import Observer

MAX_INVITES: Final = 256
"""Invites that are open, or over for less than ``_KEPT_MS``."""
MAX_USES: Final = 64
"""Nodes that may come with one token."""
_KEPT_MS: Final = 30 * issuing.DAY_MS
"""How long an invite is remembered after its end: so long a second redemption is told from a made-up secret."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Redemption(_Model):
    """Who came with an invite, and what it got."""

    peer_id: PeerId
    at_ms: Moment
    certificate: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2}){1,4096}$")]
    """The certificate's bytes in hex."""


class StoredInvite(_Model):
    """What is kept of an invite: everything but its secret."""

    id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")]
    secret_hash: Sha256
    roles: Roles
    tier: Tier
    operator: Name | None
    days: Annotated[float, Field(gt=0, le=3650)]
    uses: Annotated[int, Field(ge=1, le=MAX_USES)]
    created_at_ms: Moment
    expires_at_ms: Moment
    withdrawn: bool = False
    redeemed: Annotated[tuple[Redemption, ...], Field(max_length=MAX_USES)] = ()

    def state(self, now_ms: int) -> str:
        if self.withdrawn:
            return "withdrawn"
        if len(self.redeemed) >= self.uses:
            return "used"
        return "expired" if now_ms >= self.expires_at_ms else "open"


@dataclass(frozen=True)
class NewInvite:
    """What one asks for when inviting."""

    roles: frozenset[Role]
    tier: Tier | None = None
    """None: the lowest that the roles need."""
    operator: str | None = None
    hours: float = 24
    uses: int = 1
    days: float = 90
    """How long the certificate holds; it is renewed by then."""


_FILE: Final[TypeAdapter[list[StoredInvite]]] = TypeAdapter(list[StoredInvite])


class Invites:
    """The invites of one node. Every change is on the disk before it counts."""

    def __init__(self, membership: Membership, observer: Observer) -> None:
        self._membership = membership
        self._observer = observer
        self._lock = trio.Lock()

    @property
    def _path(self) -> Path:
        return self._membership.folder.invites

    async def list(self) -> Sequence[StoredInvite]:
        """All that are remembered, the oldest first.

        Raises:
            DataError: the file is damaged.
        """
        return await trio.to_thread.run_sync(_load, self._path)

    async def create(self, new: NewInvite, bootstrap: Sequence[str]) -> tuple[Invite, str]:
        """An invite, and the id by which it is listed here; empty for one of tier D, which nobody has to redeem.

        Args:
            bootstrap: addresses of this node, the best first.

        Raises:
            Forbidden, RequestError: this node may not grant that. Overloaded: too many invites are open.
        """
        by, now = self._membership.required_authority(), self._membership.now_ms()
        tier = new.tier or issuing.lowest_tier(new.roles)
        swarm = self._membership.swarm
        assert swarm is not None, "whoever may grant belongs to a swarm"
        if tier is Tier.D:
            _check_open(new, swarm)
        else:
            by.check(new.roles, tier)
        invite = Invite.signed(
            by.signer,
            swarm=swarm.name,
            root=swarm.root,
            open_to_all=swarm.open_to_all,
            network_key=None if swarm.network_key is None else swarm.network_key.hex(),
            bootstrap=tuple(bootstrap)[:MAX_BOOTSTRAP],
            secret=None if tier is Tier.D else secrets.token_hex(32),
            roles=tuple(sorted(new.roles)),
            tier=tier,
            operator=new.operator,
            issued_at_ms=now,
            expires_at_ms=now + round(new.hours * 3_600_000),
        )
        if invite.secret is None:
            return invite, ""
        stored = StoredInvite(
            id=secrets.token_hex(6),
            secret_hash=_hash(invite.secret),
            roles=invite.roles,
            tier=tier,
            operator=new.operator,
            days=new.days,
            uses=new.uses,
            created_at_ms=now,
            expires_at_ms=invite.expires_at_ms,
        )
        async with self._lock:
            await self._save([*_room(await self.list(), now), stored])
        return invite, stored.id

    async def withdraw(self, invite_id: str) -> StoredInvite:
        """Lets nobody come with it any more; who came stays.

        Raises:
            NotFound: there is no such invite.
        """

        def change(invite: StoredInvite) -> StoredInvite:
            return invite.model_copy(update={"withdrawn": True})

        async with self._lock:
            every = await self.list()
            found = next((invite for invite in every if invite.id == invite_id), None)
            if found is None:
                raise NotFound(f"there is no invite {invite_id!r}", hint="list them with: gnusnode swarm invites")
            await self._save(_replaced(every, found.id, change))
        return change(found)

    async def redeem(self, secret: str, peer: str, operator: str) -> MembershipCertificate:
        """Makes ``peer`` a member, who has shown ``secret`` over its authenticated connection.

        The same peer gets the same certificate again, however often it asks: its answer may have been lost.

        Raises:
            NotFound: no invite has this secret. Conflict: used by others, or withdrawn. Forbidden: expired; or this
            node may not grant that any more, or the peer was revoked.
        """
        async with self._lock:
            every = await self.list()
            found = _match(every, secret)
            if found is None:
                self._tell(peer, "unknown")
                raise NotFound("this invite is not known here", hint="ask for a new one: gnusnode swarm invite")
            before = next((one for one in found.redeemed if one.peer_id == peer), None)
            if before is not None:
                self._refuse_revoked(peer)
                certificate = MembershipCertificate.from_bytes(bytes.fromhex(before.certificate))
                self._tell(peer, "again")
            else:
                self._refuse_closed(found, peer)
                certificate = self._issue(found, peer, operator)
                entry = Redemption(
                    peer_id=peer, at_ms=self._membership.now_ms(), certificate=certificate.to_bytes().hex()
                )
                used = (*found.redeemed, entry)
                await self._save(_replaced(every, found.id, lambda it: it.model_copy(update={"redeemed": used})))
                self._tell(peer, "ok")
            # Also the second time: a crash may have come between the two files.
            await self._membership.add([certificate])
        return certificate

    def _refuse_closed(self, invite: StoredInvite, peer: str) -> None:
        match invite.state(self._membership.now_ms()):
            case "used":
                self._tell(peer, "used")
                first = invite.redeemed[0].peer_id
                self._observer.health.warn(INVITE_REUSED, f"{peer} came after {first}", about=invite.id)
                raise Conflict("this invite was used by another node", hint="ask for a new one")
            case "withdrawn":
                self._tell(peer, "withdrawn")
                raise Conflict("this invite was withdrawn", hint="ask for a new one")
            case "expired":
                self._tell(peer, "expired")
                raise Forbidden("this invite has expired", hint="ask for a new one, or check the clocks")
            case _:
                pass

    def _refuse_revoked(self, peer: str) -> None:
        if self._membership.standing(peer).outcome is Outcome.REVOKED:
            self._tell(peer, "forbidden")
            raise Forbidden("this node was revoked", where=peer, hint="ask the swarm's operator why")

    def _issue(self, invite: StoredInvite, peer: str, operator: str) -> MembershipCertificate:
        membership = self._membership
        try:
            return issuing.certificate(
                membership.required_authority(),
                membership.roster,
                peer,
                roles=invite.roles,
                tier=invite.tier,
                operator=invite.operator or self._own_name(peer, operator),
                now_ms=membership.now_ms(),
                lifetime_ms=round(invite.days * issuing.DAY_MS),
            )
        except GnusError:
            self._tell(peer, "forbidden")
            raise

    def _own_name(self, peer: str, claimed: str) -> str:
        """An operator that the invite does not name is the joiner's word: it must not be that of another member, whose
        private prompts it would then be shown.
        """
        grants = self._membership.roster.grants
        taken = {grant.operator for other, held in grants.items() if other != peer for grant in held}
        return f"{claimed[:100]}-{peer[-8:]}" if claimed in taken else claimed

    def _tell(self, peer: str, outcome: str) -> None:
        self._observer.bus.publish(events.JoinAttempted.model_validate({"peer_id": peer, "outcome": outcome}))

    async def _save(self, invites: list[StoredInvite]) -> None:
        data = _FILE.dump_json(invites, indent=1)
        try:
            await trio.to_thread.run_sync(replace_file, self._path, data)
        except OSError as error:
            raise storage_error(error, self._path, "cannot write the invites") from error


def _check_open(new: NewInvite, swarm: SwarmState) -> None:
    if not swarm.open_to_all:
        raise RequestError(
            "nobody belongs to a closed swarm without a certificate",
            where=swarm.name,
            hint="give a tier from A to C, or found an open swarm with --open",
        )
    beyond = sorted(new.roles - OPEN_ROLES)
    if beyond:
        raise RequestError(
            f"a node of tier D may not hold {', '.join(beyond)}", hint="give --roles core,elm, or a higher tier"
        )


def _load(path: Path) -> list[StoredInvite]:
    try:
        return _FILE.validate_json(path.read_bytes())
    except FileNotFoundError:
        return []
    except ValidationError as error:
        raise DataError(
            "the file of invites is damaged", where=str(path), hint="move it away, and invite anew who has not come yet"
        ) from error
    except OSError as error:
        raise storage_error(error, path, "cannot read the invites") from error


def _room(invites: Sequence[StoredInvite], now_ms: int) -> list[StoredInvite]:
    """The invites that are still to be remembered, with room for one more."""
    kept = [invite for invite in invites if now_ms - invite.expires_at_ms < _KEPT_MS]
    if len(kept) >= MAX_INVITES:
        over = [invite for invite in kept if invite.state(now_ms) != "open"]
        if not over:
            raise Overloaded(
                f"{MAX_INVITES} invites are open already", hint="withdraw some: gnusnode swarm invites --withdraw ID"
            )
        kept.remove(over[0])
    return kept


def _replaced(
    invites: Sequence[StoredInvite], invite_id: str, change: Callable[[StoredInvite], StoredInvite]
) -> list[StoredInvite]:
    return [change(invite) if invite.id == invite_id else invite for invite in invites]


def _match(invites: Sequence[StoredInvite], secret: str) -> StoredInvite | None:
    """Compares with every one, each in constant time."""
    shown, found = _hash(secret), None
    for invite in invites:
        if hmac.compare_digest(invite.secret_hash, shown):
            found = invite
    return found


def _hash(secret: str) -> str:
    return ids.sha256(secret.encode("ascii"))
