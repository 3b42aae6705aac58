"""The contracts of methods and defenses, local training, rounds, and the run directory; names no method and no attack."""
