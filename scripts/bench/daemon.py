"""What a user of a node feels: start, help, decode through the daemon against the raw loop, prefix, parallel streams.

    python scripts/bench/daemon.py [start help decode …] [--rounds N] [--rival PYTHON] [--model FILE]

Every comparison is interleaved within one run, since the machine may be shared; figures are printed raw. ``--rival``
names a Python that has ``xllamacpp``: its llama-server then runs on the same file, in turn with ours.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))
import raw_loop
import record

PROMPT = [{"role": "user", "content": "Tell a long story about a lighthouse keeper and the sea."}]
TOKENS = 128


class Node:
    """A daemon of its own in a temporary home."""

    def __init__(self, home: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        self.home = home
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gnusnode", "start", "--home", str(home), "--api", "127.0.0.1:0", *flags],
            stdout=subprocess.DEVNULL,
            stderr=(home.parent / "node.log").open("ab"),
            env=os.environ | (env or {}),
        )
        self.port = self._await_ready()
        self.ready_s = time.perf_counter() - self.started

    def _await_ready(self) -> int:
        run = self.home / "run.json"
        while self.process.poll() is None:
            if run.exists():
                with contextlib.suppress(OSError, ValueError, KeyError, http.client.HTTPException):
                    port = int(json.loads(run.read_text())["api"].rsplit(":", 1)[1])
                    if get(port, "/readyz")[0] == 200:
                        return port
            time.sleep(0.01)
        raise SystemExit(f"the node ended with {self.process.returncode}: see {self.home.parent / 'node.log'}")

    def cpu_s(self) -> float:
        """CPU seconds of the daemon and its engine children so far."""
        main = psutil.Process(self.process.pid)
        return sum(sum(one.cpu_times()[:2]) for one in [main, *main.children(recursive=True)])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


@contextlib.contextmanager
def node(*flags: str, model: Path | None = None) -> Iterator[Node]:
    """A node; with ``model`` it serves that file instead of the packaged one."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        if model is not None and model != raw_loop.default_model():
            add = [
                sys.executable,
                "-m",
                "gnusnode",
                "models",
                "add",
                str(model),
                "--name",
                "bench",
                "--home",
                str(home),
            ]
            subprocess.run(add, check=True, stdout=subprocess.DEVNULL)
            flags = (*flags, "--model", "bench")
        running = Node(home, *flags)
        try:
            yield running
        finally:
            running.stop()


def get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def stream(port: int, messages: list[dict[str, str]], tokens: int, **more: Any) -> dict[str, Any]:
    """One streamed chat: seconds to the first text, tokens per second after it, tokens, seconds in all."""
    body = {"model": "gnus", "messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True}
    body |= {"stream_options": {"include_usage": True}} | more
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    began = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"HTTP {answer.status}: {answer.read(500)!r}")
    first = last = 0.0
    count = 0
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise SystemExit(f"the stream failed: {event}")
        if any(choice["delta"].get("content") for choice in event["choices"]):
            last = time.perf_counter()
            first = first or last
        if event.get("usage"):
            count = event["usage"]["completion_tokens"]
    connection.close()
    rate = (count - 1) / (last - first) if last > first else 0.0
    return {"ttft_s": first - began, "rate": rate, "tokens": count, "wall_s": time.perf_counter() - began}


def bench_start(rounds: int) -> None:
    walls, cpus = [], []
    for _ in range(rounds):
        with node("--no-model") as running:
            walls.append(running.ready_s)
            cpus.append(running.cpu_s())
    record.emit("start-to-ready-no-model", {"wall_s": record.spread(walls), "cpu_s": record.spread(cpus)})


def bench_help(rounds: int) -> None:
    cpus = []
    for _ in range(rounds):
        before = os.times()
        subprocess.run([sys.executable, "-m", "gnusnode", "--help"], stdout=subprocess.DEVNULL, check=True)
        after = os.times()
        cpus.append(after.children_user + after.children_system - before.children_user - before.children_system)
    record.emit("help", {"cpu_s": record.spread(cpus)})


def bench_decode(rounds: int, model: Path) -> None:
    """Tokens per second of one stream through the daemon / of the raw low-level loop, in turn.

    The loop runs twice: as llama.cpp loads a file by default, and with the weights where the node puts them.
    """
    rates: dict[str, list[float]] = {"daemon": [], "raw": [], "raw_own_weights": []}
    with (
        node(env_threads(), model=model) as running,
        raw_loop.Raw(model, threads=1) as loop,
        raw_loop.Raw(model, threads=1, own_weights=True) as own,
    ):
        runs: dict[str, Callable[[int], float]] = {
            "daemon": lambda tokens: stream(running.port, PROMPT, tokens)["rate"],
            "raw": loop.run,
            "raw_own_weights": own.run,
        }
        for run in runs.values():
            run(8)
        for number in range(rounds):
            for who in random.Random(number).sample(list(runs), len(runs)):
                rates[who].append(runs[who](TOKENS))
    figures = {f"{who}_tok_s": record.spread(values) for who, values in rates.items()}
    for ratio, base in (("ratio", "raw"), ("ratio_own_weights", "raw_own_weights")):
        figures[ratio] = record.spread([a / b for a, b in zip(rates["daemon"], rates[base], strict=True)])
    record.emit("decode-daemon-vs-raw-loop", figures, model=model)


