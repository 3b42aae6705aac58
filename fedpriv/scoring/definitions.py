"""One guesser scored at every target: the attack, its control and each baseline go through this one door.

The score of a target that several images went into is the expected PSNR: the mean over its members, by their weights, of
the PSNR between each and the guess assigned to it. One guess is compared with every member; with M guesses the assignment
has the least total squared error, and each guess serves at most ceil(m / M) of the m members.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpriv.scoring.intervals import Values
from fedpriv.scoring.leakage import ImageMeasure, psnr_of_mse, ssim, ssim_unavailable
from fedpriv.sources.truth import Truth

PAIRS_AT_A_TIME = 64
"""Of images that are compared by SSIM, whose values do not depend on it beyond the last digits."""


@dataclass(frozen=True)
class TargetScore:
    """Scores of the guesses at one target.

    Attributes:
        psnr: weighted mean over the assigned pairs, dB.
        mse: weighted mean squared error over them, on [0, 1].
        assigned: ``(m,)`` which guess each member was compared with.
    """

    psnr: float
    mse: float
    assigned: Tensor


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
        """PSNR of each target in dB."""
        return np.array([score.psnr for score in self.scores])

    @property
    def mse(self) -> Values:
        """Mean squared error of each target on [0, 1]."""
        return np.array([score.mse for score in self.scores])


def squared_errors(guesses: Tensor, images: Tensor) -> Tensor:
    """Return the mean squared error between each guess ``(M, c, h, w)`` and each image ``(m, c, h, w)``: ``(M, m)``."""
    left, right = guesses.double().flatten(1), images.double().flatten(1)
    return torch.stack([(guess - right).square().mean(dim=1) for guess in left])


def assign(errors: Tensor) -> Tensor:
    """Return which guess each member is compared with ``(m,)``, from errors ``(M, m)``.

    The assignment of least total error in which each guess serves at most ceil(m / M) members.
    """
    n_guesses, n_members = errors.shape
    if n_guesses == 1:
        return torch.zeros(n_members, dtype=torch.int64)
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    copies = math.ceil(n_members / n_guesses)
    rows, columns = linear_sum_assignment(errors.repeat(copies, 1).numpy())
    assigned = np.empty(n_members, dtype=np.int64)
    assigned[columns] = rows % n_guesses
    return torch.from_numpy(assigned)


def score_guesses(guesses: Tensor, truth: Truth) -> TargetScore:
    """Score guesses ``(M, c, h, w)``, finite and in [0, 1], at one target."""
    errors = squared_errors(guesses, truth.members)
    assigned = assign(errors)
    pairs, weights = errors[assigned, torch.arange(truth.n_c)], _shares(truth)
    return TargetScore(float(weights @ psnr_of_mse(pairs)), float(weights @ pairs), assigned)


def _shares(truth: Truth) -> Tensor:
    return truth.weights.double() / truth.weights.double().sum()


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
    repeat is no new guess, but baselines to its number would be new: so trailing repeats are left out, down to as many
    guesses as the target has images.
    """
    return tuple(row[: _own_number(row, truth.n_c)] for row, truth in zip(images, truths, strict=True))


def _own_number(row: Tensor, n_members: int) -> int:
    first_shown: dict[bytes, int] = {}
    for index, guess in enumerate(row.contiguous()):
        first_shown.setdefault(guess.numpy().tobytes(), index)
    return max(min(n_members, len(row)), 1 + max(first_shown.values()))


def measure(guesses: Sequence[Tensor], truths: Sequence[Truth]) -> ScoredGuesses:
    """Score per-target guesses ``(M, c, h, w)``."""
    scores = tuple(score_guesses(shots, truth) for shots, truth in zip(guesses, truths, strict=True))
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
    while len(values) < len(truths):
        first = len(values)
        last, pairs = first + 1, truths[first].n_c
        while last < len(truths) and pairs + truths[last].n_c <= most:
            pairs += truths[last].n_c
            last += 1
        places = range(first, last)
        shown = torch.cat([guesses[place][scores[place].assigned] for place in places])
        result = function(shown, torch.cat([truths[place].members for place in places]))
        for place, current in zip(places, result.split([truths[place].n_c for place in places]), strict=True):
            values.append(float((_shares(truths[place]) * current).sum()))
    return np.array(values)
