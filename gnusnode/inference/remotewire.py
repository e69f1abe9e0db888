"""OpenAI's wire format, seen from the client: requests out, chunks, vectors and errors in. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gnusnode.contracts.base import describe
from gnusnode.contracts.generation import (
    Delta,
    Done,
    EmbedResult,
    GenerateRequest,
    Timing,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from gnusnode.errors import (
    ContextTooLong,
    EngineFailed,
    GnusError,
    Overloaded,
    RequestError,
    TooLarge,
    UnsupportedField,
)

UNKNOWN_TOKEN: Final = -1
MAX_EVENT: Final = 1024 * 1024
_LOWEST_LOGPROB: Final = -1e4
"""Stands for minus infinity, which some servers send and no record holds."""
_MAX_RETRY_AFTER: Final = 3600.0


class _Loose(BaseModel):
    """What a server sends: what we do not know is passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Top(_Loose):
    token: str = ""
    logprob: float


class _Logprob(_Top):
    top_logprobs: tuple[_Top, ...] = ()


class _Logprobs(_Loose):
    content: tuple[_Logprob, ...] | None = None


class _Piece(_Loose):
    content: str | None = None


class _Choice(_Loose):
    delta: _Piece | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Details(_Loose):
    cached_tokens: Annotated[int, Field(ge=0)] | None = None


class _Usage(_Loose):
    prompt_tokens: Annotated[int, Field(ge=0)] = 0
    completion_tokens: Annotated[int, Field(ge=0)] = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(_Loose):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: Any = None


class _Vector(_Loose):
    index: int
    embedding: tuple[float, ...]


class _Vectors(_Loose):
    data: tuple[_Vector, ...]
    usage: _Usage = _Usage()


