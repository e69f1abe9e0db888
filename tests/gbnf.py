"""Whether llama.cpp's own grammar engine takes a text: the native parser runs, as it will in an engine child."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from tests.child_driver import model_path


@cache
def vocabulary() -> Any:
    """A vocabulary without weights."""
    from gnusnode.inference.child.native import LogSink, Vocab, lib

    LogSink(lambda _level, _text: None).install()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(str(model_path()).encode(), params)
    assert model
    return Vocab(model)


def compiles(grammar: str) -> bool:
    """Whether the native parser takes the grammar."""
    from gnusnode.inference.child.native import lib

    sampler = lib.llama_sampler_init_grammar(vocabulary().handle, grammar.encode(), b"root")
    if sampler:
        lib.llama_sampler_free(sampler)
    return bool(sampler)


def matches(grammar: str, text: str) -> bool:
    """Whether ``text`` is a whole sentence of the grammar: each token is allowed, and an end after them."""
    from gnusnode.inference.child.native import lib

    vocab = vocabulary()
    sampler = lib.llama_sampler_init_grammar(vocab.handle, grammar.encode(), b"root")
    assert sampler, f"the native parser refuses\n{grammar}"
    try:
        for token in [*vocab.tokenize(text, special=False), vocab.eos]:
            if not _allowed(sampler, token):
                return False
            if token != vocab.eos:
                lib.llama_sampler_accept(sampler, token)
        return True
    finally:
        lib.llama_sampler_free(sampler)


def _allowed(sampler: Any, token: int) -> bool:
    from gnusnode.inference.child.native import lib

    one = (lib.llama_token_data * 1)()
    one[0].id = token
    array = lib.llama_token_data_array(data=one, size=1, selected=-1, sorted=False)
    lib.llama_sampler_apply(sampler, ctypes.byref(array))
    return one[0].logit == 0
