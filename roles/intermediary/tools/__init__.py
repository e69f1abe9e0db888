"""The room in which tools run: one file each, with a manifest, a dry-run and a run. Nothing else may start one."""
