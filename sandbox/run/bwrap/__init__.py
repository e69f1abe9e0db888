"""Bubblewrap: namespaces and a filter of the host's own kernel, without a daemon. Only for those who ask for it."""
