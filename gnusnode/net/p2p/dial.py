"""Dialling a peer: all of its addresses at once, each with its own time, and the first that is really the peer wins.

The library dials only the first address of a peer, waits without limit for one that accepts and says nothing, and then
refuses to dial that peer for a minute.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Final

import trio
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey

from gnusnode.errors import GnusError, PeerUnreachable

Dial = Callable[[str], Awaitable[None]]
"""``async (address)``: connects, or raises."""

STAGGER_SECONDS: Final = 0.1
"""Head start of an address before the next one: enough for a LAN, so that a peer with four has one connection."""
MAX_ADDRESSES: Final = 16
"""Addresses that are tried: a list from outside must not make this node a scanner."""

_NO_HANDSHAKE: Final = ("is not delimited by", "the stream ended early", "failed to parse")
"""What the library says of bytes under another network key, or of none."""


async def dial_any(addresses: Sequence[str], dial: Dial, *, peer: str, seconds: float) -> None:
    """Tries ``addresses`` until ``dial`` succeeds for one; the others are cancelled.

    Raises:
        PeerUnreachable: none did; the text says what each did.
    """
    outcomes: dict[str, str] = {}
    connected = False
    chosen = list(dict.fromkeys(addresses))[:MAX_ADDRESSES]

    async def attempt(address: str, failed: trio.Event) -> None:
        nonlocal connected
        try:
            with trio.fail_after(seconds):
                await dial(address)
        except trio.TooSlowError:
            outcomes[address] = f"no answer within {seconds:g} s"
        except Exception as error:  # noqa: BLE001 - whatever one address does, the others are still tried
            outcomes[address] = _why(error)
        else:
            connected = True
            nursery.cancel_scope.cancel()
        failed.set()

    async with trio.open_nursery() as nursery:
        for address in chosen:
            failed = trio.Event()
            nursery.start_soon(partial(attempt, address, failed))
            with trio.move_on_after(STAGGER_SECONDS):
                await failed.wait()
    if not connected:
        text = "; ".join(f"{address}: {outcomes[address]}" for address in chosen)
        raise PeerUnreachable(text or "no address is known", where=peer)


def _why(error: BaseException) -> str:
    """What an address did, in one clause: the innermost reason, which is the system's or the peer's."""
    if isinstance(error, GnusError):
        return error.what
    reasons = [reason for reason in _reasons(error) if str(reason)]
    for reason in reasons:
        if isinstance(reason, PeerIDMismatchesPubkey) or "Peer ID mismatch" in str(reason):
            return "answers as another peer"
        if "Failed to resolve DNS" in str(reason):
            return "the name cannot be resolved"
        if any(sign in str(reason) for sign in _NO_HANDSHAKE):
            return "no handshake: it has another network key, or is no gnusnode"
    last = reasons[-1] if reasons else error
    text = last.strerror if isinstance(last, OSError) and last.strerror else str(last)
    return text[:200] or type(last).__name__


def _reasons(error: BaseException) -> Iterator[BaseException]:
    """``error`` and what caused it, outermost first."""
    found: BaseException | None = error
    for _ in range(16):
        if found is None:
            return
        yield found
        # A group, as of failed attempts at IPv4 and IPv6, is as good as its first member.
        inner: tuple[BaseException, ...] = getattr(found, "exceptions", ())
        found = inner[0] if inner else found.__cause__ or found.__context__
