"""Optimizers as optax gradient transformations."""
