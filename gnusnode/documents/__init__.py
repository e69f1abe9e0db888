"""Reads documents that come from outside. Kinds with native parsers are read in a confined process of their own.

This is not in ``gnusnode.sanitize``, which does no I/O: starting a process, and speaking to it, is I/O.

reader    what the node calls: a document in, an ``Extract`` out, or a typed refusal
worker    the process: confines itself, parses one document, ends
passing   an ``Extract`` as a frame and back
"""
