"""How much one caller may use, and how much all of them together. Pure bookkeeping; the caller passes the time."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gnusnode.api.keys import ApiKey, KeyLimits
from gnusnode.errors import Overloaded, RateLimited


@dataclass
class TokenBucket:
    """Holds up to ``per_minute`` and fills at that pace. May go negative where a cost is known only afterwards."""

    per_minute: int
    filled_at: float
    level: float = field(init=False)

    def __post_init__(self) -> None:
        self.level = float(self.per_minute)

    def refill(self, now: float) -> None:
        self.level = min(float(self.per_minute), self.level + (now - self.filled_at) * self.per_minute / 60)
        self.filled_at = now

    def wait_for(self, amount: float) -> float:
        """Seconds until ``amount`` is there."""
        return max(0.0, (amount - self.level) * 60 / self.per_minute)


class KeyUsage:
    """The use of one key so far."""

    def __init__(self, limits: KeyLimits, now: float) -> None:
        self._requests = _bucket(limits.requests_per_minute, now)
        self._tokens = _bucket(limits.tokens_per_minute, now)
        self._in_flight_limit = limits.in_flight
        self._in_flight = 0

    def admit(self, now: float) -> None:
        """Counts one request.

        Raises:
            RateLimited: a limit is reached; ``retry_after`` says when not any more.
        """
        for bucket, unit in ((self._requests, "requests"), (self._tokens, "tokens")):
            if bucket is None:
                continue
            bucket.refill(now)
            if wait := bucket.wait_for(1):
                raise RateLimited(
                    f"this key may use {bucket.per_minute} {unit} a minute",
                    hint=f"try again in {wait:.1f} s",
                    retry_after=wait,
                )
        if self._in_flight_limit is not None and self._in_flight >= self._in_flight_limit:
            raise RateLimited(
                f"this key may have {self._in_flight_limit} requests under way",
                hint="wait for one of them to end",
                retry_after=1,
            )
        if self._requests is not None:
            self._requests.level -= 1

    @contextmanager
    def under_way(self) -> Generator[None]:
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    def charge(self, tokens: int, now: float) -> None:
        """Takes tokens that were used; the next request waits until they are earned."""
        if self._tokens is not None:
            self._tokens.refill(now)
            self._tokens.level -= tokens

    def headers(self, now: float) -> dict[str, str]:
        """OpenAI's ``x-ratelimit-*`` headers for the limits that exist."""
        found: dict[str, str] = {}
        for bucket, unit in ((self._requests, "requests"), (self._tokens, "tokens")):
            if bucket is not None:
                bucket.refill(now)
                found[f"x-ratelimit-limit-{unit}"] = str(bucket.per_minute)
                found[f"x-ratelimit-remaining-{unit}"] = str(max(0, int(bucket.level)))
                found[f"x-ratelimit-reset-{unit}"] = f"{bucket.wait_for(bucket.per_minute):.3f}s"
        return found


def _bucket(per_minute: int | None, now: float) -> TokenBucket | None:
    return None if per_minute is None else TokenBucket(per_minute, now)


class Limits:
    """The use of all keys, and of the node's inference slots."""

    def __init__(self, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._usage: dict[str, tuple[KeyLimits, KeyUsage]] = {}

    def usage(self, key: ApiKey, now: float) -> KeyUsage:
        """The record of ``key``, begun anew when its limits were changed."""
        known = self._usage.get(key.id)
        if known is None or known[0] != key.limits:
            known = self._usage[key.id] = (key.limits, KeyUsage(key.limits, now))
        return known[1]

    @contextmanager
    def slot(self) -> Generator[None]:
        """One of the ``max_in_flight`` places for requests that are being answered.

        Raises:
            Overloaded: all are taken.
        """
        if self._in_flight >= self._max_in_flight:
            raise Overloaded(
                f"{self._in_flight} requests are being answered, which is all this node takes at a time",
                where="api.max_in_flight",
                hint="try again shortly, or ask another node",
                retry_after=1,
            )
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
