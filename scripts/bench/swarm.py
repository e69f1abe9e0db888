"""What a swarm costs and how fast it heals: start, remote hop, decode over a peer, failover,
many chats, idling, many nodes.

    python scripts/bench/swarm.py [start hop decode failover lost chats idle devnet] [--rounds N] [--nodes N]

Local and remote are interleaved within one run and asked of the same engine; figures are printed raw. ``idle`` counts
the bytes on the wire where a namespace lab is possible (root), and says so where it is not.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import record

from scripts.lab.lab import Host, lab, why_not
from tests.swarm.harness import COMMAND, environment
from tests.swarm.swarmlab import APART, Member, Swarm, chat, stream, swarm

SETTLE_S = 20.0
IDLE_S = 60.0
ONE_THREAD = {"GNUSNODE_INFERENCE__THREADS": "1"}


@contextmanager
def nodes() -> Iterator[Swarm]:
    """A swarm with the product's own times."""
    with tempfile.TemporaryDirectory() as folder, swarm(Path(folder), APART) as made:
        yield made


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def cpu_s(member: Member) -> float:
    """CPU seconds of the daemon and its engine children so far."""
    main = psutil.Process(member.running.process.pid)
    return sum(sum(one.cpu_times()[:2]) for one in [main, *main.children(recursive=True)])


def start(rounds: int, _: int) -> dict[str, Any]:
    """From the start of a process to ``/readyz``, and to the moment when the first node counts it usable."""
    ready, usable, cpu = [], [], []
    with nodes() as made:
        made.found()
        joiner = made.join("joiner", "--no-model", start=False)
        for _ in range(rounds):
            began = time.perf_counter()
            joiner.start()
            joiner.await_ready()
            ready.append(time.perf_counter() - began)
            cpu.append(cpu_s(joiner))
            made.first.await_usable(1)
            usable.append(time.perf_counter() - began)
            joiner.stop()
            made.first.await_usable(0)
    return {
        "ready_s": record.spread(ready),
        "ready_cpu_s": record.spread(cpu),
        "usable_s": record.spread(usable),
        "poll_s": 0.1,
    }


@contextmanager
def pair() -> Iterator[tuple[Member, Member]]:
    """A node without a model and one that can also answer by itself, so that both paths end in one engine."""
    with nodes() as made:
        made.found()
        near = made.join("near", roles="ingress,router,core")
        near.await_ready()
        made.first.await_usable(1)
        made.first.await_answer()
        near.await_answer()
        yield made.first, near


def hop(rounds: int, _: int) -> dict[str, Any]:
    """What the way over the swarm adds to a request of one token."""
    times: dict[str, list[float]] = {"remote": [], "local": []}
    with pair() as (far, near):
        before = cpu_s(far)
        for number in range(20 * rounds):
            order = [("remote", far), ("local", near)]
            for name, member in order if number % 2 else reversed(order):
                began = time.perf_counter()
                status, answer = member.request("POST", "/v1/chat/completions", chat(max_tokens=1))
                times[name].append((time.perf_counter() - began) * 1000)
                if status != 200:
                    raise SystemExit(f"{name}: HTTP {status} {answer}")
        cpu = (cpu_s(far) - before) / len(times["remote"])
    figures: dict[str, Any] = {"requests": len(times["remote"]), "cpu_ms_per_remote_request": round(cpu * 1000, 2)}
    for share, name in ((0.5, "p50"), (0.95, "p95")):
        values = {kind: percentile(found, share) for kind, found in times.items()}
        figures |= {f"{kind}_{name}_ms": round(value, 2) for kind, value in values.items()}
        figures[f"added_{name}_ms"] = round(values["remote"] - values["local"], 2)
    added = [remote - local for remote, local in zip(times["remote"], times["local"], strict=True)]
    return figures | {"added_paired_median_ms": round(statistics.median(added), 2)}


