"""Which sandboxes this node may use, and why not the others.

A policy names profiles in its own order, and what it demands of them; the first that is available, proved and strong
enough is used. When none is, there is no sandbox: the answer is the row of reasons, never something weaker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import trio

from gnusnode.errors import GnusError
from sandbox.run.pool import KeepsWarm
from sandbox.run.types import Boundary, Control, Feature, SandboxBackend, SelfTestReport, Strength

EVERY_CONTROL: Final = frozenset(Control)
_LOOK_EVERY: Final = 300.0
_SWEEP_EVERY: Final = 60.0
_TEST_EVERY: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a policy demands of a sandbox for one purpose.

    Attributes:
        profiles: names of backends, the preferred one first.
        boundaries: what may stand between.
        controls: what must have been proved.
        features: what a program must be able to use.
        deterministic: the same job must give the same bytes.
    """

    profiles: tuple[str, ...]
    boundaries: frozenset[Boundary] = frozenset(Boundary) - {Boundary.VM_TCG}
    controls: frozenset[Control] = EVERY_CONTROL
    features: frozenset[Feature] = frozenset()
    deterministic: bool = False


@dataclass(frozen=True, slots=True)
class Proved:
    """A backend and the proof of what it is."""

    backend: SandboxBackend
    strength: Strength
    report: SelfTestReport


@dataclass(frozen=True, slots=True)
class Absent:
    """No sandbox will do. ``reasons``: profile -> why not."""

    reasons: dict[str, str]

    def __str__(self) -> str:
        return "; ".join(f"{name}: {why}" for name, why in self.reasons.items()) or "the policy names no profile"


@dataclass(frozen=True, slots=True)
class Standing:
    """What ``doctor`` shows of one profile.

    Attributes:
        name: the profile.
        proved: it may be used.
        reason: why not, when it may not.
        strength: what it is, or declares to be; None when it is not available.
        warnings: what an operator should know.
        report: the last self-test, None when there was none.
    """

    name: str
    proved: bool
    reason: str
    strength: Strength | None
    warnings: tuple[str, ...]
    report: SelfTestReport | None


class Registry:
    """The backends of this node. Nothing is registered before ``examine``.

    Args:
        backends: each with a name of its own.
        tested: told of every self-test, for the audit log.
        trouble: told of sweeps that failed: the profile and the reason.
    """

    def __init__(
        self,
        backends: Iterable[SandboxBackend],
        *,
        tested: Callable[[SelfTestReport], None] | None = None,
        trouble: Callable[[str, GnusError], None] | None = None,
    ) -> None:
        self._backends = {backend.name: backend for backend in backends}
        self._standings = {name: _unexamined(name) for name in self._backends}
        self._tested_at: dict[str, float] = {}
        self._tested = tested
        self._trouble = trouble
        self._examining = trio.Lock()

    def standings(self) -> list[Standing]:
        """Every profile and whether it may be used; a snapshot."""
        return list(self._standings.values())

    def choose(self, wanted: Wanted) -> Proved | Absent:
        """The first profile that ``wanted`` names and that is all it demands, or the reason why not for each."""
        reasons: dict[str, str] = {}
        for name in wanted.profiles:
            standing = self._standings.get(name)
            if standing is None:
                reasons[name] = "this node has no such backend"
            elif not standing.proved or standing.strength is None or standing.report is None:
                reasons[name] = standing.reason
            elif lacking := _lacking(standing.strength, standing.report, wanted):
                reasons[name] = lacking
            else:
                return Proved(self._backends[name], standing.strength, standing.report)
        return Absent(reasons)

    async def examine(self, *names: str) -> list[SelfTestReport]:
        """Tests the backends ``names``, all of them without one, and registers or unregisters each by its result.

        One after the other: they would disturb each other's limits.
        """
        async with self._examining:
            return [await self._test(self._backends[name]) for name in names or self._backends]

    async def tend(self) -> None:
        """Keeps the backends in order until cancelled: fills pools, sweeps once a minute, looks every five minutes.

        One that is gone or fails is unregistered at once; one that has changed is tested again, and each once a day.
        """
        async with trio.open_nursery() as nursery:
            for name, backend in self._backends.items():
                nursery.start_soon(self._sweep, name, backend)
                if isinstance(backend, KeepsWarm):
                    nursery.start_soon(backend.keep_warm)
            while True:
                await trio.sleep(_LOOK_EVERY)
                for name, backend in self._backends.items():
                    await self._look(name, backend)

    async def _sweep(self, name: str, backend: SandboxBackend) -> None:
        while True:
            try:
                await backend.sweep()
            except GnusError as error:
                if self._trouble:
                    self._trouble(name, error)
            await trio.sleep(_SWEEP_EVERY)

    async def aclose(self) -> None:
        """Closes every backend; nothing is registered after it."""
        for name, backend in self._backends.items():
            self._standings[name] = _unexamined(name)
            await backend.aclose()

    async def _look(self, name: str, backend: SandboxBackend) -> None:
        found = await backend.probe()
        known = self._standings[name]
        changed = found.strength != known.strength
        due = trio.current_time() - self._tested_at.get(name, -_TEST_EVERY) >= _TEST_EVERY
        if not found.available:
            self._standings[name] = Standing(name, False, found.reason, None, (), known.report)
        elif changed or due:
            if changed:  # what was proved is not what is there
                self._standings[name] = Standing(
                    name, False, "it has changed and is being tested", found.strength, found.warnings, known.report
                )
            await self.examine(name)

    async def _test(self, backend: SandboxBackend) -> SelfTestReport:
        found = await backend.probe()
        report = await backend.self_test()
        self._tested_at[backend.name] = trio.current_time()
        self._standings[backend.name] = Standing(
            name=backend.name,
            proved=report.passed and report.declared == found.strength,
            reason="; ".join(report.faults)
            or ("" if report.declared == found.strength else "it changed under the test"),
            strength=report.declared,
            warnings=found.warnings,
            report=report,
        )
        if self._tested:
            self._tested(report)
        return report


def _unexamined(name: str) -> Standing:
    return Standing(name, False, "it has not been tested yet", None, (), None)


def _lacking(strength: Strength, report: SelfTestReport, wanted: Wanted) -> str:
    """Why a proved backend is not what is wanted; empty: it is."""
    if strength.boundary not in wanted.boundaries:
        return f"its boundary {strength.boundary} is not among those that the policy accepts"
    if missing := sorted(wanted.controls - report.proved):
        return f"it does not prove {', '.join(missing)}"
    if missing := sorted(wanted.features - strength.features):
        return f"programs have no {', '.join(missing)} there"
    if wanted.deterministic and not strength.deterministic:
        return "it is not deterministic"
    return ""
