"""What things are called on the network, as the wire protocol fixes it: topics of the gossip, keys of the DHT."""

from __future__ import annotations

from gnusnode.contracts.swarm import short_id


def announcements_topic(swarm_id: str) -> str:
    """Where the nodes of a swarm gossip what they are and how busy."""
    return f"gnus/{short_id(swarm_id)}/announce/1"


def roster_topic(swarm_id: str) -> str:
    """Where the membership records of a swarm are gossiped."""
    return f"gnus/{short_id(swarm_id)}/roster/1"


def role_key(swarm_id: str, role: str) -> str:
    """Under which nodes of a swarm that hold ``role`` are listed."""
    return f"gnus/{short_id(swarm_id)}/role/{role}"


def artifact_key(sha256: str) -> str:
    """Under which the holders of a model file are listed; ``sha256:<hex>``."""
    return f"elm/{sha256.removeprefix('sha256:')}"
