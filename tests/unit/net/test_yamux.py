"""Our muxer against sound, slow and hostile peers, over a connection in memory and in virtual time."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedConnUnavailable, MuxedStreamEOF, MuxedStreamError, MuxedStreamReset
from trio.testing import MockClock

from gnusnode.net.p2p.yamux import Yamux
from gnusnode.net.p2p.yamux_frames import (
    HALF_CLOSED_SECONDS,
    HANDLER_GRACE,
    MAX_INBOUND_STREAMS,
    OPENINGS,
    WINDOW,
    WRITE_SECONDS,
    YamuxOptions,
)
from gnusnode.net.p2p.yamux_stream import YamuxStream
from gnusnode.net.port import NetStatistics

PING_SECONDS = 5.0
DATA, WINDOW_UPDATE, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8


def frame(kind: int, flags: int, stream: int, length: int, body: bytes = b"", version: int = 0) -> bytes:
    return struct.pack("!BBHII", version, kind, flags, stream, length) + body


class Wire:
    """A secured connection, as far as the muxer uses it."""

    def __init__(self, stream: trio.StapledStream[Any, Any], *, is_initiator: bool) -> None:
        self.stream = stream
        self.is_initiator = is_initiator

    async def read(self, n: int | None = None) -> bytes:
        return bytes(await self.stream.receive_some(n))

    async def write(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def close(self) -> None:
        await self.stream.aclose()


def muxer(wire: Wire) -> Yamux:
    conn: Any = wire
    return Yamux(conn, ID(b"peer"), YamuxOptions(PING_SECONDS, NetStatistics()))


def statistics(conn: Yamux) -> NetStatistics:
    return conn._options.statistics


@asynccontextmanager
async def two() -> AsyncIterator[tuple[Yamux, Yamux]]:
    """Two muxers that speak with each other."""
    left, right = trio.testing.memory_stream_pair()
    a, b = muxer(Wire(left, is_initiator=True)), muxer(Wire(right, is_initiator=False))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(a.start)
        nursery.start_soon(b.start)
        await trio.testing.wait_all_tasks_blocked()
        yield a, b
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def against_bytes() -> AsyncIterator[tuple[Yamux, trio.StapledStream[Any, Any]]]:
    """A muxer and the raw wire of a peer that may send anything."""
    left, right = trio.testing.memory_stream_pair()
    conn = muxer(Wire(left, is_initiator=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(conn.start)
        await trio.testing.wait_all_tasks_blocked()
        yield conn, right
        nursery.cancel_scope.cancel()


async def streams(a: Yamux, b: Yamux) -> tuple[YamuxStream, YamuxStream]:
    return a.open(), await b.accept_stream()


async def read_all(stream: YamuxStream) -> bytes:
    found = bytearray()
    while True:
        try:
            found += await stream.read()
        except MuxedStreamEOF:
            return bytes(found)


# --- an end and a loss ------------------------------------------------------------------------------------------------


async def test_what_was_sent_before_an_orderly_end_arrives_even_if_the_connection_closes_at_once() -> None:
    async with two() as (a, b):
        ours, theirs = await streams(a, b)
        await ours.write(b"all of it")
        await ours.close()
        await a.close()
        await b.ended.wait()
        assert await read_all(theirs) == b"all of it"


async def test_a_lost_connection_is_no_orderly_end() -> None:
    async with two() as (a, b):
        ours, theirs = await streams(a, b)
        await ours.write(b"the beginn")
        await trio.testing.wait_all_tasks_blocked()
        a.abort()
        await b.ended.wait()
        assert await theirs.read() == b"the beginn"
        with pytest.raises(MuxedStreamReset):
            await theirs.read()
        with pytest.raises(MuxedStreamReset):
            await theirs.write(b"anybody?")


async def test_closing_wakes_whoever_waits() -> None:
    async with against_bytes() as (conn, _):
        async with trio.open_nursery() as nursery:
            for wait in (conn.open().read, conn.accept_stream, conn.ping):
                nursery.start_soon(fails, wait)
            await trio.testing.wait_all_tasks_blocked()
            conn.abort()
        with pytest.raises(MuxedConnUnavailable):
            conn.open()


async def fails(wait: Any) -> None:
    with pytest.raises((MuxedStreamReset, MuxedConnUnavailable)):
        await wait()


async def test_handlers_end_shortly_after_their_connection(autojump_clock: MockClock) -> None:
    async with two() as (a, _):
        with trio.CancelScope() as scope:
            a.end_with(scope)
            a.abort()
            start = trio.current_time()
            await trio.sleep_forever()
        assert trio.current_time() - start == pytest.approx(HANDLER_GRACE)


# --- flow control -----------------------------------------------------------------------------------------------------


async def test_a_writer_stops_at_the_window_and_goes_on_when_it_was_read(autojump_clock: MockClock) -> None:
    async with two() as (a, b):
        ours, theirs = await streams(a, b)
        written = 0

        async def write() -> None:
            nonlocal written
            while written < 4 * WINDOW:
                written += await ours.write_some(memoryview(bytes(4 * WINDOW - written)))
            await ours.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await trio.testing.wait_all_tasks_blocked()
            assert written == WINDOW
            assert len(await read_all(theirs)) == 4 * WINDOW


async def test_a_stream_whose_reader_takes_nothing_is_given_up_alone(autojump_clock: MockClock) -> None:
    async with two() as (a, b):
        ours, _ = await streams(a, b)
        start = trio.current_time()
        with pytest.raises(MuxedStreamError, match="read nothing"):
            await ours.write(bytes(2 * WINDOW))
        assert trio.current_time() - start == pytest.approx(WRITE_SECONDS)
        other, theirs = await streams(a, b)
        await other.write(b"still here")
        assert await theirs.read() == b"still here"


async def test_a_token_passes_while_another_stream_moves_megabytes(autojump_clock: MockClock) -> None:
    async with two() as (a, b):
        body, body_reader = await streams(a, b)
        token, token_reader = await streams(a, b)

        async def move() -> None:
            await body.write(bytes(8 * WINDOW))
            await body.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(move)
            await trio.testing.wait_all_tasks_blocked()
            await token.write(b"token")  # the other stream waits for its reader, not this one
            assert await token_reader.read() == b"token"
            assert len(await read_all(body_reader)) == 8 * WINDOW


async def test_a_peer_that_ignores_the_window_loses_its_connection_before_it_fills_memory() -> None:
    async with against_bytes() as (conn, peer):
        await peer.send_all(frame(WINDOW_UPDATE, SYN, 2, 0))
        for _ in range(4):
            await peer.send_all(frame(DATA, 0, 2, WINDOW // 4, bytes(WINDOW // 4)))
        await trio.testing.wait_all_tasks_blocked()
        assert not conn.ended.is_set()
        await peer.send_all(frame(DATA, 0, 2, 1, b"x"))
        await conn.ended.wait()
        assert statistics(conn).protocol_violations == 1


async def test_a_frame_larger_than_any_window_is_not_waited_for() -> None:
    async with against_bytes() as (conn, peer):
        await peer.send_all(frame(DATA, SYN, 2, 0xFFFF_FFFF))
        await conn.ended.wait()
        assert statistics(conn).protocol_violations == 1


async def test_streams_that_nobody_reads_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnusnode.net.p2p.yamux_frames.MAX_HELD", 3 * WINDOW)
    async with against_bytes() as (conn, peer):
        for number in range(2, 10, 2):
            await peer.send_all(frame(DATA, SYN, number, WINDOW, bytes(WINDOW)))
        await conn.ended.wait()
        assert statistics(conn).protocol_violations == 1


async def test_connections_are_bounded_together_and_whoever_holds_little_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnusnode.net.p2p.yamux_frames.MAX_HELD_IN_ALL", 4 * WINDOW)
    monkeypatch.setattr("gnusnode.net.p2p.yamux_frames.FAIR_HELD", WINDOW)
    async with against_bytes() as (greedy, much), against_bytes() as (modest, little):
        greedy._options = modest._options  # as two connections of one node
        holdings = modest._options.holdings
        for number in range(2, 8, 2):
            await much.send_all(frame(DATA, SYN, number, WINDOW, bytes(WINDOW)))
        await little.send_all(frame(DATA, SYN, 2, WINDOW, bytes(WINDOW)))
        await trio.testing.wait_all_tasks_blocked()
        assert holdings.total == 4 * WINDOW
        assert not greedy.ended.is_set()
        await much.send_all(frame(DATA, SYN, 8, 1, b"x"))
        await greedy.ended.wait()
        assert holdings.total == WINDOW
        assert not modest.ended.is_set()
        stream = await modest.accept_stream()
        assert len(await stream.read()) == holdings.total + WINDOW == WINDOW


async def test_streams_over_the_limit_are_refused_and_the_others_go_on() -> None:
    async with two() as (a, b):
        opened = [a.open() for _ in range(MAX_INBOUND_STREAMS + 10)]
        await trio.testing.wait_all_tasks_blocked()
        assert statistics(b).streams_refused == 10
        assert sum(stream.dead is not None for stream in opened) == 10
        for stream in opened[:5]:
            await stream.reset()
        await trio.testing.wait_all_tasks_blocked()
        again = a.open()
        await trio.testing.wait_all_tasks_blocked()
        assert again.dead is None


async def test_a_stream_that_was_opened_and_reset_in_one_breath_reaches_no_handler() -> None:
    async with against_bytes() as (conn, peer):
        await peer.send_all(frame(WINDOW_UPDATE, SYN, 2, 0) + frame(WINDOW_UPDATE, RST, 2, 0))
        await peer.send_all(frame(WINDOW_UPDATE, SYN, 4, 0))
        assert (await conn.accept_stream()).number == 4


async def test_streams_that_are_opened_and_reset_without_end_are_refused_until_time_has_passed(
    autojump_clock: MockClock,
) -> None:
    async with against_bytes() as (conn, peer):
        for number in range(2, 2 * OPENINGS + 22, 2):
            await peer.send_all(frame(WINDOW_UPDATE, SYN, number, 0) + frame(WINDOW_UPDATE, RST, number, 0))
        await trio.testing.wait_all_tasks_blocked()
        assert statistics(conn).streams_refused == 10
        await trio.sleep(1)
        await peer.send_all(frame(WINDOW_UPDATE, SYN, 9998, 0))
        assert (await conn.accept_stream()).number == 9998


async def test_a_peer_that_asks_and_does_not_read_the_answers_loses_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gnusnode.net.p2p.yamux.MAX_OUTBOX", 10_000)
    left, right = trio.testing.lockstep_stream_pair()  # what is not read is not taken
    conn = muxer(Wire(left, is_initiator=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(conn.start)
        await right.send_all(frame(PING, SYN, 0, 7) * 2000)
        await conn.ended.wait()
        nursery.cancel_scope.cancel()
    assert statistics(conn).protocol_violations == 1


# --- signs of life ----------------------------------------------------------------------------------------------------


async def test_a_quiet_connection_lives_and_a_silent_one_ends(autojump_clock: MockClock) -> None:
    async with two() as (a, b):
        await trio.sleep(100 * PING_SECONDS)
        assert not a.ended.is_set()
        assert not b.ended.is_set()
    async with against_bytes() as (conn, _):
        start = trio.current_time()
        await conn.ended.wait()
        assert trio.current_time() - start == pytest.approx(3 * PING_SECONDS)


async def test_a_quiet_connection_costs_a_ping_in_a_period(autojump_clock: MockClock) -> None:
    async with two() as (a, b):
        await trio.sleep(100 * PING_SECONDS)
        assert statistics(a).bytes_out + statistics(b).bytes_out <= 2 * 12 * 105


async def test_a_ping_measures_the_round_trip_and_answers_of_nobodys_question_do_no_harm() -> None:
    async with two() as (a, _):
        assert await a.ping() >= 0
    async with against_bytes() as (conn, peer):
        await peer.send_all(frame(PING, ACK, 0, 12345))
        await trio.testing.wait_all_tasks_blocked()
        assert not conn.ended.is_set()


async def test_a_stream_that_the_peer_leaves_half_closed_is_swept(autojump_clock: MockClock) -> None:
    async with two() as (a, b):
        ours, theirs = await streams(a, b)
        await ours.close()
        await trio.sleep(HALF_CLOSED_SECONDS + 3 * PING_SECONDS)
        assert ours.dead is not None
        assert theirs.dead is not None
        assert not a.ended.is_set()


# --- cancellation -----------------------------------------------------------------------------------------------------


async def test_a_cancelled_write_has_sent_nothing_and_a_cancelled_read_taken_nothing() -> None:
    async with two() as (a, b):
        ours, theirs = await streams(a, b)
        with trio.CancelScope() as scope:
            scope.cancel()
            await ours.write_some(memoryview(b"never"))
        with trio.CancelScope() as scope:
            scope.cancel()
            await theirs.read()
        await ours.write(b"once")
        with trio.CancelScope() as scope:
            scope.cancel()
            await theirs.read()
        assert await theirs.read() == b"once"


# --- hostile bytes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        frame(DATA, 0, 1, 0, version=1),
        frame(9, 0, 0, 0),
        frame(WINDOW_UPDATE, SYN, 1, 0),  # our own number
        frame(WINDOW_UPDATE, SYN, 0, 0),
        frame(WINDOW_UPDATE, SYN, 2, 0) * 2,
    ],
)
async def test_what_no_sound_peer_sends_ends_the_connection_and_is_counted(sent: bytes) -> None:
    async with against_bytes() as (conn, peer):
        await peer.send_all(sent)
        await conn.ended.wait()
        assert statistics(conn).protocol_violations == 1


@pytest.mark.parametrize(
    "sent",
    [
        frame(DATA, 0, 98, 5, b"lost!"),
        frame(WINDOW_UPDATE, RST, 98, 0),
        frame(WINDOW_UPDATE, FIN, 98, 0),
        frame(WINDOW_UPDATE, SYN | RST, 2, 0),
        frame(WINDOW_UPDATE, SYN | FIN, 2, 0) + frame(WINDOW_UPDATE, FIN, 2, 0),
        frame(DATA, SYN | FIN, 2, 3, b"abc") + frame(DATA, 0, 2, 3, b"def"),
    ],
)
async def test_what_a_late_or_hasty_peer_sends_is_taken_in_stride(sent: bytes) -> None:
    async with against_bytes() as (conn, peer):
        await peer.send_all(sent)
        await trio.testing.wait_all_tasks_blocked()
        assert not conn.ended.is_set()
        assert statistics(conn).protocol_violations == 0


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.builds(
                lambda kind, flags, number, length, body: frame(kind, flags, number, length, body),
                st.integers(0, 4),
                st.integers(0, 15),
                st.integers(0, 6),
                st.one_of(st.integers(0, 50), st.integers(0, 2**32 - 1)),
                st.binary(max_size=50),
            ),
        ),
        max_size=20,
    )
)
@settings(max_examples=150)
def test_no_bytes_bring_the_muxer_down(parts: list[bytes]) -> None:
    async def attack() -> None:
        async with against_bytes() as (conn, peer):
            ours = conn.open()
            with contextlib.suppress(trio.BrokenResourceError):  # the connection ended before the last part
                for part in parts:
                    await peer.send_all(part)
            await trio.testing.wait_all_tasks_blocked()
            await peer.aclose()
            await conn.ended.wait()
            with contextlib.suppress(MuxedStreamError):
                while await ours.read():
                    pass
            assert ours.dead is not None

    trio.run(attack)


@given(st.lists(st.binary(min_size=1, max_size=5000), max_size=20), st.data())
@settings(max_examples=50)
def test_frames_survive_any_cut_of_the_wire(messages: list[bytes], data: st.DataObject) -> None:
    async def deliver() -> None:
        wire = b"".join(
            frame(DATA, SYN if number == 0 else 0, 2, len(message), message) for number, message in enumerate(messages)
        )
        async with against_bytes() as (conn, peer):
            while wire:
                size = data.draw(st.integers(1, min(len(wire), 3000)))
                await peer.send_all(wire[:size])
                await trio.testing.wait_all_tasks_blocked()
                wire = wire[size:]
            if messages:
                stream = await conn.accept_stream()
                assert await stream.read() == b"".join(messages)

    trio.run(deliver)
