"""Docker as a sandbox, over the Engine API on its Unix socket."""
