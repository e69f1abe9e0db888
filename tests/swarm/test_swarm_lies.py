"""Lies of members, against running nodes: what was said before or by somebody else, and what is not so."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from gnusnode.clock import unix_ms
from gnusnode.contracts.hello import Clash, Heartbeat
from gnusnode.contracts.swarm import MembershipCertificate, NodeAnnouncement, Role, Tier, short_id
from gnusnode.identity import NodeIdentity
from gnusnode.net.records import RecordFiles
from tests.swarm.evil import counts, eventually, identity_of, introduced, moved, peer_of, prefixed, raw_stream
from tests.swarm.swarmlab import Member, Swarm, chat, swarm

pytestmark = pytest.mark.timeout(180)

RECORDS = "gnusnode_records_refused_total"
REFUSALS_EVERY = 0.2
"""Seconds: of several announcements that are refused within a tenth of a second, one is counted by its reason."""
LIAR = Path(__file__).parent / "liar.py"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """A first node, an honest member, and one that an attacker has taken."""
    with swarm(tmp_path_factory.mktemp("lies")) as made:
        made.found()
        made.join("honest", "--no-model")
        evil = made.join("evil", "--no-model")
        made.first.await_usable(2)
        evil.stop()
        made.first.await_usable(1)
        yield made


# --- announcements ----------------------------------------------------------------------------------------------------


@dataclass
class Wiretap:
    """What an attacker hears of the announcements of one member, and what it says in its place."""

    net: Any
    topic: str
    target: Member
    heard: list[Any] = field(default_factory=list[Any])
    """Gossip messages as they came, with the signature of their publisher."""
    arrived: trio.Event = field(default_factory=trio.Event)

    def announcements(self) -> list[NodeAnnouncement]:
        return [Heartbeat.from_bytes(message.data).announcement for message in self.heard]

    async def await_heard(self, number: int) -> None:
        with trio.fail_after(30):
            while len(self.heard) < number:
                self.arrived = trio.Event()
                await self.arrived.wait()

    async def inject(self, *messages: Any) -> None:
        """Hands gossip messages to the target, in the name of whoever they name."""
        from libp2p.pubsub.pb import rpc_pb2

        stream = await raw_stream(self.net, self.target, "/meshsub/1.1.0")
        await stream.write(prefixed(rpc_pb2.RPC(publish=messages).SerializeToString()))

    async def say(self, *messages: Heartbeat | Clash) -> None:
        """Publishes messages in the attacker's own name, no faster than refusals are told apart."""
        for message in messages:
            await self.net.publish(self.topic, message.to_bytes())
            await trio.sleep(REFUSALS_EVERY)


@asynccontextmanager
async def wiretap(evil: Member, target: Member, of: Member) -> AsyncGenerator[Wiretap]:
    """The attacker as a neighbour of the target in the gossip, recording what ``of`` says."""
    victim = peer_of(of)
    async with introduced(evil, target) as net:
        tap = Wiretap(net, f"gnus/{short_id(target.status()['id'])}/announce/1", target)
        pubsub = net.gossip._pubsub
        judge = pubsub._judge

        def recording(forwarder: Any, message: Any) -> bool:
            if str(type(forwarder)(message.from_id)) == victim:
                tap.heard.append(type(message).FromString(message.SerializeToString()))
                tap.arrived.set()
            return judge(forwarder, message)

        pubsub._judge = recording
        async with net.subscribe(tap.topic, lambda _, __: True):
            yield tap


def known_of(member: Member, peer: str) -> dict[str, Any]:
    """What a member keeps of a peer that its announcements and hellos have said."""
    entry = member.peers()[peer]
    return {key: entry[key] for key in ("state", "instance", "addresses", "roles", "services", "experts")}


@dataclass
class Impostor:
    """Signs with one key and says that it is another."""

    identity: NodeIdentity
    peer_id: str

    def sign(self, message: bytes) -> bytes:
        return self.identity.sign(message)


def resaid(record: NodeAnnouncement, signer: Any, **changes: Any) -> NodeAnnouncement:
    """The record with ``changes``, signed by ``signer``."""
    fields = {name: getattr(record, name) for name in type(record).model_fields if name not in {"signer", "signature"}}
    return NodeAnnouncement.signed(signer, **(fields | changes))


