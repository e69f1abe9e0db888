"""``gnusnode peers`` and ``status --watch`` against a scripted node."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from gnusnode.cli import node, output, peers, watch
from gnusnode.cli.app import app
from gnusnode.errors import NotFound

PEER = "12D3KooWENWdxokzwyRj9J7MZM"
COUNTS = {"discovered": 4, "dialled": 3, "connected": 2, "authenticated": 2, "usable": 1, "refused": 1, "banned": 0}
ENTRY: dict[str, Any] = {
    "peer": PEER,
    "state": "usable",
    "reason": "",
    "addresses": ["/ip4/10.0.0.1/tcp/8478"],
    "connection": {"address": "/ip4/10.0.0.1/tcp/8478", "inbound": True, "relayed": False},
    "roles": ["core", "elm"],
    "services": {"core": 1},
    "experts": [{"id": "gnus/small", "service": "core", "state": "ready", "slots": 4, "free_slots": 3, "queued": 0}],
    "rtt_ms": 1.52,
    "seen_s_ago": 3.2,
    "announcement": {"seq": 3},
}
REFUSED = {**ENTRY, "peer": "12D3Refused", "state": "refused", "reason": "refused here: revoked", "experts": []}


class Node:
    def __init__(self) -> None:
        self.posts: list[tuple[str, Any]] = []

    def get(self, path: str) -> Any:
        if path.endswith("/nobody"):
            raise NotFound("this peer is not known here", where="nobody")
        return {"counts": COUNTS, "data": [ENTRY, REFUSED]} if path.endswith("/peers") else ENTRY

    def post(self, path: str, body: Any = None) -> Any:
        self.posts.append((path, body))
        refused = {"state": "refused", "reason": "it refuses this node: revoked"}
        return {"peer": PEER, "rtt_ms": 1.5, "dialled": body != {"address": "/ip4/known"}, **refused}


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node()
    monkeypatch.setattr(peers, "connect_node", lambda _home: made)
    return made


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["peers", *arguments])


def test_the_list_counts_and_says_why_a_peer_is_not_usable(scripted: Node) -> None:
    said = run("list").stdout
    assert said.startswith("4 discovered, 3 dialled, 2 connected, 2 authenticated, 1 usable; 1 refused\n")
    [heading, first, second] = said.splitlines()[2:]
    assert heading.split() == ["PEER", "STATE", "ROLES", "EXPERTS", "RTT", "SEEN", "REASON"]
    assert first.startswith(PEER)
    assert "1.5 ms" in first
    assert second.endswith("refused here: revoked")
    assert json.loads(run("list", "--json").stdout)["counts"] == COUNTS


def test_one_peer_is_shown_with_its_connection_and_experts(scripted: Node) -> None:
    said = run("show", PEER).stdout
    assert "/ip4/10.0.0.1/tcp/8478, dialled from there" in said
    assert "core v1" in said
    assert {"round trip  1.5 ms", "seen        3 s ago", "clock       -", "reason      -"} <= set(said.splitlines())
    assert "gnus/small" in said
    assert "seq" not in said
    assert json.loads(run("show", PEER, "--json").stdout)["announcement"] == {"seq": 3}


def test_orders_are_sent_and_answered_in_words(scripted: Node) -> None:
    assert run("ping", "MZM").stdout == f"1.5 ms to {PEER}\n"
    assert run("connect", "/ip4/x").stdout == f"{PEER} is refused: it refuses this node: revoked\n"
    assert run("ban", "a/../b", "--reason", "spam").exit_code == 0
    assert run("unban", PEER).exit_code == 0
    assert scripted.posts == [
        ("/gnus/v1/peers/MZM/ping", None),
        ("/gnus/v1/peers/connect", {"address": "/ip4/x"}),
        ("/gnus/v1/peers/a%2F..%2Fb/ban", {"reason": "spam"}),
        (f"/gnus/v1/peers/{PEER}/unban", None),
    ]


def test_an_address_of_a_connected_peer_is_said_to_be_untried(scripted: Node) -> None:
    assert "was not tried" in run("connect", "/ip4/known").stderr
    assert run("connect", "/ip4/x").stderr == ""


def test_an_unknown_peer_is_an_error_with_its_code(scripted: Node) -> None:
    failed = run("show", "nobody")
    assert failed.exit_code == NotFound.exit_code
    assert "this peer is not known here" in failed.stderr


class _Enough(Exception):
    pass


def watched(pages: list[list[str]], restless: tuple[str, ...] = ()) -> None:
    left = iter(pages)

    def look() -> list[str]:
        try:
            return next(left)
        except StopIteration:
            raise _Enough from None

    with pytest.raises(_Enough):
        watch.follow(look, restless=restless, pause=lambda _seconds: None)


def test_without_a_terminal_only_the_changed_lines_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    watched([["a 1", "up 1"], ["a 1", "up 2"], ["a 2", "b 1", "up 3"]], restless=("up ",))
    assert capsys.readouterr().out.splitlines() == ["a 1", "a 2", "b 1"]


def test_in_a_terminal_it_is_drawn_again_only_when_it_changed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    watched([["a 1", "up 1"], ["a 1", "up 2"], ["a 2", "up 3"]], restless=("up ",))
    assert capsys.readouterr().out.count("\x1b[2J") == 2


def test_what_a_page_prints_is_captured_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert watch.captured(lambda: output.say("hello\nworld")) == ["hello", "world"]
    assert capsys.readouterr().out == ""


def test_a_warning_is_shown_with_what_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    warning = {"severity": "warning", "text": "It is so.", "detail": "none of 2", "remedy": "Do this."}
    data = dict.fromkeys(("name", "peer_id", "version", "home", "api"), "x") | {"swarm": {"state": "alone"}}
    data |= {"ready": True, "uptime_s": 1, "rss_bytes": 1, "engine_rss_bytes": 0, "roles": [], "models": []}
    data |= {"reasons": {}, "warnings": [warning, {**warning, "detail": ""}]}
    node._show_status(data)
    with_detail, without = capsys.readouterr().out.split("warning: It is so.\n")[1:]
    assert with_detail == "  about: none of 2\n  next: Do this.\n\n"
    assert without == "  next: Do this.\n"


def test_the_status_tells_of_the_swarm_and_how_far_its_peers_have_come() -> None:
    assert node._swarm_lines({"state": "alone"}) == {"swarm": "alone"}
    lines = node._swarm_lines({"state": "member", "name": "home", "peers": COUNTS})
    assert lines["swarm"] == "home, member"
    assert lines["peers"].endswith("1 usable; 1 refused")
