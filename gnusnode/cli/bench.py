"""``gnusnode bench``: what this node's model does per second, through the API that users use."""

from __future__ import annotations

import statistics
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnusnode.cli import output
from gnusnode.cli.connect import connect
from gnusnode.cli.output import HomeOption, JsonOption, guarded

if TYPE_CHECKING:
    from gnusnode.cli.client import NodeClient

PROMPT = "Tell a long story about a lighthouse keeper and the sea."


@guarded
def bench(
    model: Annotated[str, typer.Option("--model", "-m", help="A model or expert.")] = "gnus",
    streams: Annotated[int, typer.Option("--streams", min=1, max=64, help="Answers at a time.")] = 1,
    tokens: Annotated[int, typer.Option("--tokens", min=2, help="Length of each answer.")] = 128,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often; the median counts.")] = 3,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure first token and tokens per second of the running node."""
    clients = [connect(home, timeout=None) for _ in range(streams)]
    runs = [_round(clients, model, tokens) for _ in range(rounds)]
    result = {
        "model": model,
        "streams": streams,
        "tokens": tokens,
        "first_token_ms": statistics.median(run["first_token_ms"] for run in runs),
        "tokens_per_second": statistics.median(run["tokens_per_second"] for run in runs),
        "rounds": runs,
    }
    if as_json:
        output.emit(result)
        return
    output.fields({key: value for key, value in result.items() if key != "rounds"})


def _round(clients: list[NodeClient], model: str, tokens: int) -> dict[str, Any]:
    results: list[tuple[float, int, float]] = []
    failures: list[Exception] = []

    def one(client: NodeClient) -> None:
        try:
            results.append(_ask(client, model, tokens))
        except Exception as error:  # noqa: BLE001 - handed to the main thread, which raises it
            failures.append(error)

    began = time.perf_counter()
    threads = [threading.Thread(target=one, args=(client,), daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    wall = time.perf_counter() - began
    first = statistics.median(result[0] for result in results)
    rate = results[0][2] if len(results) == 1 else sum(result[1] for result in results) / wall
    return {"first_token_ms": round(first * 1000, 1), "tokens_per_second": round(rate, 1), "wall_s": round(wall, 2)}


def _ask(client: NodeClient, model: str, tokens: int) -> tuple[float, int, float]:
    """Seconds to the first text, tokens, tokens per second after the first."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.perf_counter()
    first = last = began
    count = 0
    for event in client.events("/v1/chat/completions", body):
        if any(choice["delta"].get("content") for choice in event["choices"]):
            last = time.perf_counter()
            first = last if first == began else first
        if event.get("usage"):
            count = event["usage"]["completion_tokens"]
    return first - began, count, (count - 1) / (last - first) if last > first else 0.0
