"""The serving worker dies in the middle of an answer, and a second one holds the same model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.swarm.swarmlab import Member, Streamed, Swarm, chat, stream, swarm

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(240)]

LONG = 240
"""Tokens: enough that the worker is still at it when the client has read a few pieces. Pieces hold several tokens."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    with swarm(tmp_path_factory.mktemp("failover")) as made:
        made.found()
        one_thread = {"GNUSNODE_INFERENCE__THREADS": "1"}
        for name in ("worker-a", "worker-b"):
            made.join(name, env=one_thread)
        for worker in made.members[1:]:
            worker.await_ready()
        made.first.await_usable(2)
        yield made


def both_there(lab: Swarm) -> None:
    for worker in lab.members[1:]:
        if worker.running.process.poll() is not None:
            worker.restart()
    lab.first.await_usable(2)
    lab.first.until(lambda: ready_models(lab.first) == 2, "knows that the models of both are loaded")


def ready_models(node: Member) -> int:
    """Usable peers whose model is loaded, as far as ``node`` knows."""
    usable = [peer for peer in node.peers().values() if peer["state"] == "usable"]
    return sum(any(expert["state"] == "ready" for expert in peer["experts"]) for peer in usable)


def serving(lab: Swarm) -> Member:
    """The worker that makes tokens just now."""
    busy = [worker for worker in lab.members[1:] if worker.streams_active()]
    assert len(busy) == 1, [worker.name for worker in busy]
    return busy[0]


@pytest.mark.requirement("G-FL-1")
@pytest.mark.parametrize("ending", ["kill", "stop", "freeze"])
def test_the_client_gets_the_whole_text_as_if_nothing_had_happened(lab: Swarm, ending: str) -> None:
    both_there(lab)
    expected = lab.first.await_answer(max_tokens=LONG)["choices"][0]
    with contextlib.ExitStack() as until_the_end:

        def end(_: Streamed) -> None:
            worker = serving(lab)
            if ending == "freeze":
                until_the_end.enter_context(worker.frozen())
            else:
                worker.kill() if ending == "kill" else worker.stop()

        seen = stream(lab.first, chat(max_tokens=LONG), at=8, then=end, silence=45)
    assert seen.end == "done", seen
    assert seen.text == expected["message"]["content"]
    assert seen.finish_reason == expected["finish_reason"]
    if ending != "stop":  # told to end, it may also have finished what it had begun
        assert seen.gnus["resumed"] is True


def test_a_policy_that_forbids_it_gets_an_error_and_no_spliced_answer(lab: Swarm) -> None:
    both_there(lab)
    forbidden = chat(max_tokens=LONG, gnus={"profile": "canonical", "allow_resume": False})
    seen = stream(lab.first, forbidden, at=8, then=lambda _: serving(lab).kill(), silence=45)
    assert seen.end == "error", seen
    assert seen.error["code"] in {"peer_unreachable", "engine_failed", "unavailable"}


def test_two_workers_share_what_one_could_not_do_at_once(lab: Swarm) -> None:
    both_there(lab)

    def ask(number: int) -> str:
        messages = [{"role": "user", "content": f"Tell me {number} facts about the sea."}]
        status, answer = lab.first.request("POST", "/v1/chat/completions", chat(messages=messages, max_tokens=24))
        assert status == 200, answer
        return answer["gnus"]["node"]

    def shared() -> bool:
        with ThreadPoolExecutor(12) as pool:
            return len(set(pool.map(ask, range(12)))) == 2

    # A worker that an earlier test has killed is asked last for some seconds after its return.
    lab.first.until(shared, "gives work to both")
