"""What two nodes say to each other first, and what a node gossips about itself.

A hello is four messages on a stream of its own: greeting and greeting, verdict and verdict. A greeting says nothing
that a stranger should not know; what a node offers stands in its verdict, and only when that accepts the other side.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, cast

from pydantic import Field, StringConstraints

from gnusnode.contracts import canonical
from gnusnode.contracts.base import MalformedRecord, Record
from gnusnode.contracts.fields import Count, Line, Moment, Part
from gnusnode.contracts.ids import Name, Nonce, Sha256
from gnusnode.contracts.swarm import (
    AdminDelegation,
    KeyRotation,
    MembershipCertificate,
    NodeAnnouncement,
    Revocation,
    Role,
)

HELLO_PROTOCOL: Final = "/gnus/hello/1"
MAX_CREDENTIALS: Final = 32

Credential = MembershipCertificate | AdminDelegation | KeyRotation | Revocation
Credentials = Annotated[tuple[Credential, ...], Field(max_length=MAX_CREDENTIALS)]
"""What shows that the sender belongs to the swarm; the receiver may lack it."""


class ServiceOffer(Part):
    """A service and the version of its methods that the sender speaks."""

    name: Name
    version: Count


class Greeting(Record):
    """The first message of either side."""

    record_name: ClassVar[str] = "hello-greeting"
    max_bytes: ClassVar[int] = 128 * 1024

    kind: Literal["greeting"] = "greeting"
    version: Name
    """Of the software."""
    swarm_id: Sha256
    instance: Nonce
    clock_ms: Moment
    """The sender's wall clock at the moment of sending."""
    records: Credentials = ()
    """Empty until the sender knows that the receiver names the same swarm."""


class HelloVerdict(Record):
    """The last message of either side: whether the other one is welcome, and then what the sender offers it."""

    record_name: ClassVar[str] = "hello-verdict"
    max_bytes: ClassVar[int] = 256 * 1024

    kind: Literal["verdict"] = "verdict"
    refused: Annotated[str, StringConstraints(pattern=r"^[a-z_]{0,64}$")] = ""
    """Why not, as an outcome's or an error's code; empty: welcome."""
    detail: Line = ""
    """The reason for people."""
    rtt_ms: Annotated[float, Field(ge=0, le=600_000)] | None = None
    """The round trip between the greetings, as the side that dialled measured it."""
    records: Credentials = ()
    roles: Annotated[tuple[Role, ...], Field(max_length=len(Role))] = ()
    services: Annotated[tuple[ServiceOffer, ...], Field(max_length=32)] = ()
    announcement: NodeAnnouncement | None = None
    rival: NodeAnnouncement | None = None
    """What another instance with the receiver's key announced a moment ago."""


class Heartbeat(Record):
    """A node gossips its own announcement."""

    record_name: ClassVar[str] = "gossip-heartbeat"
    max_bytes: ClassVar[int] = 65 * 1024

    kind: Literal["heartbeat"] = "heartbeat"
    announcement: NodeAnnouncement


class Clash(Record):
    """A node heard one key speak as two instances, and passes on what they said, so that both come to know it."""

    record_name: ClassVar[str] = "gossip-clash"
    max_bytes: ClassVar[int] = 130 * 1024

    kind: Literal["clash"] = "clash"
    announcements: Annotated[tuple[NodeAnnouncement, ...], Field(min_length=1, max_length=2)]


def read_gossip(data: bytes) -> Heartbeat | Clash:
    """A message of the announcements' topic.

    Raises:
        MalformedRecord: it is none.
    """
    try:
        plain = canonical.decode(data, max_bytes=Clash.max_bytes)
    except canonical.NotCanonical as error:
        raise MalformedRecord(f"gossip: {error}") from error
    kind = cast("dict[str, object]", plain).get("kind") if isinstance(plain, dict) else None
    cls = {"heartbeat": Heartbeat, "clash": Clash}.get(str(kind))
    if cls is None or len(data) > cls.max_bytes:
        raise MalformedRecord("gossip: neither a heartbeat nor a clash, or too large")
    return cls.from_plain(cast("object", plain), data)
