"""Inverting gradients under a prior that the attacker learned on its own images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.inverting_gradients import InvertingGradients
from fedpriv.attacks.gradients.ways import NetworkKind, Way
from fedpriv.attacks.observation import Needs
from fedpriv.attacks.priors.denoiser import DenoiserTraining
from fedpriv.attacks.priors.learned import own_denoiser, strangeness

_VARIATION = 0.6
"""Share of the weight of total variation that is left beside a learned prior."""


@dataclass(frozen=True, kw_only=True)
class LearnedGradients(InvertingGradients):
    """The same search, held back by what a denoiser of the attacker's own changes, beside a little total variation.

    Attributes:
        prior_weight: of what the denoiser changes (:func:`fedpriv.attacks.priors.learned.strangeness`) beside total
            variation, with which it is weighted.
        denoiser: how the denoiser is trained, once for a run; for ``iterations`` steps at most.
    """

    prior_weight: Annotated[float, Ge(0)] = 0.1
    denoiser: DenoiserTraining = DenoiserTraining()

    name = "gradient-learned"
    summary = (
        "images whose gradient is the uploaded one, by direction, held back by a denoiser that the attacker trained"
    )
    version = 6
    needs = InvertingGradients.needs.together(Needs(attacker_data=("same_domain", "other_domain")))
    requirements_by_kind = tuple(
        (kinds, needs.together(Needs(attacker_data=("same_domain", "other_domain"))))
        for kinds, needs in InvertingGradients.requirements_by_kind
    )
    only_by_name = True

    def ways(self, network: NetworkKind, count: int, apart: bool = False) -> tuple[Way, ...]:
        """Return the ways of inverting gradients with less total variation, where nobody says how much."""
        known = super().ways(network, count, apart)
        if self.total_variation != "auto":
            return known
        return tuple(replace(way, variation=_VARIATION * way.variation) for way in known)

    def beside(self, problem: AttackProblem) -> Callable[[Tensor], Tensor]:
        """Return the strangeness of images to the denoiser, weighted."""
        denoiser = own_denoiser(self.name, problem, self.denoiser, self.iterations)

        def penalty(images: Tensor) -> Tensor:
            rows, number = images.shape[:2]
            each = strangeness(images.flatten(0, 1), denoiser, self.denoiser.noise).view(rows, number)
            return self.prior_weight * each.mean(1)

        return penalty
