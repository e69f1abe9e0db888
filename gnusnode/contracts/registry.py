"""The closed set of records: what may cross a boundary as a document of its own, by the name that the spec gives it."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from gnusnode.contracts.artifacts import ChunkManifest
from gnusnode.contracts.base import Record, SignedRecord
from gnusnode.contracts.consensus import QuorumCertificate, Vote
from gnusnode.contracts.events import AuditEvent, LearningEvent
from gnusnode.contracts.expert import ExpertOutput
from gnusnode.contracts.memory import MemoryEvent, MemoryProvenanceMetadata
from gnusnode.contracts.plan import ExecutionPlan
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.settlement import Receipt, TaskRecord
from gnusnode.contracts.swarm import (
    AdminDelegation,
    KeyRotation,
    MembershipCertificate,
    NodeAnnouncement,
    Revocation,
    RotationProof,
)
from gnusnode.contracts.tools import (
    CapabilityManifest,
    DryRunResult,
    SanitizedData,
    ToolApproval,
    ToolAttestation,
    ToolPolicy,
    ToolProposal,
)

_ALL: Final[tuple[type[Record], ...]] = (
    AdminDelegation,
    AuditEvent,
    CapabilityManifest,
    ChunkManifest,
    DryRunResult,
    ExecutionPlan,
    ExpertOutput,
    KeyRotation,
    LearningEvent,
    MembershipCertificate,
    MemoryEvent,
    MemoryProvenanceMetadata,
    NodeAnnouncement,
    PolicyEnvelope,
    QuorumCertificate,
    Receipt,
    Revocation,
    RotationProof,
    SanitizedData,
    TaskRecord,
    ToolApproval,
    ToolAttestation,
    ToolPolicy,
    ToolProposal,
    Vote,
)

RECORDS: Final = MappingProxyType({cls.__name__: cls for cls in _ALL})
"""Every record by its name."""

SIGNED_RECORDS: Final = MappingProxyType({cls.__name__: cls for cls in _ALL if issubclass(cls, SignedRecord)})
"""Those that carry a signature."""