def bench_prefix(rounds: int, model: Path) -> None:
    """Seconds to the first token with a prefix of about 300 tokens: never seen, then seen."""
    words = ["river", "stone", "cloud", "lamp", "wheel", "bread", "copper", "garden", "winter", "harbour", "ladder"]
    cold, warm = [], []
    with node(env_threads(), model=model) as running:
        stream(running.port, PROMPT, 2)
        for number in range(rounds):
            rng = random.Random(number)
            prefix = {"role": "system", "content": " ".join(rng.choice(words) for _ in range(250))}
            ask = ("What is the moon?", "What is the sun?")
            cold.append(stream(running.port, [prefix, {"role": "user", "content": ask[0]}], 2)["ttft_s"])
            warm.append(stream(running.port, [prefix, {"role": "user", "content": ask[1]}], 2)["ttft_s"])
    ratios = [after / before for before, after in zip(cold, warm, strict=True)]
    figures = {"cold_s": record.spread(cold), "warm_s": record.spread(warm), "ratio": record.spread(ratios)}
    record.emit("ttft-warm-prefix", figures, model=model)


def bench_parallel(rounds: int, model: Path, rival: str | None) -> None:
    """Tokens per CPU second (daemon and engine together) with one stream and with four; llama-server in turn."""
    figures: dict[str, list[float]] = {"one": [], "four": [], "gain": []}
    with node(env_threads(), model=model) as running, rival_server(rival, model) as other:
        parties: list[tuple[str, int, Any]] = [("", running.port, running.cpu_s)]
        if other:
            figures |= {"rival_one": [], "rival_four": [], "rival_gain": [], "four_vs_rival": []}
            parties.append(("rival_", other[0], other[1]))
        for _, port, _cpu in parties:
            stream(port, PROMPT, 8)
        for number in range(rounds):
            for prefix, port, cpu in parties if number % 2 else reversed(parties):
                one = per_cpu_second(port, cpu, 1)
                four = per_cpu_second(port, cpu, 4)
                figures[prefix + "one"].append(one)
                figures[prefix + "four"].append(four)
                figures[prefix + "gain"].append(four / one)
            if other:
                figures["four_vs_rival"].append(figures["four"][-1] / figures["rival_four"][-1])
    record.emit("parallel-streams", {name: record.spread(values) for name, values in figures.items()}, model=model)


def per_cpu_second(port: int, cpu: Any, streams: int) -> float:
    questions = ["Tell me a story.", "Describe the sea.", "Why does bread rise?", "List facts about the moon."]
    before = cpu()
    results: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda q=question: results.append(stream(port, [{"role": "user", "content": q}], 96)))
        for question in questions[:streams]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(result["tokens"] for result in results) / (cpu() - before)


@contextlib.contextmanager
def rival_server(python: str | None, model: Path) -> Iterator[tuple[int, Any] | None]:
    if python is None:
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = (
        "import sys, time, xllamacpp as x\n"
        "p = x.CommonParams(); p.model.path = sys.argv[1]; p.port = int(sys.argv[2])\n"
        "p.n_parallel = 4; p.n_ctx = 8192\n"
        "p.cpuparams.n_threads = 1; p.cpuparams_batch.n_threads = 1\n"
        "s = x.Server(p); print('up', flush=True); time.sleep(3600)\n"
    )
    process = subprocess.Popen(
        [python, "-c", code, str(model), str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_WAIT_POLICY": "passive"},
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield port, lambda: sum(psutil.Process(process.pid).cpu_times()[:2])
    finally:
        process.kill()
        process.wait()


def bench_overhead(rounds: int) -> None:
    """CPU milliseconds of the daemon itself per request of one token; p95 of /healthz beside four streams."""
    with node(env_threads()) as running:
        stream(running.port, PROMPT, 2)
        main = psutil.Process(running.process.pid)
        before, count = sum(main.cpu_times()[:2]), max(20, rounds * 10)
        for _ in range(count):
            stream(running.port, PROMPT, 1)
        per_request = (sum(main.cpu_times()[:2]) - before) / count * 1000
        health: list[float] = []
        busy = threading.Thread(target=lambda: per_cpu_second(running.port, running.cpu_s, 4))
        busy.start()
        while busy.is_alive():
            began = time.perf_counter()
            get(running.port, "/healthz")
            health.append((time.perf_counter() - began) * 1000)
            time.sleep(0.02)
        busy.join()
    quantiles = statistics.quantiles(health, n=20)
    record.emit(
        "overhead",
        {"daemon_cpu_ms_per_request": round(per_request, 2), "healthz_ms": {"p50": quantiles[9], "p95": quantiles[18]}},
    )


def env_threads() -> str:
    """One thread each, so that ours and the rival's are alike and the figures are per core."""
    os.environ["GNUSNODE_INFERENCE__THREADS"] = "1"
    return "--log-format=json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = ["start", "help", "decode", "prefix", "parallel", "overhead"]
    parser.add_argument("benches", nargs="*", choices=every, default=every)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rival")
    parser.add_argument("--model", type=Path, help="another GGUF file for decode, prefix and parallel")
    options = parser.parse_args()
    model = options.model or raw_loop.default_model()
    for bench in options.benches or every:
        match bench:
            case "start":
                bench_start(options.rounds)
            case "help":
                bench_help(options.rounds)
            case "decode":
                bench_decode(options.rounds, model)
            case "prefix":
                bench_prefix(options.rounds, model)
            case "parallel":
                bench_parallel(options.rounds, model, options.rival)
            case _:
                bench_overhead(options.rounds)


if __name__ == "__main__":
    main()
