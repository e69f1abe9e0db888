"""The records that say who belongs to a swarm: as a set that every node reaches alike, and as files.

The set is grow-only but for what no longer counts: whoever has seen the same records, in whatever order, holds the same
set and so the same roster. A record is in it when its signature holds and its signer had the power to issue it; what is
past its time stays for a while, because old answers are judged by it.

A file is named by the digest of its bytes, so damage is seen when it is read, and the record comes again from any peer.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

from gnusnode.contracts import canonical, ids
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.roster import MAX_ROTATIONS, Roster
from gnusnode.contracts.swarm import AdminDelegation, KeyRotation, MembershipCertificate, Revocation, RevocationKind
from gnusnode.contracts.verify import Verdict, open_signed
from gnusnode.errors import storage_error
from gnusnode.identity import sync_directory

SwarmRecord: TypeAlias = MembershipCertificate | AdminDelegation | Revocation | KeyRotation

MAX_RECORDS: Final = 32_768
MAX_RECORD_BYTES: Final = 8 * 1024
RETENTION_MS: Final = 90 * 24 * 3600 * 1000
"""How long a certificate is kept after its end."""
BUCKETS: Final = 256
"""Digests are compared in groups by their first byte, so that a few new records cost a few hundred bytes."""
_DURABLE_BATCH: Final = 64
"""Up to so many files are forced to the disk one by one. A bigger batch came from a peer, who has it still."""

_KINDS: Final[tuple[type[SwarmRecord], ...]] = (AdminDelegation, Revocation, MembershipCertificate, KeyRotation)
_BY_FIELDS: Final = {frozenset(cls.model_fields): cls for cls in _KINDS}


def read_record(data: bytes) -> Verdict[SwarmRecord]:
    """The membership record that ``data`` is, with its signature checked; what it may say is the set's to judge.

    Costs about 0.2 ms. Never raises on hostile input.
    """
    if len(data) > MAX_RECORD_BYTES:
        return Verdict(Outcome.MALFORMED, detail=f"{len(data)} bytes are more than a membership record has")
    try:
        plain = canonical.decode(data, max_bytes=MAX_RECORD_BYTES)
    except canonical.NotCanonical as error:
        return Verdict(Outcome.MALFORMED, detail=str(error))
    fields = cast("dict[str, Any]", plain) if isinstance(plain, dict) else {}
    cls = _BY_FIELDS.get(frozenset(fields))
    if cls is None:
        return Verdict(Outcome.MALFORMED, detail="its fields are those of no membership record")
    verdict = open_signed(cls, fields, data)
    if isinstance(verdict.record, KeyRotation) and not verdict.record.proof_is_valid():
        return Verdict(Outcome.BAD_SIGNATURE)
    return verdict


# --- the set ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Merge:
    """What came of adding records to a set."""

    result: RecordSet
    added: tuple[SwarmRecord, ...] = ()
    gone: tuple[str, ...] = ()
    """Digests of what was in the set and is not any more: superseded, or long past."""
    refused: tuple[tuple[SwarmRecord, Outcome], ...] = ()
    surplus: int = 0
    """Records for which there was no room."""


@dataclass(frozen=True)
class RecordSet:
    """The membership records of one swarm. Immutable; ``merged`` gives the next one."""

    root: str
    open_to_all: bool = False
    records: Mapping[str, SwarmRecord] = field(default_factory=dict[str, SwarmRecord])
    """By digest."""

    @cached_property
    def roster(self) -> Roster:
        return _roster(self.root, self.open_to_all, self.records)

    def merged(self, new: Iterable[SwarmRecord], now_ms: int) -> Merge:
        """This set with those of ``new`` that count. Their signatures must have been checked: see ``read_record``.

        Pure, and safe to run in a thread. Costs about 20 µs for each record in the set.
        """
        fresh = {record.digest: record for record in new if record.digest not in self.records}
        room = MAX_RECORDS - len(self.records)
        # The root's word finds room always: nobody but its owner can make many of these.
        surplus = [digest for digest, record in fresh.items() if record.signer_peer != self.root][max(room, 0) :]
        for digest in surplus:
            del fresh[digest]
        hopeless = self._hopeless(fresh)
        if fresh.keys() == hopeless.keys() and not any(_is_past(record, now_ms) for record in self.records.values()):
            return Merge(self, refused=_reasons(fresh, hopeless), surplus=len(surplus))
        settled, refused = RecordSet(self.root, self.open_to_all, {**self.records, **fresh})._settled(now_ms)
        return Merge(
            self if settled.records.keys() == self.records.keys() else settled,
            added=tuple(record for digest, record in fresh.items() if digest in settled.records),
            gone=tuple(digest for digest in self.records if digest not in settled.records),
            refused=_reasons(fresh, refused),
            surplus=len(surplus),
        )

    def _settled(self, now_ms: int) -> tuple[RecordSet, dict[str, Outcome]]:
        """This set without what does not belong into it, and that with the reasons.

        What goes may have been what others counted by, so it is looked at again until nothing goes: few times.
        """
        settled, refused = self, dict[str, Outcome]()
        while unwanted := _unwanted(settled.roster, settled.records, now_ms):
            refused |= unwanted
            kept = {digest: record for digest, record in settled.records.items() if digest not in unwanted}
            settled = RecordSet(self.root, self.open_to_all, MappingProxyType(kept))
        return settled, refused

    def _hopeless(self, fresh: Mapping[str, SwarmRecord]) -> dict[str, Outcome]:
        """Those that nobody with any power here has signed, told apart before they cost a roster: anyone can send them.

        The others may still be refused.
        """
        delegated = [record.peer_id for record in fresh.values() if isinstance(record, AdminDelegation)]
        powers = {self.root, *self.roster.admins, *delegated}
        refused: dict[str, Outcome] = {}
        known = {*self.roster.grants, *self.roster.admins, *(one.new_peer_id for one in self.roster.rotations)}
        rotations: list[KeyRotation] = []
        for digest, record in fresh.items():
            if isinstance(record, KeyRotation):
                rotations.append(record)
            elif record.swarm_id != self.roster.swarm_id:
                refused[digest] = Outcome.WRONG_SWARM
            elif record.signer != self.root and isinstance(record, AdminDelegation):
                refused[digest] = Outcome.ROLE_NOT_GRANTED
            elif record.signer not in powers:
                refused[digest] = Outcome.UNKNOWN_SIGNER
            elif isinstance(record, MembershipCertificate):
                known.add(record.peer_id)
        return refused | _unwanted_rotations(rotations, known)

    # --- comparing two sets -------------------------------------------------------------------------------------------

    @cached_property
    def buckets(self) -> tuple[bytes, ...]:
        """For each first byte of a digest, all such digests joined in order."""
        groups: list[list[bytes]] = [[] for _ in range(BUCKETS)]
        for digest in self.records:
            raw = bytes.fromhex(digest.removeprefix("sha256:"))
            groups[raw[0]].append(raw)
        return tuple(b"".join(sorted(group)) for group in groups)

    @cached_property
    def sums(self) -> bytes:
        """Sixteen bytes for each bucket: equal exactly when the buckets are."""
        return b"".join(bytes.fromhex(ids.sha256(bucket)[7:39]) for bucket in self.buckets)

    @cached_property
    def total(self) -> str:
        """Digest of the whole set."""
        return ids.sha256(self.sums)


def _reasons(
    records: Mapping[str, SwarmRecord], refused: Mapping[str, Outcome]
) -> tuple[tuple[SwarmRecord, Outcome], ...]:
    return tuple((record, refused[digest]) for digest, record in records.items() if digest in refused)


def _roster(root: str, open_to_all: bool, records: Mapping[str, SwarmRecord]) -> Roster:
    every = records.values()
    return Roster.build(
        root,
        certificates=[record for record in every if isinstance(record, MembershipCertificate)],
        delegations=[record for record in every if isinstance(record, AdminDelegation)],
        revocations=[record for record in every if isinstance(record, Revocation)],
        rotations=[record for record in every if isinstance(record, KeyRotation)],
        open_to_all=open_to_all,
        verified=records.keys(),
    )


def _unwanted(roster: Roster, records: Mapping[str, SwarmRecord], now_ms: int) -> dict[str, Outcome]:
    """What of ``records``, of which ``roster`` was made, does not belong into the set, and why. Depends on nothing but
    the arguments, so that all nodes come to the same result.
    """
    refused = dict(roster.refused)
    for digest, record in records.items():
        if isinstance(record, MembershipCertificate) and digest not in refused:
            outcome = Outcome.EXPIRED if _is_past(record, now_ms) else _without_power(roster, record)
            if outcome is not Outcome.OK:
                refused[digest] = outcome
    rotations = [record for record in records.values() if isinstance(record, KeyRotation)]
    return refused | _unwanted_rotations(rotations, {*roster.grants, *roster.admins})


def _without_power(roster: Roster, certificate: MembershipCertificate) -> Outcome:
    """Why the certificate's signer never had the power to issue it; ``OK``: it had.

    Power that ended, or was taken back later, is judged when one asks.
    """
    begins, signer = certificate.not_before, certificate.signer
    if any(roster.is_revoked(kind, signer, begins) for kind in (RevocationKind.DELEGATION, RevocationKind.PEER)):
        return Outcome.OK if signer == roster.root else Outcome.REVOKED
    outcome = roster.may_certify(certificate, begins)
    return outcome if outcome in (Outcome.ROLE_NOT_GRANTED, Outcome.UNKNOWN_SIGNER) else Outcome.OK


def _is_past(record: SwarmRecord, now_ms: int) -> bool:
    # Delegations stay: what was revoked by an admin is revoked for good.
    return isinstance(record, MembershipCertificate) and now_ms - record.not_after > RETENTION_MS


def _unwanted_rotations(rotations: Sequence[KeyRotation], members: Collection[str]) -> dict[str, Outcome]:
    """Handovers of keys that nobody was ever granted anything by, all but two of one key, and very long chains.

    Two of one key void each other, so there is nothing behind them: a member cannot fill the set with its keys.
    """
    by_old: dict[str, list[KeyRotation]] = {}
    for rotation in sorted(rotations, key=lambda one: one.digest):
        by_old.setdefault(rotation.old_peer_id, []).append(rotation)
    wanted: set[str] = set()
    ends, seen = set(members), set(members)
    for _ in range(MAX_ROTATIONS):
        found = [by_old[peer][:2] for peer in ends if peer in by_old]
        wanted.update(rotation.digest for moves in found for rotation in moves)
        ends = {moves[0].new_peer_id for moves in found if len(moves) == 1} - seen
        seen |= ends
    return {
        one.digest: Outcome.REPLAYED if one.old_peer_id in seen else Outcome.UNKNOWN_SIGNER
        for one in rotations
        if one.digest not in wanted
    }


# --- the files --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What lay in the folder: good records, and the names of damaged files."""

    records: tuple[SwarmRecord, ...]
    damaged: tuple[str, ...]


