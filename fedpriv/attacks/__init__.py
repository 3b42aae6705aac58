"""A semi-honest server: it sees what the protocol gives it, and inverts it."""

from __future__ import annotations

import sys

from fedpriv.uploads import PAYLOADS
from fedpriv.util.errors import UserError, shown, unknown_name
from fedpriv.util.glossary import find_word
from fedpriv.util.registry import Registry

ATTACKS = Registry(
    "attack",
    {
        "dip": "fedpriv.attacks.inversion.vector:DipInversion",
        "decoder": "fedpriv.attacks.inversion.decoder:DecoderInversion",
        "pixels": "fedpriv.attacks.inversion.vector:PixelInversion",
        "unmix": "fedpriv.attacks.features.posterior:UnmixedInversion",
        "all-rounds": "fedpriv.attacks.features.base:AllRoundsInversion",
        "linear-layer": "fedpriv.attacks.gradients.linear_layer:LinearLayer",
        "dlg": "fedpriv.attacks.gradients.dlg:DeepLeakage",
        "inverting-gradients": "fedpriv.attacks.gradients.inverting:InvertingGradients",
        "pooled": "fedpriv.attacks.gradients.pooled:PooledBatch",
        "head-update": "fedpriv.attacks.features.closed_form:HeadUpdate",
        "angle-update": "fedpriv.attacks.features.closed_form:AngleUpdate",
        "class-inversion": "fedpriv.attacks.inversion.vector:ClassInversion",
        "paired-logits": "fedpriv.attacks.inversion.paired_logits:PairedLogits",
        "membership": "fedpriv.attacks.inference.membership:MembershipInference",
        "property": "fedpriv.attacks.inference.property:PropertyInference",
        "labels": "fedpriv.attacks.inference.property:LabelDisclosure",
    },
    group="fedpriv.attacks",
    contract="fedpriv.attacks.contract:refuse_no_attack",
)
"""Names of attacks and where they are. Each says itself which kinds of payload it is on."""


def targets_of(name: str) -> tuple[str, ...]:
    """Return the kinds of payload that an attack is on."""
    return tuple(ATTACKS.load(name).targets)


def attacks_for(target: str) -> tuple[str, ...]:
    """Return the names of the attacks on a kind of payload, or refuse it; the strongest first."""
    from fedpriv.uploads.kinds import payload_kind

    payload_kind(target)
    return tuple(name for name, attack in ATTACKS.load_all().items() if target in attack.targets)


def default_suite(target: str) -> tuple[str, ...]:
    """Return the names of the attacks on a kind of payload that run without being named, the strongest first."""
    return tuple(name for name in attacks_for(target) if not ATTACKS.load(name).only_by_name)


def is_attacked(target: str) -> bool:
    """True if an attack is on a kind of payload. Loads attacks only until there is one."""
    return any(target in targets_of(name) for name in ATTACKS)


TARGETS = (
    *("representation", "prototype", "entangled", "angle-matrix", "logits", "kernel", "public-logits", "label-counts"),
    *("model", "small-model", "classifier", "extractor", "low-rank-model"),
)
"""Kinds of payload of this package that are attacked, or that tell all in clear."""


def refuse_unknown_target(target: object) -> None:
    """Refuse what is no kind of payload; imports no torch."""
    declared = getattr(sys.modules.get("fedpriv.uploads.payload"), "DECLARED", {})
    if not isinstance(target, str) or (target not in PAYLOADS and target not in declared):
        others = {*PAYLOADS, *declared} - set(PAYLOADS.builtins)
        word = find_word(str(target))
        if word is not None and word.target:
            raise UserError(f"unknown target {shown(target)}; did you mean {word.target!r}? {word.text}")
        raise unknown_name("target", target, {*TARGETS, *others})


def target_names() -> tuple[str, ...]:
    """Return the kinds of payload that are attacked, or that tell all in clear."""
    from fedpriv.uploads.kinds import IN_CLEAR
    from fedpriv.uploads.payload import DECLARED

    attacked = {kind for attack in ATTACKS.load_all().values() for kind in attack.targets}
    return tuple(kind for kind in DECLARED if kind in attacked or kind in IN_CLEAR)


def told_in_clear(target: str) -> str:
    """Return why a kind of payload needs no attack; empty where it may."""
    from fedpriv.uploads.kinds import IN_CLEAR

    clear = "this upload is the client's label histogram itself, in clear: there is nothing left to infer from it"
    return clear if target in IN_CLEAR else ""
