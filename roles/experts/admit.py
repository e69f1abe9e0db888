"""Whether a draft may be made: the plan names this expert, this query and these limits. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gnusnode.contracts.plan import ExecutionPlan, ExpertRole, Stage
from gnusnode.contracts.services import ChoiceResume, DraftRequest
from gnusnode.errors import ModelNotFound, RecordRefused, RequestError
from roles.experts.hosting import Expert, Host


@dataclass(frozen=True)
class Budget:
    """What the plan leaves for one choice."""

    max_tokens: int
    wall_seconds: float


def admit(request: DraftRequest, host: Host) -> tuple[Expert, Budget]:
    """The expert that is to draft, and its limits. The plan's signature was checked before.

    Raises:
        ModelNotFound: this service does not host the expert.
        RecordRefused: the plan is for something else than what is asked.
        RequestError: what is to be resumed makes no sense.
    """
    expert = _hosted(request, host)
    plan = request.plan
    if plan.request_id != request.generation.request_id:
        raise _refused("is for another request")
    if plan.query_hash != request.generation.prompt.digest:
        raise _refused("is for another query")
    if Stage.DRAFT not in plan.execution_graph.stages:
        raise _refused("does not ask for a draft")
    if not _selects(plan, expert, host):
        raise _refused(f"does not select the expert {expert.expert_id!r} of version {expert.version[:80]!r}")
    share = plan.constraints.max_tokens // request.choices
    if share < 1:
        raise _refused(f"allows {plan.constraints.max_tokens} tokens, less than one for each choice")
    _check_resume(request, min(share, request.generation.max_tokens))
    return expert, Budget(min(share, request.generation.max_tokens), plan.constraints.max_wall_ms / 1000)


def to_make(request: DraftRequest) -> tuple[ChoiceResume, ...]:
    """The choices that are asked for, each with what the user has of it."""
    return request.resume or tuple(ChoiceResume(index=index) for index in range(request.choices))


def _check_resume(request: DraftRequest, max_tokens: int) -> None:
    indices = [choice.index for choice in request.resume]
    if len(set(indices)) != len(indices) or not set(indices) <= set(range(request.choices)):
        raise RequestError("resume names a choice twice, or one that was not asked for", param="resume")
    if any(len(choice.tokens) > max_tokens for choice in request.resume):
        raise RequestError(f"more was delivered than the {max_tokens} tokens that the plan allows", param="resume")


def _hosted(request: DraftRequest, host: Host) -> Expert:
    for expert in host.experts:
        if (expert.expert_id, expert.role.value) == (request.expert_id, request.expert_role):
            return expert
    raise ModelNotFound(
        f"the service {host.service!r} hosts no expert {request.expert_id!r} in the role {request.expert_role!r}",
        hint="ask the node for its experts again",
    )


def _selects(plan: ExecutionPlan, expert: Expert, host: Host) -> bool:
    if host.service == "core":
        core = plan.selected_core
        return expert.role is ExpertRole.SEMANTIC_CORE and (core.core_id, core.version) == _identity(expert)
    return any(
        (elm.elm_id, elm.version) == _identity(expert) and elm.role.value == expert.role.value
        for elm in plan.selected_elms
    )


def _identity(expert: Expert) -> tuple[str, str]:
    return (expert.expert_id, expert.version)


def _refused(what: str) -> RecordRefused:
    return RecordRefused(f"the plan {what}", where="execution-plan", hint="ask a router for a plan of this request")
