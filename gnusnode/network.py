"""Opens a node's part in its swarm: the network, who is let in, rpc, presence, artifacts, mDNS.

    membership ─ (network) ─ peer table, admission ─ rpc ─ presence, roster exchange, artifacts, mDNS

A node that takes part in no network has the membership and the rpc within the process, and nothing else of this.
Importing this module costs little; opening a network imports libp2p.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from gnusnode.config.paths import Home
from gnusnode.config.settings import Settings
from gnusnode.contracts.methods import Method
from gnusnode.errors import GnusError
from gnusnode.identity import NodeIdentity, rotations
from gnusnode.inference.artifacts.models import ModelStore
from gnusnode.net.belonging import keep_membership
from gnusnode.net.blobs import (
    ElmTrust,
    Fetching,
    FetchLimits,
    FetchStatistics,
    Puller,
    ServeLimits,
    TokenBucket,
    serve_blobs,
)
from gnusnode.net.context import NetContext
from gnusnode.net.facts import ThisStart
from gnusnode.net.hello import Admission
from gnusnode.net.invites import Invites
from gnusnode.net.link import RpcOptions
from gnusnode.net.local import LocalRpc
from gnusnode.net.membership import Membership
from gnusnode.net.p2p.options import NetOptions
from gnusnode.net.peerfile import PeerFile
from gnusnode.net.peers import PeerTable
from gnusnode.net.port import Net, PeerAddresses
from gnusnode.net.presence import Presence, PresenceOptions
from gnusnode.net.swarmdesk import SwarmDesk, own_operator
from gnusnode.net.swarmrpc import SwarmRpc
from gnusnode.observe.network import NetworkCounts
from gnusnode.observe.observer import Observer
from gnusnode.policy.callers import refusal_of, refusal_of_files
from gnusnode.swarm import LIED_SECONDS, SwarmNode


@asynccontextmanager
async def open_swarm(
    home: Home, settings: Settings, identity: NodeIdentity, observer: Observer, local: LocalRpc, store: ModelStore
) -> AsyncGenerator[SwarmNode]:
    """The node's part in its swarm, with the network open where it takes part in one.

    Raises:
        DataError: what is known of the swarm is damaged. CannotBind: an address of ``net.listen`` is taken.
        ConfigError: an option of ``[net]`` cannot be.
    """
    membership = await Membership.open(home.root, identity, observer, rotations=rotations(home.key))
    table = PeerTable(identity.peer_id, ttl=settings.net.ttl_seconds)
    invites = Invites(membership, observer)
    node = SwarmNode(membership, table, _desk(membership, invites, settings, None), local, local, membership.now_ms)
    async with AsyncExitStack() as stack:
        if takes_part(settings, membership):
            await _open_network(stack, node, home, settings, identity, observer, invites, store)
        yield node


def takes_part(settings: Settings, membership: Membership) -> bool:
    """Whether the node opens a network."""
    match settings.net.enabled:
        case "on":
            return True
        case "off":
            return False
        case "auto":
            return membership.swarm is not None or bool(settings.net.peers)


def _desk(membership: Membership, invites: Invites, settings: Settings, net: Net | None) -> SwarmDesk:
    """Who decides about members; a network that is open fits the swarm that it was opened for, and no other."""
    opened_for = membership.swarm.root if membership.swarm else None

    def fits() -> bool:
        now = membership.swarm.root if membership.swarm else None
        return net is not None and now == opened_for

    return SwarmDesk(
        membership,
        invites,
        addresses=net.addresses if net is not None else tuple,
        operator=own_operator(settings.node.name, membership.peer_id),
        fits=fits,
    )


async def _open_network(
    stack: AsyncExitStack,
    node: SwarmNode,
    home: Home,
    settings: Settings,
    identity: NodeIdentity,
    observer: Observer,
    invites: Invites,
    store: ModelStore,
) -> None:
    """Gives ``node`` a network, and the parts that need one."""
    from gnusnode.net.p2p.host import open_net  # libp2p takes a second of CPU to import

    membership, table = node.membership, node.table
    admission = Admission(identity.peer_id, table, membership)

    def admits(peer: str) -> bool:
        return admission.allows(peer) is None

    net: Net = await stack.enter_async_context(
        open_net(identity.seed, net_options(settings, membership), admits=admits)
    )
    net.gossip_with(admits)
    rpc = SwarmRpc(
        net,
        node.local,
        gate=admission.allows,
        serving=lambda service: [entry.peer for entry in table.serving(service)],
        accepts=partial(_accepts, membership),
        options=RpcOptions(window=settings.limits.stream_buffer_bytes),
    )
    observer.metrics.network.follow(lambda: _counts(node, net, rpc))
    context = NetContext(
        net=net,
        table=table,
        signer=identity,
        members=membership,
        facts=lambda: node.facts(),
        credentials=membership.own_records,
        observer=observer,
        now_ms=membership.now_ms,
        start=ThisStart.now(membership.now_ms()),
    )
    presence = Presence(
        context, rpc, file=PeerFile(home.root / "peers.json"), options=_presence_options(settings, membership)
    )
    node.net, node.rpc, node.presence = net, rpc, presence
    node.desk = _desk(membership, invites, settings, net)
    await _open_artifacts(stack, node, net, settings, identity, admission, store)
    if settings.net.mdns:
        node.finders.append(await _open_mdns(stack, net, settings, membership))
    node.services += [
        rpc.run,
        partial(keep_membership, net, membership, invites, observer),
        partial(presence.run, node.finders),
    ]
    if settings.net.dht:
        node.services.append(node.provide)


async def _open_artifacts(
    stack: AsyncExitStack,
    node: SwarmNode,
    net: Net,
    settings: Settings,
    identity: NodeIdentity,
    admission: Admission,
    store: ModelStore,
) -> None:
    """Gives model files to members, and fetches them from there."""

    def gives(peer: str) -> GnusError | None:
        return admission.allows(peer) or refusal_of_files(peer, node.membership.standing(peer))

    if settings.net.serve_artifacts:
        limits = ServeLimits(bytes_per_second=settings.net.upload_bytes_per_second)
        node.blobs = await stack.enter_async_context(serve_blobs(net, store, identity, gate=gives, limits=limits))
    models = settings.models
    fetching = Fetching(
        net,
        lambda: node.roster,
        lambda peer, reason: node.table.exclude(peer, LIED_SECONDS, reason),
        FetchLimits(
            max_bytes=models.pull_max_bytes,
            reserve=models.reserve_bytes,
            bytes_per_second=models.pull_bytes_per_second,
        ),
        TokenBucket(models.pull_bytes_per_second),
    )
    trust = ElmTrust((identity.peer_id, *models.trusted_packers), models.require_signature)
    node.puller = Puller(store, fetching, holders=node.holders, seek=node.seek, trust=trust)


async def _open_mdns(
    stack: AsyncExitStack, net: Net, settings: Settings, membership: Membership
) -> AsyncIterator[PeerAddresses]:
    from gnusnode.net.mdns import open_mdns

    swarm = membership.swarm
    return await stack.enter_async_context(
        open_mdns(
            net.peer_id,
            swarm.short_id if swarm else None,
            net.addresses,
            interfaces=settings.net.mdns_interfaces,
        )
    )


def net_options(settings: Settings, membership: Membership) -> NetOptions:
    """The settings in the plain values of the network."""
    net, swarm = settings.net, membership.swarm
    return NetOptions(
        listen=net.listen,
        announce=net.announce,
        allow=net.allow,
        deny=net.deny,
        max_connections=net.max_connections,
        max_per_address=net.max_per_address,
        dial_seconds=net.dial_seconds,
        ping_seconds=net.ping_seconds,
        network_key=swarm.network_key if swarm else None,
        network_name=swarm.short_id if swarm else None,
        dht=net.dht,
        relay=net.relay,
    )


def _presence_options(settings: Settings, membership: Membership) -> PresenceOptions:
    net, swarm = settings.net, membership.swarm
    return PresenceOptions(
        configured=tuple(dict.fromkeys((*net.peers, *(swarm.bootstrap if swarm else ())))),
        heartbeat=net.heartbeat_seconds,
        ttl=net.ttl_seconds,
        wanted=net.discovered_peers,
        dht=net.dht,
    )


def _accepts(membership: Membership, peer: str, method: Method) -> GnusError | None:
    return refusal_of(peer, membership.standing(peer), method.service, method.name)


def _counts(node: SwarmNode, net: Net, rpc: SwarmRpc) -> NetworkCounts:
    wire, calls = net.statistics(), rpc.statistics()
    fetched = node.puller.statistics if node.puller else FetchStatistics()
    return NetworkCounts(
        connections=wire.connections,
        refused=wire.inbound_refused,
        faults={
            "handler": wire.handler_failures,
            "stream": wire.streams_refused,
            "protocol": wire.protocol_violations + calls.violations,
            "gossip": wire.gossip_refused,
            "dropped": wire.gossip_dropped,
            "library": wire.library_faults,
            "artifact": fetched.sources_excluded,
        },
        traffic={"in": wire.bytes_in, "out": wire.bytes_out},
        artifacts={"in": fetched.bytes_received, "out": node.blobs.statistics.bytes_sent if node.blobs else 0},
        calls={"in": sum(calls.running.values()), "out": calls.calling},
    )
