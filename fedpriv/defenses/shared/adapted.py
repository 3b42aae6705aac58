"""Kinds of upload that the attacks adapted to defenses are about, and the adaptations that several defenses share."""

from __future__ import annotations

from fedpriv.federation.answer import Answer

VECTORS = ("representation", "prototype", "entangled")
"""Kinds of upload that hold vectors of the representation's space."""

NETWORKS = ("model", "small-model", "extractor")
"""Kinds of upload whose difference from the broadcast is an update of a network."""

AVERAGED = (
    Answer(("unmix",), ("entangled",), note="least squares over rounds"),
    Answer(("average",), ("representation", "prototype"), note="means over rounds"),
)
"""Attacks that take noise away which is drawn anew every round."""
