"""Who does not belong is refused, hears why, learns nothing; and the swarm sees that it was there."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator

import pytest

from tests.swarm.swarmlab import Member, Swarm, chat, swarm

pytestmark = [pytest.mark.model, pytest.mark.timeout(180)]

MODELS = ("smollm2", "SmolLM2")
"""What an outsider must not find anywhere."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """A closed swarm whose first node holds a model."""
    with swarm(tmp_path_factory.mktemp("strangers")) as made:
        made.found("--roles", "ingress,router,core")
        yield made


def assert_knows_nothing(stranger: Member) -> None:
    """Neither its peer table, its models nor its answers have anything of the swarm."""
    told = json.dumps([stranger.peers(), stranger.request("GET", "/v1/models")[1], stranger.status()])
    assert not any(name in told for name in MODELS), told
    status, answer = stranger.request("POST", "/v1/chat/completions", chat(max_tokens=4))
    assert status in {404, 503}, answer
    assert stranger.status()["usable"] == 0


def stranger_of(lab: Swarm, name: str) -> Member:
    """A node with all roles and no model, so that whatever it could answer would come from the swarm."""
    return lab.node(name, "--no-model", "--peer", lab.first.address)


def failed_handshakes(member: Member) -> float:
    """Connections that ended before anybody proved who they are: all that a node can say of one without its key."""
    head = 'gnusnode_peer_connections_refused_total{reason="handshake"} '
    lines = [line for line in member.request("GET", "/metrics")[1].splitlines() if line.startswith(head)]
    return sum(float(line.removeprefix(head)) for line in lines)


def test_a_node_of_another_swarm_gets_no_connection_and_both_sides_say_so(lab: Swarm) -> None:
    failed_before = failed_handshakes(lab.first)
    stranger = stranger_of(lab, "other-swarm")
    stranger.command("swarm", "init", "another")
    stranger.start()
    stranger.await_ready()
    stranger.until(
        lambda: bool(stranger.peers().get(lab.first.peer_id, {}).get("reason")), "says why it cannot connect"
    )
    entry = stranger.peers()[lab.first.peer_id]
    assert entry["state"] in {"dialled", "refused"}
    assert entry["failures"] > 0 or entry["state"] == "refused"
    assert_knows_nothing(stranger)
    lab.first.until(lambda: failed_handshakes(lab.first) > failed_before, "counts who knocked without the network key")
    assert lab.first.status()["usable"] == 0
    stranger.stop()


def test_a_node_without_a_certificate_is_refused_with_the_reason_on_both_sides(lab: Swarm) -> None:
    guest = lab.join("guest", "--no-model", start=False)
    # Whoever copies a member's folder has the network key and all records, and no certificate for its own key.
    thief = stranger_of(lab, "thief")
    shutil.copytree(guest.home / "swarm", thief.home / "swarm")
    thief.start()
    thief.await_alive()
    thief.until(lambda: thief.peers().get(lab.first.peer_id, {}).get("state") == "refused", "is refused")
    assert "not a member" in thief.peers()[lab.first.peer_id]["reason"]
    lab.first.until(lambda: lab.first.peers().get(thief.peer_id, {}).get("state") == "refused", "refused it")
    assert "not a member" in lab.first.peers()[thief.peer_id]["reason"]
    assert_knows_nothing(thief)
    thief.stop()


@pytest.mark.requirement("G-LAY-3")
def test_a_revoked_member_is_out_at_once_and_stays_out_after_a_restart(lab: Swarm) -> None:
    member = lab.join("revoked", "--no-model")
    lab.first.await_usable(1)
    member.await_usable(1)
    lab.first.command("swarm", "revoke", member.peer_id)
    began = time.monotonic()
    lab.first.until(lambda: lab.first.status()["usable"] == 0, "has it out")
    assert time.monotonic() - began < 10
    for _ in range(2):
        member.until(lambda: member.peers().get(lab.first.peer_id, {}).get("state") == "refused", "hears of it")
        assert "revoked" in member.peers()[lab.first.peer_id]["reason"]
        member.until(lambda: member.status()["state"] == "revoked", "knows what it is, though nobody else told it")
        lab.first.until(lambda: lab.first.peers().get(member.peer_id, {}).get("state") == "refused", "refuses it")
        assert "revoked" in lab.first.peers()[member.peer_id]["reason"]
        assert member.status()["usable"] == 0
        member.stop()
        member.start()
        member.await_alive()
    status, _ = member.request("POST", "/v1/chat/completions", chat(max_tokens=4))
    assert status == 503
    listed = {entry["peer_id"]: entry["state"] for entry in lab.first.json("swarm", "members")}
    assert listed[member.peer_id] == "revoked"
    # Whether it holds the revocation itself, and so is broken in its own eyes, depends on who told it first.
    checked = json.loads(member.run("doctor", "--json").stdout)["swarm"]
    assert (checked["level"], "peers list" in checked["next"]) == ("warning", True)
    member.stop()


def test_a_token_works_once_and_a_false_one_is_refused_before_anything_is_kept(lab: Swarm) -> None:
    node = lab.node("typo", "--no-model")
    token = lab.invite()
    for wrong in ("gnus", token[:-4], token[:20] + "A" + token[21:]):
        refused = node.run("swarm", "join", wrong)
        assert refused.returncode != 0
        assert "next:" in refused.stderr
        assert not (node.home / "swarm").exists()
    node.command("swarm", "join", token)
    again = node.run("swarm", "join", token)
    assert again.returncode != 0
    assert "already" in again.stderr
    # Somebody else found it.
    late = lab.node("late", "--no-model")
    used = late.run("swarm", "join", token)
    assert used.returncode == 1
    assert "used by another node" in used.stderr
    assert not (late.home / "swarm").exists()
    _, status = lab.first.request("GET", "/gnus/v1/status")
    assert any("token is in more than one hand" in warning["text"] for warning in status["warnings"])


def test_a_role_that_was_not_granted_is_not_taken_on(lab: Swarm) -> None:
    member = lab.node("greedy", "--roles", "ingress,router,core,elm", "--no-model")
    member.command("swarm", "join", lab.invite("core"))
    member.start()
    lab.first.until(lambda: lab.first.peers().get(member.peer_id, {}).get("state") == "usable", "uses it")
    assert set(lab.first.peers()[member.peer_id]["services"]) <= {"core"}
    member.stop()
