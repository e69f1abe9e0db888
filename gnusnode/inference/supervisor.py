"""The life of an engine's children: start, load, read, ping; on death restart or quarantine; none is left behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from signal import SIGKILL
from typing import Any, Final, cast

import trio
from pydantic import ValidationError

from gnusnode.contracts.generation import CapabilityRequest, EngineInfo, EngineState
from gnusnode.errors import EngineFailed, GnusError, Unavailable
from gnusnode.inference import frames
from gnusnode.inference.childproc import ChildProcess, describe_exit
from gnusnode.inference.crashes import CrashLedger
from gnusnode.inference.dispatch import Dispatcher
from gnusnode.inference.frames import ChildSpec, FrameError
from gnusnode.inference.limits import Capabilities, EngineLimits, Notify
from gnusnode.inference.queue import Rates
from sandbox import confine

_ENVIRONMENT: Final = {
    "OMP_WAIT_POLICY": "passive",  # spinning threads fall to a twentieth of the speed on a busy machine
    "GGML_NO_BACKTRACE": "1",  # else an abort starts a debugger first
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # weights and cache in huge pages; other C libraries do not look
}
_STEADY: Final = 30.0
"""Seconds after which a child counts as healthy and the next restart is immediate again."""
_STATUS_WAIT: Final = 2.0
_STEPS: Final = 3
_LONGEST_SILENCE: Final = 600.0
"""Seconds, whatever speed the child claims to have."""
_MAX_LOG: Final = 500
_LOGS_PER_PING: Final = 100


@dataclass(frozen=True)
class _Death:
    """How a child ended.

    Attributes:
        error: why it refused to load, in its own words.
        lied: it broke the protocol, so nothing that it said of its jobs counts.
        ready_for: seconds for which it served; None: it never did.
    """

    reason: str
    error: GnusError | None = None
    lied: bool = False
    ready_for: float | None = None


class Supervisor:
    """Keeps one child running and connects it with a ``Dispatcher``.

    Attributes:
        state, reason: for people and for readiness.
        ready: what the child said of itself when it was ready last; the fields of ``EngineInfo`` that it knows.
        rss_bytes: memory of the child.
        restarts: children after the first.
    """

    def __init__(
        self,
        spec: ChildSpec,
        dispatcher: Dispatcher,
        *,
        limits: EngineLimits,
        crashes: CrashLedger,
        notify: Notify,
        capabilities: Capabilities,
        command: Sequence[str],
        nice: int,
    ) -> None:
        self.state = EngineState.STARTING
        self.reason = "loading the model"
        self.ready: dict[str, Any] = {}
        self.rss_bytes = 0
        self.restarts = 0
        self._spec = spec
        self._dispatcher = dispatcher
        self._limits = limits
        self._crashes = crashes
        self._notify = notify
        self._capabilities = capabilities
        self._command = command
        self._nice = nice
        self._served = False
        self._heard = 0.0
        self._slots = spec.slots
        self._verdict = ""
        self._cause = "crash"
        self._logs_left = _LOGS_PER_PING
        self._cleared = trio.Event()
        self._child: ChildProcess | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the child, when there is one."""
        return self._child.pid if self._child else None

    def end_quarantine(self) -> None:
        """An operator says that the artifact may run again."""
        self._crashes.clear(self._spec.artifact_hash)
        self._cleared.set()

    def info_fields(self) -> dict[str, Any]:
        """The fields of ``EngineInfo`` as they are now."""
        known = EngineInfo.model_fields.keys() & self.ready.keys()
        return {name: self.ready[name] for name in known} | {
            "model": self._spec.model_name,
            "artifact_hash": self._spec.artifact_hash,
            "state": self.state,
            "reason": self.reason,
            "slots": self._dispatcher.slots,
            "free_slots": self._dispatcher.free_slots if self.state is EngineState.READY else 0,
            "queued": self._dispatcher.waiting,
            "prefill_rate": self._dispatcher.rates.prefill,
            "decode_rate": self._dispatcher.rates.decode,
            "restarts": self.restarts,
            "rss_bytes": self.rss_bytes,
        }

    def stop(self) -> None:
        """Ends all jobs; new ones are refused."""
        self.state, self.reason = EngineState.STOPPED, "stopped"
        self._dispatcher.fail_all(stopping_error)

    def _fault(self, now: float, bound: float, disobeyed_since: float | None) -> tuple[str, str] | None:
        """Why the child has to be killed, in words and as a cause; None: it behaves."""
        most = self._spec.max_memory
        if 0 < most < self.rss_bytes:
            return f"held {self.rss_bytes} bytes of memory, {most} at most, and was killed", "out-of-memory"
        if now - self._heard > bound:
            return f"was silent for {bound:.1f} s and was killed", "hang"
        if disobeyed_since is not None and now - disobeyed_since > bound:
            return f"did not stop a cancelled job within {bound:.1f} s and was killed", "hang"
        return None

    def quarantine_error(self) -> EngineFailed:
        return EngineFailed(
            f"the model is in quarantine: {self.reason}",
            where=self._spec.model_name,
            hint="check the file with `gnusnode models verify`; it is tried again later",
        )

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Keeps a child running until cancelled. Owned by ``open_llama``.

        Raises:
            GnusError: the first child did not get ready.
        """

        def serving() -> None:
            if not self._served:
                self._served = True
                task_status.started()

        in_a_row = 0
        while True:
            death = await self._life(serving)
            if death.ready_for is not None and death.ready_for >= _STEADY:
                in_a_row = 0
            self._bury(death)
            if not self._served:
                raise death.error or EngineFailed(f"the engine died while it loaded the model: it {death.reason}")
            await self._pause(death.reason, in_a_row)
            self.restarts += 1
            in_a_row += 1

    def _bury(self, death: _Death) -> None:
        """Settles what a dead child leaves: the ledger first, because it decides which jobs may run again."""
        if death.error is None or self._served:
            self._crashes.record(
                self._spec.artifact_hash, self._dispatcher.suspects(), now=trio.current_time(), reason=death.reason
            )
        self._dispatcher.child_died(death.reason, self._crashes, rerun=not death.lied)
        fields = {"model": self._spec.model_name, "reason": death.reason, "cause": self._cause}
        self._notify("engine_died", fields)

    async def _pause(self, reason: str, in_a_row: int) -> None:
        """Waits until the next child may start."""
        while held := self._crashes.quarantine(self._spec.artifact_hash, now=trio.current_time()):
            until, why = held
            self.state, self.reason = EngineState.QUARANTINED, why
            self._dispatcher.fail_all(self.quarantine_error)
            self._notify("engine_quarantined", {"model": self._spec.model_name, "reason": why})
            self._cleared = trio.Event()
            with trio.move_on_at(until):
                await self._cleared.wait()
        self.state, self.reason = EngineState.RESTARTING, f"the engine {reason}"
        await trio.sleep(self._limits.restart_delays[min(in_a_row, len(self._limits.restart_delays) - 1)])

    async def _life(self, serving: Callable[[], None]) -> _Death:
        """One child from birth to death; calls ``serving`` when it is ready."""
        try:
            child = ChildProcess(self._command, confine.launch_environment(_ENVIRONMENT), nice=self._nice)
        except OSError as error:
            return _Death(f"could not be started: {error}")
        self._child, self._verdict, self._cause = child, "", "crash"
        graceful = 0.0
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child.write_forever)
                nursery.start_soon(child.drain_stderr)
                nursery.start_soon(child.hang_up_after_exit)
                death = await self._load(child)
                if death is None:
                    serving()
                    graceful = self._limits.quit_grace
                    death = await self._serve(child)
                    graceful = 0.0
                nursery.cancel_scope.cancel()
            return death
        finally:
            self._child = None
            with trio.CancelScope(shield=True):  # bounded by ``end`` itself
                await child.end(farewell=frames.pack({"op": "quit"}), grace=graceful)

    async def _load(self, child: ChildProcess) -> _Death | None:
        """Has the child load the model; None: it is ready."""
        child.post(frames.pack({"op": "load", "spec": self._spec.to_plain()}))
        with trio.move_on_after(self._limits.load_timeout):
            try:
                return await self._read(child, until_ready=True)
            except FrameError as error:
                return _Death(f"broke the protocol: {error}", lied=True)
        return _Death(f"did not load the model within {self._limits.load_timeout:g} s")

    async def _serve(self, child: ChildProcess) -> _Death:
        """Lets a ready child work until it dies or misbehaves."""
        since = trio.current_time()
        self.state, self.reason = EngineState.READY, str(self.ready.get("reason", ""))
        self._notify("engine_ready", {"model": self._spec.model_name, "pid": child.pid})
        self._dispatcher.attach(child.post, self._slots)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, child)
            try:
                death = await self._read(child, until_ready=False)
            except FrameError as error:
                death = _Death(f"broke the protocol: {error}", lied=True)
            nursery.cancel_scope.cancel()
        assert death is not None, "reading ends with a death once the child is ready"
        return replace(death, ready_for=trio.current_time() - since)

    async def _read(self, child: ChildProcess, *, until_ready: bool) -> _Death | None:
        """Handles frames until the child is ready (None) or gone."""
        ready = False
        while (batch := await child.receive()) is not None:
            self._heard = trio.current_time()
            for frame in batch:
                match frame.get("ev"):
                    case "ready" if until_ready and not ready:
                        self._accept_ready(frame)
                        ready = True
                    case "error" if frame.get("id") is None:
                        error = GnusError.from_wire(_map(frame.get("error")))
                        return _Death(f"gave up: {error.what}", error)
                    case _:
                        self._handle(child, frame)
            if ready:
                return None
        with trio.move_on_after(_STATUS_WAIT):
            await child.exited()
        status = await child.end()
        return _Death(self._verdict or describe_exit(status))

    def _accept_ready(self, frame: dict[str, Any]) -> None:
        self.ready = _map(frame.get("info"))
        try:
            prefill, decode = (float(self.ready.get(name, 0.0)) for name in ("prefill_rate", "decode_rate"))
            self._dispatcher.rates = Rates(prefill, decode)
            self.rss_bytes = int(self.ready.get("rss_bytes", 0))
            self._slots = min(max(int(self.ready.get("slots", self._spec.slots)), 1), self._spec.slots)
            EngineInfo.model_validate(self.info_fields())
        except (ValidationError, TypeError, ValueError) as error:
            raise FrameError(f"ready: {error}") from error

    def _handle(self, child: ChildProcess, frame: dict[str, Any]) -> None:
        try:
            match frame.get("ev"):
                case "pong":
                    rates = Rates(float(frame["prefill_rate"]), float(frame["decode_rate"]))
                    self._dispatcher.told(rates, without_room=max(0, int(frame["queued"])))
                    self.rss_bytes = int(frame["rss"])
                case "log":
                    self._log(str(frame["level"])[:16], str(frame["text"])[:_MAX_LOG])
                case "capability":
                    verdict = self._capabilities(CapabilityRequest.model_validate(frame["body"]))
                    child.post(frames.pack({"op": "verdict", "n": frame["n"], "body": verdict.to_plain()}))
                case _:
                    self._dispatcher.handle(frame)
        except (KeyError, TypeError, ValueError) as error:
            raise FrameError(f"{frame.get('ev')!r} is malformed: {error!r}") from error

    def _log(self, level: str, text: str) -> None:
        """Passes a line on, unless the child has said too much since the last ping."""
        self._logs_left -= 1
        if self._logs_left >= 0:
            self._notify("engine_log", {"model": self._spec.model_name, "level": level, "text": text})

    def _patience(self) -> float:
        """Seconds of silence that are too many. A child answers between steps, and a step may be long on a slow CPU."""
        rate = self._dispatcher.rates.prefill
        step = self._spec.prefill_per_step / rate if rate > 0 else 0.0
        return max(self._limits.silent_after, min(_STEPS * step, _LONGEST_SILENCE))

    async def _watch(self, child: ChildProcess) -> None:
        """Pings, lets deadlines pass, and kills a child that hangs, grows or does not obey."""
        for number in count():
            await trio.sleep(self._limits.ping_every)
            now, bound = trio.current_time(), self._patience()
            self._logs_left = _LOGS_PER_PING
            disobeyed_since = self._dispatcher.expire(now)
            if fault := self._fault(now, bound, disobeyed_since):
                self._verdict, self._cause = fault
                child.signal(SIGKILL)
                return
            child.post(frames.pack({"op": "ping", "n": number}))


def stopping_error() -> Unavailable:
    return Unavailable("the engine is stopping", hint="try again elsewhere")


def _map(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FrameError("a map was expected")
    return cast("dict[str, Any]", value)
