"""Sources that ``web.search`` can ask: each one file that builds a request and reads its answer."""
