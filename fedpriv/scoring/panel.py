"""One guesser scored at every target: the attack, its control and each floor go through this one door."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpriv.scoring.definitions import ComparisonSet, TargetScore, score_guesses
from fedpriv.scoring.intervals import Values
from fedpriv.scoring.leakage import ImageMeasure, ssim, ssim_unavailable
from fedpriv.sources.truth import Truth

PAIRS_AT_A_TIME = 64
"""Of images that are compared by a measure of our own, whose values do not depend on it beyond the last digits."""


@dataclass(frozen=True)
class ScoredGuesses:
    """Scores of one guesser.

    Attributes:
        guesses: per target ``(M, c, h, w)``, finite and in [0, 1].
        scores: one a target.
        ssim: per target, the weighted mean over the assigned pairs, or None where images are too small.
    """

    guesses: tuple[Tensor, ...]
    scores: tuple[TargetScore, ...]
    ssim: Values | None

    @property
    def psnr(self) -> Values:
        """Headline PSNR of each target in dB (T1)."""
        return self.definition("T1")

    @property
    def mse(self) -> Values:
        """Mean squared error of each target on [0, 1]."""
        return np.array([score.mse for score in self.scores])

    def definition(self, name: str) -> Values:
        """Return the scores under "T1", "T2", "T3" or "T5" in dB."""
        return np.array([getattr(score, name.lower()) for score in self.scores])


def settle(images: Tensor) -> tuple[Tensor, list[bool]]:
    """Return images ``(T, M, c, h, w)``, non-finite ones black and the rest clamped, and which targets diverged.

    A diverged row stays in every mean: leaving it out would flatter the attack or the defense that broke it.
    """
    finite = images.isfinite().flatten(2).all(dim=2)
    clean = torch.where(finite[:, :, None, None, None], images, torch.zeros(()))
    return clean.float().clamp(0, 1), (~finite.all(dim=1)).tolist()


def own_guesses(images: Tensor, truths: Sequence[Truth]) -> tuple[Tensor, ...]:
    """Return each target's own guesses ``(M_t, c, h, w)`` from images ``(T, M, c, h, w)``.

    Where batches differ in size, M is the largest, and a smaller batch shows its own guesses again to fill its row. A
    repeat is no new guess, but blind guesses to its number would be new: so trailing repeats are left out, down to as many
    guesses as the target has images.
    """
    return tuple(row[: _own_number(row, truth.n_c)] for row, truth in zip(images, truths, strict=True))


def _own_number(row: Tensor, n_members: int) -> int:
    pixels = [guess.numpy().tobytes() for guess in row.contiguous()]
    first_shown: dict[bytes, int] = {}
    for index, image in enumerate(pixels):
        first_shown.setdefault(image, index)
    return max(min(n_members, len(row)), 1 + max(first_shown.values()))


def measure(guesses: Sequence[Tensor], truths: Sequence[Truth], comparisons: Sequence[ComparisonSet]) -> ScoredGuesses:
    """Score per-target guesses ``(M, c, h, w)``."""
    scores = tuple(
        score_guesses(shots, truth, beside.index)
        for shots, truth, beside in zip(guesses, truths, comparisons, strict=True)
    )
    small = ssim_unavailable(truths[0].image_shape) is not None
    similar = None if small else over_pairs(ssim, guesses, scores, truths, PAIRS_AT_A_TIME)
    return ScoredGuesses(tuple(guesses), scores, similar)


def over_pairs(
    function: ImageMeasure,
    guesses: Sequence[Tensor],
    scores: Sequence[TargetScore],
    truths: Sequence[Truth],
    most: int = 1,
) -> Values:
    """Return an image measure per target: its mean over the assigned pairs, by the members' weights.

    Args:
        function: measures pairs of images.
        guesses: per target ``(M, c, h, w)``.
        scores: one a target.
        truths: one a target.
        most: pairs that the function is given at a time, but for those of one target, which it is given together.
    """
    values: list[float] = []
    first = 0
    while first < len(truths):
        last, pairs = first + 1, truths[first].n_c
        while last < len(truths) and pairs + truths[last].n_c <= most:
            pairs += truths[last].n_c
            last += 1
        places = range(first, last)
        shown = torch.cat([guesses[position][scores[position].assigned] for position in places])
        result = function(shown, torch.cat([truths[positions].members for positions in places]))
        for place, current in zip(places, result.split([truths[index].n_c for index in places]), strict=True):
            weights = truths[place].weights.double() / truths[place].weights.double().sum()
            values.append(float((weights * current).sum()))
        first = last
    return np.array(values)
