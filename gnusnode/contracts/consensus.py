"""Votes on candidates for higher trust, and the certificate that a quorum of them makes (18.1.3.4.7)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field, model_validator

from gnusnode.contracts.base import Record, SignedRecord
from gnusnode.contracts.fields import Moment, Word, check_lifetime
from gnusnode.contracts.ids import Cid, PeerId, Sha256, Signature

MAX_VOTE_MS: Final = 30 * 86_400_000
MAX_COMMITTEE: Final = 64

Round = Annotated[int, Field(ge=0, lt=2**31)]


class Decision(StrEnum):
    APPROVE = "approve"
    REJECT = "reject"


class Vote(SignedRecord):
    """One committee member's decision about one candidate in one round."""

    record_name: ClassVar[str] = "vote"

    swarm_id: Sha256
    event_hash: Sha256
    committee_hash: Sha256
    """Digest of the manifest that lists the members and their weights."""
    round: Round
    decision: Decision
    method: Word
    """How the member checked: ``attestation``, ``grounding``, ``human`` …"""
    evidence: Annotated[tuple[Cid, ...], Field(max_length=64)] = ()
    signer: PeerId
    issued_at_ms: Moment
    expires_at_ms: Moment
    signature: Signature

    @model_validator(mode="after")
    def _bounded_lifetime(self) -> Vote:
        check_lifetime(self.issued_at_ms, self.expires_at_ms, MAX_VOTE_MS)
        return self


class QuorumCertificate(Record):
    """Votes of distinct members for one decision, all in force at ``decided_at_ms``.

    It carries no signature of its own: whoever receives it checks the votes. Whether they are enough is for the
    committee manifest to say.
    """

    record_name: ClassVar[str] = "quorum-certificate"

    swarm_id: Sha256
    event_hash: Sha256
    committee_hash: Sha256
    round: Round
    decision: Decision
    decided_at_ms: Moment
    votes: Annotated[tuple[Vote, ...], Field(min_length=1, max_length=MAX_COMMITTEE)]

    @model_validator(mode="after")
    def _votes_agree(self) -> QuorumCertificate:
        subject = (self.swarm_id, self.event_hash, self.committee_hash, self.round, self.decision)
        for vote in self.votes:
            if (vote.swarm_id, vote.event_hash, vote.committee_hash, vote.round, vote.decision) != subject:
                raise ValueError("a vote is about something else")
            if not vote.issued_at_ms <= self.decided_at_ms < vote.expires_at_ms:
                raise ValueError("a vote was not in force when the certificate was made")
        signers = [vote.signer for vote in self.votes]
        if signers != sorted(set(signers)):
            raise ValueError("the votes are not one per member, in the order of their PeerIDs")
        return self
