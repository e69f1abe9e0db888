"""The tool intermediary: judges what experts propose, asks a person where it must, and alone makes calls (18.1.3.8)."""
