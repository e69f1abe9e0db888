"""The closed set of answers to "may I believe this record?"."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from gnusnode.errors import RecordRefused


class Outcome(StrEnum):
    OK = "ok"
    MALFORMED = "malformed"
    BAD_SIGNATURE = "bad_signature"
    WRONG_SWARM = "wrong_swarm"
    CLOCK_SKEW = "clock_skew"
    NOT_YET_VALID = "not_yet_valid"
    EXPIRED = "expired"
    UNKNOWN_SIGNER = "unknown_signer"
    CERTIFICATE_NOT_YET_VALID = "certificate_not_yet_valid"
    CERTIFICATE_EXPIRED = "certificate_expired"
    REVOKED = "revoked"
    ROLE_NOT_GRANTED = "role_not_granted"
    REPLAYED = "replayed"
    REPLAY_GUARD_FULL = "replay_guard_full"


_MEANING: Final[dict[Outcome, tuple[str, str]]] = {
    Outcome.OK: ("believed", ""),
    Outcome.MALFORMED: ("not a record of this type", "update the older of the two nodes, or report the sender"),
    Outcome.BAD_SIGNATURE: ("the signature does not fit the bytes", "report the sender: the record was changed"),
    Outcome.WRONG_SWARM: ("made for another swarm", "join that swarm, or use a record of this one"),
    Outcome.CLOCK_SKEW: ("issued in the future", "set the clocks of both nodes, for example with NTP"),
    Outcome.NOT_YET_VALID: ("not valid yet", "wait until it begins, or check the clocks"),
    Outcome.EXPIRED: ("expired", "ask for a new one"),
    Outcome.UNKNOWN_SIGNER: ("the signer is not a member of this swarm", "invite it with `gnusnode swarm invite`"),
    Outcome.CERTIFICATE_NOT_YET_VALID: ("the signer's membership has not begun", "wait, or check the clocks"),
    Outcome.CERTIFICATE_EXPIRED: ("the signer's membership has ended", "renew its membership certificate"),
    Outcome.REVOKED: ("the signer or what it signed was revoked", "ask the swarm's operator why"),
    Outcome.ROLE_NOT_GRANTED: (
        "the signer holds no role that may issue this",
        "grant it the role, or ask another node",
    ),
    Outcome.REPLAYED: ("seen before", "make a new one: each may be used once"),
    Outcome.REPLAY_GUARD_FULL: ("too many records in force to remember one more", "try again when some have expired"),
}


def refusal(record_name: str, outcome: Outcome) -> RecordRefused:
    """The error to raise for a record that was not believed; ``what`` begins with the outcome's code."""
    what, hint = _MEANING[outcome]
    return RecordRefused(f"{outcome.value}: {what}", where=record_name, hint=hint or None)
