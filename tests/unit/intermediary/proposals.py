"""Proposals as small as they can be."""

from __future__ import annotations

import uuid
from typing import Any

from gnusnode.contracts.tools import ToolProposal


def proposal(tool: str, **arguments: Any) -> ToolProposal:
    """A proposal whose id follows from what it says: the same in every process."""
    name = f"{tool} {sorted(arguments.items())}"
    return ToolProposal(tool_call_id=str(uuid.uuid5(uuid.NAMESPACE_URL, name)), tool_name=tool, arguments=arguments)
