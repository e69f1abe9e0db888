"""``POST /v1/chat/completions``: the request, and its translation into a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, StringConstraints
from pydantic_core import to_json

from gnusnode.api.gateway import RequestInfo
from gnusnode.api.openai.common import SamplingFields, Wire, per_choice, unsupported
from gnusnode.api.options import ApiOptions
from gnusnode.contracts.generation import MAX_TEXT_CHARS, GenerateRequest, Message, Prompt
from gnusnode.contracts.services import TaskRequest, ToolSpec
from gnusnode.errors import RequestError, UnsupportedField
from gnusnode.inference.grammar import compile_schema

ToolName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class ContentPart(Wire):
    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(Wire):
    name: ToolName
    arguments: str = ""


class ToolCall(Wire):
    id: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Wire):
    role: str
    content: str | list[ContentPart] | None = None
    name: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=64)] | None = None
    tool_call_id: str | None = None


class Function(Wire):
    name: ToolName
    description: Annotated[str, StringConstraints(max_length=4096)] | None = None
    parameters: dict[str, JsonValue] | None = None


class Tool(Wire):
    type: str
    function: Function | None = None


class NamedTool(Wire):
    type: str
    function: Function | None = None


class JsonSchemaFormat(Wire):
    name: Annotated[str, StringConstraints(max_length=128)] = "answer"
    schema_: Annotated[dict[str, JsonValue], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Wire):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class ChatRequest(SamplingFields):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1000)]
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=64)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    user: str | None = None
    # Fields that change the meaning of an answer and are refused by name:
    modalities: list[str] | None = None
    audio: JsonValue = None
    functions: JsonValue = None
    function_call: JsonValue = None
    web_search_options: JsonValue = None

    def refuse(self) -> None:
        """Raises ``RequestError`` for what would change the meaning and is not supported."""
        self.refuse_common()
        if self.modalities and self.modalities != ["text"]:
            raise unsupported("modalities", "ask for text only")
        for name, hint in _REFUSED.items():
            if getattr(self, name) is not None:
                raise unsupported(name, hint)
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        if self.tool_choice is not None and not self.tools:
            raise RequestError("tool_choice is only allowed with tools", param="tool_choice")


_REFUSED = {
    "audio": None,
    "functions": "use tools",
    "function_call": "use tool_choice",
    "web_search_options": None,
}


def to_task(chat: ChatRequest, info: RequestInfo, options: ApiOptions, *, n_ctx: int | None) -> TaskRequest:
    """The task that a chat request asks for. ``n_ctx`` is the context of the named model, if it is known.

    Raises:
        RequestError: the request contradicts itself, or asks for something unsupported; ``param`` names it.
    """
    chat.refuse()
    asked = chat.max_completion_tokens or chat.max_tokens or default_max_tokens(options, n_ctx)
    policy = chat.policy(info, options, asked * chat.choices)
    generation = GenerateRequest(
        request_id=info.request_id,
        prompt=Prompt(messages=tuple(_messages(chat.messages))),
        max_tokens=per_choice(asked, policy, chat.choices),
        sampling=chat.sampling(options.default_sampling),
        stop=tuple(chat.stop or ()),
        json_schema=_schema(chat.response_format),
        top_logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
        profile=chat.profile,
        tenant=info.principal.tenant,
        deadline_ms=int(min(options.request_seconds * 1000, policy.max_wall_ms)),
    )
    tools = tuple(_tool(at, tool) for at, tool in enumerate(chat.tools or ()))
    return TaskRequest(
        model=chat.model,
        generation=generation,
        choices=chat.choices,
        tools=tools,
        tool_choice=_tool_choice(chat.tool_choice, tools),
        policy=policy,
        open_sampling=chat.open_sampling,
    )


def default_max_tokens(options: ApiOptions, n_ctx: int | None) -> int:
    """What an answer may take when the request does not say: never more than half of the context."""
    return options.default_max_tokens if n_ctx is None else max(1, min(options.default_max_tokens, n_ctx // 2))


def _schema(wanted: ResponseFormat | None) -> dict[str, Any] | None:
    match wanted:
        case None | ResponseFormat(type="text"):
            return None
        case ResponseFormat(type="json_object"):
            return {"type": "object"}
        case ResponseFormat(json_schema=JsonSchemaFormat() as given):
            # Compiled again where it is used; here so that a refusal says where in the request it lies.
            compile_schema(given.schema_, "response_format.json_schema.schema")
            return dict(given.schema_)
        case _:
            raise RequestError("json_schema is missing", param="response_format.json_schema")


def _tool(at: int, tool: Tool) -> ToolSpec:
    if tool.type != "function":
        raise UnsupportedField(
            f"tools of type {tool.type!r} are not supported here", param=f"tools.{at}.type", hint="use type 'function'"
        )
    if tool.function is None:
        raise RequestError("function is missing", param=f"tools.{at}.function")
    return ToolSpec(
        name=tool.function.name,
        description=tool.function.description or "",
        parameters=dict(tool.function.parameters or {}),
    )


def _tool_choice(choice: str | NamedTool | None, tools: Sequence[ToolSpec]) -> str:
    if choice is None:
        return "auto" if tools else "none"
    if isinstance(choice, str):
        return choice
    if choice.type != "function" or choice.function is None:
        raise UnsupportedField(f"tool_choice of type {choice.type!r} is not supported here", param="tool_choice.type")
    if all(choice.function.name != tool.name for tool in tools):
        raise RequestError(
            f"tool_choice names {choice.function.name!r}, which is not among tools", param="tool_choice.function.name"
        )
    return choice.function.name


# --- messages -------------------------------------------------------------------------------------------------------


def _messages(given: Sequence[ChatMessage]) -> list[Message]:
    """The conversation as roles and text. A model's template knows no tool calls, so they are told in words."""
    called: dict[str, str] = {}
    found: list[Message] = []
    for at, message in enumerate(given):
        role = _ROLES.get(message.role)
        if role is None:
            raise RequestError(
                f"messages.{at}.role: {message.role!r} is not a role",
                param=f"messages.{at}.role",
                hint=f"use one of {', '.join(_ROLES)}",
            )
        text, name = _text(at, message), message.name
        if role == "tool":
            name = called.get(message.tool_call_id or "")
            if name is None:
                raise RequestError(
                    f"messages.{at}.tool_call_id does not name a tool call of an earlier assistant message",
                    param=f"messages.{at}.tool_call_id",
                )
        if role == "assistant":
            called |= {call.id: call.function.name for call in message.tool_calls or ()}
            text = "\n".join([*([text] if text else []), *map(_told, message.tool_calls or ())])
        if len(text) > MAX_TEXT_CHARS:
            raise RequestError(
                f"messages.{at} has {len(text)} characters, and {MAX_TEXT_CHARS} are the most, tool calls included",
                param=f"messages.{at}.content",
                hint="shorten the message, or send it in parts",
            )
        found.append(Message.model_validate({"role": role, "content": text, "name": name}))
    return found


def _told(call: ToolCall) -> str:
    """A tool call in words, in the JSON form that most small models were trained to write."""
    name = to_json(call.function.name).decode()
    return f'<tool_call>{{"name": {name}, "arguments": {call.function.arguments or "{}"}}}</tool_call>'


def _text(at: int, message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    if message.content is None:
        if message.role == "assistant":
            return ""
        raise RequestError(f"messages.{at}.content is missing", param=f"messages.{at}.content")
    parts: list[str] = []
    for position, part in enumerate(message.content):
        text = {"text": part.text, "refusal": part.refusal}.get(part.type)
        if text is None:
            raise UnsupportedField(
                f"content of type {part.type!r} is not supported here",
                param=f"messages.{at}.content.{position}.type",
                hint="send parts of type 'text'",
            )
        parts.append(text)
    return "\n".join(parts)
