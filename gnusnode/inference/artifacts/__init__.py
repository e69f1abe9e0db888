"""Model files and experts: read, checked, fetched, kept, packed. Nothing here runs a model."""
