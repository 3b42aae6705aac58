"""Readings of uploads by themselves, before anything is attacked."""
