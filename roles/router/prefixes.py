"""Which expert holds the beginning of a conversation in its cache: a bounded memory of salted prefix hashes.

It stays in this process. Announced, such hashes would let every member test guesses of what others ask.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from gnusnode.contracts.generation import Message

CAPACITY: Final = 4096
"""Prefixes remembered; the least recently used is forgotten first."""
DEPTH: Final = 64
"""Messages of a conversation that are looked at."""


class PrefixMemory:
    """Remembers the expert that last read each prefix. Tenants never see each other's: the salt is the tenant."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._held: OrderedDict[bytes, tuple[str, str]] = OrderedDict()

    def find(self, tenant: str, messages: Sequence[Message]) -> tuple[str, str] | None:
        """Key of the expert that holds the longest known prefix of ``messages``."""
        for digest in reversed(_digests(tenant, messages)):
            holder = self._held.get(digest)
            if holder is not None:
                self._held.move_to_end(digest)
                return holder
        return None

    def remember(self, tenant: str, messages: Sequence[Message], holder: tuple[str, str]) -> None:
        """``holder`` has just read ``messages``."""
        for digest in _digests(tenant, messages):
            self._held[digest] = holder
            self._held.move_to_end(digest)
        while len(self._held) > self._capacity:
            self._held.popitem(last=False)

    def __len__(self) -> int:
        return len(self._held)


def _digests(tenant: str, messages: Sequence[Message]) -> list[bytes]:
    """One digest for each prefix of ``messages``, each hashed over the one before."""
    chain: list[bytes] = []
    state = hashlib.blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    for message in messages[:DEPTH]:
        body = f"{message.role}\0{message.content}".encode("utf-8", "surrogatepass")
        state = hashlib.blake2b(state + body, digest_size=16).digest()
        chain.append(state)
    return chain
