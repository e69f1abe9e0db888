"""The log: one line an event, escaped and capped, and no word of what users asked or models said."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import trio

from gnusnode.errors import NoExpert
from gnusnode.observe import logs
from gnusnode.observe.bus import EventBus
from gnusnode.observe.events import EVENTS, RequestRefused, StageEnded

REPOSITORY = Path(__file__).parents[2]
SECRET = "what the user asked"
REQUEST = "11111111-2222-4333-8444-555555555555"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    yield
    root.handlers[:], logging.raiseExceptions = handlers, raising
    root.setLevel(level)


def captured(level: Literal["debug", "info", "warning", "error"] = "info", **form: Any) -> io.StringIO:
    stream = io.StringIO()
    logs.configure(level, stream=stream, **form)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


class TestLine:
    def test_it_has_time_level_logger_event_and_fields(self) -> None:
        out = captured()
        logging.getLogger("gnusnode.test").warning("engine ended", extra={"model": "m", "rc": -11})
        logging.getLogger("library").warning("took %s ms", 5)
        ours, theirs = lines(out)
        assert ours.pop("time").endswith("Z")
        assert theirs.pop("time").endswith("Z")
        assert ours == {"event": "engine ended", "level": "warning", "logger": "gnusnode.test", "model": "m", "rc": -11}
        assert theirs == {"event": "took 5 ms", "level": "warning", "logger": "library"}

    def test_what_is_below_the_level_is_not_written(self) -> None:
        out = captured("warning")
        logging.getLogger("a").info("x")
        assert out.getvalue() == ""

    def test_what_is_bound_to_the_task_stands_on_each_line(self) -> None:
        out = captured()
        with logs.bound(request_id=REQUEST, model="a"):
            logging.getLogger("a").info("x")
            with logs.bound(model="b"):
                logging.getLogger("b").info("y", extra={"code": "c"})
        logging.getLogger("a").info("z")
        x, y, z = lines(out)
        assert (x["request_id"], x["model"]) == (REQUEST, "a")
        assert (y["request_id"], y["model"], y["code"]) == (REQUEST, "b", "c")
        assert "request_id" not in z

    async def test_it_follows_into_tasks_that_are_started_inside(self) -> None:
        out = captured()

        async def work() -> None:
            logging.getLogger("a").info("x")

        async with trio.open_nursery() as nursery:
            with logs.bound(request_id=REQUEST):
                nursery.start_soon(work)
        assert lines(out)[0]["request_id"] == REQUEST

    def test_a_wrong_placeholder_does_not_lose_the_line(self) -> None:
        out = captured()
        logging.getLogger("a").info("%d apples", "two")
        assert lines(out)[0]["event"] == "%d apples"

    def test_no_field_of_an_event_is_in_the_way_of_a_log_record(self) -> None:
        reserved = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
        own = {"time", "level", "logger", "event", "error"}
        assert not {field for kind in EVENTS.values() for field in kind.model_fields} & (reserved | own)

    def test_a_terminal_gets_lines_for_people_and_a_file_json(self) -> None:
        terminal, file = Terminal(), io.StringIO()
        for stream in (terminal, file):
            logs.configure(stream=stream)
            logging.getLogger("a.b").info("it happened", extra={"count": 3})
        assert terminal.getvalue().rstrip().endswith("INFO    it happened count=3  [a.b]")
        assert lines(file)[0]["count"] == 3
        logs.configure(form="json", stream=terminal)
        logging.getLogger("a").info("z")
        assert json.loads(terminal.getvalue().splitlines()[-1])["event"] == "z"

    def test_events_are_written_the_frequent_ones_at_debug(self) -> None:
        out = captured()
        bus = EventBus(logs.log_event)
        bus.publish(RequestRefused(code="overloaded"))
        bus.publish(StageEnded(request_id=REQUEST, stage="routing", outcome="ok", elapsed_ms=1))
        [line] = lines(out)
        assert (line["event"], line["code"], line["level"]) == ("request.refused", "overloaded", "info")
        out = captured("debug")
        bus.publish(StageEnded(request_id=REQUEST, stage="routing", outcome="ok", elapsed_ms=1))
        assert lines(out)[0]["stage"] == "routing"


class TestHostileValues:
    @pytest.mark.parametrize("form", ["json", "console"])
    @pytest.mark.parametrize(
        "value", ["a\nERROR forged", "a\r\x1b[2Jb", "a\u202eb", "a\x00b", "a\u2028b", "a\x85b", "\ud800", "a\x9b1mb"]
    )
    def test_no_value_begins_a_line_or_moves_a_cursor(self, form: str, value: str) -> None:
        out = captured(form=form)
        logging.getLogger("a").info("x", extra={"field": value})
        logging.getLogger("a").info("%s", value)
        text = out.getvalue()
        assert text.count("\n") == 2
        assert text.replace("\n", "").isprintable()
        text.encode("utf-8")

    def test_a_long_value_is_cut_and_says_how_long_it_was(self) -> None:
        out = captured()
        fields = {"field": "y" * 5000, "many": ["z" * 500] * 500, "tree": {"k": "v" * 5000}}
        logging.getLogger("a").info("x" * 5000, extra=fields)
        [line] = lines(out)
        assert len(out.getvalue()) < 20_000
        assert line["field"].endswith("… (5000 characters)")
        assert len(line["field"]) < logs.MAX_VALUE + 40
        assert len(line["many"]) == 40

    def test_any_object_can_be_a_value(self) -> None:
        out = captured()
        values = {"path": Path("/a"), "data": b"\xff" * 9, "nothing": None, "yes": True, "number": 1.5, "set_": {1}}
        logging.getLogger("a").info("x", extra=values)
        [line] = lines(out)
        assert line["path"] == "/a"
        assert line["data"].startswith("sha256:")
        assert (line["nothing"], line["yes"], line["number"], line["set_"]) == (None, True, 1.5, "{1}")


class TestContent:
    @pytest.mark.parametrize("field", ["prompt", "text", "output", "messages", "user_query", "arguments"])
    def test_a_field_that_promises_content_is_written_as_its_digest(self, field: str) -> None:
        out = captured("debug")
        logging.getLogger("a").info("x", extra={field: SECRET})
        logging.getLogger("a").info("x", extra={field: [SECRET]})
        assert SECRET not in out.getvalue()
        assert lines(out)[0][field].endswith("(19 bytes)")

    def test_an_unexpected_exception_shows_places_and_no_message(self) -> None:
        out = captured()
        try:
            try:
                raise ValueError(SECRET)
            except ValueError as error:
                raise ExceptionGroup(SECRET, [KeyError(SECRET)]) from error
        except ExceptionGroup:
            logging.getLogger("a").exception("failed")
        assert SECRET not in out.getvalue()
        for line in lines(out):
            assert line["error"][0].startswith("ExceptionGroup: sha256:")
            assert "test_an_unexpected_exception" in line["error"][1]
            assert line["error"][2].startswith("KeyError: sha256:")

    def test_debug_shows_messages_and_our_own_errors_always_do(self) -> None:
        out = captured("debug")
        for error in (ValueError(SECRET), NoExpert("nobody serves 'elm'")):
            logging.getLogger("a").error("failed", exc_info=error)
        assert [line["error"] for line in lines(out)] == [[f"ValueError: {SECRET}"], ["NoExpert: nobody serves 'elm'"]]
        out = captured()
        for error in (NoExpert("nobody serves 'elm'"), FileNotFoundError(2, "No such file", "/x")):
            logging.getLogger("a").error("failed", exc_info=error)
        assert [line["error"][0] for line in lines(out)] == [
            "NoExpert: nobody serves 'elm'",
            "FileNotFoundError: [Errno 2] No such file: '/x'",
        ]

    def test_a_chain_of_causes_without_end_is_cut(self) -> None:
        out = captured()
        first, second = ValueError("a"), ValueError("b")
        first.__cause__, second.__cause__ = second, first
        logging.getLogger("a").error("failed", exc_info=first)
        assert len(lines(out)[0]["error"]) == 40

    def test_a_person_reads_the_places_below_the_line(self) -> None:
        out = captured(form="console")
        logging.getLogger("a").error("failed", exc_info=NoExpert("nobody"))
        assert out.getvalue().splitlines()[1] == "NoExpert: nobody"


class TestSurroundings:
    def run(self, code: str, **where: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-c", f"from gnusnode.observe import logs; import logging; {code}"],
            env={"PATH": os.defpath, "PYTHONPATH": str(REPOSITORY), "LC_ALL": "C"},
            timeout=60,
            check=False,
            **where,
        )

    @pytest.mark.parametrize("form", ["json", "console"])
    def test_any_text_can_be_logged_under_the_c_locale(self, form: str) -> None:
        code = f"logs.configure(form='{form}'); logging.getLogger('a').info('ünï', extra={{'field': '節点 \\udcff'}})"
        done = self.run(code, capture_output=True)
        assert done.stderr.count(b"\n") == 1
        assert done.stdout == b""

    def test_a_full_disk_behind_the_log_does_not_stop_the_work(self) -> None:
        with Path("/dev/full").open("wb") as full:
            done = self.run(
                "logs.configure(); logging.getLogger('a').error('x'); print('still here')",
                stderr=full,
                stdout=subprocess.PIPE,
            )
        assert done.stdout == b"still here\n"
