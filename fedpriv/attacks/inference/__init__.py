"""Scores instead of images: who was a member, and what a client holds."""
