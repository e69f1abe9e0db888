"""``python -m gnusnode.inference.probe``: what llama.cpp's libraries see of this machine, as one frame on stdout.

A process of its own, because starting a GPU driver can crash, hang, or keep memory until the process ends. It is
confined as an engine child with a GPU is, so a device that the confinement hides is not reported as usable.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, Final

from gnusnode.inference.frames import pack
from sandbox import confine

_KINDS: Final = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accelerator"}
_SUFFIX: Final = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
_PREFIX: Final = "" if sys.platform == "win32" else "lib"


def library_directory() -> Path | None:
    """Where the libraries of llama-cpp-python are; None: it is not installed."""
    if override := os.environ.get("LLAMA_CPP_LIB_PATH"):
        return Path(override)
    spec = importlib.util.find_spec("llama_cpp")
    return Path(spec.origin).parent / "lib" if spec and spec.origin else None


def devices(directory: Path) -> dict[str, Any]:
    """The frame's content.

    Raises:
        OSError, AttributeError: the libraries cannot be loaded or are not what we know.
    """

    def load(name: str) -> ctypes.CDLL:
        return ctypes.CDLL(str(directory / f"{_PREFIX}{name}{_SUFFIX}"))

    base, ggml, llama = load("ggml-base"), load("ggml"), load("llama")
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    for name in ("ggml_backend_dev_name", "ggml_backend_dev_description"):
        getattr(base, name).restype = ctypes.c_char_p
        getattr(base, name).argtypes = [ctypes.c_void_p]
    base.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    base.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_size_t)] * 2]
    base.ggml_backend_dev_memory.restype = None
    llama.llama_supports_gpu_offload.restype = ctypes.c_bool
    found = [_describe(base, ggml.ggml_backend_dev_get(index)) for index in range(ggml.ggml_backend_dev_count())]
    return {"devices": found, "offload": bool(llama.llama_supports_gpu_offload())}


def _describe(base: ctypes.CDLL, device: int) -> dict[str, Any]:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    base.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    return {
        "name": (base.ggml_backend_dev_name(device) or b"").decode("utf-8", "replace"),
        "description": (base.ggml_backend_dev_description(device) or b"").decode("utf-8", "replace"),
        "kind": _KINDS.get(base.ggml_backend_dev_type(device), "other"),
        "free": free.value,
        "total": total.value,
    }


def main() -> None:
    # Native code prints to descriptor 1 as it likes: the frame goes out over a copy of it.
    out = os.dup(1)
    os.dup2(2, 1)
    directory = library_directory()
    confine.apply(confine.ConfineProfile(read_paths=(str(directory),) if directory else (), allow_gpu=True))
    try:
        if directory is None:
            answer: dict[str, Any] = {"error": "llama-cpp-python is not installed"}
        else:
            answer = devices(directory)
    except (OSError, AttributeError) as error:
        answer = {"error": f"the libraries of llama.cpp cannot be used: {error}"}
    os.write(out, pack({"ev": "devices", **answer}))


if __name__ == "__main__":
    main()
