"""CPU cost of making and believing a record, in microseconds; prints one JSON record a line.

    python scripts/bench/contracts.py [--rounds 7] [--calls 300]

The record is an execution plan of about 1.1 KB. Best of the rounds matters, since the machine may be shared.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import record

from gnusnode.contracts.plan import ExecutionPlan
from gnusnode.contracts.policy import PolicyEnvelope
from gnusnode.contracts.roster import Roster
from gnusnode.contracts.verify import Outcome, verify, verify_bytes
from gnusnode.identity import NodeIdentity

NOW = 1_775_410_000_000


def plan(by: NodeIdentity, swarm: str) -> ExecutionPlan:
    policy = PolicyEnvelope()
    return ExecutionPlan.signed(
        by,
        request_id=str(uuid.uuid4()),
        query_hash=policy.digest,
        selected_core={"core_id": "core", "version": "1"},
        selected_elms=({"elm_id": "code", "version": "1", "role": "planner", "capabilities": ("tool:web.fetch",)},),
        execution_graph={"mode": "agent", "topology": "single", "stages": ("draft", "tool")},
        constraints={"max_tokens": 4096, "max_wall_ms": 15000, "max_spend": 0.05},
        privacy_mode="plaintext",
        attestation_requirements=policy.attestation_requirements,
        tool_policy={"capability_whitelist": ("tool:web.fetch.readonly",)},
        memory_mode="policy_scoped",
        sandbox_profile={"platform": "server_firecracker"},
        swarm_id=swarm,
        policy_hash=policy.digest,
        issued_at_ms=NOW,
        expires_at_ms=NOW + 60_000,
        nonce=secrets.token_hex(16),
    )


def microseconds(call: Callable[[], object], rounds: int, calls: int) -> dict[str, object]:
    """CPU microseconds a call, by round."""
    found: list[float] = []
    for _ in range(rounds):
        before = time.process_time()
        for _ in range(calls):
            call()
        found.append((time.process_time() - before) / calls * 1e6)
    return record.spread(found, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=300)
    options = parser.parse_args()
    by = NodeIdentity.generate()
    roster = Roster.solo(by.peer_id)
    made = plan(by, roster.swarm_id)
    data = made.to_bytes()
    assert verify_bytes(ExecutionPlan, data, NOW, roster).outcome is Outcome.OK
    timed: dict[str, Callable[[], object]] = {
        "encode_and_sign_us": lambda: plan(by, roster.swarm_id),
        "encode_us": made.to_bytes,
        "decode_us": lambda: ExecutionPlan.from_bytes(data),
        "verify_us": lambda: verify(made, NOW, roster),
        "decode_and_verify_us": lambda: verify_bytes(ExecutionPlan, data, NOW, roster),
    }
    figures = {name: microseconds(call, options.rounds, options.calls) for name, call in timed.items()}
    record.emit("contracts", {"record_bytes": len(data), **figures})


if __name__ == "__main__":
    main()
