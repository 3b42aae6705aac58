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

MOST_LIKELY = Answer(
    ("inverting-gradients", "gradient-dip"),
    NETWORKS,
    note="under noise of one size on every entry, behind a clip, the gradient nearest by direction is the likeliest one",
)
"""Attacks that are adapted as they are to an update clipped as a whole under Gaussian noise: of y = s g + e with unknown
s > 0, the likelihood, at its best s, grows with the cosine of y and g; the prior of the attack does the rest."""
