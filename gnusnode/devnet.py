"""A devnet, a whole swarm on one machine, on paper: which nodes there are, and what stands in their configuration.

``cli.nodes`` runs them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gnusnode.errors import RequestError

FIRST_ROLES: Final = ("ingress", "router", "core")
WORKER_ROLES: Final = ("core", "elm")
"""What the ``gpu-contributor`` profile takes on: a node that lends its experts."""

MAX_NODES: Final = 128
DRAIN_SECONDS: Final = 2.0
"""What the nodes give their running answers when all of them are told to end."""


@dataclass(frozen=True)
class NodePlan:
    """One node of a devnet, before it runs."""

    name: str
    home: Path
    roles: tuple[str, ...]
    model: bool
    api_port: int
    """0: the system chooses."""
    peer_port: int
    threads: int
    """For its model; 0: measured at start."""

    @property
    def log(self) -> Path:
        return self.home.parent / f"{self.name}.log"

    @property
    def joined(self) -> bool:
        """Whether an earlier run made it a member."""
        return (self.home / "swarm" / "swarm.json").exists()


@dataclass(frozen=True)
class UsableNode:
    """One node of a devnet that serves."""

    plan: NodePlan
    pid: int
    peer_id: str
    api: str
    seconds: float
    """From the start of its process until it was usable."""

    def to_plain(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "name": plan.name,
            "peer_id": self.peer_id,
            "api": self.api,
            "roles": list(plan.roles),
            "model": plan.model,
            "pid": self.pid,
            "home": str(plan.home),
            "log": str(plan.log),
            "usable_s": round(self.seconds, 2),
        }


def lay_out(
    count: int, folder: Path, *, model_nodes: int = 2, base_port: int = 0, cores: int = 1
) -> tuple[NodePlan, ...]:
    """What each of ``count`` nodes is: the first takes requests and plans them, the others lend experts.

    Models go to the others first, so that an answer of the first node crosses the swarm. With ``base_port`` the first
    node has it for its API and the next one for peers, the second node the two after these, and so on.

    Raises:
        RequestError: more or fewer nodes than can be, or ports that do not exist.
    """
    if not 1 <= count <= MAX_NODES:
        raise RequestError(f"a devnet has 1 to {MAX_NODES} nodes, not {count}", hint="name a number in between")
    if base_port and not 1024 <= base_port <= 65_536 - 2 * count:
        raise RequestError(
            f"{count} nodes do not fit above port {base_port}", hint=f"from 1024 to {65_536 - 2 * count}, or 0"
        )
    models = max(0, min(model_nodes, count))
    width = len(str(count))
    # The last position in this order is the first node: it holds a model only when every node does.
    with_model = {position % count for position in range(1, models + 1)}
    threads = max(1, cores // models) if models > 1 else 0
    return tuple(
        NodePlan(
            name=(name := f"node-{index + 1:0{width}}"),
            home=folder / name,
            roles=WORKER_ROLES if index else FIRST_ROLES,
            model=index in with_model,
            api_port=base_port and base_port + 2 * index,
            peer_port=base_port and base_port + 2 * index + 1,
            threads=threads,
        )
        for index in range(count)
    )


def configuration(plan: NodePlan) -> str:
    """The ``gnusnode.toml`` of a node: only this machine can reach it, and nobody is looked for beyond it."""
    return "\n".join(
        [
            "# Written by gnusnode devnet, at each of its starts.",
            'profile = "solo"',
            "",
            "[node]",
            f"name = {json.dumps(plan.name)}",
            f"roles = {json.dumps(list(plan.roles))}",
            "",
            "[api]",
            f'listen = "127.0.0.1:{plan.api_port}"',
            "",
            "[net]",
            f'listen = ["/ip4/127.0.0.1/tcp/{plan.peer_port}"]',
            "mdns = false",
            "dht = false",
            'relay = "off"',
            # All of them come from one address.
            f"max_per_address = {2 * MAX_NODES}",
            "",
            "[models]",
            f'default = "{"auto" if plan.model else "none"}"',
            'embedding = "none"',
            "",
            "[inference]",
            f"threads = {plan.threads}",
            "",
            "[limits]",
            f"shutdown_seconds = {DRAIN_SECONDS}",
            "",
        ]
    )
