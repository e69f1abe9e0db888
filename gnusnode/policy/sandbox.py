"""Which isolation a plan demands: the strongest at hand, and never less than the risk asks for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gnusnode.contracts.plan import Platform, SandboxProfile
from gnusnode.policy.envelopes import Risk

STRENGTH: Final = tuple(Platform)
"""Strongest first."""

WEAKEST_ALLOWED: Final[dict[Risk, Platform]] = {
    "low": Platform.SERVER_NAMESPACES,
    "medium": Platform.SERVER_CONTAINER,
    "high": Platform.SERVER_GVISOR,
}


def sandbox_for(proven: Iterable[Platform], risk: Risk) -> SandboxProfile:
    """The profile of a plan, given the backends that passed their self-test.

    Where the strongest of them is too weak for the risk, the profile still demands enough: a tool is then refused by
    the intermediary, never run with less.
    """
    least = WEAKEST_ALLOWED[risk]
    strongest = min(proven, key=STRENGTH.index, default=least)
    return SandboxProfile(platform=min(strongest, least, key=STRENGTH.index))
