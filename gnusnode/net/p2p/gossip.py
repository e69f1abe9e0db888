"""GossipSub: signed messages to everyone who subscribes to a topic.

The library's router builds the mesh. What comes in is judged here: in the library one message of any peer can end the
process, signatures are verified without limit, a flood is handed out before it is noticed. Asked of each message, in
turn: the neighbour's budget, the shape, the publisher's signature, the publisher's budget, and the subscribers.
"""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import logging
import random
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import trio
from libp2p.abc import IHost, INetStream
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, PROTOCOL_ID_V12, GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.validators import signature_validator
from libp2p.tools.anyio_service import background_trio_service

from gnusnode.errors import TooLarge
from gnusnode.net.p2p.pacing import PacedStream, Paces
from gnusnode.net.port import MAX_GOSSIP, Accept, NetStatistics

if TYPE_CHECKING:
    from gnusnode.net.p2p.options import NetOptions

_MAX_RPC: Final = 256 * 1024
_ED25519_ID: Final = bytes.fromhex("002408011220")
"""What every PeerID made of an Ed25519 key begins with; 32 bytes of key follow."""
_SIGNATURE_BYTES: Final = 64
_SEQNO_BYTES: Final = 8
_SEEN_SECONDS: Final = 120
_CONTROL_IDS: Final = 64
"""Message ids looked at in one control message: a neighbour that wants more asks again after the next heartbeat."""
_MAX_TOPICS_PER_PEER: Final = 64
_QUEUE_MESSAGES: Final = 512
_QUEUE_BYTES: Final = 4 * 1024 * 1024
_OUTBOUND_MESSAGES: Final = 128
_PENDING_MESSAGES: Final = 8
"""Kept for a neighbour that has subscribed to nothing yet; many never do."""
_WORTH_A_NOTICE: Final = 4096
_MAX_BUDGETS: Final = 4096

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rate:
    """What one sender may send: steadily per second, and at most at once."""

    messages_per_second: float
    messages: float
    bytes_per_second: float
    bytes: float


FORWARDER_RATE: Final = Rate(500, 2000, 4 << 20, 16 << 20)
"""A neighbour brings the messages of many publishers."""
PUBLISHER_RATE: Final = Rate(50, 400, 1 << 20, 4 << 20)
MEMBER_PACE: Final = float(1 << 20)
"""Bytes per second that are read of a neighbour: the library's work on each message comes before any budget."""
STRANGER_PACE: Final = 8192.0
"""The same of one that may not hear: enough to say what it subscribes to, until it may."""


class Budgets:
    """A token bucket per sender; the sender not seen for longest is forgotten when there are too many."""

    def __init__(self, rate: Rate, clock: Callable[[], float], capacity: int = _MAX_BUDGETS) -> None:
        self._rate = rate
        self._clock = clock
        self._capacity = capacity
        self._left: OrderedDict[bytes, tuple[float, float, float]] = OrderedDict()

    def take(self, sender: bytes, size: int) -> bool:
        """Whether ``sender`` may send a message of ``size`` bytes now; takes it from the budget if so."""
        rate, now = self._rate, self._clock()
        messages, octets, at = self._left.pop(sender, (rate.messages, rate.bytes, now))
        messages = min(rate.messages, messages + (now - at) * rate.messages_per_second)
        octets = min(rate.bytes, octets + (now - at) * rate.bytes_per_second)
        allowed = messages >= 1 and octets >= size
        if allowed:
            messages, octets = messages - 1, octets - size
        self._left[sender] = (messages, octets, now)
        if len(self._left) > self._capacity:
            self._left.popitem(last=False)
        return allowed


