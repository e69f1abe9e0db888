"""W3C ``traceparent``: one id that follows a request through the swarm. Strict parse, no SDK.

A value from outside is only linked to: a stranger's ``sampled`` flag never switches anything on here.
Source: https://www.w3.org/TR/trace-context/ (level 2).
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final

_VERSION_00: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_MAX_CHARS: Final = 256
"""A later version may append fields after a dash; longer than this is no trace id."""


@dataclass(frozen=True)
class TraceContext:
    """A place in a trace. Both ids are lowercase hex, 32 and 16 characters, never all zero."""

    trace_id: str
    span_id: str
    sampled: bool = False

    @classmethod
    def new(cls) -> TraceContext:
        """The root of a new trace."""
        return cls(secrets.token_hex(16), _span_id())

    def child(self) -> TraceContext:
        """A span under this one: same trace, not sampled on the parent's word."""
        return TraceContext(self.trace_id, _span_id())

    def __str__(self) -> str:
        """The value of a ``traceparent`` header, version 00."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"


def parse(value: str | None) -> TraceContext | None:
    """The context of a ``traceparent`` value; None for everything that is not exactly one."""
    if value is None or len(value) > _MAX_CHARS:
        return None
    found = _VERSION_00.match(value)
    if found is None:
        return None
    version, trace_id, span_id, flags = found.groups()
    rest = value[found.end() :]
    if version == "ff" or (rest and (version == "00" or not rest.startswith("-"))):
        return None
    if set(trace_id) == {"0"} or set(span_id) == {"0"}:
        return None
    return TraceContext(trace_id, span_id, sampled=bool(int(flags, 16) & 1))


def continue_or_start(value: str | None) -> TraceContext:
    """A child of a valid ``traceparent``, else a new trace: a bad value never fails a request."""
    parent = parse(value)
    return parent.child() if parent else TraceContext.new()


def _span_id() -> str:
    return secrets.token_hex(8)