def altered(message: Any, **changes: bytes) -> Any:
    """A gossip message with other fields under the signature of the first."""
    made = type(message).FromString(message.SerializeToString())
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@pytest.mark.requirement("G-ROLE-4")
async def test_announcements_that_are_old_changed_or_of_another_change_nothing_and_are_counted(lab: Swarm) -> None:
    first, honest, evil = lab.members[:3]
    peer, before = peer_of(honest), counts(first)
    async with wiretap(evil, first, honest) as tap:
        await tap.await_heard(2)
        old, new = tap.heard[0], tap.announcements()[-1]
        known = known_of(first, peer)
        elsewhere = ("/ip4/127.0.0.9/tcp/9",)
        cut = bytearray(new.to_bytes())
        cut[cut.index(b"/tcp/") + 5] ^= 1
        # What was heard a moment ago, byte for byte; then under another number, and with other words.
        changed = Heartbeat(announcement=NodeAnnouncement.from_bytes(bytes(cut))).to_bytes()
        await tap.inject(old, altered(old, seqno=bytes(8)), altered(old, seqno=b"\1" * 8, data=changed))
        await eventually(first, lambda: _faults(first, before, "gossip") >= 2, "refused them")
        await tap.say(
            Heartbeat(announcement=tap.announcements()[0]),
            Heartbeat(announcement=NodeAnnouncement.from_bytes(bytes(cut))),
            Heartbeat(
                announcement=resaid(new, Impostor(identity_of(evil), peer), seq=new.seq + 9, addresses=elsewhere)
            ),
            Clash(announcements=(resaid(new, Impostor(identity_of(evil), peer), instance="ab" * 16),)),
        )
        await eventually(first, lambda: _refused(first, before, "bad_signature") >= 3, "refused them")
        now = unix_ms()
        await tap.say(
            *(
                Heartbeat(announcement=resaid(new, identity_of(evil), **changes))
                for changes in (
                    {"roles": (Role.ROUTER,)},
                    {"issued_at_ms": now - 120_000, "expires_at_ms": now - 1000},
                    {"issued_at_ms": now + 90_000, "expires_at_ms": now + 120_000},
                    {"swarm_id": "sha256:" + "0" * 64},
                )
            )
        )
        for outcome in ("role_not_granted", "expired", "clock_skew", "wrong_swarm"):
            await eventually(
                first, lambda outcome=outcome: _refused(first, before, outcome) >= 1, f"refused one as {outcome}"
            )
        assert known_of(first, peer) == known
        assert "duplicate-identity" not in warnings(first)


def _refused(member: Member, before: dict[str, float], outcome: str) -> float:
    """Announcements that were refused for ``outcome``."""
    return sum(n for name, n in moved(member, before).items() if name.startswith(RECORDS) and f'"{outcome}"' in name)


def _faults(member: Member, before: dict[str, float], kind: str) -> float:
    return sum(n for name, n in moved(member, before).items() if f'kind="{kind}"' in name)


async def test_what_a_member_said_does_not_bring_it_back_when_it_is_gone(lab: Swarm) -> None:
    first, honest, evil = lab.members[:3]
    peer = peer_of(honest)
    async with wiretap(evil, first, honest) as tap:
        await tap.await_heard(2)
        await trio.to_thread.run_sync(honest.kill)
        await eventually(first, lambda: peer not in first.peers(), "forgot it")
        before = counts(first)
        await tap.inject(*tap.heard)
        for record in tap.announcements():
            await tap.say(Heartbeat(announcement=record))
        await eventually(first, lambda: _refused(first, before, "bad_signature") >= 1, "refused them")
        assert peer not in first.peers()
    honest.restart()
    first.until(lambda: first.peers().get(peer, {}).get("state") == "usable", "has the member back")


# --- keys and certificates --------------------------------------------------------------------------------------------


def warnings(member: Member) -> dict[str, str]:
    return {each["code"]: each["text"] for each in member.request("GET", "/gnus/v1/status")[1]["warnings"]}


def test_a_copied_key_is_noticed_and_said_on_both_nodes_and_the_others(tmp_path: Path) -> None:
    with swarm(tmp_path) as made:  # of its own: the warning stays for a while
        first = made.found()
        honest = made.join("honest", "--no-model")
        first.await_usable(1)
        honest.stop()
        copy = made.node("copy", "--no-model", "--roles", "core,elm")
        shutil.rmtree(copy.home)
        shutil.copytree(honest.home, copy.home)
        honest.restart()
        copy.start()
        copy.await_alive()
        for member in (honest, copy, first):
            member.until(lambda member=member: "duplicate-identity" in warnings(member), "warns of the copied key")
            assert warnings(member)["duplicate-identity"] in member.command("status")


