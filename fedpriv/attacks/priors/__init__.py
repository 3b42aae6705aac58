"""Priors: the form in which an image is searched for, and the penalties on it."""
