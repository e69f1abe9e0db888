"""When a person is asked, and when an answer counts (18.1.3.8.11). Only a person's answer ever does."""

from __future__ import annotations

from collections.abc import Iterator

from gnusnode.contracts.tools import Decision as Answer
from gnusnode.contracts.tools import ToolApproval, arguments_hash
from gnusnode.policy.case import Case, Mutations
from gnusnode.policy.flow import Finding, ask, deny
from gnusnode.policy.sinks import Effect


def rules(case: Case) -> Iterator[Finding]:
    """The five rules, and what else always needs a person: third-party tools, and a dry-run that says so."""
    tool, dry_run = case.tool, case.dry_run
    if dry_run is None or not dry_run.dry_run_ok:
        yield deny("DRY_RUN_FAILED", "there is no successful dry-run of this call")
        return
    if dry_run.tool_call_id != case.proposal.tool_call_id:
        yield deny("DRY_RUN_FAILED", "the dry-run is of another call")
        return
    effects = dry_run.simulated_effects
    if tool.effect is not Effect.READ and case.mutations is Mutations.ALWAYS_ASK:
        yield ask("MUTATION", f"{tool.name} changes something outside")
    if tool.needs_secrets or effects.secrets_required:
        yield ask("SECRETS", f"{tool.name} uses a secret")
    if effects.filesystem_access and tool.effect is not Effect.READ:
        yield ask("FILES", f"{tool.name} changes files")
    if severe := sorted(set(dry_run.risk_flags) & set(case.severe_flags)):
        yield ask("SEVERE_FLAGS", f"the dry-run found {', '.join(severe)}")
    if case.policy.step_by_step or case.policy.tool_policy.human_approval or case.plan.tool_policy.human_approval:
        yield ask("STEP_BY_STEP", "you asked to see every call")
    if tool.third_party:
        yield ask("THIRD_PARTY_TOOL", f"{tool.name} is described by somebody else only")
    if dry_run.human_approval_required:
        yield ask("DRY_RUN_ASKS", "the dry-run asks for a person")


def refusal_of(approval: ToolApproval, case: Case, shown_hash: str) -> Finding | None:
    """Why an approval is not one for this very call, or was a no; None: it is, and it was a yes.

    Args:
        shown_hash: of what a person has to see now.
    """
    if approval.decision is not Answer.APPROVE:
        return deny("DENIED_BY_PERSON", "a person said no")
    same_call = approval.tool_call_id == case.proposal.tool_call_id
    if not same_call or approval.args_hash != arguments_hash(case.proposal.arguments):
        return deny("APPROVAL_FOR_ANOTHER_CALL", "the approval is for other arguments")
    if approval.shown_hash != shown_hash:
        return deny("APPROVAL_FOR_ANOTHER_CALL", "the person saw something else")
    if approval.nonce in case.used_nonces:
        return deny("APPROVAL_USED", "the approval was used before")
    if approval.expires_at_ms <= case.at_ms:
        return deny("APPROVAL_EXPIRED", "the approval has expired")
    return None
