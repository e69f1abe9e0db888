"""What a holder of a file promises of its bytes, so that others can fetch it piece by piece from many of them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field, model_validator

from gnusnode.contracts.base import SignedRecord
from gnusnode.contracts.fields import Moment
from gnusnode.contracts.ids import PeerId, Sha256, Signature

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""What a sound holder hashes together; other sizes are understood."""
MAX_CHUNKS: Final = 49_152
"""192 GiB in chunks of 4 MiB."""


class ChunkManifest(SignedRecord):
    """The sha256 of each chunk of one file. It speeds up finding who lies; the file's own sha256 stays the judge."""

    record_name: ClassVar[str] = "chunk-manifest"
    max_bytes: ClassVar[int] = 4 * 1024 * 1024

    artifact_hash: Sha256
    """Of the whole file."""
    size: Annotated[int, Field(gt=0, lt=2**53)]
    """Bytes of the whole file."""
    chunk_bytes: Annotated[int, Field(ge=64 * 1024, le=8 * 1024 * 1024)]
    """Bytes of each chunk but the last, which has the rest."""
    chunks: Annotated[tuple[Sha256, ...], Field(min_length=1, max_length=MAX_CHUNKS)]
    issued_at_ms: Moment
    signer: PeerId
    """A member that holds the file."""
    signature: Signature

    @model_validator(mode="after")
    def _chunks_fit_size(self) -> ChunkManifest:
        if len(self.chunks) != -(-self.size // self.chunk_bytes):
            raise ValueError("the number of chunks does not follow from size and chunk_bytes")
        return self
