"""Entries of a leaderboard: made from results, and checked."""
