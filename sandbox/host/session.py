"""The host's side of one run of a module: judges each request, does what is granted, and keeps the signed account.

It sits in the daemon, never in the worker: a module that broke out of WebAssembly still gets no more than its grants.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from gnusnode.contracts import canonical
from gnusnode.contracts.base import MalformedRecord
from gnusnode.contracts.dsse import Signer
from gnusnode.contracts.generation import CapabilityRequest, CapabilityVerdict
from gnusnode.errors import GnusError, RequestError
from sandbox.host.grants import judge
from sandbox.host.types import (
    CLOCK,
    INPUT,
    MAX_ANSWER,
    MAX_REQUEST,
    OUTPUT,
    RANDOM,
    Answer,
    Code,
    Denial,
    Grants,
    HostAudit,
    Operation,
    Refusal,
    Verdict,
)

MAX_RANDOM: Final = 1024
"""Bytes that one request for randomness may ask for."""
_START: Final = bytes(32)


class HostSession:
    """One module, one run. Not to be shared: the order of calls is part of the account.

    Args:
        grants: all that the module has.
        operations: what this host can do, by capability; the four that the ABI knows itself need no entry.
        unix_ms: the clock that ``clock.now`` rounds down to a second; a dry-run gives a fixed one.
        random: gives that many random bytes; a dry-run gives a seeded one.
        data: what ``module.input`` reads.
        max_output: bytes that ``module.output`` takes in all.
    """

    def __init__(
        self,
        grants: Grants,
        operations: Mapping[str, Operation],
        *,
        unix_ms: Callable[[], int],
        random: Callable[[int], bytes],
        data: bytes = b"",
        max_output: int = MAX_ANSWER,
    ) -> None:
        self.grants = grants
        self._operations: dict[str, Operation] = {
            **operations,
            CLOCK: self._clock,
            RANDOM: self._random,
            INPUT: self._read_input,
            OUTPUT: self._write_output,
        }
        self._input = data
        self._output = bytearray()
        self._max_output = max_output
        self._unix_ms = unix_ms
        self._random_bytes = random
        self._chain = _START
        self.calls = 0
        """Requests so far, whatever came of them."""
        self.denied = 0

    @property
    def output(self) -> bytes:
        """What the module has put out; untrusted."""
        return bytes(self._output)

    async def answer(self, encoded: bytes) -> Answer:
        """What ``gnus.call`` gives the module for the request ``encoded``, which may be any bytes.

        Only what an operation raises besides ``GnusError`` leaves this method; that is a bug of the operation.
        """
        request, verdict = self._judge(encoded)
        if isinstance(verdict, Denial):
            answer = Answer(Code.DENIED)
        elif verdict is None or request is None:
            answer = Answer(Code.BAD_REQUEST)
        else:
            answer = await self._perform(request)
        self._account(encoded, verdict, answer)
        return answer

    def verdict(self, request: CapabilityRequest) -> CapabilityVerdict:
        """The verdict alone, for a child that is no module, such as an engine child; goes into the account too.

        Granted means: the child may rely on it. Nothing is done for it.
        """
        verdict = self._find(request)
        granted = not isinstance(verdict, Denial)
        self._account(encode_request(request), verdict, Answer(None if granted else Code.DENIED))
        reason = "the manifest grants it" if not isinstance(verdict, Denial) else verdict.reason
        return CapabilityVerdict(name=request.name, granted=granted, reason=reason)

    def attest(self, signer: Signer, at_ms: int) -> HostAudit:
        """The signed account of all calls so far."""
        return HostAudit.signed(
            signer,
            artifact_hash=self.grants.artifact_hash,
            grants_hash=self.grants.digest,
            calls=self.calls,
            denied=self.denied,
            digest_of_calls=f"sha256:{self._chain.hex()}",
            issued_at_ms=at_ms,
        )

    def _judge(self, encoded: bytes) -> tuple[CapabilityRequest | None, Verdict | None]:
        try:
            request = decode_request(encoded)
        except ValueError:
            return None, None
        return request, self._find(request)

    def _find(self, request: CapabilityRequest) -> Verdict:
        verdict = judge(self.grants, request)
        if not isinstance(verdict, Denial) and request.name not in self._operations:
            return Denial(Refusal.NO_OPERATION, f"this host does not offer {request.name}")
        return verdict

    async def _perform(self, request: CapabilityRequest) -> Answer:
        try:
            body = canonical.encode(await self._operations[request.name](request))
        except GnusError:
            return Answer(Code.FAILED)
        return Answer(None, body) if len(body) <= MAX_ANSWER else Answer(Code.FAILED)

    def _account(self, encoded: bytes, verdict: Verdict | None, answer: Answer) -> None:
        self.calls += 1
        self.denied += isinstance(verdict, Denial)
        entry = account_entry(encoded, verdict, answer)
        self._chain = hashlib.sha256(self._chain + entry).digest()

    async def _clock(self, _request: CapabilityRequest) -> dict[str, int]:
        return {"seconds": self._unix_ms() // 1000}

    async def _random(self, request: CapabilityRequest) -> dict[str, bytes]:
        count = request.arguments.get("count")
        if type(count) is not int or not 0 < count <= MAX_RANDOM:
            raise RequestError(f"count must be 1 to {MAX_RANDOM}", where=RANDOM)
        return {"bytes": self._random_bytes(count)}

    async def _read_input(self, request: CapabilityRequest) -> dict[str, bytes | int]:
        offset, length = request.arguments.get("offset"), request.arguments.get("length")
        if type(offset) is not int or type(length) is not int or offset < 0 or length < 0:
            raise RequestError("offset and length must not be negative", where=INPUT)
        return {"bytes": self._input[offset : offset + min(length, MAX_ANSWER // 2)], "total": len(self._input)}

    async def _write_output(self, request: CapabilityRequest) -> dict[str, int]:
        data = request.arguments.get("bytes")
        if not isinstance(data, bytes) or len(self._output) + len(data) > self._max_output:
            raise RequestError(f"bytes must be bytes, and all output at most {self._max_output}", where=OUTPUT)
        self._output += data
        return {"total": len(self._output)}


def encode_request(request: CapabilityRequest) -> bytes:
    """The one encoding of a request on the ABI. Arguments may hold bytes, which the record's own encoding has not.

    Raises:
        NotCanonical: an argument has no place in a record.
    """
    return canonical.encode({name: getattr(request, name) for name in CapabilityRequest.model_fields})


def decode_request(encoded: bytes) -> CapabilityRequest:
    """What ``encode_request`` made.

    Raises:
        ValueError: too long, or not the one encoding of a request.
    """
    plain = canonical.decode(encoded, max_bytes=MAX_REQUEST)
    if not isinstance(plain, dict) or cast("dict[str, Any]", plain).keys() != CapabilityRequest.model_fields.keys():
        raise MalformedRecord("not the fields of a request")
    return CapabilityRequest.model_validate(plain)


def account_entry(encoded: bytes, verdict: Verdict | None, answer: Answer) -> bytes:
    """What the account chains for one call: request, verdict and answer, each by its digest or code.

    ``verdict`` is None for bytes that are no request.
    """
    said = "bad_request" if verdict is None else "granted"
    if isinstance(verdict, Denial):
        said = verdict.refusal.value
    return canonical.encode(
        {
            "request": hashlib.sha256(encoded).digest(),
            "verdict": said,
            "grant": None if verdict is None or isinstance(verdict, Denial) else verdict.to_bytes(),
            "code": None if answer.code is None else int(answer.code),
            "answer": hashlib.sha256(answer.body).digest(),
        }
    )
