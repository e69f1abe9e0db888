"""Who in the swarm may call which method of this node. Pure; what no line grants is refused.

Authority over the work itself stands in signed plans, which the services check; this table keeps the others out before
any work is done for them.
"""

from __future__ import annotations

from typing import Final

from gnusnode.contracts.outcome import Outcome
from gnusnode.contracts.roster import Standing
from gnusnode.contracts.swarm import Role, Tier
from gnusnode.errors import Forbidden, GnusError

_MEMBERS: Final = frozenset(Role)
_WHO_WORKS_ON_ANSWERS: Final = frozenset(
    {Role.INGRESS, Role.ROUTER, Role.VERIFIER, Role.GROUNDING, Role.MEMORY, Role.SETTLEMENT}
)

_EXPERT: Final = {
    "draft": frozenset({Role.ROUTER}),
    "experts": _MEMBERS,
    "classify": _WHO_WORKS_ON_ANSWERS,
    "score": _WHO_WORKS_ON_ANSWERS,
    "embed": _WHO_WORKS_ON_ANSWERS,
}
CALLERS: Final[dict[tuple[str, str], frozenset[Role]]] = {
    **{("core", name): roles for name, roles in _EXPERT.items()},
    **{("elm", name): roles for name, roles in _EXPERT.items()},
    ("router", "run"): frozenset({Role.INGRESS}),
}
"""Roles of which a caller needs one, by service and method. ``ingress`` is missing: users are a node's own."""


def refusal_of_files(peer: str, standing: Standing) -> GnusError | None:
    """Why ``peer``, which stands so, may not fetch model files from here; None: it may."""
    if standing.outcome is Outcome.OK and standing.tier is not Tier.D:
        return None
    return Forbidden("model files are for members with a certificate", where=peer, hint="ask an admin for an invite")


def refusal_of(peer: str, standing: Standing, service: str, method: str) -> GnusError | None:
    """Why ``peer``, which stands so, may not call ``service.method`` from elsewhere; None: it may."""
    name = f"{service}.{method}"
    if standing.outcome is not Outcome.OK:
        return Forbidden(f"{name} is for members of the swarm: {standing.outcome.value}", where=peer)
    needed = CALLERS.get((service, method))
    if needed is None:
        return Forbidden(f"{name} cannot be called from another node", where=peer)
    if standing.tier is Tier.D:
        return Forbidden(f"{name} is for members with a certificate", where=peer, hint="ask an admin for an invite")
    if needed.isdisjoint(standing.roles):
        roles = ", ".join(sorted(role.value for role in needed))
        return Forbidden(
            f"{name} is for nodes with one of the roles {roles}",
            where=peer,
            hint="an admin can grant it with `gnusnode swarm roles`",
        )
    return None
