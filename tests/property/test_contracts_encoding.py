"""Every record has one encoding and one signature, and nothing else passes for it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gnusnode.contracts import canonical, dsse
from gnusnode.contracts.base import MalformedRecord, Record, SignedRecord
from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.registry import RECORDS, SIGNED_RECORDS
from gnusnode.contracts.verify import verify, verify_bytes
from tests.property.cbor import other_spellings, write
from tests.property.records import ME, NOW, ROSTER, json_objects, records, sign_plain

every_record = pytest.mark.parametrize("cls", RECORDS.values(), ids=list(RECORDS))
every_signed_record = pytest.mark.parametrize("cls", SIGNED_RECORDS.values(), ids=list(SIGNED_RECORDS))
few = settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
REFUSED = {Outcome.MALFORMED, Outcome.BAD_SIGNATURE}


def outcome_of(cls: type[SignedRecord], data: bytes) -> Outcome:
    return verify_bytes(cls, data, NOW, ROSTER).outcome


@every_record
@few
@given(data=st.data())
def test_bytes_give_back_the_same_record_and_the_same_names(cls: type[Record], data: st.DataObject) -> None:
    record = data.draw(records(cls))
    again = cls.from_bytes(record.to_bytes())
    assert again == record
    assert (again.to_bytes(), again.digest, again.cid) == (record.to_bytes(), record.digest, record.cid)


@every_record
@few
@given(data=st.data())
def test_a_changed_copy_has_names_of_its_own(cls: type[Record], data: st.DataObject) -> None:
    record, other = data.draw(records(cls)), data.draw(records(cls))
    assert record.digest
    assert record.cid
    copy = record.model_copy(update={name: getattr(other, name) for name in cls.model_fields})
    assert (copy.digest, copy.cid) == (other.digest, other.cid)


@every_record
@few
@given(data=st.data())
def test_an_independent_writer_makes_the_same_bytes(cls: type[Record], data: st.DataObject) -> None:
    record = data.draw(records(cls))
    assert write(record.to_plain()) == record.to_bytes()


@every_signed_record
@few
@given(data=st.data())
def test_what_its_signer_made_is_believed(cls: type[SignedRecord], data: st.DataObject) -> None:
    record = data.draw(records(cls))
    verdict = verify_bytes(cls, record.to_bytes(), NOW, ROSTER)
    assert (verdict.outcome, verdict.record) == (Outcome.OK, record)
    assert verify(record, NOW, ROSTER) is Outcome.OK


@every_signed_record
@settings(max_examples=2, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), bit=st.integers(0, 7))
def test_a_flip_of_any_byte_is_refused(cls: type[SignedRecord], data: st.DataObject, bit: int) -> None:
    good = data.draw(records(cls)).to_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << (place + bit) % 8
        assert outcome_of(cls, bytes(bad)) in REFUSED, f"byte {place}"


@every_signed_record
@settings(max_examples=3, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_change_of_any_field_is_refused(cls: type[SignedRecord], data: st.DataObject) -> None:
    """Each field in turn takes the value that it has in another valid record."""
    plain, other = data.draw(records(cls)).to_plain(), data.draw(records(cls)).to_plain()
    for name in plain:
        if plain[name] != other[name]:
            assert outcome_of(cls, canonical.encode({**plain, name: other[name]})) in REFUSED, name


@every_signed_record
@few
@given(data=st.data())
def test_a_record_passes_for_no_other_type(cls: type[SignedRecord], data: st.DataObject) -> None:
    record = data.draw(records(cls))
    for other in SIGNED_RECORDS.values():
        if other is not cls:
            assert outcome_of(other, record.to_bytes()) in REFUSED, other.__name__


@every_signed_record
@few
@given(data=st.data())
def test_the_same_fields_signed_under_another_type_are_refused(cls: type[SignedRecord], data: st.DataObject) -> None:
    record = data.draw(records(cls))
    kind = dsse.payload_type(data.draw(st.sampled_from([o.record_name for o in RECORDS.values() if o is not cls])))
    forged = record.model_copy(update={cls.signature_field: dsse.sign(ME, kind, record.payload())})
    assert verify(forged, NOW, ROSTER) is Outcome.BAD_SIGNATURE
    assert outcome_of(cls, forged.to_bytes()) is Outcome.BAD_SIGNATURE


@every_record
@few
@given(data=st.data())
def test_no_other_spelling_is_a_record(cls: type[Record], data: st.DataObject) -> None:
    record = data.draw(records(cls))
    for spelling, spelled in other_spellings(record.to_plain()):
        if spelled != record.to_bytes():
            with pytest.raises(MalformedRecord):
                pytest.fail(f"{spelling}: {cls.from_bytes(spelled)!r}")
            if issubclass(cls, SignedRecord):
                assert outcome_of(cls, spelled) in REFUSED, spelling


@given(st.binary(max_size=40))
def test_a_signature_has_one_spelling(payload: bytes) -> None:
    """Base64 decoders ignore the last four bits of 64 bytes; a verifier must not."""
    good = dsse.sign(ME, "kind", payload)
    assert dsse.verify(ME.peer_id, "kind", payload, good)
    last = good[-3]
    for other in set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") - {last}:
        assert not dsse.verify(ME.peer_id, "kind", payload, f"{good[:-3]}{other}==")
    for spelling in (good.removeprefix("ed25519:"), good + "\n", good.rstrip("="), good.upper(), ""):
        assert not dsse.verify(ME.peer_id, "kind", payload, spelling)


@every_signed_record
@few
@given(data=st.data())
def test_a_missing_field_is_refused_even_when_signed(cls: type[SignedRecord], data: st.DataObject) -> None:
    plain = data.draw(records(cls)).to_plain()
    for name in plain:
        if name not in (cls.signature_field, cls.signer_field):
            less = {key: value for key, value in plain.items() if key != name}
            assert outcome_of(cls, sign_plain(less, cls)) is Outcome.MALFORMED, name


@every_signed_record
@few
@given(data=st.data(), extra=st.text("abcxyz_", min_size=1, max_size=12), value=json_objects)
def test_a_field_too_many_is_refused_even_when_signed(
    cls: type[SignedRecord], data: st.DataObject, extra: str, value: Any
) -> None:
    plain = data.draw(records(cls)).to_plain()
    assume(extra not in plain)
    assert outcome_of(cls, sign_plain({**plain, extra: value}, cls)) is Outcome.MALFORMED


@every_signed_record
@few
@given(data=st.data())
def test_a_value_of_another_type_is_refused_even_when_signed(cls: type[SignedRecord], data: st.DataObject) -> None:
    """Numbers as texts, texts as lists, whole floats as integers: what validation would coerce was not signed."""
    plain = data.draw(records(cls)).to_plain()
    for name, value in plain.items():
        for other in _near(value):
            if name not in (cls.signature_field, cls.signer_field):
                assert outcome_of(cls, sign_plain({**plain, name: other}, cls)) is Outcome.MALFORMED, name


def _near(value: Any) -> list[Any]:
    match value:
        case bool():
            return [int(value), str(value).lower(), float(value)]
        case int():
            return [str(value), float(value)] if value > 1 else [bool(value), str(value)]
        case float():
            return [str(value), *([int(value)] if value.is_integer() else [])]
        case str():
            return [value.encode(), [value]]
        case list():
            return [{str(n): item for n, item in enumerate(value)}]
        case _:
            return []


@every_signed_record
@few
@given(data=st.data())
def test_a_record_over_its_size_is_refused_unread(cls: type[SignedRecord], data: st.DataObject) -> None:
    record = data.draw(records(cls))
    large = record.to_bytes() + bytes(cls.max_bytes)
    verdict = verify_bytes(cls, large, NOW, ROSTER)
    assert verdict.outcome is Outcome.MALFORMED
    assert "more than" in verdict.detail


@pytest.mark.parametrize(
    "opening", [b"\x81", b"\xa1aa", b"\xc0", b"\x9f", b"\xbfaa"], ids=["list", "map", "tag", "[_", "{_"]
)
@pytest.mark.parametrize("depth", [25, 1_000, 200_000])
def test_deep_nesting_is_refused_without_harm(opening: bytes, depth: int) -> None:
    with pytest.raises(canonical.NotCanonical):
        canonical.decode(opening * depth + b"\x00")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_value_or_refused(data: bytes) -> None:
    try:
        value = canonical.decode(data)
    except canonical.NotCanonical:
        return
    assert canonical.encode(value) == data


@given(st.binary(max_size=120))
def test_arbitrary_bytes_never_verify_and_never_raise(data: bytes) -> None:
    for cls in SIGNED_RECORDS.values():
        assert outcome_of(cls, data) in REFUSED


@given(json_objects)
def test_every_json_object_has_one_encoding(value: dict[str, Any]) -> None:
    data = canonical.encode(value)
    assert canonical.decode(data) == value
    assert write(value) == data


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), 2**63, -(2**63) - 1, {1: 2}, {"a": {2, 3}}, "\ud800", {"\udfff": 1}, object(), 1j],
    ids=repr,
)
def test_what_has_no_encoding_is_refused(value: object) -> None:
    with pytest.raises(canonical.NotCanonical):
        canonical.encode(value)
