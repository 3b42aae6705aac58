"""What ``fedpriv audit`` does: read a study, expand it to cells, check them all, run them, report.

It stands in the command line, not under it, because a cell is what the other commands do: it takes their flags
(:mod:`fedpriv.cli.federation_options`), trains as ``fedpriv train``, and carries out a plan as ``fedpriv attack``. What it
measures stays where it was: scores and pages belong to :mod:`fedpriv.scoring`, which reads the study's folder alone.
"""