class Subscription:
    """The accepted messages of one subscriber. Bounded in number and bytes: the oldest go first, and are counted."""

    def __init__(self, accept: Accept, statistics: NetStatistics) -> None:
        self._accept = accept
        self._statistics = statistics
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._bytes = 0
        self._arrived = trio.Event()

    def offer(self, publisher: str, data: bytes) -> bool:
        """Whether the subscriber accepted the message. An ``accept`` that raises said no."""
        try:
            if not self._accept(publisher, data):
                return False
        except Exception:  # noqa: BLE001 - it judges hostile bytes: whatever it stumbles over is refused
            _log.debug("a gossip validator raised on a message of %s", publisher, exc_info=True)
            return False
        self._waiting.append((publisher, data))
        self._bytes += len(data)
        while len(self._waiting) > _QUEUE_MESSAGES or self._bytes > _QUEUE_BYTES:
            self._bytes -= len(self._waiting.popleft()[1])
            self._statistics.gossip_dropped += 1
        self._arrived.set()
        return True

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> tuple[str, bytes]:
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            self._arrived = trio.Event()
            await self._arrived.wait()
        message = self._waiting.popleft()
        self._bytes -= len(message[1])
        return message


class _Router(GossipSub):
    """The mesh, with control messages cut to topics that matter here, among the neighbours that may hear."""

    def allows(self, peer: str) -> bool:
        """Whether this neighbour may hear; ``Gossip.restrict`` puts another rule in this place."""
        del peer
        return True

    async def handle_rpc(self, rpc: rpc_pb2.RPC, sender_peer_id: ID) -> None:
        # Foreign topics and endless id lists would fill tables that the library never empties, and a repeated id in
        # an IWANT would be answered as often as it stands there.
        topics = self.pubsub.topic_ids if self.pubsub is not None else ()
        control = rpc_pb2.ControlMessage()
        for have in rpc.control.ihave:
            if have.topicID in topics:
                control.ihave.add(topicID=have.topicID, messageIDs=have.messageIDs[:_CONTROL_IDS])
        wanted = list(dict.fromkeys(each for want in rpc.control.iwant for each in want.messageIDs))
        if wanted:
            control.iwant.add(messageIDs=wanted[:_CONTROL_IDS])
        unwanted = [each for refused in rpc.control.idontwant for each in refused.messageIDs]
        if unwanted:
            control.idontwant.add(messageIDs=unwanted[:_CONTROL_IDS])
        if not self.allows(str(sender_peer_id)):
            del control.iwant[:]
            topics = ()
        control.graft.extend([each for each in rpc.control.graft if each.topicID in topics][:_CONTROL_IDS])
        control.prune.extend([each for each in rpc.control.prune if each.topicID in topics][:_CONTROL_IDS])
        await super().handle_rpc(rpc_pb2.RPC(control=control), sender_peer_id)

    async def flush_pending_messages(self, peer_id: ID) -> None:
        # Kept for a neighbour before it subscribed, and before it was known whether it may hear.
        if self.allows(str(peer_id)):
            await super().flush_pending_messages(peer_id)

    async def publish(self, msg_forwarder: ID, pubsub_msg: rpc_pb2.Message) -> None:
        await super().publish(msg_forwarder, pubsub_msg)
        # One more time stamp per message, for ever, where the adaptive part that reads them is off.
        self.recent_message_deliveries.clear()

    async def _emit_idontwant_for_message(self, msg_id: bytes, topic_ids: Iterable[str]) -> None:
        # For a small message the notice costs every neighbour more than a second copy would.
        message = self.mcache.get(msg_id)
        if message is not None and len(message.data) >= _WORTH_A_NOTICE:
            await super()._emit_idontwant_for_message(msg_id, topic_ids)

    def _get_peers_to_send(
        self, topic_ids: Iterable[str], msg_forwarder: ID, origin: ID, msg_id: bytes | None = None
    ) -> Iterable[ID]:
        chosen = set(super()._get_peers_to_send(topic_ids, msg_forwarder, origin, msg_id))
        if self.pubsub is not None and origin == self.pubsub.my_id and len(chosen) < self.degree_low:
            # Right after a join, or a rejoin, the mesh is thin or empty, and what is published then would be lost.
            readers = {peer for topic in topic_ids for peer in self.pubsub.peer_topics.get(topic, ())}
            spare = [peer for peer in readers - chosen - {origin} if self.allows(str(peer))]
            random.shuffle(spare)
            chosen.update(spare[: self.degree - len(chosen)])
        return {peer for peer in chosen if self.allows(str(peer))}

    def _get_in_topic_gossipsub_peers_from_minus(
        self, topic: str, num_to_select: int, minus: Iterable[ID], backoff_check: bool = False
    ) -> list[ID]:
        # Whoever may not hear must not take a place in the mesh either.
        readers = self.pubsub.peer_topics.get(topic, set()) if self.pubsub is not None else set[ID]()
        outsiders = {peer for peer in readers if not self.allows(str(peer))}
        return super()._get_in_topic_gossipsub_peers_from_minus(
            topic, num_to_select, outsiders.union(minus), backoff_check
        )

    def _check_equivocation(self, msg: rpc_pb2.Message) -> bool:
        # The library keeps every message for ever to find a second one with the same number; the seen cache in front
        # of the router lets none through.
        return True


