"""Makes another quantisation of a GGUF file: a second model for benchmarks at no download.

python scripts/bench/requantise.py IN.gguf OUT.gguf [TYPE]     TYPE as llama.cpp numbers it; 2 is Q4_0, 7 is Q8_0
"""

from __future__ import annotations

import sys

import llama_cpp.llama_cpp as llama


def main() -> None:
    params = llama.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = int(sys.argv[3] if len(sys.argv) > 3 else 2), True, 1
    status = llama.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), params)
    if status != 0:
        raise SystemExit(f"llama.cpp refused: {status}")


if __name__ == "__main__":
    main()
