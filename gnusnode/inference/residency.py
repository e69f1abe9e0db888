"""What a node needs to know of a model to run it, and which models share the machine's memory. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from gnusnode.contracts.generation import ContextProfile
from gnusnode.errors import EngineFailed, GnusError, Overloaded
from gnusnode.inference.artifacts.gguf import GgufHeader
from gnusnode.inference.calibrate import Determinism
from gnusnode.inference.devices import Device
from gnusnode.inference.engine import Engine
from gnusnode.inference.frames import ChildSpec
from gnusnode.inference.layers import Placement, place

_RETRY_AFTER: Final = 5.0
_SLACK_SHARE: Final = 2
_SLACK: Final = 1024 * 1024 * 1024
"""A child that holds twice the plan and a gigabyte more leaks."""


@dataclass(frozen=True)
class HostedModel:
    """A model that this node may run. Its file has been verified; ``header`` is what was read of it.

    Attributes:
        template: chat template that replaces the file's.
        embeddings: runs for vectors, not for text.
        n_ctx: tokens of context, shared by ``slots`` in the throughput profile and per job in the canonical one.
        canonical_slots: jobs that run together in the canonical profile; None: ``slots``.
        gpu_layers: ceiling; None: as many as fit.
        pinned: is never put out for another.
        determinism: class found by an earlier calibration; ``C``: none was done.
    """

    name: str
    path: str
    artifact_hash: str
    header: GgufHeader
    template: str | None = None
    embeddings: bool = False
    n_ctx: int = 4096
    slots: int = 8
    canonical_slots: int | None = None
    batch: int = 512
    prefill_per_step: int = 256
    threads: int = 0
    gpu_layers: int | None = None
    pinned: bool = False
    determinism: Determinism = "C"

    def cells(self, profile: ContextProfile) -> int:
        """Tokens of context that the profile allocates."""
        return self.n_ctx * (self.slots_of(profile) if profile is ContextProfile.CANONICAL else 1)

    def slots_of(self, profile: ContextProfile) -> int:
        if profile is ContextProfile.CANONICAL and self.canonical_slots is not None:
            return self.canonical_slots
        return self.slots

    def spec(self, profile: ContextProfile, placement: Placement) -> ChildSpec:
        return ChildSpec(
            model_path=self.path,
            model_name=self.name,
            artifact_hash=self.artifact_hash,
            profile=profile,
            embeddings=self.embeddings,
            n_ctx=self.n_ctx,
            slots=self.slots_of(profile),
            batch=self.batch,
            prefill_per_step=self.prefill_per_step,
            threads=self.threads,
            gpu_layers=placement.gpu_layers,
            own_weights=placement.own_weights,
            template=self.template,
            # While layers move to a GPU, the pages of the whole file count as resident.
            max_memory=_SLACK_SHARE * placement.ram_bytes + self.header.tensor_bytes + _SLACK,
        )


@dataclass(frozen=True)
class Key:
    """What one child serves: names that share all of this share the child."""

    artifact_hash: str
    profile: ContextProfile
    template: str | None
    embeddings: bool
    n_ctx: int

    @classmethod
    def of(cls, model: HostedModel, profile: ContextProfile) -> Key:
        return cls(model.artifact_hash, profile, model.template, model.embeddings, model.n_ctx)


class Residency:
    """One engine from the wish to have it to its end.

    Attributes:
        placement: what is reserved for it; None: nothing yet.
        engine: when it is up.
        error: why it did not come up.
        leases: calls that use it now.
        settled: it is up, or has failed.
        leave: set by whoever wants it to end.
        gone: its memory is free again.
    """

    def __init__(self, model: HostedModel, profile: ContextProfile) -> None:
        self.model = model
        self.profile = profile
        self.key = Key.of(model, profile)
        self.placement: Placement | None = None
        self.engine: Engine | None = None
        self.error: GnusError | None = None
        self.leases = 0
        self.last_used = 0.0
        self.settled = trio.Event()
        self.leave = trio.Event()
        self.gone = trio.Event()

    @property
    def replaceable(self) -> bool:
        return self.engine is not None and not self.leases and not self.model.pinned and not self.leave.is_set()


@dataclass(frozen=True)
class Plan:
    """Where a model goes, or which engine has to leave first. ``error``: neither is possible."""

    placement: Placement | None = None
    victim: Residency | None = None
    error: GnusError | None = None


def plan(
    wanted: Residency, others: Iterable[Residency], *, gpus: Sequence[Device], ram: int, at_most: int | None
) -> Plan:
    """Finds room for ``wanted`` beside ``others``.

    Args:
        ram: bytes of main memory for all engines together.
        at_most: ceiling of layers on GPUs; None: none.
    """
    held = [other for other in others if other.placement is not None and other is not wanted]
    header, cells = wanted.model.header, wanted.model.cells(wanted.profile)
    alone = place(header, n_ctx=cells, gpus=gpus, ram=ram, at_most=at_most)
    if alone.refused:
        hint = "take a smaller model or quantisation, a shorter context, or fewer slots"
        return Plan(error=EngineFailed(f"the model does not fit this machine: {alone.refused}", hint=hint))
    taken_gpu = sum(other.placement.gpu_bytes for other in held if other.placement)
    taken_ram = sum(other.placement.ram_bytes for other in held if other.placement)
    now = place(header, n_ctx=cells, gpus=remaining(gpus, taken_gpu), ram=ram - taken_ram, at_most=at_most)
    victims = sorted((other for other in held if other.replaceable), key=lambda other: other.last_used)
    if now.refused:
        if victims:
            return Plan(victim=victims[0])
        return Plan(error=Overloaded(f"other models are in use: {now.refused}", retry_after=_RETRY_AFTER))
    on_gpu = [other for other in victims if other.placement and other.placement.gpu_bytes]
    if now.gpu_layers < alone.gpu_layers and on_gpu:
        return Plan(victim=on_gpu[0])
    return Plan(placement=now)


def remaining(gpus: Sequence[Device], taken: int) -> tuple[Device, ...]:
    """The devices with ``taken`` bytes less of free memory, taken from the first ones first."""
    left: list[Device] = []
    for gpu in gpus:
        share = min(gpu.free, taken)
        taken -= share
        left.append(gpu.model_copy(update={"free": gpu.free - share}))
    return tuple(left)
