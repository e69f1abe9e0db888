"""Looking into binary data: runs of text, entropy, what lies behind the end of a file."""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from typing import Final

from gnusnode.sanitize.extract import finding
from gnusnode.sanitize.findings import Finding, Kind, Severity

MAX_TEXT: Final = 64 * 1024
"""Bytes of one piece of metadata that are looked into, and bytes to which a compressed one may grow."""
_MIN_RUN: Final = 4
_MIN_TRAILING: Final = 16
_ENTROPY_LENGTH: Final = 256
_ENTROPY: Final = 7.2
"""Bits a byte: compressed or encrypted data."""
_RUNS: Final = re.compile(rf"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffd]{{{_MIN_RUN},}}")
_WIDE: Final = re.compile(rb"(?:[\x20-\x7e\t\r\n]\x00){6,}|(?:\x00[\x20-\x7e\t\r\n]){6,}")


def texts(data: bytes) -> tuple[str, ...]:
    """The runs of text in ``data``, read as UTF-8, as Latin-1 where that fails, and as UTF-16. For scanning only."""
    data = data[:MAX_TEXT]
    found = _RUNS.findall(data.decode("utf-8", "replace"))
    for wide in _WIDE.findall(data):
        found.append(wide.replace(b"\0", b"").decode("ascii", "replace"))
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        found += _RUNS.findall(data.decode("utf-16", "replace"))
    return tuple(found)


def inflate(data: bytes) -> bytes:
    """``data`` decompressed, up to ``MAX_TEXT`` bytes; empty when it is not zlib data."""
    try:
        return zlib.decompressobj().decompress(data, MAX_TEXT)
    except zlib.error:
        return b""


def entropy(data: bytes) -> float:
    """Shannon entropy in bits a byte."""
    if not data:
        return 0.0
    return -sum(count / len(data) * math.log2(count / len(data)) for count in Counter(data).values())


def is_dense(data: bytes) -> bool:
    """Whether ``data`` looks compressed or encrypted. Short data cannot reach the threshold and never does."""
    return len(data) >= _ENTROPY_LENGTH and entropy(data[:MAX_TEXT]) > _ENTROPY


def trailing(data: bytes, end: int) -> list[Finding]:
    """What lies behind the end of a file: padding is of no interest, anything else is suspect."""
    rest = data[end:]
    if not rest.strip(b"\0\r\n \xff"):
        return []
    if len(rest) < _MIN_TRAILING:
        return [Finding(end, len(data), Kind.TRAILING_DATA, "trailing.few", Severity.NOTICE)]
    rule = "trailing.dense" if is_dense(rest) else "trailing.data"
    return [Finding(end, len(data), Kind.TRAILING_DATA, rule, Severity.FLAG)]


def cut_short(rule: str) -> Finding:
    """The file ends, or contradicts itself, before its structure does."""
    return finding(Kind.MALFORMED, rule, Severity.FLAG)
