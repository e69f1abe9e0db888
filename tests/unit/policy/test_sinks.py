"""What tools say of themselves, and what others may add to it."""

from __future__ import annotations

import pytest

from gnusnode.contracts import ids
from gnusnode.policy.labels import Width
from gnusnode.policy.sinks import Authors, Effect, Output, Sink, SinkKind, ToolDescription, raised_by, third_party

HASH = ids.sha256(b"what the server says of the tool")


def test_what_a_description_forgets_counts_as_the_worst() -> None:
    tool = ToolDescription(name="t", capability="tool:t")
    assert tool.effect is Effect.DESTROY
    assert tool.output.authors is Authors.ANYONE
    sink = tool.sink_of("anything")
    assert sink is not None
    assert (sink.kind, sink.width) == (SinkKind.BODY, Width.PUBLIC)


def test_annotations_of_a_third_party_cannot_make_its_tool_look_safer() -> None:
    hints = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
    plain = third_party("x.y", "mcp:x.y", ("a",), description_hash=HASH)
    assert third_party("x.y", "mcp:x.y", ("a",), description_hash=HASH, annotations=hints) == plain
    assert plain.effect is Effect.DESTROY
    assert plain.third_party


@pytest.mark.parametrize(
    ("hints", "effect"),
    [
        ({"readOnlyHint": False}, Effect.WRITE),
        ({"destructiveHint": True}, Effect.DESTROY),
        ({"readOnlyHint": True, "destructiveHint": True}, Effect.DESTROY),
        ({"readOnlyHint": "yes", "destructiveHint": "no"}, Effect.READ),
    ],
)
def test_annotations_can_raise_the_risk(hints: dict[str, object], effect: Effect) -> None:
    reading = ToolDescription(name="t", capability="tool:t", effect=Effect.READ)
    assert raised_by(reading, hints).effect is effect


def test_an_open_world_widens_sinks_and_trusts_no_output() -> None:
    tool = ToolDescription(
        name="t",
        capability="tool:t",
        sinks=(Sink(argument="a", kind=SinkKind.BODY, width=Width.OWN),),
        output=Output(authors=Authors.STORE, stamped=("id",), readers=("ann",)),
    )
    raised = raised_by(tool, {"openWorldHint": True})
    assert raised.sinks[0].width is Width.THIRD_PARTY
    assert not raised.output.vouches_for("id")
    assert raised.output.readers == ()


def test_an_argument_is_described_once() -> None:
    sink = Sink(argument="a", kind=SinkKind.BODY)
    with pytest.raises(ValueError, match="twice"):
        ToolDescription(name="t", capability="tool:t", sinks=(sink,), harmless=("a",))
