"""A loaded model behind commands: what a request becomes, and what is said about the whole."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import psutil

from gnusnode.contracts.generation import (
    MAX_LABELS,
    ClassifyRequest,
    ContextProfile,
    EmbedRequest,
    EngineState,
    GenerateRequest,
    ScoreRequest,
)
from gnusnode.errors import RequestError
from gnusnode.inference import grammar
from gnusnode.inference.child.calibrate import batching_is_exact, choose_threads, counted, physical_cores
from gnusnode.inference.child.channel import Outbox
from gnusnode.inference.child.generation import GenerateJob
from gnusnode.inference.child.intake import Request
from gnusnode.inference.child.jobs import Softmax
from gnusnode.inference.child.kv import KvCache
from gnusnode.inference.child.model import Model
from gnusnode.inference.child.native import build_id
from gnusnode.inference.child.prompt import PromptBuilder
from gnusnode.inference.child.sampling import Candidates, TokenSampler
from gnusnode.inference.child.scheduler import Scheduler
from gnusnode.inference.child.scoring import CONTENT_FREE, LabelJob, ScoreJob, classify_result
from gnusnode.inference.child.template import TemplateRenderer
from gnusnode.inference.frames import ChildSpec

_CACHED_BASELINES: Final = 256
_STEPWISE_SECONDS: Final = 1.0
"""Resumed tokens that take no longer are fed as they were made, one by one: the answer then goes on as it would have,
to the bit where nothing else differs. More of them would keep the reader waiting and are read like a prompt."""
_STEPWISE_LEAST: Final = 32


class GenerationEngine:
    """Generation, labels and scores over one context."""

    def __init__(self, spec: ChildSpec, model: Model, renderer: TemplateRenderer, outbox: Outbox) -> None:
        canonical = spec.profile is ContextProfile.CANONICAL
        shares = not canonical and model.forgets_partly
        # Besides the running jobs: as many kept prefixes, and the labels of a classification.
        slots = min(spec.slots, spec.batch)
        sequences = 2 * slots + MAX_LABELS if shares else slots
        self._spec = spec
        self._model = model
        self._outbox = outbox
        self._context = model.open_context(sequences=sequences)
        cores = physical_cores()
        self._threads, speed = choose_threads(self._context, spec.threads, cores)
        how = "as configured" if spec.threads else f"measured, of {counted(cores, 'core')}"
        self.choice = f"{counted(self._threads, 'thread')} ({how})"
        self._slots = slots if not canonical or slots == 1 or batching_is_exact(self._context) else 1
        cells = spec.n_ctx * slots if canonical else self._context.n_ctx
        self._limit = min(spec.n_ctx, model.n_ctx_train)
        self._cache = KvCache(self._context, cells, sequences, self._limit, kept=slots if shares else 0)
        self.scheduler = Scheduler(
            self._context,
            self._cache,
            outbox,
            speed,
            slots=self._slots,
            batch=spec.batch,
            prefill_per_step=spec.prefill_per_step,
            canonical=canonical,
        )
        self._prompts = PromptBuilder(model.vocab, model.template, renderer)
        self._candidates = Candidates(model.vocab.size)
        self._softmax = Softmax(model.vocab.size)
        self._baselines: OrderedDict[object, tuple[float, ...]] = OrderedDict()

    def prepare(self, request: Request) -> None:
        """What of a request can be done outside the main thread. Raises what refuses it."""
        if isinstance(request, GenerateRequest) and request.prompt.messages:
            self._prompts.scaffold(request.prompt.messages)

    def submit(self, number: int, request: Request) -> None:
        """Begin a request; its end comes through the outbox.

        Raises:
            GnusError: it cannot be begun.
        """
        match request:
            case GenerateRequest():
                self._generate(number, request)
            case ClassifyRequest():
                self._classify(number, request)
            case ScoreRequest():
                self._score(number, request)
            case EmbedRequest():
                raise RequestError("this model was loaded for generation, not for embeddings", param="model")

    def on_cancel(self, number: int) -> None:
        """From the reader thread: do not let a long prefill of this job run to its end."""
        if self.scheduler.aborts_for(number):
            self._context.abort()

    def cancel(self, number: int) -> None:
        self.scheduler.cancel(number)

    def pause(self, number: int) -> None:
        self.scheduler.pause(number)

    def resume(self, number: int) -> None:
        self.scheduler.resume(number)

    def begin_step(self) -> None:
        """Cancels up to now are in the queue: what they aborted is over."""
        self._context.allow()

    def step(self) -> bool:
        """Serve all jobs once; whether any are left."""
        self.scheduler.step()
        return self.scheduler.busy

    def status(self) -> dict[str, Any]:
        speed = self.scheduler.speed
        return {
            "active": self.scheduler.active,
            "queued": self.scheduler.queued,
            "prefill_rate": speed.prefill,
            "decode_rate": speed.decode,
            "rss": psutil.Process().memory_info().rss,
        }

    def info(self) -> dict[str, Any]:
        spec, model = self._spec, self._model
        on_cpu = spec.gpu_layers == 0
        return {
            "model": spec.model_name,
            "artifact_hash": spec.artifact_hash,
            "state": EngineState.READY.value,
            "build": build_id(),
            "template_hash": model.template_hash,
            "n_ctx": spec.n_ctx,
            "n_ctx_train": model.n_ctx_train,
            "n_vocab": model.vocab.size,
            "embedding_size": model.embedding_size,
            "generates": True,
            "embeds": False,
            "slots": self._slots,
            "free_slots": self._slots,
            "prefill_rate": self.scheduler.speed.prefill,
            "decode_rate": self.scheduler.speed.decode,
            "threads": self._threads,
            "gpu_layers": spec.gpu_layers,
            "device": "cpu" if on_cpu else "gpu",
            "determinism": "A" if on_cpu else "B",
            "template_warning": self._prompts.warning,
            "rss_bytes": psutil.Process().memory_info().rss,
        }

    def _generate(self, number: int, request: GenerateRequest) -> None:
        if request.profile is not self._spec.profile:
            raise RequestError(f"this engine runs the {self._spec.profile.value} profile", param="profile")
        prompt = self._prompts.ids(request.prompt, self._limit)
        self._prompts.checked(request.resume_tokens, "resume_tokens")
        self.scheduler.require_room(len(prompt), request.max_tokens)
        rules = grammar.compile_schema(request.json_schema) if request.json_schema is not None else None
        sampler = TokenSampler(self._model.vocab, self._candidates, request.sampling, grammar=rules)
        resumed, at_once = len(request.resume_tokens), self.scheduler.speed.decode * _STEPWISE_SECONDS
        job = GenerateJob(
            number,
            prompt,
            request,
            self._model.vocab,
            sampler,
            self._softmax,
            self._outbox,
            stepwise=0 < resumed <= max(_STEPWISE_LEAST, at_once),
        )
        self.scheduler.submit(job)

    def _score(self, number: int, request: ScoreRequest) -> None:
        self._prompts.checked(request.prompt_tokens, "prompt_tokens")
        self._prompts.checked(request.answer_tokens, "answer_tokens")
        if not request.prompt_tokens:
            raise RequestError("an answer can only be scored after a prompt", param="prompt_tokens")
        self.scheduler.require_room(len(request.prompt_tokens), len(request.answer_tokens))
        replay = request.replay
        sampler = TokenSampler(self._model.vocab, self._candidates, replay) if replay is not None else None
        self.scheduler.submit(ScoreJob(number, request, sampler, self._softmax, self._outbox))

    def _classify(self, number: int, request: ClassifyRequest) -> None:
        labels = [self._prompts.untrusted(label) for label in request.labels]
        if max(map(len, labels)) > self._spec.batch or not all(labels):
            raise RequestError("a label is too long, or has no tokens", param="labels")
        key = (request.instruction, request.suffix, request.labels)

        def score(text: str, on_done: Callable[[tuple[float, ...]], None]) -> None:
            prompt = self._label_prompt(request, text)
            job = LabelJob(number, prompt, labels, self._softmax, self._cache, on_done)
            self.scheduler.require_room(len(prompt), job.total - len(prompt))
            self.scheduler.submit(job)

        def answer(baseline: tuple[float, ...] | None) -> None:
            def send(raw: tuple[float, ...]) -> None:
                self._outbox.result(number, classify_result(request, raw, baseline).to_plain())

            score(request.text, send)

        def calibrated(baseline: tuple[float, ...]) -> None:
            self._baselines[key] = baseline
            if len(self._baselines) > _CACHED_BASELINES:
                self._baselines.popitem(last=False)
            answer(baseline)

        if not request.calibrate:
            answer(None)
        elif key in self._baselines:
            answer(self._baselines[key])
        else:
            score(CONTENT_FREE, calibrated)

    def _label_prompt(self, request: ClassifyRequest, text: str) -> list[int]:
        return self._prompts.with_bos(self._prompts.untrusted(request.instruction + text + request.suffix))
