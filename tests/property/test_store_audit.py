"""Whatever is changed in an audit chain is noticed, and content never gets in."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnusnode.contracts import ids
from gnusnode.contracts.events import GENESIS, AuditEvent, names_content
from gnusnode.identity import NodeIdentity
from gnusnode.store.chain import AuditHead, Break, ChainWalk, KeyLine
from gnusnode.store.tables import u64

SIGNER = NodeIdentity(bytes(range(32)))
LENGTH = 4


def _chain(signer: NodeIdentity) -> tuple[list[tuple[bytes, bytes]], bytes]:
    entries: list[tuple[bytes, bytes]] = []
    prev = GENESIS
    for seq in range(LENGTH):
        event = AuditEvent.signed(
            signer,
            seq=seq,
            prev=prev,
            family="tool",
            event="tool.result",
            fields={"output_sha256": "sha256:" + f"{seq:x}" * 64, "ok": True},
            issued_at_ms=1000 + seq,
        )
        prev = event.digest
        entries.append((u64(seq), event.to_bytes()))
    head = AuditHead.signed(signer, length=LENGTH, last=prev, issued_at_ms=2000)
    return entries, head.to_bytes()


ENTRIES, HEAD = _chain(SIGNER)
BYTES = [(entry, at) for entry in range(LENGTH) for at in range(len(ENTRIES[entry][1]))]


def _verify(entries: list[tuple[bytes, bytes]], head: bytes | None, walk: ChainWalk | None = None) -> Break | None:
    walk = walk or ChainWalk(KeyLine(SIGNER.peer_id))
    for key, value in entries:
        if (broken := walk.step(key, value)) is not None:
            return broken
    return walk.end(head)


def test_the_untouched_chain_is_good() -> None:
    assert _verify(ENTRIES, HEAD) is None


@given(place=st.sampled_from(BYTES), flip=st.integers(1, 255))
def test_a_changed_byte_of_an_event_is_noticed_where_it_is(place: tuple[int, int], flip: int) -> None:
    entry, at = place
    changed = list(ENTRIES)
    value = bytearray(changed[entry][1])
    value[at] ^= flip
    changed[entry] = (changed[entry][0], bytes(value))
    broken = _verify(changed, HEAD)
    assert broken is not None
    assert broken.seq == entry


@given(at=st.integers(0, len(HEAD) - 1), flip=st.integers(1, 255))
def test_a_changed_byte_of_the_head_is_noticed(at: int, flip: int) -> None:
    head = bytearray(HEAD)
    head[at] ^= flip
    assert _verify(ENTRIES, bytes(head)) is not None


@given(
    order=st.lists(st.integers(0, LENGTH - 1), max_size=LENGTH + 2).filter(lambda order: order != list(range(LENGTH)))
)
def test_dropped_repeated_and_moved_events_are_noticed(order: list[int]) -> None:
    assert _verify([ENTRIES[index] for index in order], HEAD) is not None
    renumbered = [(u64(seq), ENTRIES[index][1]) for seq, index in enumerate(order)]
    assert _verify(renumbered, HEAD) is not None


@given(seq=st.integers(0, LENGTH - 1))
def test_an_event_rewritten_by_the_nodes_own_key_breaks_the_next_link_or_the_head(seq: int) -> None:
    original = AuditEvent.from_bytes(ENTRIES[seq][1])
    fields = {name: getattr(original, name) for name in ("seq", "prev", "family", "event", "issued_at_ms")}
    forged = AuditEvent.signed(SIGNER, **fields, fields={"ok": False})
    changed = list(ENTRIES)
    changed[seq] = (u64(seq), forged.to_bytes())
    broken = _verify(changed, HEAD)
    assert broken is not None
    assert broken.seq == min(seq + 1, LENGTH - 1)


def test_a_chain_of_another_node_is_not_ours() -> None:
    entries, head = _chain(NodeIdentity(bytes(range(1, 33))))
    broken = _verify(entries, head)
    assert broken is not None
    assert broken.seq == 0


WORDS = st.sampled_from(
    ["output", "content", "text", "prompt", "body", "payload", "message", "arguments", "response", "secret", "password"]
)
NEUTRAL = st.text(string.ascii_lowercase, min_size=1, max_size=8).filter(lambda word: not names_content(word))
DIGESTS = st.sampled_from(["_sha256", "_hash", "_digest", "_cid", "_bytes", "_count", "_id", "_ms"])


@given(before=st.lists(NEUTRAL, max_size=2), word=WORDS, after=st.lists(NEUTRAL, max_size=2), digest=DIGESTS)
def test_a_key_with_a_content_word_is_refused_unless_it_names_a_digest_or_a_measure(
    before: list[str], word: str, after: list[str], digest: str
) -> None:
    key = "_".join([*before, word, *after])
    value = ids.sha256(key.encode())

    def event(name: str) -> AuditEvent:
        return AuditEvent.signed(
            SIGNER, seq=0, prev=GENESIS, family="tool", event="tool.result", fields={name: value}, issued_at_ms=0
        )

    if not key.endswith(("_hash", "_id", "_ms")):
        with pytest.raises(ValueError, match="names content"):
            event(key)
    assert event(key + digest).fields == {key + digest: value}
