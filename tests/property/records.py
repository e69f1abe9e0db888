"""Hypothesis strategies for every record of the registry, derived from the models themselves.

A record is made as its signer would make it at ``NOW``: in force, of this swarm, signed by ``ME``. Only what one field
says about another (``FIT``) is written by hand.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt, MaxLen, MinLen
from hypothesis import Phase, find, settings
from hypothesis import strategies as st
from pydantic import BaseModel, StringConstraints

from gnusnode.contracts import canonical, dsse, ids
from gnusnode.contracts.artifacts import CHUNK_BYTES
from gnusnode.contracts.base import Record, SignedRecord
from gnusnode.contracts.consensus import Vote
from gnusnode.contracts.events import GENESIS, Fingerprint, names_content
from gnusnode.contracts.memory import TrustClass
from gnusnode.contracts.roster import Roster
from gnusnode.contracts.swarm import LOWEST_TIER, KeyRotation, RevocationKind
from gnusnode.identity import NodeIdentity

NOW: Final = 1_775_410_000_000
ME: Final = NodeIdentity(bytes([7]) * 32)
OTHERS: Final = tuple(NodeIdentity(bytes([n]) * 32) for n in range(20, 24))
ROSTER: Final = Roster.solo(ME.peer_id)

_PEERS: Final = [ME.peer_id, *(other.peer_id for other in OTHERS)]
_ISSUED: Final = ("issued_at_ms", "timestamp_ms", "not_before", "decided_at_ms")
_EXPIRES: Final = ("expires_at_ms", "not_after")


def records(cls: type[Record]) -> st.SearchStrategy[Any]:
    """Instances of ``cls``; signed by ``ME`` where it is a signed record."""
    return _instances(cls)


_FIRST: Final = settings(max_examples=1, database=None, phases=[Phase.generate])


def example(cls: type[SignedRecord], **fields: Any) -> Any:
    """Some record of ``cls`` by ``ME``, with ``fields`` and signed again."""
    drawn = find(records(cls), lambda _: True, settings=_FIRST)
    if not fields:
        return drawn
    plain = {name: getattr(drawn, name) for name in cls.model_fields if name != cls.signature_field}
    return cls.signed(ME, **{**plain, **fields})


@st.composite
def _instances(draw: st.DrawFn, cls: type[Record]) -> Record:
    fields = {name: draw(_field(cls, name)) for name in cls.model_fields}
    FIT.get(cls.__name__, _as_drawn)(draw, fields)
    if not issubclass(cls, SignedRecord):
        return cls.model_validate(fields)
    if cls is KeyRotation:
        return KeyRotation.between(ME, draw(st.sampled_from(OTHERS)), issued_at_ms=fields["issued_at_ms"])
    return cls.signed(ME, **{key: value for key, value in fields.items() if key != cls.signature_field})


def _field(cls: type[Record], name: str) -> st.SearchStrategy[Any]:
    if name in _ISSUED:
        return st.integers(NOW - 20_000, NOW)
    if name in _EXPIRES:
        return st.integers(NOW + 1, NOW + 500_000)
    if name == "swarm_id":
        return st.just(ROSTER.swarm_id)
    info = cls.model_fields[name]
    return values(info.annotation, info.metadata)


def values(annotation: Any, metadata: Iterable[Any] = ()) -> st.SearchStrategy[Any]:
    """Values of a field's type, within its limits."""
    notes = list(_flat(metadata))
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return values(args[0], [*args[1:], *notes])
    if origin in (Union, types.UnionType):
        return st.one_of([values(arg, notes) for arg in args])
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple:
        low, high = _bounds(notes, MinLen, "min_length", 0), _bounds(notes, MaxLen, "max_length", 3)
        return st.lists(values(args[0]), min_size=low, max_size=max(low, min(high, 3))).map(tuple)
    if origin is dict:
        if args[1] is Any:
            return json_objects
        return st.dictionaries(values(args[0]), values(args[1]), max_size=3)
    return _plain(annotation, notes)


def _plain(annotation: Any, notes: list[Any]) -> st.SearchStrategy[Any]:
    if annotation is None or annotation is type(None):
        return st.none()
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return st.sampled_from(list(annotation))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _instances(annotation)
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        low = _bounds(notes, Ge, "ge", -(2**63))
        high = min(_bounds(notes, Le, "le", 2**63 - 1), _bounds(notes, Lt, "lt", 2**63) - 1)
        return st.integers(low, high)
    if annotation is float:
        low, high = _bounds(notes, Ge, "ge", -1e9), _bounds(notes, Le, "le", 1e9)
        above = next((True for note in notes if isinstance(note, Gt)), False)
        return st.floats(_bounds(notes, Gt, "gt", low), high, exclude_min=above)
    assert annotation is str, f"no strategy for {annotation!r}"
    return _texts(notes)


def _pattern(field: Any) -> str:
    return next(note.pattern for note in get_args(field) if getattr(note, "pattern", None))


_digests: Final = st.binary(max_size=4).map(ids.sha256)
_CHEAP: Final[dict[str | None, st.SearchStrategy[str]]] = {
    _pattern(ids.Sha256): _digests,
    _pattern(ids.Uuid): st.uuids().map(str),
    _pattern(ids.Nonce): st.binary(min_size=16, max_size=16).map(bytes.hex),
    _pattern(ids.Signature): st.just("ed25519:" + "A" * 86 + "=="),
    _pattern(Fingerprint): st.sampled_from(_PEERS) | _digests,
}
"""Patterns of long texts: drawing them letter by letter would take most of the time."""


