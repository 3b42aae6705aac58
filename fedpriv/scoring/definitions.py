"""The definition of recovering a target that several images went into. One rule, for attacks and floors alike.

T1  expected: mean over the members, by their weights, of the PSNR between each and the guess assigned to it.
T2  best of own: the highest PSNR between any guess and any member; read only beside the same maximum over equally many
    images that the upload had nothing to do with.
T3  mean image: PSNR between the mean of the guesses and the weighted mean of the members.
T5  one to one: mean PSNR over pairs of guesses and members, none used twice; for attacks with several guesses.

With one guess T1 compares it with every member. With M guesses the assignment has the least total squared error; each
guess serves at most ceil(m / M) of the m members. For one member and one guess all four are the same number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedpriv.scoring.leakage import psnr_of_mse
from fedpriv.sources.truth import Truth
from fedpriv.util.seeds import generator

TEXTS = {
    "T1": "expected PSNR over the images that went into the target, by their weights",
    "T2": "best PSNR over those images (a maximum: read it beside the same maximum over non-members)",
    "T3": "PSNR against the weighted mean of those images",
    "T5": "mean PSNR over a one-to-one assignment of guesses to images",
}


@dataclass(frozen=True)
class TargetScore:
    """Scores of the guesses at one target.

    Attributes:
        t1, t2, t3, t5: see the module; dB.
        t2_nonmembers: the maximum of T2 over the comparison set, or None where there was none.
        mse: weighted mean squared error over the assigned pairs, on [0, 1].
        assigned: ``(m,)`` which guess each member was compared with.
    """

    t1: float
    t2: float
    t3: float
    t5: float
    t2_nonmembers: float | None
    mse: float
    assigned: Tensor


def squared_errors(guesses: Tensor, images: Tensor) -> Tensor:
    """Return the mean squared error between each guess ``(M, c, h, w)`` and each image ``(m, c, h, w)``: ``(M, m)``."""
    left, right = guesses.double().flatten(1), images.double().flatten(1)
    if len(left) == 1:
        return (left - right).square().mean(dim=1)[None]
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


def one_to_one(errors: Tensor) -> float:
    """Return T5 in dB from errors ``(M, m)``: the mean PSNR over min(M, m) pairs of least total error."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(errors.numpy())
    return float(psnr_of_mse(errors[rows, columns]).mean())


@dataclass(frozen=True)
class ComparisonSet:
    """Non-members for T2, as many as the target has members.

    Attributes:
        index: positions in the pool, or None where the pool is too small.
        labels: "same": of the same classes in the same numbers; "any": of any class; "none": too few images.
    """

    index: Tensor | None
    labels: Literal["same", "any", "none"]


def comparison(truth: Truth, *parts: int | str) -> ComparisonSet:
    """Draw the comparison set of T2 by the seed ``parts``: same classes where the pool has enough, else any class."""
    rng = generator(*parts)
    order = torch.randperm(len(truth.pool.guess_labels), generator=rng)
    shuffled = truth.pool.guess_labels[order]
    chosen: list[Tensor] = []
    for label, count in zip(*torch.unique(truth.labels, return_counts=True), strict=True):
        of_class = order[shuffled == label]
        if len(of_class) < int(count):
            break
        chosen.append(of_class[: int(count)])
    else:
        return ComparisonSet(torch.cat(chosen), "same")
    if len(order) >= truth.n_c:
        return ComparisonSet(order[: truth.n_c], "any")
    return ComparisonSet(None, "none")


def score_guesses(guesses: Tensor, truth: Truth, others: Tensor | None) -> TargetScore:
    """Score guesses ``(M, c, h, w)`` in [0, 1] at one target.

    Args:
        guesses: finite images.
        truth: what the target was made of.
        others: positions of the comparison set of T2 in the pool of non-members, or None.
    """
    errors = squared_errors(guesses, truth.members)
    assigned = assign(errors)
    pairs = errors[assigned, torch.arange(truth.n_c)]
    weights = truth.weights.double() / truth.weights.double().sum()
    mean_error = (guesses.double().mean(dim=0) - truth.mean_image()).square().mean()
    nearest = [] if others is None else [squared_errors(guesses, truth.pool.guesses[others]).min()]
    t2, t3, *beside = psnr_of_mse(torch.stack([errors.min(), mean_error, *nearest])).tolist()
    return TargetScore(
        t1=float(weights @ psnr_of_mse(pairs)),
        t2=t2,
        t3=t3,
        t5=t2 if len(guesses) == 1 else one_to_one(errors),
        t2_nonmembers=beside[0] if beside else None,
        mse=float(weights @ pairs),
        assigned=assigned,
    )
