"""Metrics, floors, intervals, and the records made of them; nothing goes back to an attack."""
