"""The command line: commands call the public verbs, and their flags are made from these."""
