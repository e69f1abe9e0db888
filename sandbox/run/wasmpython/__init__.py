"""CPython as a WebAssembly module: no system calls, no clock and no chance but those we make. Repeatable to the bit."""
