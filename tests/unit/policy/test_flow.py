"""Plan ∩ policy ∩ manifest, steps, hosts, paths, and data towards its readers."""

from __future__ import annotations

import pytest

from gnusnode.contracts.plan import PrivacyMode
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.tools import RequiredCapability, SimulatedEffects, ToolPolicy
from gnusnode.policy.case import Step
from gnusnode.policy.flow import Decision, covers
from gnusnode.policy.judge import judge
from gnusnode.policy.labels import Confidentiality
from gnusnode.policy.sinks import ToolDescription
from gnusnode.policy.sources import Source, SourceKind
from tests.unit.policy.cases import FETCH, MOVE, PAY, POST, SEARCH, SEND, WRITE_FILE, case, codes, dry_run, page


def test_a_call_in_the_users_words_runs_unasked() -> None:
    verdict = judge(case(SEND, {"to": "ann@x.org", "body": "see you"}, "tell ann@x.org 'see you'"))
    assert (verdict.decision, verdict.reason_code, verdict.findings) == (Decision.ALLOW, "OK", ())


@pytest.mark.requirement("G-TI-4")
@pytest.mark.parametrize("who", ["plan", "policy", "manifest"])
def test_each_of_plan_policy_and_manifest_must_allow_the_tool(who: str) -> None:
    good = case(FETCH, {"url": "https://a.example"}, "read a.example")
    none: dict[str, object] = {
        "plan": good.plan.model_copy(update={"tool_policy": ToolPolicy()}),
        "policy": PolicyEnvelope(),
        "manifest": (RequiredCapability(name="tool.web.search", scope="proposal_only"),),
    }
    assert judge(good).decision is Decision.ALLOW
    verdict = judge(good.model_copy(update={who: none[who]}))
    assert (verdict.decision, verdict.reason_code) == (Decision.DENY, "CAPABILITY_MISSING")


def test_a_general_capability_covers_special_ones_and_not_the_other_way_round() -> None:
    assert covers("tool.web.fetch", "tool:web.fetch.readonly")
    assert not covers("tool:web.fetch.readonly", "tool.web.fetch")
    assert not covers("tool:web.fetch", "tool:web.fetcher")


def test_a_description_of_another_tool_is_no_description() -> None:
    good = case(FETCH, {"url": "https://a.example"}, "read a.example")
    renamed = good.proposal.model_copy(update={"tool_name": "web.fetch2"})
    assert "OTHER_TOOL" in codes(judge(good.model_copy(update={"proposal": renamed})))


def test_one_step_of_the_plan_is_one_side_effect_and_reading_may_be_repeated() -> None:
    write, query = {"to": "ann@x.org", "body": "hi"}, "tell ann@x.org hi"
    assert judge(case(SEND, write, query)).decision is Decision.ALLOW
    assert judge(case(SEND, write, query, spent=(SEND.name,))).reason_code == "STEP_SPENT"
    twice = (Step(tool=SEND.name, times=2),)
    assert judge(case(SEND, write, query, spent=(SEND.name,), steps=twice)).decision is Decision.ALLOW
    again = case(FETCH, {"url": "https://a.example"}, "read a.example", spent=(FETCH.name,) * 3)
    assert judge(again).decision is Decision.ALLOW
    assert judge(case(SEND, write, query, steps=(Step(tool=FETCH.name),))).reason_code == "NOT_IN_PLAN"


def test_a_plan_without_steps_foresees_no_side_effect() -> None:
    verdict = judge(case(SEND, {"to": "ann@x.org", "body": "hi"}, "tell ann@x.org hi", steps=None))
    assert (verdict.decision, verdict.reason_code) == (Decision.ASK, "UNPLANNED")
    assert judge(case(FETCH, {"url": "https://a.example"}, "read a.example", steps=None)).decision is Decision.ALLOW


