"""What stands between a call and its handler: records become bytes and back, and a handler's bug becomes an error."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from gnusnode.contracts import canonical
from gnusnode.contracts.base import MalformedRecord, Record, describe
from gnusnode.contracts.methods import Method, StreamMethod, UnaryMethod
from gnusnode.errors import GnusError, InternalError, NoExpert, RequestError, raised_at
from gnusnode.net.rpc import CallContext

Req = TypeVar("Req", bound=Record)
Res = TypeVar("Res", bound=Record)
Item = TypeVar("Item")

MAX_ITEM: Final = 8 * 1024 * 1024
"""Largest encoding of one stream item."""

_log = logging.getLogger(__name__)


def method_name(method: Method) -> str:
    return f"{method.service}.{method.name}"


def no_method(method: Method) -> NoExpert:
    return NoExpert(f"nobody serves the method {method_name(method)!r}", hint="update the older of the two nodes")


# --- requests ---------------------------------------------------------------------------------------------------------


def encode_request(method: UnaryMethod[Req, Any] | StreamMethod[Req, Any], request: Req) -> bytes:
    """The request as it travels.

    Raises:
        RequestError: it cannot.
    """
    try:
        data = request.to_bytes()
    except canonical.NotCanonical as error:
        raise _not_carried(method, error) from error
    if len(data) > method.request.max_bytes:
        raise _not_carried(method, f"{len(data)} bytes are more than the {method.request.max_bytes} allowed")
    return data


def decode_request(method: UnaryMethod[Req, Any] | StreamMethod[Req, Any], data: bytes) -> Req:
    """The request that a peer sent.

    Raises:
        RequestError: it is none.
    """
    try:
        return method.request.from_bytes(data)
    except MalformedRecord as error:
        raise _not_carried(method, error) from error


def copy_request(method: UnaryMethod[Req, Any] | StreamMethod[Req, Any], request: Req) -> Req:
    """The request as a handler of this process gets it: what the wire would have made of it.

    Raises:
        RequestError: it could not travel.
    """
    try:
        return method.request.model_validate(canonical.decode_known(encode_request(method, request)))
    except ValidationError as error:
        raise _not_carried(method, describe(error)) from error


def _not_carried(method: Method, reason: object) -> RequestError:
    return RequestError(
        f"the request of {method_name(method)} cannot be carried: {reason}",
        hint="send shallower data and smaller numbers",
    )


# --- answers ----------------------------------------------------------------------------------------------------------


def encode_response(method: UnaryMethod[Any, Any], response: Record) -> bytes:
    """A handler's response as it travels.

    Raises:
        InternalError: it is not what the method gives: a bug of the handler.
    """
    if not isinstance(response, method.response):
        raise InternalError(f"{method_name(method)} gave a wrong response: a {type(response).__name__}")
    return _encode_answer(method, response, method.response.max_bytes)


def encode_item(method: StreamMethod[Any, Any], item: Record) -> bytes:
    """A handler's item as it travels.

    Raises:
        InternalError: it is not what the method sends: a bug of the handler.
    """
    try:
        fits = method.items.validate_python(item) is item
    except ValidationError:
        fits = False
    if not fits:
        raise InternalError(f"{method_name(method)} sent a wrong item: a {type(item).__name__}")
    return _encode_answer(method, item, MAX_ITEM)


def _encode_answer(method: Method, answer: Record, limit: int) -> bytes:
    try:
        data = answer.to_bytes()
    except canonical.NotCanonical as error:
        raise InternalError(f"{method_name(method)} made an answer that cannot be carried: {error}") from error
    if len(data) > limit:
        raise InternalError(f"{method_name(method)} made an answer of {len(data)} bytes, over the {limit} allowed")
    return data


def decode_item(method: StreamMethod[Any, Item], data: bytes) -> Item:
    """The stream item that a peer sent as ``data``.

    Raises:
        MalformedRecord: not canonical, or not one of the records that the method sends.
    """
    name = method_name(method)
    try:
        item = method.items.validate_python(canonical.decode_loosely(data, max_bytes=MAX_ITEM))
    except canonical.NotCanonical as error:
        raise MalformedRecord(f"{name}: {error}") from error
    except ValidationError as error:
        raise MalformedRecord(f"{name}: {describe(error)}") from error
    if not isinstance(item, Record) or canonical.encode_known(item.to_plain()) != data:
        # This is also what holds the item to its one encoding.
        raise MalformedRecord(f"{name}: another spelling, or a field that is missing or of another type than it should")
    return item


def decode_response(method: UnaryMethod[Any, Res], data: bytes) -> Res:
    """The response that a peer sent.

    Raises:
        MalformedRecord: it is none.
    """
    return method.response.from_bytes(data)


def copy_response(method: UnaryMethod[Any, Res], data: bytes) -> Res:
    """The response that ``encode_response`` of this process made ``data`` of."""
    return method.response.model_validate(canonical.decode_known(data))


def copy_item(method: StreamMethod[Any, Item], data: bytes) -> Item:
    """The item that ``encode_item`` of this process made ``data`` of."""
    return method.items.validate_python(canonical.decode_known(data))


# --- bugs -------------------------------------------------------------------------------------------------------------


async def outcome(method: Method, context: CallContext, work: Callable[[], Awaitable[None]]) -> GnusError | None:
    """Runs a handler to its end; the error it ended with, if any."""
    try:
        await work()
    except GnusError as error:
        return error
    except Exception as error:  # noqa: BLE001 - the fence: a handler's bug must not end the node
        return _bug(method, context, error)
    return None


def _bug(method: Method, context: CallContext, error: Exception) -> InternalError:
    """Logs where the bug is. The message may quote a prompt, so only its digest leaves the process."""
    digest = hashlib.sha256(str(error).encode("utf-8", "backslashreplace")).hexdigest()[:16]
    name = method_name(method)
    _log.error(
        "rpc handler failed: %s raised %s at %s, message digest %s, request %s",
        name,
        type(error).__name__,
        raised_at(error),
        digest,
        context.request_id,
    )
    return InternalError(
        f"{name} failed unexpectedly ({type(error).__name__})", hint="see the log of the node that ran it"
    )
