"""Data sets: sources, one-time preparation, deterministic order."""
