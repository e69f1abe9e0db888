"""The one error tree of gnusnode.

Every expected failure that crosses a module boundary is one of these classes. A class fixes the stable wire code, the
HTTP status and the exit code; an instance says *what* went wrong, *where*, and *what to do next*. Errors cross the
swarm as ``to_wire`` dictionaries and come back as the same class.

    GnusError
    ├── RequestError            400  the caller's fault
    │   ├── UnsupportedField    400  a field that changes meaning and that we do not support
    │   ├── SchemaRefused       400  a response schema outside our bounded subset
    │   ├── ContextTooLong      400  prompt and max_tokens do not fit the model's context
    │   ├── Unauthenticated     401
    │   ├── Forbidden           403
    │   │   └── ToolBlocked     403  a tool call that was not made (carries the reason code)
    │   ├── NotFound            404
    │   │   └── ModelNotFound   404
    │   ├── MethodNotAllowed    405
    │   ├── Conflict            409
    │   ├── TooLarge            413
    │   ├── MisdirectedRequest  421  a Host that is not ours
    │   ├── Unprocessable       422  well-formed JSON of the wrong shape
    │   └── RateLimited         429
    ├── Unavailable             503  try again, here or elsewhere
    │   ├── Overloaded          503  queues are full
    │   ├── NoExpert            503  nobody can serve this
    │   ├── EngineFailed        502  the engine child died or answered nonsense
    │   ├── PeerUnreachable     503  no connection to a peer, or it died
    │   ├── UnsupportedProtocol 503  the peer does not speak what was asked for
    │   ├── ProtocolViolation   502  a peer sent what no sound peer sends
    │   ├── Poisoned            502  this request was active in repeated engine crashes
    │   └── DeadlineExceeded    504
    ├── RecordRefused           400  a signed record failed verification (carries the outcome)
    ├── Cancelled               499  the caller left
    ├── ConfigError             exit 4
    ├── CannotBind              exit 3
    ├── AlreadyRunning          exit 5
    ├── NotRunning              exit 7
    ├── DataError               exit 6  damaged or unreadable state
    │   ├── ModelInvalid        exit 6, 502  a model file that is not what it claims
    │   └── DiskFull            exit 6
    └── InternalError           500  a bug: never expected
"""

from __future__ import annotations

import errno
from os import PathLike, fspath
from typing import Any, ClassVar, Final, Self

MAX_TEXT: Final = 2000
"""Longest text of an error that crosses a boundary, in characters: an error must not carry a payload."""


