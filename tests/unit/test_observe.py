"""Events, stages, metrics and health: one call, every output, and never any content."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import psutil
import pytest
import trio
import trio.testing
import yaml
from prometheus_client import generate_latest
from pydantic import ValidationError

from gnusnode.contracts.generation import EngineInfo, EngineState
from gnusnode.observe import events, lag
from gnusnode.observe.bus import RING, EventBus, Missed, Stamped
from gnusnode.observe.events import EVENTS, Event, NodeStopping, RequestEnded, RequestRefused, StageEnded
from gnusnode.observe.health import LOOP_LAG, NO_MODEL, WARNABLES, Warnable
from gnusnode.observe.metrics import NodeMetrics
from gnusnode.observe.observer import Observer
from gnusnode.observe.stage import Stage, StageTimer

REPOSITORY = Path(__file__).parents[2]
MANUAL = (REPOSITORY / "docs" / "observability.md").read_text(encoding="utf-8")
RULES = (REPOSITORY / "configs" / "prometheus-rules.yml").read_text(encoding="utf-8")
REQUEST = "11111111-2222-4333-8444-555555555555"


def refused(code: str = "overloaded") -> RequestRefused:
    return RequestRefused(code=code)


def value(metrics: NodeMetrics, name: str, /, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def table(heading: str) -> list[list[str]]:
    """The cells of the rows of the table under a heading of the manual."""
    section = MANUAL.partition(f"{heading}\n")[2].partition("\n#")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(r"^\|.*\|$", section, re.M)]
    return rows[2:]


class TestManual:
    def test_it_documents_exactly_the_metrics_that_exist_with_type_and_labels(self) -> None:
        suffix = {"counter": "_total", "info": "_info"}
        found: dict[str, tuple[str, str]] = {}
        metrics = vars(NodeMetrics())
        families = [
            *metrics.pop("engines").collect(),
            *metrics.pop("network").collect(),
            *(metrics.pop(name) for name in list(metrics) if name != "registry"),
        ]
        for family in families:
            described = family.describe()[0] if hasattr(family, "describe") else family
            labels = ", ".join(f"`{label}`" for label in family._labelnames)
            name = described.name + suffix.get(described.type, "")
            found[f"`{name}`"] = (described.type, "`version`" if described.type == "info" else labels)
        assert {row[0]: (row[1], row[2]) for row in table("## Metrics")} == found

    def test_it_documents_exactly_the_stages_that_exist(self) -> None:
        assert [row[0] for row in table("### Stages")] == [f"`{stage}`" for stage in Stage]

    def test_it_documents_exactly_the_events_that_exist_with_their_fields(self) -> None:
        found = {f"`{name}`": ", ".join(f"`{field}`" for field in kind.model_fields) for name, kind in EVENTS.items()}
        assert {row[0]: row[1] for row in table("## Events")} == found

    def test_it_documents_exactly_the_warnings_that_exist(self) -> None:
        assert {row[0]: row[1] for row in table("## Health warnings")} == {f"`{w.code}`": w.severity for w in WARNABLES}

    def test_alarms_name_only_metrics_that_exist_and_say_what_to_do(self) -> None:
        known = {row[0].strip("`") for row in table("## Metrics")}
        for name in re.findall(r"\bgnusnode_\w+", RULES):
            assert re.sub(r"_(bucket|sum|count)$", "", name) in known, name
        [group] = yaml.safe_load(RULES)["groups"]
        for rule in group["rules"]:
            assert rule["annotations"]["action"].endswith(".")
            assert rule["labels"]["severity"] in {"warning", "critical"}


class TestEvents:
    def test_an_event_cannot_be_defined_with_a_field_that_carries_content(self) -> None:
        for field in ("prompt", "text", "tool_output", "user_message", "body"):
            with pytest.raises(AssertionError, match="would carry content"):
                type("Leaky", (Event,), {"name": f"leaky.{field}", "__annotations__": {field: str}})
            assert f"leaky.{field}" not in EVENTS

    def test_a_name_is_given_once(self) -> None:
        with pytest.raises(AssertionError, match=r"two events are named node\.stopping"):
            type("Again", (Event,), {"name": "node.stopping", "__annotations__": {}})

    @pytest.mark.parametrize("text", ["two words", "line\nbreak", "", "x" * 200, "ünï", "<b>"])
    def test_a_sentence_does_not_fit_into_an_event(self, text: str) -> None:
        with pytest.raises(ValidationError):
            refused(text)

    def test_unknown_fields_and_later_changes_are_refused(self) -> None:
        with pytest.raises(ValidationError):
            RequestRefused.model_validate({"code": "x", "prompt": "y"})
        with pytest.raises(ValidationError):
            refused().code = "y"  # type: ignore[misc]  # that is the point

    def test_what_is_published_follows_its_schema(self) -> None:
        schemas = events.schemas()
        assert list(schemas) == sorted(EVENTS)
        ended = RequestEnded(request_id=REQUEST, endpoint="chat", outcome="ok", total_ms=1.0)
        jsonschema.validate(ended.fields(), schemas["request.ended"])
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"code": "two words"}, schemas["request.refused"])


class TestBus:
    async def test_readers_get_what_comes_after_them_in_order(self) -> None:
        bus = EventBus()
        bus.publish(refused("early"))
        reader, replay = bus.follow(), bus.follow(after=0)
        for code in ("a", "b"):
            bus.publish(refused(code))
        assert [codes(await anext(reader)) for _ in range(2)] == ["a", "b"]
        assert isinstance(await anext(replay), Missed)
        assert [codes(await anext(replay)) for _ in range(3)] == ["early", "a", "b"]

    async def test_a_reader_waits_until_there_is_something(self, autojump_clock: trio.testing.MockClock) -> None:
        bus = EventBus()
        got: list[str] = []

        async def read() -> None:
            async for item in bus.follow():
                got.append(codes(item))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            assert got == []
            bus.publish(refused("a"))
            await trio.testing.wait_all_tasks_blocked()
            assert got == ["a", "a"]
            nursery.cancel_scope.cancel()

    async def test_a_slow_reader_loses_the_oldest_and_is_told_up_to_which(self) -> None:
        bus = EventBus(now=lambda: 1.0)
        reader = bus.follow()
        for number in range(RING + 5):
            bus.publish(refused(f"n{number}"))
        missed = await anext(reader)
        assert missed == Missed(last_id=1004)
        assert codes(await anext(reader)) == "n5"
        assert len(bus.recent()) == RING
        assert [codes(item) for item in bus.recent(2)] == [f"n{RING + 3}", f"n{RING + 4}"]

    async def test_a_reader_goes_on_where_it_was_also_after_a_restart(self) -> None:
        before = EventBus(now=lambda: 1000.0)
        last = before.publish(refused("old"))
        bus = EventBus(now=lambda: 1001.0)
        stamped = bus.publish(refused("new"))
        assert stamped.id > last.id
        reader = bus.follow(after=last.id)
        assert await anext(reader) == Missed(stamped.id - 1)
        assert await anext(reader) == stamped

    async def test_an_id_from_the_future_waits_for_the_next_event(self) -> None:
        bus = EventBus()
        bus.publish(refused("a"))
        reader = bus.follow(after=bus.last_id + 10_000)
        bus.publish(refused("b"))
        assert codes(await anext(reader)) == "b"

    async def test_reading_is_a_checkpoint_also_when_there_is_enough_to_read(self) -> None:
        bus = EventBus()
        reader = bus.follow()
        bus.publish(refused())
        with trio.testing.assert_checkpoints():
            await anext(reader)

    def test_a_failing_sink_stops_neither_the_publisher_nor_the_others(self, caplog: pytest.LogCaptureFixture) -> None:
        seen: list[Stamped] = []

        def broken(_stamped: Stamped) -> None:
            raise ValueError("bug")

        bus = EventBus(broken, seen.append)
        bus.publish(refused())
        assert len(seen) == 1
        assert "an event sink failed on request.refused" in caplog.text

    def test_plain_form(self) -> None:
        stamped = EventBus(now=lambda: 5.0).publish(NodeStopping(cause="signal"))
        assert stamped.to_plain() == {
            "id": 5000,
            "unix_ms": 5000,
            "name": "node.stopping",
            "fields": {"cause": "signal"},
        }


def codes(item: Stamped | Missed) -> str:
    assert isinstance(item, Stamped)
    assert isinstance(item.event, RequestRefused)
    return item.event.code


class TestStages:
    def timer(self, *readings: float) -> tuple[Observer, StageTimer, list[StageEnded]]:
        seen: list[StageEnded] = []

        def collect(stamped: Stamped) -> None:
            if isinstance(stamped.event, StageEnded):
                seen.append(stamped.event)

        observer = Observer.create(collect)
        clock = iter(readings).__next__
        return observer, StageTimer(REQUEST, observer.metrics, observer.bus, clock=clock), seen

    def test_one_measurement_reaches_record_histogram_and_event(self) -> None:
        observer, timer, seen = self.timer(10.0, 10.25)
        with timer.stage(Stage.ROUTING):
            pass
        assert timer.elapsed_ms == {"routing": 250.0}
        labels = {"stage": "routing", "outcome": "ok"}
        assert value(observer.metrics, "gnusnode_stage_seconds_sum", **labels) == 0.25
        assert seen == [StageEnded(request_id=REQUEST, stage="routing", outcome="ok", elapsed_ms=250.0)]

    def test_a_stage_that_runs_twice_counts_twice(self) -> None:
        _, timer, _ = self.timer(0.0, 1.0, 5.0, 7.0)
        for _ in range(2):
            with timer.stage(Stage.DISPATCH):
                pass
        assert timer.elapsed_ms == {"dispatch": 3000.0}

    def test_a_failed_stage_is_timed_and_its_error_goes_on(self) -> None:
        _, timer, seen = self.timer(0.0, 0.5)
        with pytest.raises(ZeroDivisionError), timer.stage(Stage.COMPUTE):
            _ = 1 / 0
        assert timer.elapsed_ms == {"compute": 500.0}
        assert seen[0].outcome == "failed"

    async def test_a_cancelled_stage_is_timed_and_stays_cancelled(self) -> None:
        _, timer, seen = self.timer(0.0, 2.0)
        with trio.CancelScope() as scope:
            scope.cancel()
            with timer.stage(Stage.COMPUTE):
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert seen[0].outcome == "cancelled"

    def test_a_duration_measured_elsewhere_is_taken_over(self) -> None:
        _, timer, seen = self.timer()
        timer.add(Stage.QUEUE, 12.5)
        timer.add(Stage.QUEUE, -1.0)
        assert timer.elapsed_ms == {"queue": 12.5}
        assert [event.elapsed_ms for event in seen] == [12.5, 0.0]


class TestMetrics:
    def test_events_move_their_metrics(self) -> None:
        observer = Observer.create()
        metrics, bus = observer.metrics, observer.bus
        bus.publish(events.RequestStarted(request_id=REQUEST, endpoint="chat"))
        assert value(metrics, "gnusnode_requests_active") == 1
        bus.publish(
            RequestEnded(
                request_id=REQUEST,
                endpoint="chat",
                outcome="ok",
                tokens_in=5,
                tokens_cached=2,
                tokens_out=7,
                first_token_ms=100.0,
                total_ms=500.0,
            )
        )
        bus.publish(refused("rate_limit_exceeded"))
        bus.publish(events.EngineChanged(model="m", state="restarting", cause="crash", restarts=1))
        bus.publish(events.EngineChanged(model="m", state="ready", cause="crash", restarts=1))
        bus.publish(events.RecordRefused(record="execution-plan", outcome="expired"))
        assert value(metrics, "gnusnode_requests_active") == 0
        assert value(metrics, "gnusnode_requests_total", endpoint="chat", outcome="ok") == 1
        assert value(metrics, "gnusnode_request_seconds_sum", endpoint="chat") == 0.5
        assert value(metrics, "gnusnode_first_token_seconds_sum") == 0.1
        assert [value(metrics, "gnusnode_tokens_total", kind=kind) for kind in ("in", "cached", "out")] == [5, 2, 7]
        assert value(metrics, "gnusnode_refused_total", code="rate_limit_exceeded") == 1
        assert value(metrics, "gnusnode_engine_restarts_total", model="m", cause="crash") == 1
        assert value(metrics, "gnusnode_records_refused_total", record="execution-plan", outcome="expired") == 1
        assert value(metrics, "gnusnode_events_total", name="engine.changed") == 2

    def test_engines_are_looked_at_when_the_page_is_asked_for(self) -> None:
        metrics = NodeMetrics()
        infos: list[EngineInfo] = []
        metrics.engines.follow(lambda: infos)
        assert value(metrics, "gnusnode_queue_depth", model="m") is None
        engine = EngineInfo(
            model="m", artifact_hash=f"sha256:{'0' * 64}", state=EngineState.READY, slots=8, free_slots=5, queued=2
        )
        infos += [engine, engine.model_copy(update={"rss_bytes": 10})]
        assert value(metrics, "gnusnode_queue_depth", model="m") == 4
        assert value(metrics, "gnusnode_streams_active", model="m") == 6
        assert value(metrics, "gnusnode_engine_resident_bytes", model="m") == 10

    def test_two_nodes_in_one_process_count_apart(self) -> None:
        one, two = Observer.create(), Observer.create()
        one.bus.publish(refused())
        assert value(one.metrics, "gnusnode_refused_total", code="overloaded") == 1
        assert value(two.metrics, "gnusnode_refused_total", code="overloaded") is None

    def test_the_page_shows_the_memory_of_this_process(self) -> None:
        page = generate_latest(NodeMetrics().registry).decode()
        found = re.search(r"^gnusnode_resident_bytes (\S+)$", page, re.M)
        assert found is not None
        assert 0.5 < float(found[1]) / psutil.Process().memory_info().rss < 2


class TestHealth:
    def test_a_warning_is_told_once_and_ends(self) -> None:
        observer = Observer.create()
        health = observer.health
        health.warn(NO_MODEL, "first")
        health.warn(NO_MODEL, "again")
        assert [item.detail for item in health.warnings()] == ["again"]
        assert value(observer.metrics, "gnusnode_health_warnings", severity="warning") == 1
        health.update(NO_MODEL, holds=False)
        health.clear(NO_MODEL)
        assert health.warnings() == []
        assert value(observer.metrics, "gnusnode_health_warnings", severity="warning") == 0
        assert [stamped.event.fields()["active"] for stamped in observer.bus.recent()] == [True, False]

    def test_warnings_about_several_things_are_kept_apart_and_the_worst_comes_first(self) -> None:
        health = Observer.create().health
        critical = next(warnable for warnable in WARNABLES if warnable.severity == "critical")
        info = next(warnable for warnable in WARNABLES if warnable.severity == "info")
        health.warn(info)
        health.warn(critical, "model a", about="a")
        health.warn(critical, "model b", about="b")
        assert [item.detail for item in health.warnings()] == ["model a", "model b", ""]
        health.clear(critical, about="a")
        assert [item.detail for item in health.warnings()] == ["model b", ""]
        assert health.warnings()[0].to_plain() == {
            "code": critical.code,
            "severity": "critical",
            "text": critical.text,
            "detail": "model b",
            "remedy": critical.remedy,
        }

    @pytest.mark.parametrize("warnable", WARNABLES, ids=lambda warnable: warnable.code)
    def test_every_warning_says_what_to_do(self, warnable: Warnable) -> None:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", warnable.code)
        assert warnable.text.endswith(".")
        assert warnable.remedy.endswith(".")


class TestLoopLag:
    async def test_a_loop_that_is_in_time_shows_no_lag_and_beats(self, autojump_clock: trio.testing.MockClock) -> None:
        observer, beats = Observer.create(), [0]

        def beat() -> None:
            beats[0] += 1

        with trio.move_on_after(20.05):
            await lag.watch_loop_lag(observer.metrics, observer.health, warning_ms=10, beat=beat)
        assert beats[0] == 200
        assert observer.health.warnings() == []
        assert value(observer.metrics, "gnusnode_loop_lag_seconds") == pytest.approx(0, abs=1e-6)

    async def test_a_loop_that_stays_late_warns_until_it_is_in_time_again(
        self, autojump_clock: trio.testing.MockClock
    ) -> None:
        observer = Observer.create()
        states: list[int] = []

        async def hold_up_the_loop() -> None:
            while len(states) < 2 * lag.WINDOW:
                await trio.sleep(lag.INTERVAL / 2)
                autojump_clock.jump(0.5)

        async with trio.open_nursery() as nursery:

            def beat() -> None:
                states.append(len(observer.health.warnings()))
                if len(states) == 4 * lag.WINDOW:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(hold_up_the_loop)
            await lag.watch_loop_lag(observer.metrics, observer.health, warning_ms=250, beat=beat)
        assert states[: lag.WINDOW - 1] == [0] * (lag.WINDOW - 1), "one window has to be seen first"
        assert states[lag.WINDOW : 2 * lag.WINDOW] == [1] * lag.WINDOW
        assert states[-1] == 0
        assert [stamped.event.fields()["code"] for stamped in observer.bus.recent()] == [LOOP_LAG.code] * 2

    def test_every_acts_at_once_and_then_at_its_pace(self) -> None:
        now, acted = [0.0], list[float]()
        beat = lag.every(5, lambda: acted.append(now[0]), clock=lambda: now[0])
        for second in range(13):
            now[0] = float(second)
            beat()
        assert acted == [0, 5, 10]