def test_every_list_of_domains_counts_and_an_empty_one_allows_nothing() -> None:
    call = {"url": "https://docs.gnus.ai/a"}, "read https://docs.gnus.ai/a"
    listed = case(FETCH, *call, domains=("docs.gnus.ai",), open_web=False)
    assert judge(listed).decision is Decision.ALLOW
    assert judge(case(FETCH, *call, open_web=False)).reason_code == "DOMAIN_NOT_ALLOWED"
    assert judge(case(FETCH, *call, domains=("gnus.ai",))).reason_code == "DOMAIN_NOT_ALLOWED"
    narrow = RequiredCapability(
        name=FETCH.capability, scope="proposal_only", constraints={"domains": ["other.example"]}
    )
    assert judge(listed.model_copy(update={"manifest": (narrow,)})).reason_code == "DOMAIN_NOT_ALLOWED"


@pytest.mark.parametrize("domains", [[], "docs.gnus.ai", 7, None])
def test_a_manifest_that_names_no_host_allows_none_even_on_an_open_web(domains: object) -> None:
    strict = RequiredCapability(name=FETCH.capability, scope="proposal_only", constraints={"domains": domains})
    verdict = judge(case(FETCH, {"url": "https://docs.gnus.ai"}, "read docs.gnus.ai", manifest=(strict,)))
    assert verdict.reason_code == "DOMAIN_NOT_ALLOWED"


def test_what_a_manifest_says_of_another_tool_does_not_matter() -> None:
    other = RequiredCapability(name="tool.web.search", scope="readonly", constraints={"domains": ["a.example"]})
    good = case(FETCH, {"url": "https://docs.gnus.ai"}, "read docs.gnus.ai")
    assert judge(good.model_copy(update={"manifest": (*good.manifest, other)})).decision is Decision.ALLOW


def test_a_manifest_for_reading_allows_no_change() -> None:
    reading = (RequiredCapability(name=SEND.capability, scope="readonly"),)
    verdict = judge(case(SEND, {"to": "ann@x.org", "body": "hi"}, "tell ann@x.org hi", manifest=reading))
    assert verdict.reason_code == "CAPABILITY_MISSING"


def test_a_tool_with_hosts_of_its_own_is_not_held_to_the_lists() -> None:
    engine = SimulatedEffects(network_requests=("GET https://search.example/?q=ducks",))
    verdict = judge(case(SEARCH, {"query": "ducks"}, "find ducks", dry_run=dry_run(simulated_effects=engine)))
    assert verdict.decision is Decision.ALLOW


def test_who_may_read_a_source_may_be_sent_what_is_made_of_it() -> None:
    mail = page("it is on friday", "mail", confidentiality=Confidentiality.PRIVATE, readers=("ann@x.org",))
    for to, asked in (("ann@x.org", False), ("bob@x.org", True)):
        for body in ("friday", "at the end of this week"):
            verdict = judge(case(SEND, {"to": to, "body": body}, f"tell {to} when", mail))
            assert ("PRIVATE_FLOW" in codes(verdict)) is asked


def test_an_open_web_is_open_to_hosts_that_the_user_gave() -> None:
    assert judge(case(FETCH, {"url": "https://a.example/x"}, "read a.example/x")).decision is Decision.ALLOW
    assert "UNLISTED_HOST" in codes(judge(case(FETCH, {"url": "https://b.example"}, "read a.example")))


