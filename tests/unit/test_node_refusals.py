"""What a node says of itself: why it takes no requests, which experts it serves, that its network is off."""

from __future__ import annotations

from typing import Any

import pytest

from gnusnode.config.load import Loaded
from gnusnode.config.settings import Settings
from gnusnode.daemon import wants_network
from gnusnode.node import no_ingress
from gnusnode.offering import _offered
from tests.fakes.cards import card

PEER = "12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"


@pytest.mark.parametrize(
    ("state", "what", "hint"),
    [
        (None, "`node.roles` does not name ingress", "add ingress and router to `node.roles`"),
        ({"state": "withheld"}, "the swarm does not grant it", "`gnusnode swarm roles SUKPH5 ingress"),
        ({"state": "failed"}, "the role ingress of this node is failed", ""),
    ],
)
def test_a_node_that_takes_no_requests_says_why_and_who_can_change_it(
    state: dict[str, Any] | None, what: str, hint: str
) -> None:
    error = no_ingress(PEER, state)
    assert what in error.what
    assert hint in (error.hint or "")
    assert (error.where, error.status) == (PEER, 503)


@pytest.mark.parametrize("standing", ["joining", "revoked"])
def test_who_does_not_belong_is_not_told_to_have_a_role_granted(standing: str) -> None:
    error = no_ingress(PEER, {"state": "withheld"}, standing)
    assert standing in error.what
    assert "swarm roles" not in (error.hint or "")
    assert "gnusnode status" in (error.hint or "")


def test_a_file_is_announced_with_the_experts_of_the_services_that_run_and_no_others() -> None:
    cards = [card("gnus/a"), card("gnus/b")]
    assert set(_offered(cards, {"core", "router"}).expert_ids) == {"gnus/a", "gnus/b"}
    assert _offered(cards, {"router"}).expert_ids == ()


def loaded(origins: dict[str, str], **net: object) -> Loaded:
    return Loaded(Settings.model_validate({"net": net}), origins, None)


def test_who_set_up_a_network_hears_that_it_is_off_without_a_swarm() -> None:
    assert wants_network(loaded({"net.listen": "command line"}))
    assert wants_network(loaded({"net.mdns": "profile lan"}, mdns=True))
    assert not wants_network(loaded({"net.mdns": "profile solo"}, mdns=False))
    assert not wants_network(loaded({"net.listen": "command line"}, enabled="off"))
