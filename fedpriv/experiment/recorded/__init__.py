"""Recorded runs of other frameworks: what only their owner knows, and how messages become uploads that can be attacked."""
