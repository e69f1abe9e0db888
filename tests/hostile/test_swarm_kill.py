"""A node killed at any file operation of the swarm comes back as before or as after, and can go on."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.swarm import Role
from gnusnode.net import join
from tests.fakes.belonging import EXPERTS, BelongingNode, Village, key

OPERATIONS = ("open", "fsync", "replace", "rename", "link", "unlink", "mkdir", "rmdir")


class Killed(BaseException):
    """The process is gone: nothing runs any more, no cleaning up either."""


class Killer:
    """Ends the process at the file operation of that number; every later one, of cleaning up, is not done either."""

    def __init__(self, patch: pytest.MonkeyPatch, after: int) -> None:
        self.left = after
        for name in OPERATIONS:
            patch.setattr(os, name, self._wrap(getattr(os, name)))

    def _wrap(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise Killed
            return operation(*arguments, **options)

        return act


Prepare = Callable[[Village], Awaitable[BelongingNode]]
Act = Callable[[BelongingNode], Awaitable[object]]
Check = Callable[[BelongingNode], Awaitable[None]]


async def kill_at_every_operation(tmp_path: Path, prepare: Prepare, act: Act, check: Check, number: int = 1) -> None:
    """Runs ``act`` again and again, killed one operation later each time; ``check`` looks at the node after that."""
    for after in range(200):
        folder = tmp_path / str(after)
        folder.mkdir()
        village = Village(folder)
        node = await prepare(village)
        with pytest.MonkeyPatch.context() as patch:
            Killer(patch, after)
            try:
                await act(node)
                done = True
            except Killed:
                done = False
        await check(await village.node(number))
        if done:
            assert after > 1, "the operations were not seen"
            return
    raise AssertionError("it never came to its end")


async def test_founding(tmp_path: Path) -> None:
    async def prepare(village: Village) -> BelongingNode:
        return await village.node(1)

    async def act(node: BelongingNode) -> None:
        await node.membership.init("village", operator="alice")

    async def check(node: BelongingNode) -> None:
        if node.membership.swarm is None:
            await node.membership.init("village", operator="alice")
        assert node.roles_of(node) == frozenset(Role)
        await node.membership.delegate(key(9).peer_id, EXPERTS, node.membership.standing(node.peer).tier)
        assert [path.name for path in node.home.iterdir()] == ["swarm"]  # no half-made one beside it

    await kill_at_every_operation(tmp_path, prepare, act, check)


async def test_letting_a_node_in(tmp_path: Path) -> None:
    secrets: dict[Path, str] = {}

    async def prepare(village: Village) -> BelongingNode:
        founder = await village.founder()
        secrets[founder.home] = (await founder.invite()).secret or ""
        return founder

    async def act(node: BelongingNode) -> None:
        await node.invites.redeem(secrets[node.home], key(2).peer_id, "bob")

    async def check(node: BelongingNode) -> None:
        certificate = await node.invites.redeem(secrets[node.home], key(2).peer_id, "bob")
        assert node.membership.standing(key(2).peer_id).outcome is Outcome.OK
        assert [one.digest for one in node.membership.roster.grants[key(2).peer_id]] == [certificate.digest]
        assert len((await node.invites.list())[0].redeemed) == 1

    await kill_at_every_operation(tmp_path, prepare, act, check)


async def test_changing_roles(tmp_path: Path) -> None:
    """Between the two records a node may come back with both; it is never without a role that it keeps."""

    async def prepare(village: Village) -> BelongingNode:
        founder = await village.founder()
        await founder.membership.grant(key(2).peer_id, (Role.CORE, Role.ELM), operator="bob")
        return founder

    async def act(node: BelongingNode) -> None:
        await node.membership.set_roles(key(2).peer_id, (Role.ELM,))

    async def check(node: BelongingNode) -> None:
        assert Role.ELM in node.membership.standing(key(2).peer_id).roles
        await node.membership.set_roles(key(2).peer_id, (Role.ELM,))
        assert node.membership.standing(key(2).peer_id).roles == {Role.ELM}
        assert node.warnings() == set()

    await kill_at_every_operation(tmp_path, prepare, act, check)


async def test_joining(tmp_path: Path) -> None:
    founders: dict[Path, BelongingNode] = {}

    async def prepare(village: Village) -> BelongingNode:
        node = await village.node(2)
        founders[node.home] = await village.founder()
        return node

    async def act(node: BelongingNode) -> None:
        founder = founders[node.home]
        invite = await founder.invite()
        await node.membership.begin_join(join.state_of(invite, invite.to_token(), "bob"))
        await founder.invites.redeem(invite.secret or "", node.peer, "bob")
        await join.accept(node.membership, founder.membership.records_known())

    async def check(node: BelongingNode) -> None:
        swarm = node.membership.swarm
        if swarm is not None and swarm.pending is None:
            assert node.roles_of(node) == EXPERTS
        elif swarm is not None:
            invite = join.read_token(swarm.pending or "", node.membership.now_ms())
            founder = founders[node.home]
            await founder.invites.redeem(invite.secret or "", node.peer, "bob")
            await join.accept(node.membership, founder.membership.records_known())
            assert node.roles_of(node) == EXPERTS

    await kill_at_every_operation(tmp_path, prepare, act, check, number=2)


async def test_leaving(tmp_path: Path) -> None:
    async def prepare(village: Village) -> BelongingNode:
        return await village.founder()

    async def act(node: BelongingNode) -> None:
        await node.membership.leave()

    async def check(node: BelongingNode) -> None:
        assert len(list(node.home.rglob("root.key"))) == 1
        if node.membership.swarm is not None:
            assert node.roles_of(node) == frozenset(Role)
            await node.membership.leave()
        await node.membership.init("another", operator="alice")

    await kill_at_every_operation(tmp_path, prepare, act, check)
