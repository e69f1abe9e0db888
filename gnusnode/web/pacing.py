"""One rate limiter a host: the generic cell rate algorithm on trio's clock, with a bounded number of hosts."""

from __future__ import annotations

from typing import Final

import trio

from gnusnode.web.refusals import Reason, WebFailed

_HOSTS: Final = 4096


class Pacer:
    """Lets each host be asked ``burst`` times at once and then every ``interval`` seconds. One owner, no lock.

    Args:
        interval: seconds between two requests to one host.
        burst: how many may come together after a pause.
        hosts: how many hosts are remembered; when all are busy a further one is refused, none is forgotten.
    """

    def __init__(self, *, interval: float = 1.0, burst: int = 4, hosts: int = _HOSTS) -> None:
        self._interval = interval
        self._burst = burst
        self._capacity = hosts
        self._due: dict[str, float] = {}
        """When the last admitted request to a host would have been due at the plain rate, plus one interval."""

    async def turn(self, host: str, *, longest: float, interval: float = 0.0) -> None:
        """Returns when ``host`` may be asked.

        Args:
            longest: seconds that the caller would wait.
            interval: what the host itself asks for between two requests, when that is longer than ours; then nothing
                comes in a burst.

        Raises:
            WebFailed: RATE_LIMITED, with ``retry_after``; no turn is used up.
        """
        step, ahead = self._interval, self._interval * (self._burst - 1)
        if interval > step:
            step, ahead = interval, 0.0
        now = trio.current_time()
        due = max(self._due.get(host, now), now)
        wait = max(0.0, due - now - ahead)
        if wait > longest or not self._has_room(host, now):
            raise WebFailed(
                Reason.RATE_LIMITED,
                "this host has been asked often enough for now",
                where=host,
                hint="try again later",
                retry_after=max(wait, step),
            )
        self._due[host] = due + step
        await trio.sleep(wait)

    def _has_room(self, host: str, now: float) -> bool:
        if host in self._due or len(self._due) < self._capacity:
            return True
        self._due = {name: due for name, due in self._due.items() if due > now}
        return len(self._due) < self._capacity
