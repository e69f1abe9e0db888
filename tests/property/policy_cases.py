"""Random cases for the policy: calls of several tools by models that obey anyone, seeded and repeatable."""

from __future__ import annotations

import base64
import hashlib
import random
import sys
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

from gnusnode.contracts import ids
from gnusnode.contracts.plan import PrivacyMode
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.tools import (
    DryRunResult,
    MockOutput,
    RequiredCapability,
    SimulatedEffects,
    ToolPolicy,
    ToolProposal,
)
from gnusnode.policy.case import Case, Mutations, PlanScope, Step
from gnusnode.policy.judge import judge
from gnusnode.policy.labels import Confidentiality, Width
from gnusnode.policy.sinks import Authors, Effect, Output, Sink, SinkKind, ToolDescription
from gnusnode.policy.sources import Source, SourceKind

CALL: Final = "6f1b2c3d-0000-4000-8000-000000000001"
VALUES: Final = (
    "ann@x.org", "eve@evil.example", "https://docs.gnus.ai/a", "https://evil.example/?q=1", "http://10.0.0.1/",
    "/srv/notes/a", "/etc/passwd", "Rent", "24", "hello there", "visit evil.example now", "12.50", "sk-Live9931xQ",
    "the quick brown fox jumps over the lazy dog today", "docs.gnus.ai", "Dinner at Rent",
)  # fmt: skip
NUMBERS: Final = (12.5, 24, 1200, -3, True)
RESPELL: Final[tuple[Callable[[str], str], ...]] = (
    lambda text: text,
    str.upper,
    quote,
    lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
    lambda text: text.replace("a", "а").replace("e", "е").replace("o", "о"),
    lambda text: "\u200b".join(text),
    lambda text: " ".join(text),
    lambda text: text[::-1],
    lambda text: base64.b64encode(text.encode()).decode(),
    lambda text: base64.urlsafe_b64encode(text.encode()).decode().rstrip("="),
    lambda text: text.encode().hex(),
    lambda text: "".join(f"\\u{ord(char):04x}" for char in text),
    lambda text: "".join(f"&#{ord(char)};" for char in text),
    lambda text: "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char for char in text),
    lambda text: text.replace("k", "\u212a").replace("s", "ſ"),
)
"""Ways to write the same text so that a careless comparison takes it for another or the other way round."""


def random_case(dice: random.Random) -> Case:
    """A case that may be anything from harmless to hostile; in half of them only the values can be at fault."""
    hurdles = dice.choice([0.0, 0.1])
    tool = _tool(dice, hurdles)
    query = dice.sample(VALUES, dice.randrange(1, 6))
    return Case(
        proposal=ToolProposal(tool_call_id=CALL, tool_name=tool.name, arguments=_arguments(dice, tool, query)),
        tool=tool,
        plan=PlanScope(
            plan_hash=ids.sha256(b"plan"),
            tool_policy=_tool_policy(dice, tool, hurdles),
            privacy_mode=dice.choice(list(PrivacyMode)),
            steps=dice.choice([None, ()]) if dice.random() < hurdles else (Step(tool=tool.name, times=2),),
            spent=(tool.name,) * (dice.randrange(4) if hurdles else 1),
        ),
        policy=PolicyEnvelope(tool_policy=_tool_policy(dice, tool, hurdles), step_by_step=dice.random() < hurdles),
        manifest=(
            RequiredCapability(name="none" if dice.random() < hurdles else tool.capability, scope="proposal_only"),
        ),
        sources=(
            Source(id="query", kind=SourceKind.QUERY, text=" and ".join(query)),
            *(_source(dice, number) for number in range(dice.randrange(4))),
        ),
        dry_run=None if dice.random() < hurdles else _dry_run(),
        mutations=dice.choice(list(Mutations)),
        open_web=dice.random() < 0.5,
        severe_flags=("active_content",),
        at_ms=0,
    )


def _tool(dice: random.Random, hurdles: float) -> ToolDescription:
    kinds = dice.sample(list(SinkKind), dice.randrange(1, 4))
    sinks = tuple(Sink(argument=kind.value, kind=kind, width=dice.choice(list(Width))) for kind in kinds)
    return ToolDescription(
        name=dice.choice(["a.read", "a.write"]),
        capability="tool:a",
        effect=dice.choice(list(Effect)),
        sinks=sinks,
        third_party=dice.random() < hurdles,
    )


def _tool_policy(dice: random.Random, tool: ToolDescription, hurdles: float) -> ToolPolicy:
    return ToolPolicy(
        human_approval=dice.random() < hurdles,
        capability_whitelist=() if dice.random() < hurdles else (tool.capability,),
        allowlisted_domains=dice.choice([(), ("docs.gnus.ai",)]),
        allowlisted_paths=() if dice.random() < hurdles else ("/srv/notes",),
    )


def _arguments(dice: random.Random, tool: ToolDescription, query: list[str]) -> dict[str, Any]:
    names = [sink.argument for sink in tool.sinks] + ["extra"] * (dice.random() < 0.1)
    return {name: dice.choice(query) if dice.random() < 0.6 else _value(dice, 2) for name in names}


def _value(dice: random.Random, depth: int) -> Any:
    roll = dice.random()
    if depth and roll < 0.1:
        return [_value(dice, depth - 1) for _ in range(dice.randrange(3))]
    if depth and roll < 0.15:
        return {"key": _value(dice, depth - 1)}
    if roll < 0.3:
        return dice.choice(NUMBERS)
    return dice.choice(RESPELL)(dice.choice(VALUES)) if roll < 0.5 else dice.choice(VALUES)


def _source(dice: random.Random, number: int) -> Source:
    output = Output(
        authors=dice.choice(list(Authors)),
        stamped=("id", "name"),
        names=("name",),
        confidentiality=dice.choice([*[Confidentiality.PUBLIC] * 5, *Confidentiality]),
    )
    entries = [{key: dice.choice(VALUES) for key in dice.sample(["name", "id", "note", "remark"], 4)} for _ in range(2)]
    return Source(
        id=f"s{number}",
        kind=dice.choice([SourceKind.TOOL] * 3 + [SourceKind.HIGHER_TRUST, SourceKind.LOWER_TRUST]),
        text=" ".join(dice.sample(VALUES, 3)),
        fields={"": entries[: dice.randrange(3)]},
        arguments={"q": dice.choice(VALUES)},
        output=output,
    )


def _dry_run() -> DryRunResult:
    return DryRunResult(
        tool_call_id=CALL,
        dry_run_ok=True,
        simulated_effects=SimulatedEffects(),
        mock_output=MockOutput(content_type="text/plain", preview=""),
        human_approval_required=False,
    )


def fingerprint(seed: int, count: int) -> str:
    """One digest over cases and verdicts of ``count`` random proposals."""
    dice, whole = random.Random(seed), hashlib.sha256()
    for _ in range(count):
        case = random_case(dice)
        whole.update(case.to_bytes())
        whole.update(judge(case).to_bytes())
    return whole.hexdigest()


if __name__ == "__main__":
    print(fingerprint(int(sys.argv[1]), int(sys.argv[2])))
