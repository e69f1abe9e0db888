"""Everything about membership that needs the network, as one task."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

import trio

from gnusnode.net.invites import Invites
from gnusnode.net.join import Joiner, JoinServer
from gnusnode.net.membership import Membership
from gnusnode.net.port import Net
from gnusnode.net.renewal import Upkeep, renew
from gnusnode.net.rosterexchange import RosterServer
from gnusnode.net.rostermsg import JOIN, ROSTER
from gnusnode.net.rostersync import RosterSync
from gnusnode.observe.observer import Observer


async def keep_membership(
    net: Net,
    membership: Membership,
    invites: Invites,
    observer: Observer,
    *,
    sync: RosterSync | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answers joiners and members, spreads and gathers records, redeems a pending token and renews what ends.

    Started once ``/gnus/join/1`` and ``/gnus/roster/1`` are served; runs until cancelled and ends its streams then.

    Args:
        sync: whose statistics are of interest to the caller.
    """
    sync = sync or RosterSync(membership)
    roster = RosterServer(membership, partial(renew, membership))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(net.serve(ROSTER, roster.handle))
        await stack.enter_async_context(net.serve(JOIN, JoinServer(membership, invites, observer).handle))
        async with trio.open_nursery() as nursery:
            task_status.started()
            nursery.start_soon(sync.run, net)
            nursery.start_soon(Joiner(membership, observer).run, net)
            nursery.start_soon(Upkeep(membership, sync, observer).run, net)
