"""Limits of one key, and of the node."""

from __future__ import annotations

import pytest

from gnusnode.api.keys import KeyLimits, MemoryKeyStore, NewKey
from gnusnode.api.limits import KeyUsage, Limits
from gnusnode.errors import Overloaded, RateLimited


def test_a_key_gets_its_requests_and_then_has_to_wait() -> None:
    usage = KeyUsage(KeyLimits(requests_per_minute=2), now=0)
    usage.admit(0)
    usage.admit(0)
    with pytest.raises(RateLimited) as refused:
        usage.admit(0)
    assert refused.value.retry_after == 30
    usage.admit(30)
    with pytest.raises(RateLimited):
        usage.admit(31)


def test_unused_requests_are_not_saved_up_beyond_a_minute() -> None:
    usage = KeyUsage(KeyLimits(requests_per_minute=2), now=0)
    usage.admit(3600)
    usage.admit(3600)
    with pytest.raises(RateLimited):
        usage.admit(3600)


def test_tokens_are_charged_afterwards_and_delay_the_next_request() -> None:
    usage = KeyUsage(KeyLimits(tokens_per_minute=60), now=0)
    usage.admit(0)
    usage.charge(90, 0)
    with pytest.raises(RateLimited) as refused:
        usage.admit(0)
    assert refused.value.retry_after == 31
    usage.admit(31)


def test_requests_under_way_are_counted_until_they_end() -> None:
    usage = KeyUsage(KeyLimits(in_flight=1), now=0)
    usage.admit(0)
    with usage.under_way(), pytest.raises(RateLimited):
        usage.admit(0)
    usage.admit(0)


def test_headers_name_only_the_limits_that_exist() -> None:
    assert KeyUsage(KeyLimits(), now=0).headers(0) == {}
    usage = KeyUsage(KeyLimits(requests_per_minute=2), now=0)
    usage.admit(0)
    assert usage.headers(0) == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "1",
        "x-ratelimit-reset-requests": "30.000s",
    }


def test_the_node_takes_so_many_requests_at_a_time() -> None:
    limits = Limits(max_in_flight=1)
    with limits.slot():
        with pytest.raises(Overloaded) as refused, limits.slot():
            raise AssertionError("a second one got in")
        assert refused.value.retry_after == 1
    with limits.slot():
        pass


def test_a_place_is_given_back_when_a_request_fails() -> None:
    limits = Limits(max_in_flight=1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), limits.slot():
            raise ZeroDivisionError


def test_changed_limits_of_a_key_count_at_once() -> None:
    limits = Limits(max_in_flight=1)
    key, _ = MemoryKeyStore().create(NewKey(name="a", requests_per_minute=1))
    usage = limits.usage(key, 0)
    assert limits.usage(key, 1) is usage
    changed = key.model_copy(update={"limits": KeyLimits(requests_per_minute=2)})
    assert limits.usage(changed, 1) is not usage
