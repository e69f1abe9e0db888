"""``run`` asks one question, ``chat`` holds a conversation; both through the node's OpenAI surface."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnusnode.cli import output
from gnusnode.cli.connect import connect
from gnusnode.cli.output import HomeOption, JsonOption, guarded

if TYPE_CHECKING:
    from gnusnode.cli.client import NodeClient

ModelOption = Annotated[str, typer.Option("--model", "-m", help="A model or expert; 'gnus' lets the router decide.")]
SystemOption = Annotated[str | None, typer.Option("--system", help="A system message.")]
TokensOption = Annotated[int | None, typer.Option("--max-tokens", min=1, help="Longest answer, in tokens.")]
TemperatureOption = Annotated[float | None, typer.Option(min=0, max=2, help="0 always picks the likeliest token.")]
SeedOption = Annotated[int | None, typer.Option(min=1, help="The same seed gives the same answer.")]


@guarded
def run(
    prompt: Annotated[list[str], typer.Argument(help="The question; '-' reads it from standard input.")],
    model: ModelOption = "gnus",
    system: SystemOption = None,
    max_tokens: TokensOption = None,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask one question and print the answer."""
    from gnusnode.errors import RequestError

    text = _text(sys.stdin.read() if prompt == ["-"] else " ".join(prompt))
    if not text.strip():
        raise RequestError("there is no question", hint='gnusnode run "Why is the sky blue?", or pipe it to: run -')
    body = _request(model, _opening(system), text, max_tokens, temperature, seed)
    client = connect(home, timeout=None)
    if as_json:
        output.emit(client.post("/v1/chat/completions", body))
        return
    _stream(client, body)


@guarded
def chat(
    model: ModelOption = "gnus",
    system: SystemOption = None,
    max_tokens: TokensOption = None,
    temperature: TemperatureOption = None,
    seed: SeedOption = None,
    home: HomeOption = None,
) -> None:
    """Hold a conversation. /new starts over, /quit or Ctrl-D leaves; Ctrl-C stops an answer."""
    from gnusnode.errors import GnusError, NotRunning

    client = connect(home, timeout=None)
    client.get("/healthz")  # a node that is gone is told before the first message is typed
    history = _opening(system)
    interactive = sys.stdin.isatty()
    if interactive:
        with suppress(ImportError):  # not in every build of Python; input() uses it when it is there
            importlib.import_module("readline")  # gives the line its history and arrow keys
        output.note("Type your message. /new starts over, /quit leaves.")
    while True:
        try:
            text = _text(input("> " if interactive else "")).strip()
        except EOFError:
            return
        if text in ("/quit", "/exit", "/bye"):
            return
        if text == "/new":
            history = _opening(system)
            continue
        if not text:
            continue
        try:
            answer = _stream(client, _request(model, history, text, max_tokens, temperature, seed))
        except KeyboardInterrupt:
            output.note("(stopped; this exchange is not kept)")
            continue
        except NotRunning:
            raise
        except GnusError as error:
            if not interactive:
                raise
            output.show(error)  # the conversation goes on without this exchange
            continue
        history += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]


def _text(typed: str) -> str:
    """What was typed as text that JSON can carry: bytes that are no UTF-8 become replacement characters."""
    return typed.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _opening(system: str | None) -> list[dict[str, str]]:
    return [{"role": "system", "content": _text(system)}] if system else []


def _request(
    model: str,
    history: list[dict[str, str]],
    text: str,
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
) -> dict[str, Any]:
    optional = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    return {
        "model": model,
        "messages": [*history, {"role": "user", "content": text}],
        **{key: value for key, value in optional.items() if value is not None},
    }


def _stream(client: NodeClient, body: dict[str, Any]) -> str:
    """Prints an answer as it comes and returns it whole; says so when it was cut off."""
    parts: list[str] = []
    reason, facts = None, dict[str, Any]()
    try:
        for event in client.events("/v1/chat/completions", {**body, "stream": True}):
            facts = event.get("gnus") or facts
            for choice in event.get("choices", ()):
                piece = choice.get("delta", {}).get("content")
                if piece:
                    parts.append(piece)
                    output.write(piece)
                reason = choice.get("finish_reason") or reason
    except BaseException as error:
        if parts or isinstance(error, KeyboardInterrupt):
            output.say("")  # what follows begins a line
        raise
    output.say("")
    if facts.get("resumed"):
        output.aside("(the node that answered was lost; another one went on where it stopped)")
    if reason == "length":
        output.note("(cut off at the token limit; ask for more with --max-tokens)")
    return "".join(parts)
