"""The roles ``core`` and ``elm``: experts that draft, propose and score, and never act."""
