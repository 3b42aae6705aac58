"""Optimisers that work on rows, a row being one target with one restart; they know no upload."""
