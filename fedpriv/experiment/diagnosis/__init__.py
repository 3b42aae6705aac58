"""Checks of an installation and its machine, each of which says one line and never stops the others."""
