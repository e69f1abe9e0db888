"""What a tool says of itself: its effect on the world, which of its arguments can do harm, who may write its output.

An argument that a description does not mention counts as a body for the whole world to see: what is forgotten makes a
tool less usable, never less safe.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints, model_validator

from gnusnode.contracts.fields import Capability, Part
from gnusnode.contracts.ids import Sha256
from gnusnode.contracts.tools import ToolName
from gnusnode.policy.labels import Confidentiality, Party, Width, wider

FieldName = Annotated[str, StringConstraints(max_length=128)]
FieldNames = Annotated[tuple[FieldName, ...], Field(max_length=64)]
EVERY_FIELD: Final = "*"
LISTED: Final = ""
"""The field of what stands in an output as an item of a list or a line of a listing."""


class SinkKind(StrEnum):
    """What an argument can do harm with."""

    URL = "url"
    RECIPIENT = "recipient"
    PATH = "path"
    COMMAND = "command"
    AMOUNT = "amount"
    ID = "id"
    """The name of a thing: of the one that is changed, or of a new one."""
    BODY = "body"
    """Text that somebody will read."""


class Effect(StrEnum):
    """What a call does to the world, mildest first."""

    READ = "read"
    WRITE = "write"
    """Adds or changes something."""
    DESTROY = "destroy"
    """Takes something away, or cannot be taken back."""


class Authors(StrEnum):
    """Who may have written what a tool returns."""

    STORE = "store"
    """The user and the provider of the store; free text in it may still come from elsewhere."""
    MEMBERS = "members"
    """People who are known to the store, and whose name it puts on what they write."""
    ANYONE = "anyone"


_EFFECTS: Final = tuple(Effect)
_AUTHORS: Final = tuple(Authors)


class Sink(Part):
    """One argument that can do harm, and who sees what is put into it."""

    argument: FieldName
    kind: SinkKind
    width: Width = Width.PUBLIC
    keys: FieldNames = ()
    """Keys that objects inside the argument have by the tool's schema. Any other key is looked at like a value."""
    seen_by: FieldName | None = None
    """The argument that names the readers. A call without any is seen by the user alone."""

    def width_in(self, arguments: dict[str, Any]) -> Width:
        """Who sees the argument in this very call."""
        return Width.OWN if self.seen_by is not None and not arguments.get(self.seen_by) else self.width


class Output(Part):
    """What a tool returns, as far as it can be told beforehand."""

    authors: Authors = Authors.ANYONE
    stamped: FieldNames = ()
    """Fields that the store itself fills in or vouches for, such as ids, names and senders: no author of an entry can
    choose them for another one. ``*`` stands for all, the empty name for the items of a plain list."""
    names: FieldNames = ()
    """Those of the stamped fields by which people speak of an entry: its title, its sender, its amount."""
    amounts: FieldNames = ()
    """Those of the stamped fields that hold amounts: no other number can pass for one."""
    confidentiality: Confidentiality = Confidentiality.PRIVATE
    readers: Annotated[tuple[Party, ...], Field(max_length=256)] = ()
    """Parties that may see it although they are outside its circle."""

    def vouches_for(self, field: str) -> bool:
        """Whether the store itself answers for ``field``. What anyone may send in is vouched for by nobody."""
        return self.authors is not Authors.ANYONE and (field in self.stamped or EVERY_FIELD in self.stamped)


class ToolDescription(Part):
    """What the policy must know of a tool. Whoever writes an adapter declares it; a test of the adapter proves it."""

    name: ToolName
    capability: Capability
    effect: Effect = Effect.DESTROY
    sinks: Annotated[tuple[Sink, ...], Field(max_length=64)] = ()
    harmless: FieldNames = ()
    """Arguments that can do no harm, whatever stands in them: a page number, the time of an own entry."""
    output: Output = Output()
    needs_secrets: bool = False
    third_party: bool = False
    """Described by somebody else, as tools of MCP servers are: a person is asked before every call."""
    description_hash: Sha256 | None = None
    """Of the third party's own description, to the letter: when it changes, no earlier approval holds."""

    @model_validator(mode="after")
    def _each_argument_once(self) -> ToolDescription:
        names = [sink.argument for sink in self.sinks] + list(self.harmless)
        if len(set(names)) != len(names):
            raise ValueError("an argument is described twice")
        return self

    @property
    def described_arguments(self) -> frozenset[str]:
        return frozenset(sink.argument for sink in self.sinks) | frozenset(self.harmless)

    def sink_of(self, argument: str) -> Sink | None:
        """What can be done with ``argument``; None: no harm."""
        for sink in self.sinks:
            if sink.argument == argument:
                return sink
        if argument in self.harmless:
            return None
        return Sink(argument=argument, kind=SinkKind.BODY)


def third_party(
    name: str,
    capability: str,
    arguments: tuple[str, ...],
    *,
    description_hash: str,
    annotations: dict[str, Any] | None = None,
) -> ToolDescription:
    """A tool that somebody else describes: the worst is assumed, and its annotations can only add to that."""
    worst = ToolDescription(
        name=name,
        capability=capability,
        sinks=tuple(Sink(argument=argument, kind=SinkKind.BODY) for argument in arguments),
        third_party=True,
        description_hash=description_hash,
    )
    return raised_by(worst, annotations or {})


def raised_by(tool: ToolDescription, annotations: dict[str, Any]) -> ToolDescription:
    """``tool`` with what the annotations of a third party add to its risk. They never take any away."""
    effect = tool.effect
    if annotations.get("readOnlyHint") is False:
        effect = max(effect, Effect.WRITE, key=_EFFECTS.index)
    if annotations.get("destructiveHint") is True:
        effect = Effect.DESTROY
    output, sinks = tool.output, tool.sinks
    if annotations.get("openWorldHint") is True:
        output = Output(
            authors=max(output.authors, Authors.ANYONE, key=_AUTHORS.index),
            confidentiality=output.confidentiality,
        )
        sinks = tuple(sink.model_copy(update={"width": wider(sink.width, Width.THIRD_PARTY)}) for sink in tool.sinks)
    return tool.model_copy(update={"effect": effect, "output": output, "sinks": sinks})
