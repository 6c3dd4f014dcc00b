"""State, pure step, the one impure loop, and what it writes."""
