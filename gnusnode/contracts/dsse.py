"""The one signing scheme: Ed25519 over the DSSE pre-authentication encoding of a canonical payload.

Source: https://github.com/secure-systems-lab/dsse (protocol.md). The type in the encoding keeps a signature of one
record from passing as a signature of another.
"""

from __future__ import annotations

import base64
import binascii
from typing import Protocol

from nacl.bindings import crypto_sign_open
from nacl.exceptions import CryptoError

from gnusnode.contracts import ids

_PREFIX = "ed25519:"


class Signer(Protocol):
    """Whoever holds a node's key."""

    @property
    def peer_id(self) -> str: ...

    def sign(self, message: bytes) -> bytes:
        """The 64-byte Ed25519 signature of ``message``."""
        ...


def payload_type(record: str) -> str:
    return f"application/vnd.gnusnode.{record}.v1+cbor"


def pre_authentication_encoding(kind: str, payload: bytes) -> bytes:
    name = kind.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(name), name, len(payload), payload)


def sign(signer: Signer, kind: str, payload: bytes) -> str:
    """``ed25519:<base64>`` over the pre-authentication encoding of ``payload``."""
    return _spell(signer.sign(pre_authentication_encoding(kind, payload)))


def verify(peer: str, kind: str, payload: bytes, signature: str) -> bool:
    """Whether ``signature`` is the signature of ``peer`` over ``payload``. Never raises on hostile input."""
    try:
        key = ids.public_key(peer)
        raw = base64.b64decode(signature.removeprefix(_PREFIX), validate=True)
    except (ValueError, binascii.Error):
        return False
    if len(raw) != 64 or signature != _spell(raw):
        return False
    try:
        crypto_sign_open(raw + pre_authentication_encoding(kind, payload), key)
    except (CryptoError, ValueError):
        return False
    return True


def _spell(raw: bytes) -> str:
    # The one spelling: base64 decoders also accept others, and a signature must not have two.
    return _PREFIX + base64.b64encode(raw).decode("ascii")
