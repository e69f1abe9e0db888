"""The invite: what a person hands to another so that one more node may join a swarm.

It is no record of the swarm. Nobody but the node that made it redeems it; the signature lets the joiner notice that it
was changed on the way. It names its signer as the swarm's root or one of its admins, which the joiner can only check
once it has the swarm's records.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, StringConstraints, model_validator

from gnusnode.contracts import canonical
from gnusnode.contracts.base import MalformedRecord, SignedRecord
from gnusnode.contracts.fields import Moment
from gnusnode.contracts.ids import Name, PeerId, Signature
from gnusnode.contracts.swarm import OPEN_ROLES, Multiaddr, Roles, Tier, allows

PREFIX: Final = "gnus1-"
MAX_TOKEN: Final = 8192
MAX_BOOTSTRAP: Final = 8
"""Addresses in one invite."""

SwarmName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")]
Key32 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""32 bytes in hex."""


class Invite(SignedRecord):
    """Lets whoever shows ``secret`` to the inviting node join with ``roles`` and ``tier``. Signed by that node's power
    to grant: the root key, or an admin's.
    """

    record_name: ClassVar[str] = "invite"
    max_bytes: ClassVar[int] = 6 * 1024

    swarm: SwarmName
    root: PeerId
    open_to_all: bool
    network_key: Key32 | None
    """Without it nobody connects to a closed swarm at all."""
    bootstrap: Annotated[tuple[Multiaddr, ...], Field(min_length=1, max_length=MAX_BOOTSTRAP)]
    """Where the inviting node can be reached, each ending in ``/p2p/`` and its PeerID."""
    secret: Key32 | None
    """None on an open swarm, for a node that comes without a certificate: of tier D."""
    roles: Roles
    tier: Tier
    operator: Name | None
    """Who is said to run the node; None: the joiner says it."""
    signer: PeerId
    issued_at_ms: Moment
    expires_at_ms: Moment
    signature: Signature

    @model_validator(mode="after")
    def _hangs_together(self) -> Invite:
        if self.expires_at_ms <= self.issued_at_ms:
            raise ValueError("expires before it is issued")
        if (self.secret is None) != (self.tier is Tier.D) or (self.secret is None and not self.open_to_all):
            raise ValueError("without a secret one comes as tier D, and to an open swarm only")
        for role in self.roles:
            if not (allows(self.tier, role) or (self.tier is Tier.D and role in OPEN_ROLES)):
                raise ValueError(f"a node of tier {self.tier} cannot hold the role {role}")
        return self

    @property
    def inviters(self) -> dict[str, tuple[str, ...]]:
        """Addresses by peer. One that names no peer is left out: whom it leads to could not be checked."""
        found: dict[str, list[str]] = {}
        for address in self.bootstrap:
            _, mark, peer = address.rpartition("/p2p/")
            if mark:
                found.setdefault(peer, []).append(address)
        return {peer: tuple(addresses) for peer, addresses in found.items()}

    def to_token(self) -> str:
        """One line of text without spaces, to copy and paste."""
        return PREFIX + base64.urlsafe_b64encode(self.to_bytes()).decode("ascii").rstrip("=")

    @classmethod
    def from_token(cls, token: str) -> Self:
        """The invite in ``token``; white space that copying added does not matter.

        Raises:
            MalformedRecord: it is no token, or it is not the one that was made; says which.
        """
        text = "".join(token.split())
        if not text.startswith(PREFIX) or len(text) > MAX_TOKEN:
            raise MalformedRecord(f"this is no token: one begins with {PREFIX}")
        body = text.removeprefix(PREFIX)
        try:
            data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
            invite = cls.from_bytes(data)
        except (ValueError, binascii.Error, canonical.NotCanonical) as error:
            raise MalformedRecord("the token is damaged or was cut off") from error
        if base64.urlsafe_b64encode(data).decode("ascii").rstrip("=") != body or not invite.signature_is_valid():
            raise MalformedRecord("the token was changed: its signature does not fit")
        return invite
