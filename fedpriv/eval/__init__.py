"""Leakage, utility and communication, measured and shown."""
