"""The composition root: opens everything that a node consists of, in order, and closes it in the reverse order.

    home, lock ─ identity ─ store, audit ─ models ─ swarm, rpc ─ engines ─ roles ─ peers ─ API ─ run.json

``run_daemon`` is the life of a node; ``open_node`` is the node without its HTTP surface, for tests and tools.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial

import trio

from gnusnode import __version__
from gnusnode.api.keys import FileKeyStore
from gnusnode.api.options import ApiOptions, BoundAddresses
from gnusnode.api.server import serve_api
from gnusnode.auditing import Auditor
from gnusnode.config import runfile
from gnusnode.config.load import Loaded
from gnusnode.config.lock import HomeLock
from gnusnode.config.paths import Home
from gnusnode.config.settings import Settings
from gnusnode.contracts.verify import verify
from gnusnode.identity import NodeIdentity, rotations
from gnusnode.net.facts import NodeFacts
from gnusnode.net.local import LocalRpc
from gnusnode.net.membership import Membership
from gnusnode.network import open_swarm
from gnusnode.node import Node
from gnusnode.observe import events, notify
from gnusnode.observe.health import DISK_LOW, NET_UNUSED
from gnusnode.observe.lag import every, watch_loop_lag
from gnusnode.observe.logs import log_event
from gnusnode.observe.observer import Observer
from gnusnode.offering import Offering, open_models, open_offering
from gnusnode.policy.envelopes import workspace_policy
from gnusnode.store.audit import open_audit
from gnusnode.store.db import Store, open_store
from gnusnode.swarm import SwarmNode
from roles.experts.service import ExpertService
from roles.ingress.service import Ingress
from roles.ingress.tasklog import StoreTaskLog
from roles.ports import RoleContext
from roles.router.desk import FailoverOptions
from roles.router.directory import RpcDirectory, SwarmDirectory
from roles.router.service import Router, RouterOptions
from roles.supervisor import Supervisor
from roles.table import Role, RoleName, ServingRole

LOW_DISK_BYTES = 512 * 2**20
DISK_INTERVAL = 60.0
GRANT_INTERVAL = 10.0
"""Seconds between looks at the clock for certificates that end."""
SERVICE_VERSION = 1
"""What a hello says of each service; each of its methods has a version of its own."""
CLOSE_SECONDS = 3.0
"""How long writing down the end may take."""


async def run_daemon(home: Home, loaded: Loaded, *, stop: trio.Event, on_ready: Callable[[Node], None]) -> None:
    """Runs a node until ``stop`` is set, by a signal or through the API, and everything has come to its end.

    ``on_ready`` is called once the API listens; models may still be loading then.

    Raises:
        GnusError: the node could not start, or a role that it cannot be without failed for good.
    """
    began = time.monotonic()
    async with open_node(home, loaded, stop=stop) as node, trio.open_nursery() as nursery:
        serve = partial(
            serve_api,
            node,
            api_options(home, loaded.settings),
            FileKeyStore(home.root / "keys.json"),
            node.observer,
            node.surface,
        )
        bound: BoundAddresses = await nursery.start(serve)
        node.api_url = bound.url
        runfile.write(home, _run_info(node, bound))
        try:
            startup_ms = round((time.monotonic() - began) * 1000, 1)
            node.observer.bus.publish(
                events.NodeStarted(peer_id=node.peer_id, version=__version__, startup_ms=startup_ms)
            )
            notify.notify(f"READY=1\nSTATUS=serving at {bound.url}")
            on_ready(node)
            await stop.wait()
            node.observer.bus.publish(events.NodeStopping(cause=node.stop_cause))
            notify.notify("STOPPING=1")
        finally:
            runfile.remove(home)
        # The API ends by itself now: it listens to the same event and gives open answers their grace.


@asynccontextmanager
async def open_node(home: Home, loaded: Loaded, *, stop: trio.Event) -> AsyncGenerator[Node]:
    """A node with its roles running. Setting ``stop`` while it opens abandons that at once."""
    settings = loaded.settings
    home.ensure()
    with HomeLock.acquire(home):
        runfile.remove(home)  # of a predecessor that was killed
        identity = NodeIdentity.load_or_create(home.key)
        observer = Observer.create(log_event)
        metrics = observer.metrics
        async with open_store(
            home.data, map_size=settings.store.map_bytes, committed=metrics.store_commit_seconds.observe
        ) as store:
            metrics.store_bytes.set_function(lambda: float(store.info().file_bytes))
            audit = await open_audit(store, identity, rotations=rotations(home.key))
            auditor = Auditor(audit, observer.bus, observer.health, observer.metrics)
            models = await open_models(home, settings)
            local = LocalRpc(identity.peer_id, buffer_bytes=settings.limits.stream_buffer_bytes)
            async with (
                open_swarm(home, settings, identity, observer, local, models) as swarm,
                open_offering(settings, models, identity.peer_id, observer) as offering,
            ):
                metrics.engines.follow(offering.engine_infos)
                context = role_context(identity, swarm.membership, observer)
                configured = frozenset(RoleName(name) for name in settings.node.roles)
                roles = Supervisor(
                    await build_roles(settings, context, swarm, offering, store),
                    observer.bus,
                    swarm.granted(configured),
                )
                swarm.facts = partial(_facts, roles, offering)
                observer.health.update(NET_UNUSED, swarm.net is None and wants_network(loaded))
                node = Node(home, loaded, context, swarm, observer, store, audit, roles, offering, stop)
                try:
                    async with trio.open_nursery() as nursery:
                        await nursery.start(roles.run)
                        nursery.start_soon(auditor.run)
                        nursery.start_soon(_watch_loop, observer, settings)
                        nursery.start_soon(_watch_disk, observer, home)
                        nursery.start_soon(_follow_grants, swarm, roles, configured)
                        nursery.start_soon(offering.load)
                        await nursery.start(swarm.run)
                        yield node
                        nursery.cancel_scope.cancel()
                finally:
                    with trio.move_on_after(CLOSE_SECONDS, shield=True):
                        await auditor.drain()


def wants_network(loaded: Loaded) -> bool:
    """Whether somebody set what only a network needs, and did not switch the network off."""
    net = loaded.settings.net
    named = any(loaded.origin(key) != "default" for key in ("net.listen", "net.announce"))
    return net.enabled == "auto" and (named or net.mdns)


def role_context(identity: NodeIdentity, membership: Membership, observer: Observer) -> RoleContext:
    """The node as its roles see it: a swarm of one until it joins another."""
    return RoleContext(
        signer=identity,
        swarm=lambda: membership.swarm_id,
        verify=lambda record: verify(record, membership.now_ms(), membership.roster),
        now_ms=membership.now_ms,
        observer=observer,
    )


async def build_roles(
    settings: Settings, context: RoleContext, swarm: SwarmNode, offering: Offering, store: Store
) -> list[Role]:
    """The roles that the settings name, in the order in which they start: who is called before who calls."""
    rpc = swarm.rpc
    core = ExpertService(offering.core, context, trusts=swarm.trusts)
    elm = ExpertService(offering.elm, context, trusts=swarm.trusts)
    router = Router(
        rpc,
        context,
        SwarmDirectory(RpcDirectory(swarm.local), context.peer_id, swarm.table.cards),
        swarm.view,
        router_options(settings),
        report=swarm.report,
    )
    log = await StoreTaskLog.open(store, settings.router.keep_plans)
    ingress = Ingress(rpc, context, log, partial(workspace_policy, settings.profile))
    every_role: list[Role] = [
        ServingRole(RoleName.CORE, rpc, [core.service()], lambda: {"drafts": core.drafts}),
        ServingRole(RoleName.ELM, rpc, [elm.service()], lambda: {"drafts": elm.drafts}),
        ServingRole(
            RoleName.ROUTER,
            rpc,
            [router.service()],
            lambda: {"running": router.running, **asdict(router.tally)},
            critical=True,
        ),
        ServingRole(RoleName.INGRESS, rpc, [ingress.service()], lambda: {"active": ingress.active}, critical=True),
    ]
    return [role for role in every_role if role.name.value in settings.node.roles]


def router_options(settings: Settings) -> RouterOptions:
    """The router as the settings ask for it."""
    router = settings.router
    return RouterOptions(
        classify=router.classify,
        plan_ms=round(router.plan_seconds * 1000),
        explore=router.explore,
        failover=FailoverOptions(
            requeues=router.requeues,
            claim_seconds=router.claim_seconds,
            first_seconds=router.first_token_seconds,
            idle_seconds=router.idle_seconds,
            hedge_seconds=router.hedge_seconds,
        ),
    )


def api_options(home: Home, settings: Settings) -> ApiOptions:
    """The HTTP surface as the settings ask for it."""
    api, limits = settings.api, settings.limits
    host, _, port = api.listen.rpartition(":")
    return ApiOptions(
        host=host.strip("[]"),
        port=int(port),
        unix_socket=home.socket_path(),
        tls_cert=api.tls_cert,
        tls_key=api.tls_key,
        open_loopback=not api.require_key,
        allowed_hosts=api.allowed_hosts,
        cors_origins=api.cors_origins,
        max_connections=api.max_connections,
        max_body_bytes=api.max_body_bytes,
        max_in_flight=api.max_in_flight,
        header_seconds=api.header_seconds,
        body_seconds=api.body_seconds,
        keep_alive_seconds=api.keep_alive_seconds,
        stalled_write_seconds=api.stalled_write_seconds,
        grace_seconds=limits.shutdown_seconds,
        sse_keepalive_seconds=api.sse_keepalive_seconds,
        request_seconds=limits.request_seconds,
        default_max_tokens=limits.max_tokens,
    )


async def _watch_loop(observer: Observer, settings: Settings) -> None:
    seconds = notify.watchdog_seconds()
    beat = every(seconds, partial(notify.notify, "WATCHDOG=1")) if seconds else None
    await watch_loop_lag(observer.metrics, observer.health, warning_ms=settings.observe.lag_warning_ms, beat=beat)


async def _watch_disk(observer: Observer, home: Home) -> None:
    """Warns before the disk is full: what cannot be written any more cannot be told any more."""
    while True:
        free = (await trio.to_thread.run_sync(shutil.disk_usage, home.root)).free
        observer.health.update(DISK_LOW, free < LOW_DISK_BYTES, f"{free // 2**20} MiB free", about=str(home.root))
        await trio.sleep(DISK_INTERVAL)


def _facts(roles: Supervisor, offering: Offering) -> NodeFacts:
    """What others hear of this node."""
    running = roles.running
    services = {role.value: SERVICE_VERSION for role in running}
    return NodeFacts(roles=running, services=services, artifacts=offering.artifacts(services))


async def _follow_grants(swarm: SwarmNode, roles: Supervisor, configured: frozenset[RoleName]) -> None:
    """Roles come and go as the swarm grants them, and as certificates begin and end."""
    async with swarm.membership.changes() as changes:
        while True:
            roles.grant(swarm.granted(configured))
            with trio.move_on_after(GRANT_INTERVAL):
                await anext(changes)


def _run_info(node: Node, bound: BoundAddresses) -> runfile.RunInfo:
    return runfile.RunInfo(
        pid=os.getpid(),
        started=node.started_at.isoformat(timespec="seconds"),
        version=__version__,
        peer_id=node.peer_id,
        socket=str(bound.unix),
        api=bound.url,
    )