def generation_body(model: str, request: GenerateRequest) -> tuple[str, dict[str, Any]]:
    """The path below the base URL and the JSON body.

    Raises:
        UnsupportedField: the request needs token ids.
    """
    if request.prompt.tokens is not None:
        raise UnsupportedField("a remote server takes messages or text, not token ids", param="prompt.tokens")
    if request.resume_tokens:
        raise UnsupportedField("a remote server cannot resume an answer", param="resume_tokens")
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": request.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
    }
    # Sent only when they change something: not every server knows them.
    optional: dict[str, Any] = {
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "stop": list(request.stop),
    }
    body |= {key: value for key, value in optional.items() if value}
    if request.json_schema is not None:
        schema = {"name": "answer", "schema": request.json_schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if request.prompt.text is not None:
        if request.top_logprobs is not None:
            raise UnsupportedField("a remote server gives log-probabilities for messages only", param="top_logprobs")
        return "completions", body | {"prompt": request.prompt.text}
    if request.top_logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    messages = [{"role": message.role, "content": message.content} for message in request.prompt.messages or ()]
    return "chat/completions", body | {"messages": messages}


class EventReader:
    """Server-sent events from the bytes of a body: only their data matters here."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[str]:
        """The data of the events that ``chunk`` completes.

        Raises:
            EngineFailed: an event has no end, or is not UTF-8.
        """
        *lines, self._rest = (self._rest + chunk).replace(b"\r\n", b"\n").split(b"\n")
        events: list[str] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._size += len(line)
            elif not line and self._data:
                events.append(self._text())
        if self._size + len(self._rest) > MAX_EVENT:
            raise EngineFailed(f"the remote server sent an event of more than {MAX_EVENT} bytes")
        return events

    def _text(self) -> str:
        data, self._data, self._size = b"\n".join(self._data), [], 0
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise EngineFailed("the remote server sent text that is not UTF-8") from error


class Answer:
    """Puts one streamed answer together and refuses to call it complete when it is not."""

    def __init__(self) -> None:
        self._finish: str | None = None
        self._usage = _Usage()
        self._logprobs: list[float] = []

    def take(self, data: str) -> Delta | None:
        """The new text of one event; None: it carries none.

        Raises:
            EngineFailed: malformed, or an error that the server reports in the stream.
        """
        try:
            chunk = _Chunk.model_validate_json(data)
        except ValidationError as error:
            raise EngineFailed(f"the remote server sent a malformed event: {describe(error)}") from error
        if chunk.error is not None:
            raise EngineFailed(f"the remote server failed: {_message(chunk.error)}")
        self._usage = chunk.usage or self._usage
        if not chunk.choices:
            return None
        choice = chunk.choices[0]
        self._finish = choice.finish_reason or self._finish
        text = (choice.delta.content if choice.delta else choice.text) or ""
        logprobs = tuple(_logprob(item) for item in (choice.logprobs and choice.logprobs.content) or ())
        self._logprobs += [item.logprob for item in logprobs]
        return Delta(text=text, tokens=(), logprobs=logprobs) if text or logprobs else None

    def done(self) -> Done:
        """The end of a complete answer.

        Raises:
            EngineFailed: the stream ended before the answer did, or for a reason that is no end.
        """
        match self._finish:
            case None:
                raise EngineFailed("the remote server's answer broke off")
            case "stop" | "length":
                details = self._usage.prompt_tokens_details
                usage = Usage(
                    prompt_tokens=self._usage.prompt_tokens,
                    completion_tokens=self._usage.completion_tokens,
                    cached_tokens=(details and details.cached_tokens) or 0,
                )
                mean = sum(self._logprobs) / len(self._logprobs) if self._logprobs else None
                return Done(finish_reason=self._finish, tokens=(), mean_logprob=mean, usage=usage, timing=Timing())
            case other:
                raise EngineFailed(f"the remote server ended the answer with {other[:64]!r}")


def embeddings(body: bytes, count: int) -> EmbedResult:
    """``count`` L2-normalised vectors.

    Raises:
        EngineFailed: malformed, or not one vector per text.
    """
    try:
        answer = _Vectors.model_validate_json(body)
        if sorted(vector.index for vector in answer.data) != list(range(count)):
            raise EngineFailed(f"the remote server sent {len(answer.data)} vectors for {count} texts")
        ordered = sorted(answer.data, key=lambda vector: vector.index)
        return EmbedResult(
            vectors=tuple(_normalised(vector.embedding) for vector in ordered),
            prompt_tokens=answer.usage.prompt_tokens,
        )
    except ValidationError as error:
        raise EngineFailed(f"the remote server sent malformed vectors: {describe(error)}") from error


def failure(status: int, headers: Mapping[str, str], body: bytes) -> GnusError:
    """The error that an HTTP status of 400 or more stands for."""
    text, code = _fault(body)
    match status:
        case 400 | 422:
            too_long = code == "context_length_exceeded" or "context length" in text.lower()
            return (ContextTooLong if too_long else RequestError)(f"the remote server refused the request: {text}")
        case 401 | 403:
            return EngineFailed(
                f"the remote server refuses our key: {text}", hint="check `key_file` of the remote engine"
            )
        case 404:
            return EngineFailed(
                f"the remote server does not know this: {text}", hint="check `url` and `model` of the remote engine"
            )
        case 413:
            return TooLarge(f"the remote server finds the request too large: {text}")
        case 429 | 503:
            return Overloaded(f"the remote server is busy: {text}", retry_after=_retry_after(headers))
        case _:
            return EngineFailed(f"the remote server answered {status}: {text}")


def _fault(body: bytes) -> tuple[str, str]:
    """Message and code of an error body, whatever it is."""
    try:
        data: object = json.loads(body)
    except (ValueError, RecursionError):
        return body[:200].decode("utf-8", "replace") or "no reason given", ""
    error = _field(data, "error") or data
    code = _field(error, "code")
    return _message(error), code if isinstance(code, str) else ""


def _message(error: object) -> str:
    return str(_field(error, "message") or error)[:500]


def _field(value: object, name: str) -> object:
    return cast("dict[str, object]", value).get(name) if isinstance(value, dict) else None


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return 1.0
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER) if math.isfinite(seconds) else 1.0


def _logprob(item: _Logprob) -> TokenLogprob:
    top = tuple(
        TopLogprob(token=UNKNOWN_TOKEN, piece=other.token, logprob=max(other.logprob, _LOWEST_LOGPROB))
        for other in item.top_logprobs
    )
    return TokenLogprob(token=UNKNOWN_TOKEN, piece=item.token, logprob=max(item.logprob, _LOWEST_LOGPROB), top=top)


def _normalised(vector: tuple[float, ...]) -> tuple[float, ...]:
    norm = math.sqrt(sum(value * value for value in vector))
    if not vector or not math.isfinite(norm) or norm == 0:
        raise EngineFailed("the remote server sent a vector that has no direction")
    return tuple(value / norm for value in vector)
