"""Engines: they run client steps."""
