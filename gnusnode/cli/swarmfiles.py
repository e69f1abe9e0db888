"""``gnusnode swarm`` on a node that does not run: the same desk, on the files of the home, under its lock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from gnusnode.config.load import load
from gnusnode.config.lock import HomeLock
from gnusnode.config.paths import Home
from gnusnode.config.settings import Settings
from gnusnode.errors import GnusError, RateLimited, Unavailable
from gnusnode.identity import NodeIdentity, rotations
from gnusnode.net.invites import Invites
from gnusnode.net.membership import Membership
from gnusnode.net.swarmdesk import JoinSwarm, SwarmDesk, own_operator
from gnusnode.observe.observer import Observer

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from gnusnode.net.port import Net

T = TypeVar("T")

REDEEM_SECONDS: Final = 20.0
"""How long the inviting node may take before the token is kept for the next start."""


def on_files(home: Home, act: Callable[[SwarmDesk], Awaitable[T]], *, new: bool = False) -> T:
    """Does ``act`` at the desk of a node that does not run.

    Args:
        new: make the home and its key where there are none yet.

    Raises:
        AlreadyRunning: a node started meanwhile. NotFound: there is no node here. GnusError: what ``act`` raises.
    """

    async def main() -> T:
        return await act((await _open(home, identity, settings))[1])

    settings = load(home).settings
    identity = _identity(home, new=new)
    with HomeLock.acquire(home):
        return trio.run(main, strict_exception_groups=True)


def join(home: Home, asked: JoinSwarm) -> dict[str, Any]:
    """Joins by ``asked.token`` over a network endpoint that lives just as long.

    Where the inviting node cannot be reached the token is kept, ``state`` is ``joining`` and ``why`` says the reason.

    Raises:
        GnusError: the token is of no use; nothing is kept then.
    """

    async def main() -> dict[str, Any]:
        membership, desk = await _open(home, identity, settings)
        answer = await desk.swarm_join(asked)
        if answer["state"] != "joining":
            return answer
        refusal, why = None, None
        try:
            why = await _redeem(identity, settings, membership)
        except GnusError as error:
            refusal = error
        if refusal is not None:
            await membership.leave()
            raise refusal
        return desk.swarm_status() | ({"why": why} if why else {})

    settings = load(home).settings
    identity = _identity(home, new=True)
    with HomeLock.acquire(home):
        return trio.run(main, strict_exception_groups=True)


async def _redeem(identity: NodeIdentity, settings: Settings, membership: Membership) -> str | None:
    """Redeems the pending token; gives the reason why it has to wait, where it does."""
    from gnusnode.net.join import accept, read_token, redeem

    swarm = membership.swarm
    assert swarm is not None
    assert swarm.pending is not None
    invite = read_token(swarm.pending, membership.now_ms())
    with trio.move_on_after(REDEEM_SECONDS):
        try:
            async with _short_net(identity, settings, swarm.network_key) as net:
                records = await redeem(net, invite, swarm.operator, membership.now_ms())
        except (Unavailable, RateLimited) as error:
            return error.what
        await accept(membership, records)
        return None
    return f"the inviting node did not answer within {REDEEM_SECONDS:.0f} s"


def _short_net(
    identity: NodeIdentity, settings: Settings, network_key: bytes | None
) -> AbstractAsyncContextManager[Net]:
    """An endpoint that only dials."""
    from gnusnode.net.p2p.host import open_net
    from gnusnode.net.p2p.options import NetOptions

    options = NetOptions(dial_seconds=settings.net.dial_seconds, network_key=network_key)
    return open_net(identity.seed, options)


async def _open(home: Home, identity: NodeIdentity, settings: Settings) -> tuple[Membership, SwarmDesk]:
    observer = Observer.create()
    membership = await Membership.open(home.root, identity, observer, rotations=rotations(home.key))
    return membership, SwarmDesk(
        membership,
        Invites(membership, observer),
        addresses=lambda: dialable(settings, membership.peer_id),
        operator=own_operator(settings.node.name, membership.peer_id),
        fits=lambda: False,  # nothing runs: whatever changes holds from the next start
    )


def dialable(settings: Settings, peer_id: str) -> tuple[str, ...]:
    """Where a node with these settings will be dialled once it runs; none where its port is only known then."""
    from gnusnode.net.p2p.addresses import announced, interface_addresses

    fixed = [address for address in settings.net.listen if "/tcp/0" not in address]
    found = settings.net.announce or announced(fixed, interface_addresses())
    return tuple(address if "/p2p/" in address else f"{address}/p2p/{peer_id}" for address in found)


def _identity(home: Home, *, new: bool) -> NodeIdentity:
    from gnusnode.cli.identity import load_identity

    if not new:
        return load_identity(home)
    home.ensure()
    return NodeIdentity.load_or_create(home.key)
