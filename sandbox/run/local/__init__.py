"""Sandboxes that this node starts itself: a launcher, a control group, no daemon in between."""
