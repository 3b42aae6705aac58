"""Runs, uploads from a user's own code and recordings of other frameworks make one kind of case; the truth stands apart."""
