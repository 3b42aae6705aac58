"""Defenses: changes of an upload before it leaves the client, or of local training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedpriv.util.registry import Registry, split_reference

if TYPE_CHECKING:
    from fedpriv.federation.defense import Defense
    from fedpriv.federation.run_directory import DefenseChoice

DEFENSES = Registry(
    "defense",
    {
        "clip": "fedpriv.defenses.entries:Clip",
        "noise": "fedpriv.defenses.noise:Noise",
        "dp-noise": "fedpriv.defenses.noise:DPNoise",
        "local-dp": "fedpriv.defenses.noise:LocalDp",
        "percentile-privacy": "fedpriv.defenses.entries:PercentilePrivacy",
        "svt-privacy": "fedpriv.defenses.noise:SvtPrivacy",
        "prune": "fedpriv.defenses.entries:Prune",
        "quantise": "fedpriv.defenses.entries:Quantise",
        "sign": "fedpriv.defenses.entries:Sign",
        "entangle": "fedpriv.defenses.entangle:Entangle",
        "diagonal": "fedpriv.defenses.entangle:Diagonal",
        "count-floor": "fedpriv.defenses.withheld:CountFloor",
        "hide-labels": "fedpriv.defenses.withheld:HideLabels",
        "upload-interval": "fedpriv.defenses.withheld:UploadInterval",
        "secure-aggregation": "fedpriv.defenses.withheld:SecureAggregation",
        "dp-sgd": "fedpriv.defenses.dp_sgd:DPSGD",
        "soteria": "fedpriv.defenses.training:Soteria",
        "precode": "fedpriv.defenses.training:Precode",
        "transform": "fedpriv.defenses.training:Transform",
        "mixup": "fedpriv.defenses.training:Mixup",
    },
    group="fedpriv.defenses",
    contract="fedpriv.federation.defense:refuse_no_defense",
)
"""Names of defenses and where they are."""


def build_defenses(choices: Sequence[DefenseChoice]) -> tuple[Defense, ...]:
    """Return the defenses that a run's configuration names, in its order."""
    from fedpriv.util.config import parse

    return tuple(
        parse(DEFENSES.load(choice.name), choice.options, f"options of defense {choice.name}") for choice in choices
    )


def parse_choice(text: str) -> DefenseChoice:
    """Return the choice that ``NAME`` or ``NAME:KEY=VALUE,KEY=VALUE`` describes; NAME may be a reference.

    >>> parse_choice("noise:scale=0.1,kind=laplace")
    DefenseChoice(name='noise', options={'scale': '0.1', 'kind': 'laplace'})
    """
    from fedpriv.federation.run_directory import DefenseChoice
    from fedpriv.util.errors import UserError

    name, rest = split_reference(text, DEFENSES)
    options: dict[str, str] = {}
    for pair in rest.split(",") if rest else ():
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UserError(f"defense {text!r}: expected NAME or NAME:KEY=VALUE,KEY=VALUE, got {pair!r}")
        if key.strip() in options:
            raise UserError(f"defense {text!r}: {key.strip()!r} is given twice")
        options[key.strip()] = value.strip()
    return DefenseChoice(name.strip(), options)
