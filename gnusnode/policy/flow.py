"""What may flow where: plan ∩ policy ∩ manifest, the steps of the plan, hosts and paths, and data towards its readers.

Each check gives findings. A finding with ``deny`` ends the matter, one with ``ask`` puts it before a person. No check
ever takes away what another one found, so adding a restriction can only narrow what runs.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Final, cast

from pydantic import StringConstraints

from gnusnode.contracts.fields import Part
from gnusnode.contracts.plan import PrivacyMode
from gnusnode.contracts.tools import RequiredCapability
from gnusnode.policy import urls
from gnusnode.policy.case import Case
from gnusnode.policy.labels import Confidentiality
from gnusnode.policy.provenance import How, Trace
from gnusnode.policy.sinks import Effect, SinkKind

ReasonCode = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]{0,63}$")]


class Decision(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Finding(Part):
    """Why a call does not simply run."""

    decision: Decision
    code: ReasonCode
    words: str
    """For a person."""
    path: str = ""
    """The argument concerned."""


def deny(code: str, words: str, path: str = "") -> Finding:
    return Finding(decision=Decision.DENY, code=code, words=words, path=path)


def ask(code: str, words: str, path: str = "") -> Finding:
    return Finding(decision=Decision.ASK, code=code, words=words, path=path)


# --- authority --------------------------------------------------------------------------------------------------------


def authority(case: Case) -> Iterator[Finding]:
    """Whether plan, policy and manifest all allow the tool, and the plan has a step left for it."""
    tool = case.tool
    if case.proposal.tool_name != tool.name:
        yield deny("OTHER_TOOL", f"the description of {tool.name} says nothing about {case.proposal.tool_name}")
    grants = {
        "the plan": case.plan.tool_policy.capability_whitelist,
        "the policy": case.policy.tool_policy.capability_whitelist,
        "the manifest": tuple(item.name for item in _manifest(case)),
    }
    for who, capabilities in grants.items():
        if not any(covers(granted, tool.capability) for granted in capabilities):
            yield deny("CAPABILITY_MISSING", f"{who} does not allow {tool.capability}")
    yield from _steps(case)


def _manifest(case: Case) -> list[RequiredCapability]:
    """What the manifest says about the tool; a capability to read covers nothing that changes something."""
    reads = case.tool.effect is Effect.READ
    about = (item for item in case.manifest if covers(item.name, case.tool.capability))
    return [item for item in about if reads or item.scope != _READ_ONLY]


def covers(granted: str, needed: str) -> bool:
    """Whether a capability includes another: the general one the special one; ``:`` and ``.`` separate alike."""
    general, special = granted.replace(":", "."), needed.replace(":", ".")
    return special == general or special.startswith(general + ".")


def _steps(case: Case) -> Iterator[Finding]:
    steps, tool = case.plan.steps, case.tool
    if steps is None:
        if tool.effect is not Effect.READ:
            yield ask("UNPLANNED", f"the plan does not foresee that {tool.name} changes something")
        return
    foreseen = sum(step.times for step in steps if step.tool == tool.name)
    if not foreseen:
        yield deny("NOT_IN_PLAN", f"the plan has no step for {tool.name}")
    elif tool.effect is not Effect.READ and Counter(case.plan.spent)[tool.name] >= foreseen:
        yield deny("STEP_SPENT", f"the plan foresees {tool.name} {foreseen}×, and that was done")


# --- places -----------------------------------------------------------------------------------------------------------


def places(case: Case, traces: tuple[Trace, ...]) -> Iterator[Finding]:
    """Whether hosts and paths are ones that the call may reach."""
    for trace in traces:
        if trace.kind is SinkKind.URL:
            yield from _host(case, trace)
        elif trace.kind is SinkKind.PATH:
            yield from _path(case, trace)
    addresses = [urls.parse(trace.value) for trace in traces if trace.kind is SinkKind.URL]
    asked = frozenset(address.host for address in addresses if isinstance(address, urls.Address))
    if case.dry_run is not None and any(sink.kind is SinkKind.URL for sink in case.tool.sinks):
        for line in case.dry_run.simulated_effects.network_requests:
            yield from _predicted(case, line, asked)


_REFUSED: Final = {"numeric_host": "SSRF_ADDRESS"}
_READ_ONLY: Final = "readonly"


def _host(case: Case, trace: Trace) -> Iterator[Finding]:
    address = urls.parse(trace.value)
    if isinstance(address, str):
        yield deny(_REFUSED.get(address, "URL_REFUSED"), f"no address that a tool may use: {address}", trace.path)
        return
    if _off_list(case, address.host):
        yield deny("DOMAIN_NOT_ALLOWED", f"{address.host} is not among the allowed hosts", trace.path)
    elif _is_unlisted(case, address.host) and trace.how not in OWN_CHOICE | {How.POINTED}:
        yield ask("UNLISTED_HOST", f"{address.host} is on no list, and you did not name it", trace.path)


def _lists(case: Case) -> Iterator[tuple[str, ...]]:
    """The lists of hosts that count: always a manifest's; with an open web not the empty ones of plan and policy."""
    for policy in (case.plan.tool_policy, case.policy.tool_policy):
        if policy.allowlisted_domains or not case.open_web:
            yield policy.allowlisted_domains
    for item in _manifest(case):
        if "domains" in item.constraints:
            named = item.constraints["domains"]
            yield tuple(map(str, cast("list[object]", named))) if isinstance(named, list) else ()