def _texts(notes: list[Any]) -> st.SearchStrategy[str]:
    pattern = next((note.pattern for note in notes if getattr(note, "pattern", None)), None)
    checks = {note.func.__name__ for note in notes if hasattr(note, "func")}
    if "_valid_peer" in checks:
        return st.sampled_from(_PEERS)
    if "_valid_cid" in checks:
        return st.binary(max_size=4).map(ids.cid)
    if pattern in _CHEAP:
        return _CHEAP[pattern]
    if pattern is not None:
        most = _bounds(notes, MaxLen, "max_length", 1000)
        return st.from_regex(pattern.replace("$", r"\Z"), fullmatch=True).filter(lambda text: len(text) <= most)
    low, high = _bounds(notes, MinLen, "min_length", 0), _bounds(notes, MaxLen, "max_length", 12)
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=low, max_size=max(low, min(high, 12)))


def _flat(metadata: Iterable[Any]) -> Iterable[Any]:
    for note in metadata:
        if isinstance(note, StringConstraints):
            yield note
        elif isinstance(note, GroupedMetadata) or hasattr(note, "metadata"):
            yield from _flat(getattr(note, "metadata", None) or note)
        else:
            yield note


def _bounds(notes: list[Any], kind: type, attribute: str, otherwise: Any) -> Any:
    sources = [note for note in notes if isinstance(note, kind | StringConstraints)]
    limits = [limit for note in sources if (limit := getattr(note, attribute, None)) is not None]
    return limits[0] if limits else otherwise


_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
)
_json = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
    max_leaves=6,
)
json_objects: Final = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), _json, max_size=3)

# --- what one field says about another --------------------------------------------------------------------------------

Fit = Callable[[st.DrawFn, dict[str, Any]], None]


def _as_drawn(draw: st.DrawFn, fields: dict[str, Any]) -> None:
    del draw, fields


def _attestation(draw: st.DrawFn, fields: dict[str, Any]) -> None:
    fields["safe_to_execute"] = fields["dry_run_ok"] and draw(st.booleans())


def _memory_event(draw: st.DrawFn, fields: dict[str, Any]) -> None:
    if fields["trust_class"] is TrustClass.HIGHER_TRUST:
        fields["instruction_scrubbed"] = fields["safe_to_memorize"] = True


def _learning_event(draw: st.DrawFn, fields: dict[str, Any]) -> None:
    fields["trust_class"] = TrustClass.HIGHER_TRUST


def _receipt(draw: st.DrawFn, fields: dict[str, Any]) -> None:
    one = st.integers(-(2**31), 0)
    count = len(fields["tokens"])
    fields["logprobs_milli"] = draw(st.lists(one, min_size=count, max_size=count).map(tuple) | st.just(()))


def _audit_event(draw: st.DrawFn, fields: dict[str, Any]) -> None:
    fields["fields"] = {key: value for key, value in fields["fields"].items() if not names_content(key)}
    fields["prev"] = GENESIS if fields["seq"] == 0 else draw(st.binary(max_size=4).map(ids.sha256))


def _evidence(draw: st.DrawFn, fields: dict[str, Any]) -> None:
    fields["ref"] = ids.cid(b"x") if fields["type"] == "memory_pointer" else "https://example.com/" + fields["ref"]


def _certificate(draw: st.DrawFn, fields: dict[str, Any]) -> None:
    fields["tier"] = min((LOWEST_TIER[role] for role in fields["roles"]), key=lambda tier: tier.value)


def _revocation(draw: st.DrawFn, fields: dict[str, Any]) -> None:
    by_digest = fields["kind"] in (RevocationKind.CERTIFICATE, RevocationKind.ARTIFACT)
    fields["target"] = draw(st.binary(max_size=4).map(ids.sha256) if by_digest else st.sampled_from(_PEERS[1:]))


def _quorum(draw: st.DrawFn, fields: dict[str, Any]) -> None:
    voters = draw(st.lists(st.sampled_from([ME, *OTHERS]), min_size=1, unique=True))
    subject = {key: fields[key] for key in ("swarm_id", "event_hash", "committee_hash", "round", "decision")}
    votes = [
        Vote.signed(by, **subject, method="human", issued_at_ms=fields["decided_at_ms"], expires_at_ms=NOW + 10)
        for by in voters
    ]
    fields["votes"] = tuple(sorted(votes, key=lambda vote: vote.signer))


def _announcement(draw: st.DrawFn, fields: dict[str, Any]) -> None:
    fields["addresses"] = ("/ip4/127.0.0.1/tcp/4001",)


def _chunk_manifest(draw: st.DrawFn, fields: dict[str, Any]) -> None:
    fields["chunk_bytes"] = CHUNK_BYTES
    fields["size"] = (len(fields["chunks"]) - 1) * CHUNK_BYTES + draw(st.integers(1, CHUNK_BYTES))


FIT: Final[dict[str, Fit]] = {
    "ToolAttestation": _attestation,
    "MemoryEvent": _memory_event,
    "LearningEvent": _learning_event,
    "Receipt": _receipt,
    "AuditEvent": _audit_event,
    "Evidence": _evidence,
    "MembershipCertificate": _certificate,
    "Revocation": _revocation,
    "QuorumCertificate": _quorum,
    "NodeAnnouncement": _announcement,
    "ChunkManifest": _chunk_manifest,
}


def sign_plain(plain: dict[str, Any], cls: type[SignedRecord], by: dsse.Signer = ME) -> bytes:
    """The bytes of ``plain`` with a signature that is right for exactly these fields, whatever the model says."""
    body = {key: value for key, value in plain.items() if key != cls.signature_field}
    body[cls.signer_field] = by.peer_id
    signature = dsse.sign(by, dsse.payload_type(cls.record_name), canonical.encode(body))
    return canonical.encode({**body, cls.signature_field: signature})
