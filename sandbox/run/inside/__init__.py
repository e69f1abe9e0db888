"""Programs of ours that run inside a sandbox; they are sent there as text and never imported by the node."""
