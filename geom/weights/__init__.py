"""Weights that others trained: read as they lie, measured one at a time."""
