"""Inverting gradients under a prior that the attacker learned on its own images, whatever the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedpriv.attacks.gradients.inverting_gradients import LEARNS_ON, InvertingGradients
from fedpriv.attacks.observation import Needs


@dataclass(frozen=True, kw_only=True)
class LearnedGradients(InvertingGradients):
    """The same search with a learned prior everywhere, also where inverting gradients by itself would not take the time."""

    prior: Literal["auto", "spectrum", "variation", "learned"] = "learned"

    name = "gradient-learned"
    summary = (
        "images whose gradient is the uploaded one, by direction, held back by a denoiser that the attacker trained"
    )
    version = 7
    needs = InvertingGradients.needs.together(Needs(attacker_data=LEARNS_ON))
    requirements_by_kind = tuple(
        (kinds, needs.together(Needs(attacker_data=LEARNS_ON)))
        for kinds, needs in InvertingGradients.requirements_by_kind
    )
    only_by_name = True