@pytest.mark.requirement("G-LAY-3")
@pytest.mark.parametrize("seconds", [-5, 20], ids=["before it comes", "while it is here"])
def test_a_member_whose_certificate_ends_is_refused_with_the_reason_on_both_sides(lab: Swarm, seconds: int) -> None:
    first, guest = lab.first, lab.members[1]
    late = lab.node(f"late{seconds}", "--no-model", "--roles", "core,elm", "--peer", first.address)
    shutil.copytree(guest.home / "swarm", late.home / "swarm")
    RecordFiles(late.home / "swarm" / "records").put([short_certificate(first, late, seconds)])
    late.start()
    late.await_alive()
    mine, theirs = peer_of(late), peer_of(first)
    if seconds > 0:
        first.until(lambda: first.peers().get(mine, {}).get("state") == "usable", "takes it as long as it holds")
    for member, other in ((first, mine), (late, theirs)):
        member.until(lambda m=member, o=other: m.peers().get(o, {}).get("state") == "refused", "refuses, or is refused")
        assert "its membership has ended" in member.peers()[other]["reason"]
    late.await_usable(0)
    status, answer = late.request("POST", "/v1/chat/completions", chat(max_tokens=4))
    assert status in {404, 503}, answer
    late.stop()


def short_certificate(founder: Member, member: Member, seconds: int) -> Any:
    """A certificate of the swarm's root for ``member`` that ends in so many seconds."""
    found = RecordFiles(founder.home / "swarm" / "records").load()
    root = NodeIdentity.load(founder.home / "swarm" / "root.key")
    now = unix_ms()
    return MembershipCertificate.signed(
        root,
        swarm_id=founder.status()["id"],
        peer_id=peer_of(member),
        operator=member.name,
        roles=(Role.CORE, Role.ELM),
        tier=Tier.C,
        not_before=now - 60_000,
        not_after=now + seconds * 1000,
        serial=1000 + len(found.records),
    )


# --- capabilities -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def working(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """A first node without a model, and an honest one that has it."""
    with swarm(tmp_path_factory.mktemp("working")) as made:
        made.found()
        made.join("honest").await_ready()
        made.first.await_answer()
        yield made


@pytest.mark.model
@pytest.mark.requirement("G-RL-1")
@pytest.mark.parametrize("lie", ["announced", "listed"])
def test_who_claims_a_model_that_it_does_not_have_costs_no_request_and_is_left_alone(working: Swarm, lie: str) -> None:
    first, honest = working.members[:2]
    expected = first.await_answer()["choices"][0]["message"]["content"]
    [expert] = first.peers()[peer_of(honest)]["experts"]
    env = {"LIE": lie, "LIE_MODEL": expert["id"], "LIE_ARTIFACT": expert["artifact_hash"]}
    liar = working.join(f"liar-{lie}", "--no-model", roles="core", env=env, start=False)
    liar.prefix, peer = [sys.executable, str(LIAR)], peer_of(liar)
    liar.start()
    first.until(lambda: bool(first.peers().get(peer, {}).get("services")), "met the liar")
    asked_in_vain, deadline = 0, time.monotonic() + 60
    while "does not serve it" not in first.peers()[peer]["reason"]:
        assert time.monotonic() < deadline, first.peers()[peer]
        status, answer = first.request("POST", "/v1/chat/completions", chat(max_tokens=4))
        assert status == 200, answer
        assert answer["choices"][0]["message"]["content"] == expected
        assert answer["gnus"]["node"] == peer_of(honest)
        asked_in_vain += answer["gnus"]["rerouted"]
    assert asked_in_vain == (1 if lie == "listed" else 0)
    shown = first.json("peers", "show", peer)
    assert shown["state"] == "authenticated"
    lie_told = f"announces {expert['id']} and does not serve it"
    assert lie_told in shown["reason"]
    liar.until(lambda: lie_told in liar.peers()[peer_of(first)]["reason"], "hears why it is left alone")
    liar.stop()
