"""Replicated documents: feeds over y-py, gated merge, votes, anti-entropy. The room is kept; memory moves in with its own issue."""
