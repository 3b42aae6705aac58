"""Flower as an engine: the clients of a run are computed by Flower's nodes, here or on other machines."""
