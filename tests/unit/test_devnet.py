"""A devnet on paper: what each node is, and that its configuration is a valid one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnusnode.config.load import load
from gnusnode.config.paths import Home
from gnusnode.devnet import MAX_NODES, configuration, lay_out
from gnusnode.errors import RequestError


def test_the_first_node_takes_requests_and_the_others_lend_experts() -> None:
    first, *others = lay_out(4, Path("/net"))
    assert first.roles == ("ingress", "router", "core")
    assert {plan.roles for plan in others} == {("core", "elm")}


@pytest.mark.parametrize(
    ("count", "models", "holders"),
    [(4, 0, []), (4, 2, ["node-2", "node-3"]), (3, 3, ["node-1", "node-2", "node-3"]), (1, 2, ["node-1"]), (2, 9, 2)],
)
def test_models_go_to_the_others_before_the_first(count: int, models: int, holders: list[str] | int) -> None:
    found = [plan.name for plan in lay_out(count, Path("/net"), model_nodes=models) if plan.model]
    assert found == holders or len(found) == holders


def test_models_share_the_cores() -> None:
    assert {plan.threads for plan in lay_out(5, Path("/net"), model_nodes=4, cores=8)} == {2}
    assert {plan.threads for plan in lay_out(5, Path("/net"), model_nodes=4, cores=2)} == {1}


def test_names_homes_and_ports_are_told_apart() -> None:
    plans = lay_out(40, Path("/net"), base_port=20_000)
    ports = [port for plan in plans for port in (plan.api_port, plan.peer_port)]
    assert ports == list(range(20_000, 20_080))
    assert len({plan.home for plan in plans}) == len({plan.log for plan in plans}) == 40
    assert sorted(plan.name for plan in plans) == [plan.name for plan in plans]


@pytest.mark.parametrize(
    ("count", "port"), [(0, 0), (-1, 0), (MAX_NODES + 1, 0), (2, 80), (2, 65_533)], ids=lambda value: str(value)
)
def test_what_cannot_be_is_refused_with_what_can(count: int, port: int) -> None:
    with pytest.raises(RequestError) as caught:
        lay_out(count, Path("/net"), base_port=port)
    assert caught.value.hint


def test_the_last_ports_can_be_used() -> None:
    assert lay_out(2, Path("/net"), base_port=65_532)[-1].peer_port == 65_535


@pytest.mark.parametrize("base_port", [0, 20_000])
def test_every_configuration_is_valid_and_stays_on_this_machine(tmp_path: Path, base_port: int) -> None:
    for plan in lay_out(3, tmp_path, base_port=base_port):
        plan.home.mkdir()
        (plan.home / "gnusnode.toml").write_text(configuration(plan))
        settings = load(Home.locate(plan.home), env={}).settings
        assert settings.node.roles == plan.roles
        assert settings.api.listen == f"127.0.0.1:{plan.api_port}"
        assert settings.net.listen == (f"/ip4/127.0.0.1/tcp/{plan.peer_port}",)
        assert not settings.net.mdns
        assert not settings.net.dht
        assert (settings.models.default == "none") == (not plan.model)