def test_the_requests_that_a_dry_run_foresees_are_held_to_the_same_lists() -> None:
    foreseen = SimulatedEffects(network_requests=("GET https://evil.example/",))
    verdict = judge(
        case(FETCH, {"url": "https://a.example"}, "read a.example", dry_run=dry_run(simulated_effects=foreseen))
    )
    assert verdict.reason_code == "DOMAIN_NOT_ALLOWED"
    same = SimulatedEffects(network_requests=("GET https://a.example/robots.txt", "GET https://a.example/"))
    good = case(FETCH, {"url": "https://a.example"}, "read a.example", dry_run=dry_run(simulated_effects=same))
    assert judge(good).decision is Decision.ALLOW


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/srv/notes/a.txt", "OK"),
        ("/srv/notes", "OK"),
        ("/srv/notes/../keys", "PATH_REFUSED"),
        ("/srv//notes/a", "PATH_REFUSED"),
        ("work/notes/a", "PATH_REFUSED"),
        ("/srv/notes\0/a", "PATH_REFUSED"),
        ("/srv/notes2/a", "PATH_NOT_ALLOWED"),
        ("/etc/passwd", "PATH_NOT_ALLOWED"),
    ],
)
def test_a_path_stays_below_an_allowed_folder(path: str, reason: str) -> None:
    verdict = judge(case(WRITE_FILE, {"path": path, "content": "x"}, f"write {path}", paths=("/srv/notes",)))
    assert verdict.reason_code == reason


def test_what_was_read_in_private_is_shown_to_others_only_after_a_person_agrees() -> None:
    mail = page("the merger is on friday", "mail", confidentiality=Confidentiality.PRIVATE)
    call = {"to": "ann@x.org", "body": "It is on Friday, I hear"}
    verdict = judge(case(SEND, call, "tell ann@x.org when it is", mail))
    assert (verdict.decision, "PRIVATE_FLOW" in codes(verdict)) == (Decision.ASK, True)
    bounded = case(SEND, call, "tell ann@x.org when it is", mail, privacy_mode=PrivacyMode.PRIVATE_BOUNDARY)
    assert (judge(bounded).decision, judge(bounded).reason_code) == (Decision.DENY, "PRIVATE_FLOW")


def test_private_memory_is_no_text_for_others_however_trusted_it_is() -> None:
    memory = Source(id="memory", kind=SourceKind.HIGHER_TRUST, text="passport HGK137803")
    verdict = judge(case(SEND, {"to": "ann@x.org", "body": "HGK137803"}, "write to ann@x.org", memory))
    assert "PRIVATE_FLOW" in codes(verdict)


def test_what_members_may_see_stays_with_members() -> None:
    chat = page("we ship on friday", "chat", confidentiality=Confidentiality.INTERNAL)
    assert judge(case(POST, {"room": "dev", "text": "we ship soon"}, "tell dev", chat)).decision is Decision.ALLOW
    assert "PRIVATE_FLOW" in codes(judge(case(SEND, {"to": "a@x.org", "body": "soon"}, "tell a@x.org", chat)))


@pytest.mark.parametrize(
    "words", ["hunter2secret", "terces2retnuh", "aHVudGVyMnNlY3JldA==", "h u n t e r 2 s e c r e t"]
)
def test_a_secret_leaves_by_no_argument_in_no_spelling_even_if_the_user_says_it(words: str) -> None:
    vault = page("hunter2secret", "vault", confidentiality=Confidentiality.SECRET)
    verdict = judge(case(SEND, {"to": "ann@x.org", "body": words}, f"tell ann@x.org {words}", vault))
    assert verdict.reason_code == "SECRET_FLOW"


def test_the_user_may_put_his_own_thing_and_a_reader_together() -> None:
    share = ToolDescription.model_validate(
        {**MOVE.model_dump(), "sinks": [{"argument": "event", "kind": "id", "width": "third_party"}]}
    )
    mail = page("private", "mail", confidentiality=Confidentiality.PRIVATE)
    assert judge(case(share, {"event": "e7"}, "share e7 with ann", mail)).decision is Decision.ALLOW
    assert "PRIVATE_FLOW" in codes(judge(case(share, {"event": "e8"}, "share e7 with ann", mail)))


def test_an_amount_that_nobody_said_asks() -> None:
    assert judge(case(PAY, {"to": "ann", "amount": 12.5}, "pay ann 12.50")).decision is Decision.ALLOW
    assert "UNTRACED_ARGUMENT" in codes(judge(case(PAY, {"to": "ann", "amount": 99}, "pay ann 12.50")))
