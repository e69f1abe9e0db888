"""Replicated documents: feeds over y-py, gated merge, votes, anti-entropy. Memory moves in here with its own issue."""
