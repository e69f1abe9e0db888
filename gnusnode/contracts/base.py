"""What every record has in common: frozen, closed, one encoding, one signing scheme."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from gnusnode.contracts import canonical, dsse, ids


class MalformedRecord(ValueError):
    """Bytes that are not a record of the expected type; the text says where."""


class Record(BaseModel):
    """Data that crosses a boundary. Unknown fields, coercions and other spellings are refused by ``from_bytes``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_enum_values=False, allow_inf_nan=False)

    record_name: ClassVar[str]
    """Stable kebab-case name: part of the signing type and of the schema's ``$id``."""

    max_bytes: ClassVar[int] = 256 * 1024

    def to_plain(self) -> dict[str, Any]:
        """The record as plain data: every field present, enums as their values."""
        return self.model_dump(mode="json")

    def to_bytes(self) -> bytes:
        """The one encoding of this record, signature included."""
        return canonical.encode(self.to_plain())

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy; what the original has derived from its fields and kept, such as its digest, it derives anew."""
        copy = super().model_copy(update=update, deep=deep)
        for name in vars(copy).keys() - type(copy).model_fields.keys():
            del vars(copy)[name]
        return copy

    @cached_property
    def digest(self) -> str:
        """``sha256:<hex>`` of ``to_bytes``."""
        return ids.sha256(self.to_bytes())

    @cached_property
    def cid(self) -> str:
        """Content address of ``to_bytes``."""
        return ids.cid(self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The record that ``data`` encodes.

        Raises:
            MalformedRecord: not canonical, wrong fields, wrong types, limits exceeded.
        """
        try:
            plain = canonical.decode_loosely(data, max_bytes=cls.max_bytes)  # `from_plain` compares the encoding
        except canonical.NotCanonical as error:
            raise MalformedRecord(f"{cls.__name__}: {error}") from error
        return cls.from_plain(plain, data)

    @classmethod
    def from_plain(cls, plain: object, data: bytes) -> Self:
        """The record of the plain form ``plain``, which is what ``canonical.decode`` made of ``data``.

        Raises:
            MalformedRecord: wrong fields, wrong types, limits exceeded.
        """
        try:
            record = cls.model_validate(plain)
        except ValidationError as error:
            raise MalformedRecord(f"{cls.__name__}: {describe(error)}") from error
        if canonical.encode_known(record.to_plain()) != data:
            # A value that validation had to coerce, or a field left to its default: not what was signed.
            raise MalformedRecord(f"{cls.__name__}: a field is missing or of another type than its schema says")
        return record


class SignedRecord(Record):
    """A record that names its signer and carries the signature over everything else."""

    signature_field: ClassVar[str] = "signature"
    signer_field: ClassVar[str] = "signer"
    issued_field: ClassVar[str] = "issued_at_ms"
    expires_field: ClassVar[str] = "expires_at_ms"

    @property
    def signature_text(self) -> str:
        return getattr(self, self.signature_field)

    @property
    def signer_peer(self) -> str:
        return getattr(self, self.signer_field)

    @property
    def issued_ms(self) -> int:
        """When the signer says that it signed: milliseconds since the epoch."""
        return getattr(self, self.issued_field)

    @property
    def expires_ms(self) -> int | None:
        """From when on the record is no longer in force: milliseconds since the epoch; None: it stays."""
        return getattr(self, self.expires_field, None)

    def payload(self) -> bytes:
        """The bytes that are signed: the canonical encoding without the signature field."""
        plain = self.to_plain()
        del plain[self.signature_field]
        return canonical.encode(plain)

    def signature_is_valid(self) -> bool:
        return dsse.verify(self.signer_peer, dsse.payload_type(self.record_name), self.payload(), self.signature_text)

    @classmethod
    def signed(cls, by: dsse.Signer, **fields: Any) -> Self:
        """A new record signed by ``by``, whose PeerID is filled in.

        Raises:
            ValidationError: the fields do not make a record (a bug of the caller).
        """
        placeholder = "ed25519:" + "A" * 86 + "=="
        draft = cls.model_validate({**fields, cls.signer_field: by.peer_id, cls.signature_field: placeholder})
        signature = dsse.sign(by, dsse.payload_type(cls.record_name), draft.payload())
        return draft.model_copy(update={cls.signature_field: signature})


def describe(error: ValidationError) -> str:
    """The first fault of a validation error in one line: ``field.path: reason``."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = ".".join(str(part) for part in first["loc"]) or "record"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{path}: {first['msg']}{more}"
