"""``models pull cid://…`` on the command line: the running node does it; the command shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gnusnode.cli import fetch
from gnusnode.cli.app import app
from gnusnode.contracts import ids
from gnusnode.errors import GnusError, NotFound, Unavailable
from gnusnode.inference.artifacts.modelrecord import StoredModel

SHA256 = "sha256:" + "5" * 64
CID = ids.cid_from_sha256(SHA256)
PEER = ids.peer_id(bytes(32))
MODEL = StoredModel(
    name="theirs",
    sha256=SHA256,
    size=1000,
    source=CID,
    added=1,
    verified_at=1,
    stamp=(1, 2, 3, 4, 5),
    architecture="llama",
    license="mit",
    parameters=1,
    context_train=64,
    generates=True,
    embeds=False,
)


class ScriptedNode:
    """Answers a pull with ``events``, then raises ``failure``."""

    def __init__(self, *events: dict[str, Any], failure: GnusError | None = None) -> None:
        self.events_ = events
        self.failure = failure
        self.orders: list[tuple[str, dict[str, Any]]] = []

    def get(self, path: str) -> dict[str, Any]:
        if not PEER.endswith(name := path.rpartition("/")[2]):
            raise NotFound("this peer is not known here", where=name)
        return {"peer": PEER}

    def events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.orders.append((path, body))
        yield from self.events_
        if self.failure:
            raise self.failure


def pull(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["models", "pull", *arguments, "--home", str(home)])


def wire(node: ScriptedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "connect", lambda home, timeout: node)


def test_an_address_is_fetched_by_the_running_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled = {"model": MODEL.model_dump(mode="json"), "expert": None, "received": {PEER: 1000}}
    node = ScriptedNode({"done": 1, "total": 2}, {"pulled": pulled})
    wire(node, monkeypatch)
    done = pull(tmp_path, CID, "--from", PEER, "--name", "mine", "--sha256", "5" * 64, "--json")
    assert done.exit_code == 0, done.output
    order = {"source": CID, "name": "mine", "peers": [PEER], "replace": False}
    assert node.orders == [("/gnus/v1/models/pull", order)]
    shown = json.loads(done.stdout)
    assert (shown["name"], shown["sha256"], shown["received"]) == ("theirs", SHA256, {PEER: 1000})


def test_a_holder_is_named_by_the_end_of_its_peer_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = ScriptedNode({"pulled": {"model": MODEL.model_dump(mode="json"), "expert": None, "received": {}}})
    wire(node, monkeypatch)
    assert pull(tmp_path, CID, "--from", PEER[-6:]).exit_code == 0
    assert node.orders[0][1]["peers"] == [PEER]
    stranger = pull(tmp_path, CID, "--from", "zzzz")
    assert stranger.exit_code == 1
    assert "not known here" in stranger.output
    assert len(node.orders) == 1


def test_people_see_what_came_and_from_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled = {"model": MODEL.model_dump(mode="json"), "expert": "tutor-1.0", "received": {PEER: 1000}}
    wire(ScriptedNode({"pulled": pulled}), monkeypatch)
    done = pull(tmp_path, SHA256)
    assert done.exit_code == 0
    assert f"1.0 kB from {PEER}" in done.output
    assert "tutor-1.0" in done.output


def test_a_failure_on_the_way_has_its_exit_code_and_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = Unavailable("no holder of the file is left", where=SHA256, hint="try again later")
    wire(ScriptedNode({"done": 1, "total": 2}, failure=failure), monkeypatch)
    done = pull(tmp_path, SHA256)
    assert done.exit_code == 7
    assert "try again later" in done.output


def test_without_a_running_node_it_says_what_to_start(tmp_path: Path) -> None:
    done = pull(tmp_path, CID)
    assert done.exit_code == 7
    assert "gnusnode start" in done.output


@pytest.mark.parametrize(
    "arguments", [(CID, "--sha256", "6" * 64), ("owner/repo/x.gguf", "--from", PEER), (CID, "--sha256", "xyz")]
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert pull(tmp_path, *arguments).exit_code == 2
