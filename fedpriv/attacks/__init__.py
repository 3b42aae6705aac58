"""A semi-honest server: it sees what the protocol gives it, and inverts it."""
