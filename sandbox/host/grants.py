"""From a signed manifest to grants, one to one, and from a request to a verdict. Pure functions; the default is no."""

from __future__ import annotations

from typing import Any, Final, cast

from gnusnode.contracts import canonical
from gnusnode.contracts.generation import CapabilityRequest
from gnusnode.contracts.tools import CapabilityManifest
from gnusnode.errors import RecordRefused
from sandbox.host.types import CLOCK, INPUT, OUTPUT, OWN, PROPOSAL_ONLY, RANDOM, Denial, Grant, Grants, Refusal, Verdict

_HINT: Final = "ask whoever packed the artifact for one that needs no more than this host can give"
_RESERVED: Final = ("clock", "random", "module", "network", "net", "filesystem", "fs", "wasi_snapshot_preview1", "wasi")
"""First parts of names that the ABI itself or the sandbox requirements rule, not the list of capabilities."""


def grants_of(manifest: CapabilityManifest, artifact_hash: str) -> Grants:
    """What the artifact ``artifact_hash`` gets: each required capability becomes one grant, each requirement its word.

    Whether the signer may sign manifests at all is the caller's question.

    Raises:
        RecordRefused: the signature is not good, it is for another artifact, or it asks for what no host gives.
    """
    where = manifest.module_name
    if not manifest.signature_is_valid():
        raise RecordRefused("the signature of the capability manifest is not good", where=where, hint=_HINT)
    if manifest.artifact_hash != artifact_hash:
        raise RecordRefused("the capability manifest was signed for another artifact", where=where, hint=_HINT)
    needs = manifest.sandbox_requirements
    for name, word in (("network", needs.network), ("filesystem", needs.filesystem)):
        if word != "disabled":
            raise RecordRefused(f"it requires {name} = {word!r}; confined modules have none", where=where, hint=_HINT)
    if needs.clock not in ("disabled", "coarse"):
        raise RecordRefused(f"it requires clock = {needs.clock!r}, not coarse or disabled", where=where, hint=_HINT)
    if needs.randomness not in ("disabled", "host_attested"):
        reason = f"it requires randomness = {needs.randomness!r}, not host_attested or disabled"
        raise RecordRefused(reason, where=where, hint=_HINT)
    return Grants(
        artifact_hash=artifact_hash,
        capabilities=_capabilities(manifest),
        clock=needs.clock,
        randomness=needs.randomness,
    )


def _capabilities(manifest: CapabilityManifest) -> tuple[Grant, ...]:
    grants: dict[tuple[str, str], Grant] = {}
    for need in manifest.required_capabilities:
        if need.name.replace(":", ".").split(".", 1)[0] in _RESERVED:
            reason = f"the capability {need.name!r} is ruled by the sandbox requirements alone"
            raise RecordRefused(reason, where=manifest.module_name, hint=_HINT)
        if (need.name, need.scope) in grants:
            reason = f"it requires {need.name!r} with the scope {need.scope!r} twice"
            raise RecordRefused(reason, where=manifest.module_name, hint=_HINT)
        grant = Grant(capability=need.name, scope=need.scope, constraints=need.constraints)
        grants[need.name, need.scope] = grant
    return tuple(grants.values())


def judge(grants: Grants, request: CapabilityRequest) -> Verdict:
    """The grant under which ``request`` may run, or why it may not. Total: never raises."""
    if request.name in (CLOCK, RANDOM, INPUT, OUTPUT):
        return _own_operation(grants, request)
    named = [grant for grant in grants.capabilities if grant.capability == request.name]
    if not named:
        return Denial(Refusal.NOT_GRANTED, f"{request.name} is not granted to this module")
    grant = next((grant for grant in named if grant.scope == request.scope), None)
    if grant is None:
        return Denial(Refusal.OTHER_SCOPE, f"{request.name} is granted, but not with the scope {request.scope!r}")
    if grant.scope == PROPOSAL_ONLY:
        return Denial(Refusal.PROPOSAL_ONLY, f"{request.name} may be proposed in the answer, never called")
    for name, allowed in grant.constraints.items():
        if not _within(request.arguments.get(name), allowed):
            return Denial(Refusal.OUTSIDE_CONSTRAINTS, f"the argument {name!r} is not one that the manifest allows")
    return grant


def _own_operation(grants: Grants, request: CapabilityRequest) -> Verdict:
    word = {CLOCK: grants.clock, RANDOM: grants.randomness}.get(request.name, OWN)
    if word == "disabled":
        return Denial(Refusal.NOT_GRANTED, f"{request.name} is disabled for this module")
    if request.scope != word:
        return Denial(Refusal.OTHER_SCOPE, f"{request.name} is granted with the scope {word!r} only")
    return Grant(capability=request.name, scope=word)


def _within(value: Any, allowed: Any) -> bool:
    """Whether an argument keeps to a constraint, which is one value or a list of values; so may the argument be.

    A missing argument does not: what it would stand for is not ours to guess. Values are compared by their encoding,
    because to Python ``1``, ``1.0`` and ``True`` are equal.
    """
    if value is None:
        return False
    wanted = _listed(value)
    try:
        permitted = {canonical.encode(item) for item in _listed(allowed)}
        return bool(wanted) and all(canonical.encode(item) in permitted for item in wanted)
    except canonical.NotCanonical:
        return False  # nothing that can come over the wire or stand in a signed manifest


def _listed(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else [value]
