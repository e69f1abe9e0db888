"""Where the layers of a model go: how many fit on the GPUs, and whether the rest fits into memory. Pure.

The sizes are those of the file's own tensor table and of the attention cache; the compute buffers are not known before
they are allocated, so a reserve is left on every device, and a load that fails all the same steps down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gnusnode.inference.artifacts.gguf import GgufHeader
from gnusnode.inference.devices import Device

_MIB: Final = 1024 * 1024
MIN_RESERVE: Final = 512 * _MIB
RESERVE_SHARE: Final = 0.1
_EASY_SHARE: Final = 0.5
"""A model on the CPU that takes no more of the memory than this gets its weights as memory of its own."""
_PROCESS: Final = 128 * _MIB
"""Python, llama.cpp and its compute buffers on the CPU, for a small model."""


@dataclass(frozen=True)
class Placement:
    """Where a model goes; sizes in bytes.

    Attributes:
        gpu_layers: layers on GPUs; the number of layers + 1 means that the output is there too.
        own_weights: read the weights into memory instead of mapping the file: a tenth faster on a CPU, since such
            memory can lie in huge pages, but the kernel cannot drop it when memory is short.
        reason: one sentence for people.
        refused: why it cannot run at all; empty: it can.
    """

    gpu_layers: int
    device: str
    gpu_bytes: int
    ram_bytes: int
    reason: str
    refused: str = ""
    own_weights: bool = False


def usable(free: int) -> int:
    """Bytes of a device's free memory that may be planned with."""
    return max(0, free - max(MIN_RESERVE, int(free * RESERVE_SHARE)))


def place(header: GgufHeader, *, n_ctx: int, gpus: Sequence[Device], ram: int, at_most: int | None = None) -> Placement:
    """Chooses the number of layers on GPUs.

    Args:
        n_ctx: tokens of context over all slots.
        gpus: devices to use; empty: CPU only.
        ram: bytes of main memory that may be taken.
        at_most: a ceiling that an operator or a failed attempt sets; None: as many as fit.
    """
    room = sum(usable(gpu.free) for gpu in gpus)
    sizes = _cumulative(header, n_ctx)
    ceiling = len(sizes) - 1 if at_most is None else min(at_most, len(sizes) - 1)
    chosen = max(count for count, size in enumerate(sizes[: ceiling + 1]) if size <= room) if gpus else 0
    whole = sizes[-1]
    ram_bytes = whole - sizes[chosen] + _PROCESS
    if chosen:
        ram_bytes = max(ram_bytes, header.other_bytes + _PROCESS)  # the token embeddings always stay in main memory
    own = not chosen and ram_bytes <= _EASY_SHARE * ram
    return Placement(
        gpu_layers=chosen,
        device="+".join(gpu.name for gpu in gpus) if chosen else "cpu",
        gpu_bytes=sizes[chosen],
        ram_bytes=ram_bytes,
        reason=_reason(header, chosen, ceiling, sizes, room, gpus) + ("; weights read into memory" if own else ""),
        refused="" if ram_bytes <= ram else f"it needs {_size(ram_bytes)} of memory and {_size(ram)} is free",
        own_weights=own,
    )


def step_down(layers: int) -> Iterator[int]:
    """Smaller numbers of layers to try after a load with ``layers`` failed: a half, a quarter, the CPU alone.

    Few steps, because each failure may count as a crash of the artifact.
    """
    yield from sorted({count for count in (layers // 2, layers // 4, 0) if count < layers}, reverse=True)


def _cumulative(header: GgufHeader, n_ctx: int) -> list[int]:
    """Bytes on the GPU by number of layers there: 0, 1, … all, all and the output. The last layers go first."""
    kv_token = 2 * (header.head_dim_k + header.head_dim_v)
    sizes = [0]
    for layer in reversed(range(header.n_layer)):
        cache = n_ctx * header.heads_kv[layer] * kv_token if header.causal else 0
        sizes.append(sizes[-1] + header.layer_bytes(layer) + cache)
    sizes.append(sizes[-1] + header.other_bytes)
    return sizes


def _reason(
    header: GgufHeader, chosen: int, ceiling: int, sizes: Sequence[int], room: int, gpus: Sequence[Device]
) -> str:
    if not gpus:
        return "on the CPU (no usable GPU)"
    names = ", ".join(f"{gpu.name} ({_size(gpu.free)} free)" for gpu in gpus)
    if chosen == len(sizes) - 1:
        return f"all {header.n_layer} layers and the output on {names}: {_size(sizes[chosen])} of {_size(room)} usable"
    if chosen == ceiling:
        return f"{chosen} of {header.n_layer} layers on {names}, which is the ceiling set"
    need = _size(sizes[chosen + 1])
    return f"{chosen} of {header.n_layer} layers on {names}: one more would take {need} of {_size(room)} usable"


def _size(count: int) -> str:
    return f"{count / 1024 / _MIB:.1f} GiB" if count >= 1024 * _MIB else f"{count / _MIB:.0f} MiB"
