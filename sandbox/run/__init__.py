"""Where foreign code runs. Only ``roles/intermediary/tools/`` may use it; our own children use ``sandbox.confine``."""
