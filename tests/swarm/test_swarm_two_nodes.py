"""A node that takes requests and a second one that was added with two commands and holds the model."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.swarm.swarmlab import Member, Swarm, chat, stream, swarm

pytestmark = pytest.mark.model

NOTICED = 12.0
"""Seconds, with the shortened times of the lab, after which a stream from a silent worker must have ended."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    with swarm(tmp_path_factory.mktemp("two")) as made:
        made.found()
        made.join("worker").await_ready()
        made.first.await_answer()
        yield made


@pytest.fixture
def first(lab: Swarm) -> Member:
    return lab.first


@pytest.fixture
def worker(lab: Swarm) -> Iterator[Member]:
    """The second node; after a test that ended it, it is there again."""
    worker = lab.members[1]
    yield worker
    if worker.running.process.poll() is not None:
        worker.restart()
    lab.first.await_usable(1)
    lab.first.await_answer()


def failed_by_type(code: str | None) -> bool:
    """Whether the code says that a worker, and not the caller, is at fault."""
    return code in {"peer_unreachable", "engine_failed", "no_peers_available", "unavailable", "deadline_exceeded"}


@pytest.mark.requirement("G-LAY-3", "G-RT-6")
def test_the_first_node_answers_with_the_model_of_the_second(first: Member, worker: Member) -> None:
    with OpenAI(base_url=f"{first.running.url}/v1", api_key="unused", max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(
            model="gnus", messages=[{"role": "user", "content": "Why is the sky blue?"}], max_tokens=16
        )
    answer = raw.parse()
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 16
    assert raw.headers["x-gnus-node"] == worker.peer_id
    status, records = first.request("GET", f"/gnus/v1/plans/{raw.headers['x-request-id']}")
    assert status == 200
    assert records["plan"]["signer"] == first.peer_id
    assert records["outputs"][0]["signer"] == worker.peer_id
    assert records["verification"]["plan"]["outcome"] == "ok"
    assert [output["outcome"] for output in records["verification"]["outputs"]] == ["ok"]


def test_a_stream_over_the_swarm_has_the_text_of_the_workers_own_answer(first: Member) -> None:
    whole = first.await_answer(max_tokens=40)
    seen = stream(first, chat(max_tokens=40))
    assert seen.end == "done", seen
    assert len(seen.times) > 2
    assert seen.text == whole["choices"][0]["message"]["content"]
    assert seen.finish_reason == whole["choices"][0]["finish_reason"]


def test_the_models_of_the_second_node_can_be_asked_for_by_name(first: Member, worker: Member) -> None:
    listed = {model["id"] for model in first.request("GET", "/v1/models")[1]["data"]}
    assert "smollm2-135m" in listed
    answer = first.await_answer(model="smollm2-135m")
    assert answer["gnus"]["node"] == worker.peer_id


def test_both_nodes_count_each_other_usable_and_know_each_others_state(first: Member, worker: Member) -> None:
    for one, other in ((first, worker), (worker, first)):
        one.await_usable(1)
        status = one.status()
        assert status["name"] == "lab"
        assert status["discovered"] >= status["authenticated"] >= status["usable"] == 1
        entry = one.peers()[other.peer_id]
        assert entry["state"] == "usable", entry
        assert entry["rtt_ms"] > 0
        assert abs(entry["skew_ms"]) < 1000  # they share a clock
    assert first.status()["id"] == worker.status()["id"]


def test_the_worker_stops_when_the_client_of_the_first_node_leaves(first: Member, worker: Member) -> None:
    class Left(Exception):
        pass

    def leave(_: object) -> None:
        assert worker.streams_active() == 1
        raise Left

    with pytest.raises(Left):
        stream(first, chat(max_tokens=2000), at=3, then=leave)
    worker.until(lambda: worker.streams_active() == 0, "has no stream any more", patience=10)


def test_a_killed_worker_without_a_second_ends_the_stream_with_a_typed_error(first: Member, worker: Member) -> None:
    killed: list[float] = []

    def kill(_: object) -> None:
        worker.kill()
        killed.append(time.monotonic())

    seen = stream(first, chat(max_tokens=400), at=10, then=kill, silence=30)
    assert seen.end == "error", seen
    assert failed_by_type(seen.error["code"]), seen.error
    assert seen.finish_reason is None
    assert seen.ended - killed[0] < 5
    status, refused = first.request("POST", "/v1/chat/completions", chat(max_tokens=4))
    assert status == 503, refused
    assert failed_by_type(refused["error"]["code"])


def test_a_frozen_worker_ends_the_stream_and_is_used_again_when_it_wakes(first: Member, worker: Member) -> None:
    frozen: list[float] = []
    with contextlib.ExitStack() as stack:

        def freeze(_: object) -> None:
            stack.enter_context(worker.frozen())
            frozen.append(time.monotonic())

        seen = stream(first, chat(max_tokens=400), at=10, then=freeze, silence=45)
        assert seen.end == "error", seen
        assert failed_by_type(seen.error["code"]), seen.error
        assert seen.ended - frozen[0] < NOTICED
        first.until(lambda: first.status()["usable"] == 0, "gave up the frozen worker", patience=NOTICED)
    first.await_usable(1)
    assert first.await_answer()["gnus"]["node"] == worker.peer_id


def test_a_request_that_nobody_can_serve_is_refused_at_once_and_says_what_is_missing(first: Member) -> None:
    status, answer = first.request("POST", "/v1/chat/completions", chat(model="no-such-model"))
    assert status == 404
    assert "no-such-model" in json.dumps(answer)
