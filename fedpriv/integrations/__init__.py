"""Other frameworks: recorders of their federations as their servers see them, and Flower as an engine of runs."""
