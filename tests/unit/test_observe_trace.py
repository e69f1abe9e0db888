"""``traceparent``: what the W3C recommendation calls valid goes on, everything else begins anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnusnode.observe import trace
from gnusnode.observe.trace import TraceContext

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("value", "sampled"),
    [
        (VALID, True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"cc-{TRACE}-{SPAN}-03", True),
        (f"01-{TRACE}-{SPAN}-01-what-the-future-brings", True),
    ],
)
def test_valid_values_are_understood(value: str, sampled: bool) -> None:
    assert trace.parse(value) == TraceContext(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        VALID.upper(),
        f" {VALID}",
        f"{VALID} ",
        f"{VALID}\n",
        f"{VALID}-x",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0g",
        f"ff-{TRACE}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01x",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}0-01",
        f"0-{TRACE}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01-{'x' * 300}",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
    ],
)
def test_all_else_is_refused(value: str | None) -> None:
    assert trace.parse(value) is None


@given(st.text())
def test_no_text_raises_and_a_request_always_gets_a_trace(text: str) -> None:
    parsed = trace.parse(text)
    context = trace.continue_or_start(text)
    assert trace.parse(str(context)) == context
    assert parsed is None or context.trace_id == parsed.trace_id


def test_a_trace_is_continued_without_the_strangers_wish_to_be_sampled() -> None:
    child = trace.continue_or_start(VALID)
    assert child.trace_id == TRACE
    assert child.span_id != SPAN
    assert child.sampled is False


def test_what_is_written_is_what_was_read() -> None:
    assert str(trace.parse(VALID)) == VALID
    assert TraceContext.new().trace_id != TraceContext.new().trace_id
