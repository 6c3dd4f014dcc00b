"""Probes: pure functions of stacks of weights, gradients and taps."""