class _Judge(Pubsub):
    """Pubsub whose incoming messages are judged by us, and which no message can end."""

    def __init__(self, host: IHost, router: GossipSub, statistics: NetStatistics, clock: Callable[[], float]) -> None:
        super().__init__(
            host,
            router,
            seen_ttl=_SEEN_SECONDS,
            strict_signing=True,
            max_inbound_rpc_size=_MAX_RPC,
            max_subscriptions_per_peer=_MAX_TOPICS_PER_PEER,
        )
        # Message numbers must not repeat after a restart: peers would take new messages for old ones.
        self.counter = time.time_ns()
        self.subscribers: dict[str, list[Subscription]] = {}
        self.statistics = statistics
        self._forwarders = Budgets(FORWARDER_RATE, clock)
        self._publishers = Budgets(PUBLISHER_RATE, clock)
        self._paces = Paces(lambda peer: MEMBER_PACE if cast("_Router", self.router).allows(peer) else STRANGER_PACE)

    async def _handle_new_peer(self, peer_id: ID) -> None:
        await super()._handle_new_peer(peer_id)
        if (queue := self.peer_queues.get(peer_id)) is not None:
            # The library's 32 lose most of a burst of a hundred announcements.
            cast("Any", queue)._queue.max_size = _OUTBOUND_MESSAGES

    async def stream_handler(self, stream: INetStream) -> None:
        try:
            await super().stream_handler(cast("INetStream", PacedStream(stream, self._paces)))
        except Exception:  # noqa: BLE001 - it would end the service, and a peer's bytes can raise many kinds
            self.statistics.library_faults += 1
            _log.debug("a gossip stream failed", exc_info=True)
            await stream.reset()
            self._handle_dead_peer(stream.muxed_conn.peer_id)

    async def _replay_recent_messages(self, peer_id: ID, topic: str) -> None:
        # What was said last goes to each new subscriber: as all else, only to one that may hear.
        if cast("_Router", self.router).allows(str(peer_id)):
            await super()._replay_recent_messages(peer_id, topic)

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        if msg_forwarder == self.my_id:
            self._mark_msg_seen(msg)
            await self.router.publish(msg_forwarder, msg)
            return
        try:
            if self._judge(msg_forwarder, msg):
                await self.router.publish(msg_forwarder, msg)
        except Exception:  # noqa: BLE001 - a task of the service: an exception would end all of it
            self.statistics.library_faults += 1
            _log.debug("a gossip message failed", exc_info=True)

    def _judge(self, forwarder: ID, msg: rpc_pb2.Message) -> bool:
        """Whether to pass the message on. Delivers it to the subscribers here first; counts what is refused."""
        if self._is_msg_seen(msg):
            return False
        msg.DiscardUnknownFields()  # pyright: ignore[reportAttributeAccessIssue]  # stubs of protobuf lack it
        msg.ClearField("key")  # the PeerID holds it; unsigned, so anybody on the way could change it
        size = msg.ByteSize()
        believable = (
            # A signature costs a thousand times what it costs to send a false one: strangers do not get one checked.
            cast("_Router", self.router).allows(str(forwarder))
            and self._forwarders.take(forwarder.to_bytes(), size)
            and self._is_well_formed(msg)
            and signature_validator(msg)
            and self._publishers.take(msg.from_id, size)
        )
        if believable:
            # Only now: an unsigned message must not use up the number of a real one.
            self._mark_msg_seen(msg)
            publisher, data = str(ID(msg.from_id)), msg.data
            # Every subscriber is asked, also after one has accepted.
            answers = [each.offer(publisher, data) for each in tuple(self.subscribers.get(msg.topicIDs[0], ()))]
            if any(answers):
                return True
        self.statistics.gossip_refused += 1
        return False

    def _is_well_formed(self, msg: rpc_pb2.Message) -> bool:
        return (
            len(msg.topicIDs) == 1
            and msg.topicIDs[0] in self.subscribers
            and len(msg.data) <= MAX_GOSSIP
            and len(msg.from_id) == len(_ED25519_ID) + 32
            and msg.from_id.startswith(_ED25519_ID)
            and msg.from_id != self.my_id.to_bytes()
            and len(msg.seqno) == _SEQNO_BYTES
            and len(msg.signature) == _SIGNATURE_BYTES
        )


