"""Tool proposals in two cheap passes: which tool or none by label scoring, then its arguments under its own schema.

Pure but for the id of a proposal. Nothing here can run a tool: a proposal is data that the intermediary, or the client
whose function it is, may act on.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Final, NoReturn

from pydantic import ValidationError

from gnusnode.contracts.generation import MAX_LABELS, ClassifyRequest, GenerateRequest, Message, Prompt
from gnusnode.contracts.services import ToolSpec
from gnusnode.contracts.tools import ToolProposal
from gnusnode.errors import RequestError, SchemaRefused, UnsupportedField
from gnusnode.inference.grammar import ANNOTATIONS, compile_schema

NONE_LABEL: Final = "none"
MAX_ARGUMENT_TOKENS: Final = 1024
"""Of the arguments of one call; longer ones are cut off and count as invalid."""

_NEEDS_NO_TOOL: Final = ("Good evening!", "Tell me a story.", "Explain what a verb is.", "How are you?")
_KNOWN_RESULT: Final = 2000
"""Characters of a tool's result that the choice of the next tool looks at."""
_DESCRIPTION: Final = 300
"""Characters of a tool's description that the choice looks at."""
_WORD: Final = re.compile(r"\w+")


def offered(tools: Sequence[ToolSpec], tool_choice: str) -> tuple[ToolSpec, ...]:
    """The tools that may be proposed under ``tool_choice``.

    Raises:
        RequestError: it names a tool that is not offered, or asks for one where none is.
    """
    if tool_choice == "none":
        return ()
    if tool_choice == "auto":
        return tuple(tools)
    if tool_choice == "required" and tools:
        return tuple(tools)
    named = tuple(tool for tool in tools if tool.name == tool_choice)
    if not named:
        raise RequestError(
            f"tool_choice asks for {tool_choice!r}, which is not among the tools",
            param="tool_choice",
            hint="offer it in tools, or use auto, none, required or the name of an offered tool",
        )
    return named


def check_parameters(place: int, tool: ToolSpec) -> None:
    """Refuses before the first token what would fail, or be left out in silence, once the tool is picked.

    Takes some milliseconds for the largest schemas.

    Args:
        place: of the tool in the request, from 0.

    Raises:
        SchemaRefused: arguments for its parameters cannot be generated.
    """
    schema: dict[str, Any] = tool.parameters
    reason, where = "", "json_schema"
    try:
        compile_schema(schema)
    except SchemaRefused as error:
        reason, where = error.what.partition(": ")[2], error.param or where
    kinds = schema.get("type", "object")
    if not reason and (
        schema.keys() & {"enum", "const"} or "object" not in ([kinds] if isinstance(kinds, str) else kinds)
    ):
        reason = "arguments are an object"
    if reason:
        raise SchemaRefused(
            f"the parameters of the tool {tool.name!r} are not supported: {reason}",
            where=where.replace("json_schema", "parameters", 1),
            param=f"tools.{place}.function.parameters",
            hint="see the documentation for the supported part of JSON Schema",
        )


def messages_of(request: GenerateRequest) -> tuple[Message, ...]:
    """The conversation to which tools are offered.

    Raises:
        UnsupportedField: the prompt is not made of messages.
    """
    if request.prompt.messages is None:
        raise UnsupportedField("tools need a prompt of messages", param="tools", hint="use /v1/chat/completions")
    return request.prompt.messages


def choice_request(request: GenerateRequest, tools: Sequence[ToolSpec], *, may_decline: bool) -> ClassifyRequest | None:
    """The label scoring that picks a tool; None when there is nothing to choose."""
    labels = [tool.name for tool in tools] + ([NONE_LABEL] if may_decline else [])
    if len(labels) < 2:
        return None
    return ClassifyRequest(
        request_id=request.request_id,
        instruction=_instruction(tools, may_decline=may_decline),
        text=_asked(messages_of(request)),
        suffix="\nTool:",
        labels=tuple(f" {label}" for label in labels),
        tenant=request.tenant,
    )


def _instruction(tools: Sequence[ToolSpec], *, may_decline: bool) -> str:
    """Tools and one example of each, mixed with talk that needs none: small models follow examples, not rules."""
    names = [f"- {tool.name}: {_one_line(tool.description)}" for tool in tools]
    examples = [f"Request: {_one_line(tool.description)}\nTool: {tool.name}" for tool in tools]
    if may_decline:
        names.append(f"- {NONE_LABEL}: no tool is needed, just an answer in words")
        talk = [f"Request: {said}\nTool: {NONE_LABEL}" for said in _NEEDS_NO_TOOL]
        examples = [part for pair in zip_longest(examples, talk) for part in pair if part]
    return "Tools:\n" + "\n".join(names) + "\n\n" + "\n\n".join(examples) + "\n\nRequest: "


def shortlist(tools: Sequence[ToolSpec], messages: Sequence[Message], *, may_decline: bool) -> tuple[ToolSpec, ...]:
    """At most as many tools as labels can be scored: those whose words occur most in the request come first."""
    limit = MAX_LABELS - (1 if may_decline else 0)
    if len(tools) <= limit:
        return tuple(tools)
    asked = set(_WORD.findall(_asked(messages).lower()))

    def overlap(tool: ToolSpec) -> int:
        return len(asked & set(_WORD.findall(f"{tool.name} {tool.description}".lower().replace("_", " "))))

    ranked = sorted(range(len(tools)), key=lambda place: (-overlap(tools[place]), place))
    return tuple(tools[place] for place in sorted(ranked[:limit]))


def arguments_request(request: GenerateRequest, tool: ToolSpec, max_tokens: int) -> GenerateRequest:
    """The constrained generation of a tool's arguments. The conversation stays the prefix, so its cache serves."""
    messages = messages_of(request)
    ask = (
        f"Call the function {tool.name} ({_one_line(tool.description)}) for the request above. "
        "Answer with its arguments as JSON only."
    )
    last = messages[-1]
    if last.role == "user":
        asked = (*messages[:-1], last.model_copy(update={"content": f"{last.content}\n\n{ask}"}))
    else:
        asked = (*messages, Message(role="user", content=ask))
    return request.model_copy(
        update={
            "prompt": Prompt(messages=asked),
            "max_tokens": min(max_tokens, MAX_ARGUMENT_TOKENS),
            "json_schema": tool.parameters,
            "stop": (),
            "resume_tokens": (),
            "top_logprobs": None,
        }
    )


def proposal(tool: ToolSpec, text: str, reason: str) -> ToolProposal | None:
    """The proposal with the arguments that ``text`` spells; None when it is not a JSON object within our bounds."""
    try:
        arguments = json.loads(text, parse_constant=_not_json)
        return ToolProposal(
            tool_call_id=str(uuid.uuid4()), tool_name=tool.name, arguments=arguments, reason=reason[:1024]
        )
    except (ValueError, RecursionError, ValidationError):
        return None


def takes_no_arguments(tool: ToolSpec) -> bool:
    """Whether the tool's schema leaves nothing to fill in: there is none, or it is an object without properties."""
    schema: dict[str, Any] = tool.parameters
    asks = schema.keys() - ANNOTATIONS - {"$defs", "definitions"}
    return not asks or (schema.get("type") == "object" and not schema.get("properties"))


def _asked(messages: Sequence[Message]) -> str:
    """The last words of the user, and what a tool has answered to them since."""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].role == "user":
            known = [message.content[:_KNOWN_RESULT] for message in messages[place + 1 :] if message.role == "tool"]
            return "\nAlready known: ".join([messages[place].content, *known])
    return messages[-1].content


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_DESCRIPTION] or "no description"


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
