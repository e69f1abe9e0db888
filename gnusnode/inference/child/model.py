"""Load a model and open contexts on it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

from gnusnode.contracts.generation import ContextProfile
from gnusnode.errors import EngineFailed, ModelInvalid
from gnusnode.inference.child.native import Context, Vocab, lib
from gnusnode.inference.frames import ChildSpec


class Model:
    """A loaded model file. Lives as long as the process: unloading is ending it.

    Raises:
        ModelInvalid: llama.cpp refused the file; ``last_words`` supplies its reason.
    """

    def __init__(self, spec: ChildSpec, last_words: Callable[[], str]) -> None:
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = spec.gpu_layers
        params.check_tensors = spec.check_tensors
        if spec.own_weights:
            params.load_mode = lib.LLAMA_LOAD_MODE_NONE
        # Repacked weights take another path in prefill than in decode: other bits.
        params.use_extra_bufts = spec.profile is ContextProfile.THROUGHPUT
        handle = lib.llama_model_load_from_file(os.fsencode(spec.model_path), params)
        if not handle:
            raise ModelInvalid(
                f"llama.cpp cannot load this model: {last_words() or 'no reason given'}",
                where=spec.model_path,
                hint="verify the file with `gnusnode models verify`",
            )
        self._handle: Any = handle
        self._spec = spec
        self._last_words = last_words
        self.vocab = Vocab(handle)
        self.n_ctx_train = int(lib.llama_model_n_ctx_train(handle))
        self.embedding_size = int(lib.llama_model_n_embd_out(handle))
        self.forgets_partly = not (lib.llama_model_is_recurrent(handle) or lib.llama_model_is_hybrid(handle))
        """Whether the tail of a sequence can be removed alone; recurrent state cannot be split."""
        raw = lib.llama_model_chat_template(handle, None)
        self.template = spec.template or (raw.decode("utf-8", "replace") if raw else None)
        self.template_hash = f"sha256:{hashlib.sha256(self.template.encode()).hexdigest()}" if self.template else None

    def open_context(self, *, sequences: int) -> Context:
        """A context for generation with room for ``sequences`` sequences.

        Raises:
            EngineFailed: there is not enough memory, or the device refused.
            ModelInvalid: the model does not generate.
        """
        spec = self._spec
        canonical = spec.profile is ContextProfile.CANONICAL
        params = self._params(sequences)
        params.n_ctx = spec.n_ctx * sequences if canonical else spec.n_ctx
        params.n_batch = params.n_ubatch = spec.batch
        params.kv_unified = not canonical
        if canonical or not spec.flash_attention:
            params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        elif spec.gpu_layers == 0:
            params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
        else:
            params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_AUTO  # not every device has the kernels
        context = self._open(params)
        if not context.remembers:
            raise ModelInvalid("this model embeds texts and cannot generate any", where=spec.model_path)
        if spec.gpu_layers == 0:
            context.install_abort()
        return context

    def open_embedding_context(self, *, sequences: int, tokens: int) -> Context:
        """A context whose decodes give one pooled vector per sequence, ``tokens`` tokens at a time.

        Raises:
            EngineFailed: as ``open_context``.
        """
        params = self._params(sequences)
        params.n_ctx = params.n_batch = params.n_ubatch = tokens
        params.embeddings = True
        params.kv_unified = True
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        context = self._open(params)
        if not context.pools:  # a model not made for embeddings names no pooling
            context.close()
            params.pooling_type = lib.LLAMA_POOLING_TYPE_MEAN
            context = self._open(params)
        return context

    def _params(self, sequences: int) -> Any:
        params = lib.llama_context_default_params()
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = max(1, self._spec.threads)
        params.offload_kqv = params.op_offload = self._spec.gpu_layers != 0
        return params

    def _open(self, params: Any) -> Context:
        handle = lib.llama_init_from_model(self._handle, params)
        if not handle:
            raise EngineFailed(
                f"no context of {params.n_ctx} tokens: {self._last_words() or 'no reason given'}",
                where=self._spec.model_name,
                hint="lower the context length or the number of slots",
            )
        return Context(handle, self.vocab, self._handle)
