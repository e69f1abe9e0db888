"""Texts to vectors: whole texts are packed into batches, across requests, in order of arrival."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

import numpy as np
import psutil

from gnusnode.contracts.generation import EmbedRequest, EmbedResult, EngineState
from gnusnode.errors import Cancelled, ContextTooLong, EngineFailed, RequestError
from gnusnode.inference.child.calibrate import counted, physical_cores
from gnusnode.inference.child.channel import Outbox
from gnusnode.inference.child.intake import Request
from gnusnode.inference.child.model import Model
from gnusnode.inference.child.native import Batch, NativeError, Row, build_id
from gnusnode.inference.frames import ChildSpec

_MOST_TOKENS: Final = 2048
"""Longest text: attention without a cache needs memory by the square of it."""
_SEQUENCES: Final = 32
_RATE_WEIGHT: Final = 0.1


class _Embedding:
    """One request on its way."""

    def __init__(self, number: int, texts: list[list[int]]) -> None:
        self.number = number
        self.texts = texts
        self.vectors: list[tuple[float, ...]] = []


class EmbeddingEngine:
    """Embeddings only; a model serves either these or generation, in processes of their own."""

    def __init__(self, spec: ChildSpec, model: Model, outbox: Outbox) -> None:
        self._spec = spec
        self._model = model
        self._outbox = outbox
        self._limit = min(spec.n_ctx, model.n_ctx_train, _MOST_TOKENS)
        self._context = model.open_embedding_context(sequences=_SEQUENCES, tokens=self._limit)
        self._threads = spec.threads or physical_cores()
        self._context.set_threads(self._threads, self._threads)
        self._batch = Batch(self._limit)
        self._jobs: deque[_Embedding] = deque()
        self._rate = self._measure()
        self.choice = counted(self._threads, "thread")

    def prepare(self, request: Request) -> None:
        """Nothing of an embedding can be done ahead."""

    def on_cancel(self, number: int) -> None:
        """Steps are short: a cancel waits for the end of the one at hand."""

    def begin_step(self) -> None:
        pass

    def submit(self, number: int, request: Request) -> None:
        """Begin a request.

        Raises:
            ContextTooLong: a text has more tokens than the model takes.
            RequestError: it is not a request for embeddings.
        """
        if not isinstance(request, EmbedRequest):
            raise RequestError("this model was loaded for embeddings only", param="model")
        texts = [self._tokenize(index, text) for index, text in enumerate(request.texts)]
        self._jobs.append(_Embedding(number, texts))

    def cancel(self, number: int) -> None:
        for job in self._jobs:
            if job.number == number:
                self._jobs.remove(job)
                self._outbox.error(number, Cancelled("the caller left"))
                return

    def pause(self, number: int) -> None:
        """Nothing: a job here is over in a few steps."""

    def resume(self, number: int) -> None:
        """Nothing, as for ``pause``."""

    def step(self) -> bool:
        """Embed one batch; whether work is left."""
        owners = self._fill()
        if not owners:
            return False
        start = time.perf_counter()
        try:
            self._context.embed(self._batch)
            vectors = [_normalised(self._context.embedding(seq)) for seq in range(len(owners))]
        except NativeError as error:
            for job in set(owners):
                self._jobs.remove(job)
                self._outbox.error(job.number, EngineFailed(str(error)))
            return bool(self._jobs)
        for job, vector in zip(owners, vectors, strict=True):
            job.vectors.append(vector)
        self._rate += _RATE_WEIGHT * (self._batch.size / (time.perf_counter() - start) - self._rate)
        while self._jobs and len(self._jobs[0].vectors) == len(self._jobs[0].texts):
            self._finish(self._jobs.popleft())
        return bool(self._jobs)

    def info(self) -> dict[str, Any]:
        spec, model = self._spec, self._model
        return {
            "model": spec.model_name,
            "artifact_hash": spec.artifact_hash,
            "state": EngineState.READY.value,
            "build": build_id(),
            "n_ctx": self._limit,
            "n_ctx_train": model.n_ctx_train,
            "n_vocab": model.vocab.size,
            "embedding_size": model.embedding_size,
            "generates": False,
            "embeds": True,
            "slots": spec.slots,
            "free_slots": spec.slots,
            "prefill_rate": self._rate,
            "threads": self._threads,
            "gpu_layers": spec.gpu_layers,
            "device": "cpu" if spec.gpu_layers == 0 else "gpu",
            "rss_bytes": psutil.Process().memory_info().rss,
        }

    def status(self) -> dict[str, Any]:
        return {
            "active": min(1, len(self._jobs)),
            "queued": max(0, len(self._jobs) - 1),
            "prefill_rate": self._rate,
            "decode_rate": 0.0,
            "rss": psutil.Process().memory_info().rss,
        }

    def _tokenize(self, index: int, text: str) -> list[int]:
        ids = self._model.vocab.tokenize(text, special=False, add_special=True)
        if not ids:
            raise RequestError("an empty text has no embedding", param=f"input.{index}")
        if len(ids) > self._limit:
            raise ContextTooLong(
                f"text {index} has {len(ids)} tokens, the model takes {self._limit}",
                param=f"input.{index}",
                hint="split the text",
            )
        return ids

    def _fill(self) -> list[_Embedding]:
        """Pack the next texts into the batch, one sequence each; the request each belongs to."""
        self._batch.clear()
        owners: list[_Embedding] = []
        for job in self._jobs:
            for text in job.texts[len(job.vectors) :]:
                if len(owners) == _SEQUENCES or self._batch.size + len(text) > self._batch.capacity:
                    return owners
                self._batch.extend(text, 0, len(owners), 0)
                owners.append(job)
        return owners

    def _finish(self, job: _Embedding) -> None:
        result = EmbedResult(vectors=tuple(job.vectors), prompt_tokens=sum(map(len, job.texts)))
        self._outbox.result(job.number, result.to_plain())

    def _measure(self) -> float:
        """Tokens per second of a short batch."""
        self._batch.extend([0] * 32, 0, 0, 0)
        self._context.embed(self._batch)
        start = time.perf_counter()
        self._context.embed(self._batch)
        return self._batch.size / (time.perf_counter() - start)


def _normalised(vector: Row) -> tuple[float, ...]:
    """The vector with Euclidean length 1; a zero vector stays one."""
    length = float(np.linalg.norm(vector))
    return tuple((vector / length if length > 0 else vector).tolist())