class RecordFiles:
    """A folder of ``<hex of sha256>.cbor``. One writer: whoever holds the home's lock. Blocking calls.

    Raises:
        DataError, DiskFull: the file system refused.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self) -> Found:
        """Every record that reads back as what its name says; remains of writes that were cut short are cleared."""
        good: list[SwarmRecord] = []
        damaged: list[str] = []
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            entries = sorted(os.scandir(self.folder), key=lambda entry: entry.name)
            for entry in entries:
                if entry.name.endswith(".tmp"):
                    os.unlink(entry.path)
                elif len(good) < MAX_RECORDS:
                    record = _read_file(entry)
                    damaged.append(entry.name) if record is None else good.append(record)
        except OSError as error:
            raise storage_error(error, self.folder, "cannot read the records of the swarm") from error
        return Found(tuple(good), tuple(damaged))

    def put(self, records: Sequence[SwarmRecord]) -> None:
        """Writes records; after a crash each is there whole or not at all."""
        durable = len(records) <= _DURABLE_BATCH
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for record in records:
                self._put(record, durable=durable)
            if records:
                sync_directory(self.folder)
        except OSError as error:
            raise storage_error(error, self.folder, "cannot write the records of the swarm") from error

    def remove(self, digests: Iterable[str]) -> None:
        """Removes records; one that is not there is no fault."""
        try:
            for digest in digests:
                self._path(digest).unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(error, self.folder, "cannot remove records of the swarm") from error

    def _put(self, record: SwarmRecord, *, durable: bool) -> None:
        # Not ``replace_file``: that syncs the folder for each file, and thousands of records come at once.
        draft = self.folder / f".{secrets.token_hex(8)}.tmp"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(record.to_bytes())
                file.flush()
                if durable:
                    os.fsync(handle)
            draft.replace(self._path(record.digest))
        except BaseException:  # whatever stopped it, no draft is left behind; it is raised on
            draft.unlink(missing_ok=True)
            raise

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest.removeprefix('sha256:')}.cbor"


def _read_file(entry: os.DirEntry[str]) -> SwarmRecord | None:
    if not entry.is_file(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_size > MAX_RECORD_BYTES:
        return None
    data = Path(entry.path).read_bytes()
    if f"{ids.sha256(data).removeprefix('sha256:')}.cbor" != entry.name:
        return None
    return read_record(data).record