def decode(rounds: int, _: int) -> dict[str, Any]:
    """Tokens a second of one stream over a peer against the same engine asked directly."""
    rates: dict[str, list[float]] = {"remote": [], "local": []}
    with pair() as (far, near):
        for number in range(2 * rounds):
            order = [("remote", far), ("local", near)]
            for name, member in order if number % 2 else reversed(order):
                seen = stream(member, chat(max_tokens=128, stream_options={"include_usage": True}))
                if seen.end != "done":
                    raise SystemExit(f"{name}: {seen}")
                rates[name].append(127 / (seen.times[-1] - seen.times[0]))
    ratio = statistics.median(rates["remote"]) / statistics.median(rates["local"])
    return {name: record.spread(found, 1) for name, found in rates.items()} | {"ratio": round(ratio, 3)}


def failover(rounds: int, _: int) -> dict[str, Any]:
    """kill -9 of the worker after eight pieces (some 20 tokens): the longest gap, and whether the text is whole."""
    gaps, identical, ends = [], 0, []
    with nodes() as made:
        made.found()
        for name in ("worker-a", "worker-b"):
            made.join(name, env=ONE_THREAD | {"GNUSNODE_INFERENCE__CANONICAL_READY": "true"})
        workers = made.members[1:]
        for worker in workers:
            worker.await_ready()
            worker.until(lambda worker=worker: _engines(worker) == 2, "has both profiles")
        made.first.await_usable(2)
        expected = made.first.await_answer(max_tokens=240)["choices"][0]["message"]["content"]
        for _ in range(rounds):
            killed: list[tuple[float, int]] = []

            def kill(seen: Any, killed: list[tuple[float, int]] = killed) -> None:
                busy = next(worker for worker in workers if worker.streams_active())
                busy.kill()
                killed.append((time.monotonic(), len(seen.times)))

            seen = stream(made.first, chat(max_tokens=240), at=8, then=kill)
            at, pieces = killed[0]
            later = [moment for moment in seen.times[pieces:] if moment > at]
            gaps.append(max(b - a for a, b in zip([at, *later], later, strict=False)) if later else -1.0)
            identical += seen.end == "done" and seen.text == expected
            ends.append(seen.end)
            for worker in workers:
                if worker.running.process.poll() is not None:
                    worker.restart()
                worker.until(lambda worker=worker: _engines(worker) == 2, "has both profiles")
            made.first.await_usable(2)
    return {"rounds": rounds, "identical": identical, "ends": ends, "longest_gap_s": record.spread(gaps)}


def lost(rounds: int, _: int) -> dict[str, Any]:
    """kill -9 of the only worker in the middle of an answer: seconds until the stream ends, and how."""
    seconds, ends = [], Counter[str]()
    with nodes() as made:
        made.found()
        worker = made.join("worker", env=ONE_THREAD)
        worker.await_ready()
        made.first.await_usable(1)
        made.first.await_answer()
        for _ in range(rounds):
            killed: list[float] = []

            def kill(_: Any, killed: list[float] = killed) -> None:
                worker.kill()
                killed.append(time.monotonic())

            seen = stream(made.first, chat(max_tokens=240), at=8, then=kill)
            seconds.append(seen.ended - killed[0])
            ends[f"{seen.end} {seen.error.get('code', '')}"] += 1
            worker.restart()
            made.first.await_usable(1)
            made.first.await_answer()
    return {"ends": ends, "ended_after_s": record.spread(seconds, 3)}


def _engines(member: Member) -> int:
    """Engines that have become ready since the process began."""
    lines = member.request("GET", "/metrics")[1].splitlines()
    wanted = 'gnusnode_events_total{name="engine.changed"} '
    return sum(int(float(line.removeprefix(wanted))) for line in lines if line.startswith(wanted))


@dataclass(frozen=True)
class Chat:
    """One of many chats at once: how it ended, where it was answered, and when."""

    status: int
    node: str
    end: str
    retry_after: bool
    first_s: float
    whole_s: float