class GnusError(Exception):
    """Base of all expected failures.

    Args:
        what: one sentence that says what went wrong.
        where: file, key, field, peer or address concerned.
        hint: what to do next, as an instruction.
        param: the request field at fault, in OpenAI's dotted notation.
        retry_after: seconds after which trying again makes sense.
    """

    code: ClassVar[str] = "internal_error"
    kind: ClassVar[str] = "server_error"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    _by_code: ClassVar[dict[str, type[GnusError]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "code" in cls.__dict__:
            known = GnusError._by_code.setdefault(cls.code, cls)
            assert known is cls, f"error code {cls.code!r} is taken by {known.__name__}"

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint
        self.param = param
        self.retry_after = retry_after

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text} ({self.hint})" if self.hint else text

    def to_wire(self) -> dict[str, Any]:
        """The error as plain data: what a peer or an API client may see."""
        fields = {
            "code": self.code,
            "what": self.what[:MAX_TEXT],
            "where": self.where and self.where[:MAX_TEXT],
            "hint": self.hint and self.hint[:MAX_TEXT],
            "param": self.param,
            "retry_after": self.retry_after,
        }
        return {key: value for key, value in fields.items() if value is not None}

    @staticmethod
    def from_wire(data: dict[str, Any]) -> GnusError:
        """The error that a peer sent. Unknown codes and wrong shapes become ``InternalError``; never raises."""

        def text(key: str) -> str | None:
            value = data.get(key)
            return value[:MAX_TEXT] if isinstance(value, str) else None

        retry = data.get("retry_after")
        cls = GnusError._by_code.get(text("code") or "", InternalError)
        return cls.rebuild(
            text("what") or "the peer gave no reason",
            where=text("where"),
            hint=text("hint"),
            param=text("param"),
            retry_after=float(retry) if isinstance(retry, int | float) else None,
        )

    @classmethod
    def rebuild(
        cls, what: str, *, where: str | None, hint: str | None, param: str | None, retry_after: float | None
    ) -> Self:
        """An instance from its wire fields; a class with further arguments overrides this."""
        return cls(what, where=where, hint=hint, param=param, retry_after=retry_after)


# --- the caller's fault -----------------------------------------------------------------------------------------------


class RequestError(GnusError):
    code = "invalid_request"
    kind = "invalid_request_error"
    status = 400
    exit_code = 2


class UnsupportedField(RequestError):
    code = "unsupported_parameter"


class SchemaRefused(RequestError):
    code = "invalid_json_schema"


class ContextTooLong(RequestError):
    code = "context_length_exceeded"


class Unauthenticated(RequestError):
    code = "invalid_api_key"
    kind = "authentication_error"
    status = 401
    exit_code = 1


class Forbidden(RequestError):
    code = "permission_denied"
    kind = "permission_error"
    status = 403
    exit_code = 1


class ToolBlocked(Forbidden):
    """A tool call that was not made. ``reason`` is a code such as ``APPROVAL_REQUIRED``; ``what`` begins with it."""

    code = "tool_blocked"

    def __init__(self, reason: str, words: str = "", **fields: Any) -> None:
        super().__init__(f"{reason}: {words}" if words else reason, **fields)

    @property
    def reason(self) -> str:
        return self.what.partition(":")[0]

    @classmethod
    def rebuild(
        cls, what: str, *, where: str | None, hint: str | None, param: str | None, retry_after: float | None
    ) -> Self:
        reason, _, words = what.partition(": ")
        return cls(reason, words, where=where, hint=hint, param=param, retry_after=retry_after)


class NotFound(RequestError):
    code = "not_found"
    kind = "not_found_error"
    status = 404
    exit_code = 1


class ModelNotFound(NotFound):
    code = "model_not_found"
    kind = "invalid_request_error"


class MethodNotAllowed(RequestError):
    code = "method_not_allowed"
    status = 405


class Conflict(RequestError):
    code = "conflict"
    status = 409
    exit_code = 1


class TooLarge(RequestError):
    code = "request_too_large"
    status = 413


class MisdirectedRequest(RequestError):
    code = "misdirected_request"
    status = 421
    exit_code = 1


class Unprocessable(RequestError):
    code = "unprocessable"
    status = 422


class RateLimited(RequestError):
    code = "rate_limit_exceeded"
    kind = "rate_limit_error"
    status = 429
    exit_code = 1


# --- try again, here or elsewhere -------------------------------------------------------------------------------------


class Unavailable(GnusError):
    code = "unavailable"
    kind = "server_error"
    status = 503
    exit_code = 7


class Overloaded(Unavailable):
    code = "overloaded"


class NoExpert(Unavailable):
    code = "no_peers_available"


class PeerUnreachable(Unavailable):
    code = "peer_unreachable"


class UnsupportedProtocol(Unavailable):
    code = "unsupported_protocol"


class ProtocolViolation(Unavailable):
    code = "protocol_violation"
    status = 502


class EngineFailed(Unavailable):
    code = "engine_failed"
    status = 502
    exit_code = 1


class Poisoned(Unavailable):
    code = "request_poisoned"
    status = 502
    exit_code = 1


class DeadlineExceeded(Unavailable):
    code = "deadline_exceeded"
    status = 504


# --- the rest ---------------------------------------------------------------------------------------------------------


class RecordRefused(GnusError):
    """A signed record failed verification; ``where`` names the record, ``what`` the outcome."""

    code = "record_refused"
    kind = "invalid_request_error"
    status = 400


class Cancelled(GnusError):
    code = "cancelled"
    status = 499


class ConfigError(GnusError):
    code = "config_error"
    exit_code = 4


class CannotBind(GnusError):
    code = "cannot_bind"
    exit_code = 3


class AlreadyRunning(GnusError):
    code = "already_running"
    exit_code = 5


class NotRunning(GnusError):
    code = "not_running"
    status = 503
    exit_code = 7


class DataError(GnusError):
    code = "data_error"
    exit_code = 6


class ModelInvalid(DataError):
    code = "model_invalid"
    status = 502


class DiskFull(DataError):
    code = "disk_full"
    status = 507


class InternalError(GnusError):
    code = "internal_error"


# --- from the operating system ----------------------------------------------------------------------------------------

_STORAGE_HINTS: Final = {
    errno.EACCES: "check owner and mode of the path, or choose another --home",
    errno.EPERM: "check owner and mode of the path, or choose another --home",
    errno.EROFS: "the file system is mounted read-only: remount it, or choose another --home",
    errno.EEXIST: "something else has this name: move it away",
    errno.ENOTDIR: "a file stands where a directory is needed: move it away",
    errno.EISDIR: "a directory stands where a file is needed: move it away",
    errno.ENAMETOOLONG: "choose a shorter --home",
    errno.EIO: "the disk reports an error: check it, then restore from a backup",
}


def storage_error(error: OSError, path: str | PathLike[str], what: str) -> DataError:
    """The typed error of a failed file operation on our own state: ``what`` was tried on ``path``, and what helps."""
    reason = f"{what}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(reason, where=fspath(path), hint="free some space and start again; nothing was lost")
    hint = _STORAGE_HINTS.get(error.errno or 0, "choose another --home if this one cannot be used")
    return DataError(reason, where=fspath(path), hint=hint)


# --- from bugs --------------------------------------------------------------------------------------------------------


def raised_at(error: BaseException) -> str:
    """Function and line that raised ``error``: all that may be logged of a bug, whose text may quote a prompt."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}" if trace is not None else "unknown"
