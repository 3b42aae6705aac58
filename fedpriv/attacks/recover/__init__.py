"""Vectors from uploads: what linear algebra finds, and the attacks that start from it."""
