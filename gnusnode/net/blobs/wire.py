"""``/gnus/blob/1``: the messages, deterministic CBOR maps with a ``kind``. Pure.

    have      hash                      -> held
    manifest  hash                      -> wait …, manifest
    get       hash, first, count, rate  -> part …, end

One stream carries one request after another; answers come in the order of the requests, which may be sent ahead. Any
answer may be ``err`` instead, and ends its request. Parts follow each other in the order of the bytes and never reach
over the end of a chunk.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from gnusnode.contracts import canonical
from gnusnode.contracts.artifacts import MAX_CHUNKS, ChunkManifest
from gnusnode.contracts.base import describe
from gnusnode.contracts.ids import Sha256
from gnusnode.errors import ProtocolViolation

PROTOCOL: Final = "/gnus/blob/1"
PART_BYTES: Final = 256 * 1024
"""Most bytes of a part: what waits behind it on the connection waits that long."""
MAX_COUNT: Final = 16
"""Most chunks of one ``get``."""
MAX_REQUEST: Final = 1024
MAX_REPLY: Final = ChunkManifest.max_bytes + 1024


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Have(_Message):
    """Do you hold this? ``hash`` is that of a file, or of an expert artifact that uses one."""

    kind: Literal["have"] = "have"
    hash: Sha256


class WantManifest(_Message):
    kind: Literal["manifest"] = "manifest"
    hash: Sha256


class Get(_Message):
    kind: Literal["get"] = "get"
    hash: Sha256
    first: Annotated[int, Field(ge=0, lt=MAX_CHUNKS)]
    count: Annotated[int, Field(ge=1, le=MAX_COUNT)]
    rate: Annotated[int, Field(ge=0, lt=2**53)] = 0
    """Send no more bytes per second than these; 0: as fast as you can. Not reading would end the stream instead."""


class ElmParts(_Message):
    """The small files of an expert artifact, as its archive has them."""

    manifest: Annotated[bytes, Field(max_length=256 * 1024)]
    template: Annotated[bytes, Field(max_length=1024 * 1024)] | None = None
    capability: Annotated[bytes, Field(max_length=256 * 1024)] | None = None


class Held(_Message):
    kind: Literal["held"] = "held"
    sha256: Sha256
    """Of the file."""
    size: Annotated[int, Field(gt=0, lt=2**53)]
    name: Annotated[str, StringConstraints(max_length=128)]
    """What the holder calls it."""
    elm: ElmParts | None = None
    """Where the hash was that of an expert artifact."""


class Wait(_Message):
    """The file is being hashed; the answer will come."""

    kind: Literal["wait"] = "wait"


class Manifest(_Message):
    kind: Literal["manifest"] = "manifest"
    record: bytes
    """A ``ChunkManifest``."""


class Bytes(_Message):
    kind: Literal["part"] = "part"
    data: Annotated[bytes, Field(min_length=1, max_length=PART_BYTES)]


class End(_Message):
    """All chunks of the ``get`` are sent."""

    kind: Literal["end"] = "end"


class Refusal(_Message):
    kind: Literal["err"] = "err"
    error: dict[str, Any]
    """As ``GnusError.to_wire``."""


Request = Have | WantManifest | Get
Reply = Held | Wait | Manifest | Bytes | End | Refusal

_Any = TypeVar("_Any")
_REQUEST: Final[TypeAdapter[Request]] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])
_REPLY: Final[TypeAdapter[Reply]] = TypeAdapter(Annotated[Reply, Field(discriminator="kind")])


def encode(message: Request | Reply) -> bytes:
    return canonical.encode_known(message.model_dump())


def request(data: bytes) -> Request:
    """What a client asks.

    Raises:
        ProtocolViolation: no message of this protocol.
    """
    return _parse(_REQUEST, data, MAX_REQUEST)


def reply(data: bytes) -> Reply:
    """What a server answers.

    Raises:
        ProtocolViolation: no message of this protocol.
    """
    return _parse(_REPLY, data, MAX_REPLY)


def _parse(adapter: TypeAdapter[_Any], data: bytes, most: int) -> _Any:
    try:
        return adapter.validate_python(canonical.decode(data, max_bytes=most))
    except canonical.NotCanonical as error:
        raise ProtocolViolation(f"not a message of {PROTOCOL}: {error}") from error
    except ValidationError as error:
        raise ProtocolViolation(f"not a message of {PROTOCOL}: {describe(error)}") from error
