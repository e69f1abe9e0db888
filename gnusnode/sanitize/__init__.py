"""Pure functions: bytes in, clean text and findings out. Nothing here does I/O; the rules are data."""
