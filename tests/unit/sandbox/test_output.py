"""What a job wrote is counted and hashed whole, whatever is kept."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnusnode.errors import ProtocolViolation
from sandbox.run.docker.frames import Demultiplexer
from sandbox.run.output import STDERR, STDOUT, Meter

pieces = st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(max_size=40)), max_size=20)


@given(pieces, st.integers(1, 200))
def test_the_beginning_is_kept_and_the_whole_is_hashed(written: list[tuple[int, bytes]], limit: int) -> None:
    meter = Meter(limit)
    for stream, data in written:
        meter.feed(stream, data)
    outputs = {stream: meter.output(stream) for stream in (STDOUT, STDERR)}
    for stream, output in outputs.items():
        whole = b"".join(data for where, data in written if where == stream)
        assert whole.startswith(output.data)
        assert output.total == len(whole)
        assert output.sha256 == "sha256:" + hashlib.sha256(whole).hexdigest()
        assert output.truncated == (len(output.data) < len(whole))
    kept, total = (sum(values) for values in zip(*((len(o.data), o.total) for o in outputs.values()), strict=True))
    assert kept == min(limit, total)
    assert meter.over == (total > limit)


@given(pieces, st.lists(st.integers(1, 30), max_size=40))
def test_a_stream_is_taken_apart_wherever_it_is_cut(written: list[tuple[int, bytes]], cuts: list[int]) -> None:
    raw = b"".join(struct.pack(">BxxxL", stream, len(data)) + data for stream, data in written)
    demultiplexer = Demultiplexer()
    found = {STDOUT: b"", STDERR: b""}
    for size in [*cuts, len(raw)]:
        part, raw = raw[:size], raw[size:]
        for stream, data in demultiplexer.feed(part):
            found[stream] += data
    for stream in found:
        assert found[stream] == b"".join(data for where, data in written if where == stream)


def test_a_long_frame_is_passed_on_before_it_is_complete() -> None:
    announced = struct.pack(">BxxxL", 1, 1 << 31)
    assert [bytes(data) for _, data in Demultiplexer().feed(announced + b"beginning")] == [b"beginning"]


def test_a_stream_that_does_not_exist_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation):
        list(Demultiplexer().feed(b"\x07\0\0\0\0\0\0\1x"))
