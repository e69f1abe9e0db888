"""Whether each value of a call has somebody to answer for it: the user, trusted memory, or a first-party store.

Where a model chose, it may have obeyed an attacker. So a call holds at most one choice of the model, a target that a
store vouches for or a text, and where the choice would matter most it holds none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gnusnode.policy.case import Case
from gnusnode.policy.flow import OWN_CHOICE, Finding, ask
from gnusnode.policy.labels import Integrity, Width
from gnusnode.policy.provenance import How, Trace, Tracer
from gnusnode.policy.shown import quoted
from gnusnode.policy.sinks import Effect, SinkKind
from gnusnode.policy.wording import links

_SAFE_TEXT: Final = OWN_CHOICE | {How.COMPOSED, How.PICKED}
_FREE: Final = frozenset({How.READ, How.WRITTEN, How.POINTED})


def provenance(case: Case, tracer: Tracer, traces: tuple[Trace, ...]) -> Iterator[Finding]:
    """Every value that a person must look at, with the reason."""
    for trace in traces:
        match trace.kind:
            case SinkKind.BODY:
                yield from _text(case, tracer, trace)
            case SinkKind.URL:
                yield from _address(case, tracer, trace)
            case _:
                if trace.how in _FREE:
                    yield _untraced(trace)
    yield from _choices(case, traces)


def _text(case: Case, tracer: Tracer, trace: Trace) -> Iterator[Finding]:
    """A text for others carries no address that the user did not give, no copy, and nothing that could be foreign."""
    if trace.width is Width.OWN:
        return
    if trace.strange_links:
        shown = ", ".join(quoted(link) for link in trace.strange_links[:4])
        yield ask("STRANGE_LINK", f"the text holds addresses that you did not give: {shown}", trace.path)
    if trace.copied:
        yield ask("COPIED_TEXT", "the text repeats what a stranger may have written", trace.path)
    if trace.how in _SAFE_TEXT or trace.width is Width.MEMBERS:
        return
    if trace.how is How.WRITTEN and tracer.context.integrity is not Integrity.TAINTED:
        return  # nobody but the user has had a say yet
    if case.tool.effect is Effect.READ and tracer.said.holds_in_order(trace.value):
        return  # a search made of the user's words
    yield _untraced(trace)


def _address(case: Case, tracer: Tracer, trace: Trace) -> Iterator[Finding]:
    """An address, with its path and query, tells its host whatever it is made of. `flow.places` looks at the host."""
    if trace.how in OWN_CHOICE or (trace.how is How.POINTED and case.tool.effect is Effect.READ):
        return
    if inner := [link for link in links(trace.value.partition("://")[2]) if "://" in link]:
        yield ask("STRANGE_LINK", f"the address carries another one: {quoted(inner[0])}", trace.path)
    if tracer.context.integrity is Integrity.TAINTED:
        yield _untraced(trace)


def _choices(case: Case, traces: tuple[Trace, ...]) -> Iterator[Finding]:
    if case.tool.effect is Effect.DESTROY and not traces:
        yield ask("NO_GROUNDS", "this cannot be taken back, and nothing in it is said by you")
    picked = [trace for trace in traces if trace.how is How.PICKED and trace.kind is not SinkKind.BODY]
    if not picked:
        return
    free = [trace for trace in traces if trace.how in _FREE and trace.width is not Width.OWN]
    if case.tool.effect is Effect.DESTROY:
        yield ask("PICKED_TARGET", "this cannot be taken back, and the model chose what it is done to", picked[0].path)
    elif len(picked) > 1 or free:
        yield ask("PICKED_TARGET", "the model chose more than one thing about this call", picked[0].path)


def _untraced(trace: Trace) -> Finding:
    if trace.how in (How.READ, How.POINTED):
        return ask("TAINTED_ARGUMENT", f"{quoted(trace.value)} comes from {trace.source}", trace.path)
    return ask("UNTRACED_ARGUMENT", f"{quoted(trace.value)} is nothing that you said", trace.path)
