"""The public verbs, one a file; :mod:`fedpriv` names them, and the command line calls nothing else."""
