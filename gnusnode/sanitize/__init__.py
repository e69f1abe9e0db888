"""Pure functions: bytes in, clean text and findings out. Nothing here does I/O; the rules arrive with the tool path."""
