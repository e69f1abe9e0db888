"""The host ABI: how a confined module asks for what it may not take, and how the host grants or denies it."""
