"""Kinds of upload that the attacks adapted to defenses are about, and the adaptations that several defenses share."""

from __future__ import annotations

from fedpriv.federation.answer import Answer

VECTORS = ("representation", "prototype", "entangled")
"""Kinds of upload that hold vectors of the representation's space."""

SINGLE = ("representation", "prototype")
"""Those of one image, or one class, each."""

LAYERS = ("classifier", "angle-matrix")
"""Kinds of upload that hold the update of a single layer."""

NETWORKS = ("model", "small-model", "extractor")
"""Kinds of upload whose difference from the broadcast is an update of a network."""

HEADED = ("model", "small-model", "low-rank-model")
"""Kinds of upload that hold a whole network."""

SEARCHES = ("dlg", "inverting-gradients", "gradient-dip")
"""Attacks that match gradients."""

_COSINE = "the cosine between update and a candidate's gradient, which no length moves and noise or gaps blur only"
LIKENESS = Answer(("membership",), LAYERS, note=f"as it is: {_COSINE}")
"""Membership by the direction of the update."""

CLASS_IDS = Answer(
    ("class-inversion",), ("logits",), {"match": "class"}, note="goes by the class ids, which are sent as they are"
)

UNTOUCHED = Answer(note="what is sent is as it was")
"""Of defenses that leave out some uploads, or some rows, and change no other."""

COMPARED = Answer(
    ("property", "membership"),
    ("kernel", "public-logits"),
    note="as they are: compare clients with one another, by all entries together",
)

LEARNED = (
    Answer(("decoder",), SINGLE, note="learns on images of its own behind the same defense"),
    Answer(("all-rounds",), SINGLE, note="the same, from all rounds together"),
)
"""Decoders that are trained through the defense."""

AVERAGED = (
    Answer(("unmix",), ("entangled",), note="one posterior over rounds"),
    *LEARNED,
)
"""Attacks that take noise away which is drawn anew every round."""

MOST_LIKELY = Answer(
    ("inverting-gradients", "gradient-dip"),
    NETWORKS,
    note="under noise of one size on every entry, behind a clip, the gradient nearest by direction is the likeliest one",
)
"""Attacks that are adapted as they are to an update clipped as a whole under Gaussian noise: of y = s g + e with unknown
s > 0, the likelihood, at its best s, grows with the cosine of y and g; the prior of the attack does the rest."""
