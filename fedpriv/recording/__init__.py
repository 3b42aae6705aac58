"""Federations of other frameworks, seen from their server: what crosses is written down as it is, and read back."""
