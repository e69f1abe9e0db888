"""Isolation. ``confine``: what our own children lay on themselves before they touch anything from outside."""
