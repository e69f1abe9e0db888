"""``gnusnode swarm`` on the files of nodes that do not run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gnusnode.cli import swarmfiles
from gnusnode.cli.app import app
from gnusnode.config.lock import HomeLock
from gnusnode.config.paths import Home
from gnusnode.config.settings import NetSettings, Settings
from gnusnode.contracts.invite import Invite
from gnusnode.errors import Conflict, PeerUnreachable
from gnusnode.identity import NodeIdentity
from gnusnode.net.membership import Membership

BLACK_HOLE = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNUSNODE_NET__ANNOUNCE", "/ip4/192.0.2.7/tcp/8478")


class Cli:
    def __init__(self, home: Path) -> None:
        self.home = home

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, ["swarm", *arguments, "--home", str(self.home)])

    def json(self, *arguments: str) -> Any:
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


@pytest.fixture
def founder(tmp_path: Path) -> Cli:
    cli = Cli(tmp_path / "founder")
    assert cli.run("init", "our lab", "--operator", "alice").exit_code == 0
    return cli


@contextmanager
def inviter_that(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Iterator[None]:
    """Whoever redeems a token meanwhile gets ``error``."""

    async def refuse(*_: object) -> str | None:
        if isinstance(error, PeerUnreachable):
            return error.what
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(swarmfiles, "_redeem", refuse)
        yield


def test_a_swarm_is_founded_on_a_machine_that_has_no_node_yet(tmp_path: Path) -> None:
    result = Cli(tmp_path / "new").run("init", "our lab")
    assert result.exit_code == 0
    assert "founded our lab" in result.stdout
    assert "root.key" in result.stderr
    assert (tmp_path / "new" / "key").exists()


def test_an_invite_is_one_line_on_stdout_and_its_conditions_are_beside_it(founder: Cli) -> None:
    result = founder.run("invite", "--roles", "core,elm", "--expires", "90m", "--operator", "bob")
    invite = Invite.from_token(result.stdout)
    assert result.stdout.count("\n") == 1
    assert (invite.expires_at_ms - invite.issued_at_ms) == 90 * 60_000
    assert (invite.operator, invite.tier.value) == ("bob", "C")
    assert [address.partition("/p2p/")[0] for address in invite.bootstrap] == ["/ip4/192.0.2.7/tcp/8478"]
    assert "one node" in result.stderr
    assert founder.json("invite", "--roles", "core")["token"].startswith("gnus1-")


def test_members_invites_and_admins_are_shown_as_tables_and_as_json(founder: Cli) -> None:
    founder.run("invite", "--roles", "all", "--uses", "3")
    me = founder.json("status")["peer_id"]
    assert [row["peer_id"] for row in founder.json("members")] == [me]
    assert [row["used"] for row in founder.json("invites")] == ["0/3"]
    assert [row["peer_id"] for row in founder.json("admins")] == [me]
    for command, expected in (("members", "alice"), ("invites", "0/3"), ("admins", me), ("status", "our lab")):
        assert expected in founder.run(command).stdout


def test_an_invite_is_withdrawn_by_its_id(founder: Cli) -> None:
    made = founder.json("invite", "--roles", "core")
    assert founder.run("invites", "--withdraw", made["id"]).exit_code == 0
    assert founder.json("invites")[0]["state"] == "withdrawn"
    assert founder.run("invites", "--withdraw", "nothing").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["invite", "--roles", "king"], 2, "there is no role 'king'"),
        (["invite", "--roles", ""], 2, "no role was given"),
        (["invite", "--roles", "core", "--expires", "soon"], 2, "no length of time"),
        (["invite", "--roles", "core", "--expires", "0h"], 2, "no length of time"),
        (["invite", "--roles", "router", "--tier", "C"], 2, "cannot hold the role router"),
        (["invite", "--roles", "core", "--tier", "Z"], 2, "tier"),
        (["invite", "--roles", "core", "--tier", "D"], 2, "closed swarm"),
        (["join", "gnus1-abc"], 2, "damaged or was cut off"),
        (["join", "hello"], 2, "this is no token"),
        (["invite", "--roles", "core", "--uses", "65"], 2, "--uses"),
        (["init", "another"], 1, "belongs to the swarm 'our lab' already"),
        (["init", "a/b"], 2, "name"),
        (["revoke", "12"], 1, "no certificate 12"),
        (["revoke", "bob"], 1, "no member whose PeerID is 'bob'"),
        (["revoke", "bob"], 1, "at least the last 4 characters"),
        (["roles", BLACK_HOLE.rpartition("/")[2], "core"], 1, "no member"),
        (["admins", "remove", "alice"], 1, "no member whose PeerID is 'alice', or ends so"),
    ],
)
def test_a_mistake_is_explained(founder: Cli, arguments: list[str], code: int, text: str) -> None:
    result = founder.run(*arguments)
    assert text in result.stderr
    assert "Asking" not in result.stderr
    assert result.exit_code == code
    assert "Traceback" not in result.output


def test_without_a_swarm_each_command_says_what_to_do(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "alone")
    assert "gnusnode init" in cli.run("status").stderr
    Home(cli.home).ensure()
    NodeIdentity.load_or_create(cli.home / "key")
    assert cli.json("status")["state"] == "alone"
    assert "swarm init" in cli.run("members").stderr
    for arguments in (["invite", "--roles", "core"], ["leave"], ["revoke", "1"], ["admins"]):
        result = cli.run(*arguments)
        assert result.exit_code == 1
        assert "swarm" in result.stderr


def test_a_token_whose_node_cannot_be_reached_is_kept_and_said(
    founder: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = founder.json("invite", "--roles", "core")["token"]
    joiner = Cli(tmp_path / "joiner")
    with inviter_that(monkeypatch, PeerUnreachable("nobody is there")):
        result = joiner.run("join", token)
    assert result.exit_code == 0
    assert "nobody is there" in result.stderr
    assert "gnusnode start" in result.stderr
    assert joiner.json("status")["state"] == "joining"
    assert "belongs to the swarm" in joiner.run("join", token).stderr


def test_a_token_of_no_use_leaves_nothing_behind(founder: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = founder.json("invite", "--roles", "core")["token"]
    joiner = Cli(tmp_path / "joiner")
    with inviter_that(monkeypatch, Conflict("this invite was used by another node")):
        result = joiner.run("join", token)
    assert result.exit_code == 1
    assert "used by another node" in result.stderr
    assert joiner.json("status")["state"] == "alone"
    assert not (joiner.home / "swarm").exists()


def test_leaving_says_where_the_root_key_is(founder: Cli) -> None:
    answer = founder.json("leave")
    assert Path(answer["root_key"]).exists()
    assert founder.json("status")["state"] == "alone"


def test_the_files_are_left_alone_while_somebody_holds_the_home(founder: Cli) -> None:
    with HomeLock.acquire(Home(founder.home)):
        result = founder.run("leave")
    assert result.exit_code == 5
    assert "already runs" in result.stderr


def test_addresses_come_from_announce_else_from_the_ports_that_are_known() -> None:
    def addresses(**net: Any) -> tuple[str, ...]:
        return swarmfiles.dialable(Settings(net=NetSettings(**net)), "PEER")

    assert addresses(announce=("/ip4/192.0.2.9/tcp/1",)) == ("/ip4/192.0.2.9/tcp/1/p2p/PEER",)
    assert addresses(listen=("/ip4/192.0.2.8/tcp/4001",)) == ("/ip4/192.0.2.8/tcp/4001/p2p/PEER",)
    assert addresses(listen=("/ip4/127.0.0.1/tcp/0",)) == ()
    assert addresses(listen=()) == ()
    assert all(address.endswith("/tcp/8478/p2p/PEER") for address in addresses())


def test_what_the_command_line_did_is_what_the_daemon_finds(founder: Cli) -> None:
    import trio

    from gnusnode.observe.observer import Observer

    identity = NodeIdentity.load(founder.home / "key")

    async def main() -> Membership:
        return await Membership.open(founder.home, identity, Observer.create())

    membership = trio.run(main)
    assert membership.swarm is not None
    assert membership.swarm.name == "our lab"
    assert membership.standing(identity.peer_id).operators == {"alice"}
