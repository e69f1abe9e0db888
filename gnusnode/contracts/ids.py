"""Names of things: PeerIDs, sha256 digests and content addresses. Pure functions over bytes."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from typing import Annotated, Final

import base58
from pydantic import AfterValidator, StringConstraints

_ED25519_KEY: Final = bytes.fromhex("08011220")
"""protobuf ``PublicKey{Type: Ed25519, Data: 32 bytes}`` up to the key itself."""
_IDENTITY_MULTIHASH: Final = bytes([0x00, len(_ED25519_KEY) + 32])
_CID_CBOR_SHA256: Final = bytes([0x01, 0x51, 0x12, 0x20])
_CID_RAW_SHA256: Final = bytes([0x01, 0x55, 0x12, 0x20])
_CID_PATTERN: Final = r"^cid://b[a-z2-7]{58}$"


def peer_id(public_key: bytes) -> str:
    """The libp2p PeerID (base58btc identity multihash, ``12D3KooW…``) of a 32-byte Ed25519 public key."""
    if len(public_key) != 32:
        raise ValueError(f"an Ed25519 public key has 32 bytes, not {len(public_key)}")
    return base58.b58encode(_IDENTITY_MULTIHASH + _ED25519_KEY + public_key).decode("ascii")


@lru_cache(maxsize=4096)
def public_key(peer: str) -> bytes:
    """The 32-byte Ed25519 key inside a PeerID.

    Raises:
        ValueError: not the one spelling of an Ed25519 PeerID.
    """
    if len(peer) > 64:
        raise ValueError("too long for an Ed25519 PeerID")
    raw = base58.b58decode(peer)
    head, key = raw[:-32], raw[-32:]
    if head != _IDENTITY_MULTIHASH + _ED25519_KEY or peer_id(key) != peer:
        raise ValueError(f"{peer!r} is not an Ed25519 PeerID")
    return key


def sha256(data: bytes) -> str:
    """``sha256:<hex>`` of ``data``."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def cid(data: bytes, *, raw: bool = False) -> str:
    """``cid://<CIDv1>`` of ``data``: codec cbor for records, raw for blobs; sha2-256, base32."""
    return _cid(hashlib.sha256(data).digest(), raw=raw)


def cid_from_sha256(digest: str, *, raw: bool = True) -> str:
    """The content address that names the same bytes as ``sha256:<hex>``."""
    return _cid(bytes.fromhex(digest.removeprefix("sha256:")), raw=raw)


def sha256_from_cid(address: str) -> str:
    """``sha256:<hex>`` of the bytes that a content address names.

    Raises:
        ValueError: not one of our CIDs.
    """
    if not re.fullmatch(_CID_PATTERN, address):
        raise ValueError(f"{address!r} is not a content address of the form cid://b…")
    body = address.removeprefix("cid://b").upper()
    raw = base64.b32decode(body + "=" * (-len(body) % 8))
    if raw[:4] not in (_CID_CBOR_SHA256, _CID_RAW_SHA256) or len(raw) != 36:
        raise ValueError(f"{address!r} is not a CIDv1 with sha2-256")
    digest = "sha256:" + raw[4:].hex()
    if address not in (cid_from_sha256(digest, raw=True), cid_from_sha256(digest, raw=False)):
        raise ValueError(f"{address!r} is not the one spelling of its CID")
    return digest


def _cid(digest: bytes, *, raw: bool) -> str:
    prefix = _CID_RAW_SHA256 if raw else _CID_CBOR_SHA256
    return "cid://b" + base64.b32encode(prefix + digest).decode("ascii").rstrip("=").lower()


def _valid_peer(value: str) -> str:
    public_key(value)
    return value


def _valid_cid(value: str) -> str:
    sha256_from_cid(value)
    return value


PeerId = Annotated[str, StringConstraints(min_length=40, max_length=64), AfterValidator(_valid_peer)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Cid = Annotated[str, StringConstraints(pattern=_CID_PATTERN), AfterValidator(_valid_cid)]
Signature = Annotated[str, StringConstraints(pattern=r"^ed25519:[A-Za-z0-9+/]{85}[AQgw]==$")]
"""64 bytes in their one base64 spelling: the unused bits of the last character are zero."""
Uuid = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")]
Nonce = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Name = Annotated[str, StringConstraints(min_length=1, max_length=128)]
"""A short identifier of a model, role, tool or module."""
