"""A semi-honest server: it sees what the protocol gives it, and inverts it."""

from __future__ import annotations

ATTACKS: dict[str, str] = {
    "dip": "fedpriv.attacks.invert.inversion:DipInversion",
    "joint": "fedpriv.attacks.invert.joint:JointInversion",
    "decoder": "fedpriv.attacks.invert.decoder:DecoderInversion",
    "pixels": "fedpriv.attacks.invert.inversion:PixelInversion",
    "unmix": "fedpriv.attacks.recover.unmixed_inversion:UnmixedInversion",
    "unmix-prior": "fedpriv.attacks.recover.unmixed_once:PriorUnmixing",
    "unmix-label": "fedpriv.attacks.recover.unmixed_once:LabelUnmixing",
    "average": "fedpriv.attacks.recover.averaged_inversion:AveragedInversion",
    "difference": "fedpriv.attacks.recover.difference:Differencing",
    "linear-layer": "fedpriv.attacks.gradients.linear_layer:LinearLayer",
    "dlg": "fedpriv.attacks.gradients.dlg:DeepLeakage",
    "inverting-gradients": "fedpriv.attacks.gradients.inverting_gradients:InvertingGradients",
    "gradient-dip": "fedpriv.attacks.gradients.gradient_dip:GradientDip",
    "head-update": "fedpriv.attacks.recover.head_update:HeadUpdate",
    "angle-update": "fedpriv.attacks.recover.angle_update:AngleUpdate",
    "class-inversion": "fedpriv.attacks.invert.class_inversion:ClassInversion",
    "membership": "fedpriv.attacks.infer.membership:MembershipInference",
    "property": "fedpriv.attacks.infer.property:PropertyInference",
}
"""Names of attacks and where they are."""

TARGETS: dict[str, tuple[str, ...]] = {
    "dip": ("representation", "prototype", "entangled"),
    "joint": ("prototype",),
    "decoder": ("representation", "prototype"),
    "pixels": ("representation", "prototype", "entangled"),
    "unmix": ("entangled",),
    "unmix-prior": ("entangled",),
    "unmix-label": ("entangled",),
    "average": ("representation", "prototype"),
    "difference": ("prototype", "entangled"),
    "linear-layer": ("model", "small-model", "extractor", "low-rank-model"),
    "dlg": ("model", "small-model", "extractor", "low-rank-model"),
    "inverting-gradients": ("model", "small-model", "extractor", "low-rank-model"),
    "gradient-dip": ("model", "small-model", "extractor", "low-rank-model"),
    "head-update": ("classifier",),
    "angle-update": ("angle-matrix",),
    "class-inversion": ("logits",),
    "membership": (
        *("representation", "prototype", "entangled", "logits", "kernel"),
        *("model", "small-model", "extractor", "low-rank-model", "classifier", "angle-matrix"),
    ),
    "property": ("representation", "prototype", "entangled", "logits", "classifier", "kernel"),
}
"""Which kinds of payload each attack inverts."""

BY_NAME = ("average", "difference")
"""Attacks that run only when they are named: in most runs there is nothing for them to find."""

TARGET_NAMES: tuple[str, ...] = (
    "representation",
    "prototype",
    "entangled",
    "angle-matrix",
    "small-model",
    "classifier",
    "extractor",
    "model",
    "low-rank-model",
    "logits",
    "kernel",
    "label-counts",
)
"""Kinds of upload that a target can be named by, whether there is anything to attack about them or not."""

READ: dict[str, str] = {
    "label-counts": "this upload is the client's label histogram itself, in clear: there is nothing left to infer from it",
}
"""Kinds of upload that need no attack, and why."""


def attacks_for(target_kind: str) -> tuple[str, ...]:
    """Return the names of the attacks that invert a kind of payload, the strongest first."""
    return tuple(name for name, kinds in TARGETS.items() if target_kind in kinds)