def _off_list(case: Case, host: str) -> bool:
    """Whether a list that counts does not name the host."""
    return any(host not in names for names in _lists(case))


def _is_unlisted(case: Case, host: str) -> bool:
    """Whether no list at all names the host."""
    return not any(host in names for names in _lists(case))


def _predicted(case: Case, line: str, asked: frozenset[str]) -> Iterator[Finding]:
    """A request that the dry-run foresees goes to hosts on the lists, or to those that the arguments name.

    A tool without an address among its arguments has hosts of its own, by the operator's word.
    """
    address = urls.parse(line.partition(" ")[2])
    if isinstance(address, str):
        yield deny(_REFUSED.get(address, "URL_REFUSED"), f"the dry-run would use a bad address: {address}")
    elif _off_list(case, address.host) or (_is_unlisted(case, address.host) and address.host not in asked):
        yield deny("DOMAIN_NOT_ALLOWED", f"the dry-run would call {address.host}, which is not among the allowed hosts")


def _path(case: Case, trace: Trace) -> Iterator[Finding]:
    path = trace.value
    clean = posixpath.normpath(path)
    if "\0" in path or not path.startswith("/") or clean != path.rstrip("/"):
        yield deny("PATH_REFUSED", "a path is absolute and has no detours", trace.path)
        return
    for roots in (case.plan.tool_policy.allowlisted_paths, case.policy.tool_policy.allowlisted_paths):
        if not any(clean == root or clean.startswith(root.rstrip("/") + "/") for root in roots):
            yield deny("PATH_NOT_ALLOWED", "the path is under no allowed folder", trace.path)
            return


# --- data towards its readers -----------------------------------------------------------------------------------------

OWN_CHOICE: Final = frozenset({How.SAID, How.REMEMBERED, How.NAMED})
"""Ways that leave the model no choice: the user, or memory that the user approved, says which value it is."""
_PARAMETERS: Final = frozenset({SinkKind.RECIPIENT, SinkKind.AMOUNT, SinkKind.ID})


def confidentiality(case: Case, traces: tuple[Trace, ...]) -> Iterator[Finding]:
    """Whether data stays within its circle of readers."""
    parties = tuple(trace.value for trace in traces if trace.kind is SinkKind.RECIPIENT)
    for trace in traces:
        level = trace.label.confidentiality
        if level is Confidentiality.SECRET:
            yield deny("SECRET_FLOW", "a secret would leave through this argument", trace.path)
        elif trace.label.may_flow_to(trace.width, parties) or _is_named_by_the_user(trace):
            continue
        elif case.plan.privacy_mode is PrivacyMode.PRIVATE_BOUNDARY:
            yield deny("PRIVATE_FLOW", _flow_in_words(trace), trace.path)
        else:
            yield ask("PRIVATE_FLOW", _flow_in_words(trace), trace.path)


def _is_named_by_the_user(trace: Trace) -> bool:
    """Whether the user himself put this thing together with this reader, or the address learns only of itself."""
    if trace.kind is SinkKind.URL:
        return trace.how in OWN_CHOICE | {How.POINTED}
    if trace.kind is SinkKind.AMOUNT and trace.how is How.PICKED:
        return True  # what is paid is seen by who is paid
    return trace.kind in _PARAMETERS and trace.how in OWN_CHOICE


def _flow_in_words(trace: Trace) -> str:
    sources = ", ".join(trace.label.sources[:8]) or "what the model has read"
    return f"{trace.label.confidentiality.value} data from {sources} would become visible to {trace.width.value}"