class Gossip:
    """Publishing and subscribing, as ``gnusnode.net.port.Net`` says."""

    def __init__(self, pubsub: _Judge, router: _Router) -> None:
        self._pubsub = pubsub
        self._router = router

    async def publish(self, topic: str, data: bytes) -> None:
        """Sends ``data`` to the mesh of ``topic``.

        Raises:
            TooLarge: over ``MAX_GOSSIP``.
        """
        if len(data) > MAX_GOSSIP:
            raise TooLarge(
                f"a gossip message may have {MAX_GOSSIP} bytes, this one has {len(data)}",
                where=topic,
                hint="send it over a stream, or split it",
            )
        await self._pubsub.publish(topic, data)
        # Lets the writers of the neighbours run: in a burst their queues would fill, and drop the rest.
        await trio.lowlevel.checkpoint()

    def subscribe(self, topic: str, accept: Accept) -> AbstractAsyncContextManager[AsyncIterator[tuple[str, bytes]]]:
        """``(publisher, data)`` of the messages of others that ``accept`` lets through, while the context is open."""
        return self._subscribed(topic, accept)

    @asynccontextmanager
    async def _subscribed(self, topic: str, accept: Accept) -> AsyncGenerator[AsyncIterator[tuple[str, bytes]], None]:
        pubsub = self._pubsub
        subscription = Subscription(accept, pubsub.statistics)
        of_topic = pubsub.subscribers.setdefault(topic, [])
        of_topic.append(subscription)
        try:
            await pubsub.subscribe(topic)
            yield subscription
        finally:
            of_topic.remove(subscription)
            if not of_topic:
                pubsub.subscribers.pop(topic, None)
                # The goodbye only enters queues; the limit is for a router that is going down.
                with trio.move_on_after(1, shield=True):
                    await pubsub.unsubscribe(topic)

    def restrict(self, allows: Callable[[str], bool]) -> None:
        """From now on only neighbours that ``allows`` names are handed anything; asked for each message."""
        self._router.allows = allows  # pyright: ignore[reportAttributeAccessIssue]  # an instance's own rule

    def mesh(self, topic: str) -> frozenset[str]:
        """The neighbours that messages of ``topic`` are exchanged with now."""
        return frozenset(str(peer) for peer in self._router.mesh.get(topic, ()))


@asynccontextmanager
async def open_gossip(host: IHost, options: NetOptions, statistics: NetStatistics) -> AsyncGenerator[Gossip, None]:
    """Gossip over the connections of ``host``. Open it before the first connection: peers are noticed as they come."""
    router = _Router(
        protocols=[PROTOCOL_ID_V12, PROTOCOL_ID_V11],
        degree=6,
        degree_low=4,
        degree_high=10,
        heartbeat_initial_delay=0.2,
        heartbeat_interval=1,  # the library's two minutes leave a new node deaf that long
        prune_back_off=10,
        unsubscribe_back_off=1,
        max_pending_messages_per_peer=_PENDING_MESSAGES,
        do_px=False,
        adaptive_gossip_enabled=False,
        eclipse_protection_enabled=False,  # it prunes LAN peers that share an address
        spam_protection_enabled=False,  # ours stands in front of the subscribers, not behind them
    )
    pubsub = _Judge(host, router, statistics, time.monotonic)
    async with background_trio_service(pubsub), background_trio_service(router):
        # An attached router that does not run yet would block every connection.
        await pubsub.wait_until_ready()
        yield Gossip(pubsub, router)