def one_chat(port: int, number: int, tokens: int) -> Chat:
    words = ["sea", "bread", "moon", "winter", "cat", "river", "clock", "garden"]
    messages = [{"role": "user", "content": f"Chat {number}: tell me about the {words[number % len(words)]}."}]
    body = {"model": "gnus", "messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True}
    began, first, end = time.perf_counter(), 0.0, "none"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        node, retry = answer.getheader("x-gnus-node") or "", answer.getheader("retry-after") is not None
        for line in answer:
            if line.startswith(b"data: "):
                first = first or time.perf_counter() - began
                end = "error" if b'"error"' in line else "done" if b"[DONE]" in line else end
        return Chat(answer.status, node, end, retry, first, time.perf_counter() - began)
    finally:
        connection.close()


def at_once(member: Member, count: int, tokens: int) -> tuple[list[Chat], list[float]]:
    """So many chats started together, and the milliseconds that ``/healthz`` took beside them."""
    port = int(member.running.run_info()["api"].rsplit(":", 1)[1])
    health: list[float] = []
    with ThreadPoolExecutor(count) as pool:
        asked = [pool.submit(one_chat, port, number, tokens) for number in range(count)]
        while not all(one.done() for one in asked):
            began = time.perf_counter()
            status, _ = member.request("GET", "/healthz")
            health.append((time.perf_counter() - began) * 1000)
            assert status == 200
            time.sleep(0.05)
        return [one.result() for one in asked], health


def chats(_: int, __: int) -> dict[str, Any]:
    """64 chats of 48 tokens at once over three workers; then 400, which is more than may wait."""
    figures: dict[str, Any] = {}
    with nodes() as made:
        made.found()
        for name in ("b", "c", "d"):
            made.join(name, env=ONE_THREAD).await_ready()
        made.first.await_usable(3)
        made.first.await_answer()
        for count, tokens in ((64, 48), (400, 4)):
            found, health = at_once(made.first, count, tokens)
            served = [one for one in found if one.status == 200]
            whole = [one.whole_s for one in served]
            figures[str(count)] = {
                "outcomes": Counter(f"{one.status} {one.end}" for one in found),
                "refused_without_retry_after": sum(one.status != 200 and not one.retry_after for one in found),
                "refused_within_s": max((one.whole_s for one in found if one.status != 200), default=None),
                "by_node": sorted(Counter(one.node for one in served).values()),
                "first_word_s": record.spread([one.first_s for one in served], 2),
                "whole_s": record.spread(whole, 2),
                "jain_fairness": round(sum(whole) ** 2 / (len(whole) * sum(value**2 for value in whole)), 3),
                "healthz_p50_ms": round(percentile(health, 0.5), 1),
                "healthz_p95_ms": round(percentile(health, 0.95), 1),
            }
            made.first.until(lambda: sum(member.streams_active() for member in made.members) == 0, "is idle again")
    return figures


def idle(_: int, __: int) -> dict[str, Any]:
    """One of four nodes without models: memory, CPU and, in a lab, bytes on the wire."""
    reason = why_not()
    with ExitStack() as stack:
        hosts: list[Host | None] = [None] * 4
        if reason is None:
            hosts = list(stack.enter_context(lab(4)))
        made = stack.enter_context(nodes())
        made.found(host=hosts[0])
        for name, host in zip(("b", "c", "d"), hosts[1:], strict=True):
            made.join(name, "--no-model", host=host)
        for member in made.members:
            member.await_usable(3)
        time.sleep(SETTLE_S)
        watched, host = made.members[3], hosts[3]
        cpu, octets = cpu_s(watched), host and (host.cable.sent, host.cable.received)
        time.sleep(IDLE_S)
        figures: dict[str, Any] = {
            "rss_mb": round(psutil.Process(watched.running.process.pid).memory_info().rss / 1e6, 1),
            "cpu_percent": round((cpu_s(watched) - cpu) / IDLE_S * 100, 2),
            "traffic": f"not measured: {reason}",
        }
        if host and octets:
            sent, received = host.cable.sent - octets[0], host.cable.received - octets[1]
            figures["traffic"] = {"sent_b_s": round(sent / IDLE_S), "received_b_s": round(received / IDLE_S)}
    return figures


def devnet(rounds: int, count: int) -> dict[str, Any]:
    """``gnusnode devnet N --no-model``: time until a full mesh, memory; then random kills and rejoins."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        began = time.perf_counter()
        command = subprocess.Popen(
            [*COMMAND, "devnet", str(count), "--no-model", "--json", "--dir", folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(),
        )
        stack.callback(_interrupt, command)
        assert command.stdout is not None
        found = [json.loads(command.stdout.readline()) for _ in range(count)]
        usable_s = time.perf_counter() - began
        homes = [Path(node["home"]) for node in found]
        mesh_s = usable_s + _seconds_until(lambda: _least_usable(homes) == count - 1)
        processes = [psutil.Process(node["pid"]) for node in found]
        rss = [process.memory_info().rss / 1e6 for process in processes]
        before, octets = [sum(process.cpu_times()[:2]) for process in processes], _loopback_octets()
        time.sleep(IDLE_S / 2)
        octets = _loopback_octets() - octets
        cpu = [
            (sum(process.cpu_times()[:2]) - past) / (IDLE_S / 2) * 100
            for process, past in zip(processes, before, strict=True)
        ]
        rejoined = []
        for node in random.Random(7).sample(found[1:], min(10, rounds * 2, count - 1)):
            psutil.Process(node["pid"]).kill()
            again = subprocess.Popen(
                [*COMMAND, "start", "--home", node["home"]],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment(),
            )
            stack.callback(_interrupt, again)
            rejoined.append(_seconds_until(lambda: _least_usable(homes) == count - 1))
        return {
            "nodes": count,
            "each_usable_s": round(usable_s, 1),
            "full_mesh_s": round(mesh_s, 1),
            "rss_mb": record.spread(rss, 1),
            "idle_cpu_percent": record.spread(cpu, 2),
            "idle_sent_b_s_each": round(octets / (IDLE_S / 2) / count),
            "mesh_again_after_kill_s": record.spread(rejoined, 1) if rejoined else None,
        }


def _loopback_octets() -> int:
    """Bytes that went over the loopback so far, whoever's they were, headers included; 0 where it cannot be seen."""
    return getattr(psutil.net_io_counters(pernic=True).get("lo"), "bytes_sent", 0)


def _least_usable(homes: Sequence[Path]) -> int:
    """The fewest usable peers that any node counts; -1 while one does not answer."""
    from gnusnode.cli.client import NodeClient
    from gnusnode.errors import GnusError

    try:
        states = [NodeClient.of(home, timeout=10).get("/gnus/v1/status")["swarm"]["peers"] for home in homes]
        return min(state["usable"] for state in states)
    except GnusError:
        return -1


def _seconds_until(holds: Callable[[], bool], patience: float = 300) -> float:
    began = time.perf_counter()
    while not holds():
        if time.perf_counter() - began > patience:
            return -1.0
        time.sleep(0.25)  # other processes: there is nothing to await but the next look
    return time.perf_counter() - began


def _interrupt(process: subprocess.Popen[Any]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


BENCHES: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "start": start,
    "hop": hop,
    "decode": decode,
    "failover": failover,
    "lost": lost,
    "chats": chats,
    "idle": idle,
    "devnet": devnet,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benches", nargs="*", choices=[[], *BENCHES], default=[], help="which; none: all but devnet")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=32, help="of devnet")
    arguments = parser.parse_args()
    for name in arguments.benches or [name for name in BENCHES if name != "devnet"]:
        record.emit(f"swarm.{name}", BENCHES[name](arguments.rounds, arguments.nodes), load=os.getloadavg())


if __name__ == "__main__":
    main()
