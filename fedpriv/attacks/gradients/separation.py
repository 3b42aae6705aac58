"""Take the gradient of a fully connected layer apart into what each image of the batch put in.

The gradient of a layer z = W a + b over n images is dW = D A and db = D 1, with D ``(m, n)`` the derivatives of the loss at
its m outputs, one column an image, and A ``(n, k)`` what went in. For one image D = db, so A follows at once (Geiping et
al. 2020, proposition 3.1). For more images dW says no more than the span of D and of A by itself; what tells them apart
is that a ReLU behind the layer makes D sparse: where an output was not positive for an image its entry is exactly zero.

With dW = L R of rank n, a column of D is L q for some q, and q is fixed up to length by any n - 1 outputs at which the image
was inactive: it is a direction along which far more entries vanish than any other direction has
(:mod:`fedpriv.attacks.gradients.sparse_directions`); where labels say what the other entries are, it is found by
these as well (:mod:`fedpriv.attacks.gradients.label_masks`).

Source: Dimitrov, Baader, Mueller and Vechev, "SPEAR: Exact Gradient Inversion of Batches in Federated Learning" (NeurIPS
2024). Reading A through truncated factors is derived here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.gradients.label_masks import LabelSlopes
from fedpriv.attacks.gradients.sparse_directions import Span, sparse_directions

RANK = 1e-5
"""Singular values below this share of the largest are rounding."""


@dataclass(frozen=True)
class Separation:
    """Columns of D that were taken apart.

    Attributes:
        errors: ``(m, r)`` float64, r <= n: one column for each image that was told apart, those attested first.
        zeros: ``(r,)`` number of outputs at which each column vanishes.
        attested: how many columns, the first, show too many zeros to be anything but an image's.
    """

    errors: Tensor
    zeros: Tensor
    attested: int


def separate(
    weight: Tensor,
    bias: Tensor,
    count: int,
    generator: torch.Generator,
    draws: int,
    by_label: LabelSlopes | None = None,
    known: Tensor | None = None,
) -> Separation:
    """Return the columns of D of as many images as can be told apart.

    Args:
        weight: ``(m, k)`` gradient dW, or its product with anything from the right that keeps its rank.
        bias: ``(m,)`` gradient db.
        count: n.
        generator: draws the sets of outputs; on the CPU.
        draws: how many sets, between walks.
        by_label: what the labels make of the outputs that are positive, or None.
        known: ``(m, s)`` columns of which everything is known but their lengths, or None.
    """
    weight, bias = weight.double().cpu(), bias.double().cpu()
    if count == 1:
        return Separation(bias[:, None], torch.zeros(1, dtype=torch.int64), 1)
    left, values, _ = torch.linalg.svd(weight, full_matrices=False)
    rank = min(count, int((values > RANK * values[0].clamp(min=1e-300)).sum()))
    # Outputs that no image touched carry rounding only, and would be zeros of every direction.
    lengths = weight.norm(dim=1)
    live = (lengths > RANK * lengths.max().clamp(min=1e-300)).nonzero().squeeze(1)
    span = left[:, :rank] * values[:rank]
    if rank < 1 or len(live) <= rank:
        return Separation(weight.new_zeros(len(weight), 0), torch.zeros(0, dtype=torch.int64), 0)
    if rank == 1:
        directions, zeros, attested = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64), 0
    else:
        # What is left of the gradient beside its n largest parts is rounding, spread evenly over the entries.
        noise = (
            float(values[rank]) / (math.sqrt(len(weight)) + math.sqrt(weight.shape[1])) if len(values) > rank else 0.0
        )
        there = None if known is None else known.double().cpu()[live]
        found = sparse_directions(Span(span[live], noise), generator, draws, by_label and by_label.at(live), there)
        directions, zeros, attested = found.found, found.zeros, found.attested
    columns = span @ directions.T
    # Each column has its true length when all of them sum to db.
    scales = torch.linalg.lstsq(columns, bias[:, None], driver="gelsd").solution[:, 0]
    sound = scales.abs() * columns.norm(dim=0) > RANK * bias.norm()
    return Separation((columns * scales)[:, sound], zeros[sound], int(sound[:attested].sum()))


def rank_of(rows: Tensor) -> int:
    """Return the number of singular values of a gradient ``(m, k)`` that are more than rounding."""
    values = torch.linalg.svdvals(rows.double().cpu())
    return int((values > RANK * values[0].clamp(min=1e-300)).sum())


def inputs_of(errors: Tensor, weight: Tensor, left: Tensor | None = None) -> Tensor:
    """Return the layer's inputs ``(r, k)``: the least-squares solution A of D A = dW, ``(m, r)`` and ``(m, k)``.

    Of a truncated layer no more than ``left^T dW`` is known in all columns, ``left`` being ``(m, t)``.
    """
    errors, weight = errors.double(), weight.double().cpu()
    if left is not None:
        onto = left.double().cpu().T
        errors, weight = onto @ errors, onto @ weight
    found: Tensor = torch.linalg.pinv(errors) @ weight
    return found


def lone_inputs(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return dW_k / db_k of the outputs that any image touched ``(u, k)``, those first that other outputs confirm.

    Where one image alone touched an output, that is what the image put in; else a mixture. Two outputs that agree can
    hardly both be mixtures, so repeats are counted, in the second tensor ``(u,)``, and left out.
    """
    weight, bias = weight.double().cpu(), bias.double().cpu()
    live = (bias.abs() > 1e-4 * bias.abs().max().clamp(min=1e-300)).nonzero().squeeze(1)
    ratios = weight[live] / bias[live, None]
    weights = bias[live].abs()
    sizes = ratios.norm(dim=1).clamp(min=1e-300)
    alike = torch.cdist(ratios, ratios) < 1e-2 * torch.minimum(sizes[:, None], sizes[None])
    left_over = torch.ones(len(live), dtype=torch.bool)
    found: list[Tensor] = []
    votes: list[int] = []
    # Ties by size of db: the same rounding error matters least there.
    for one in sorted(range(len(live)), key=lambda row: (-int(alike[row].sum()), -float(weights[row]))):
        members = alike[one] & left_over
        if not left_over[one]:
            continue
        left_over &= ~members
        share = weights[members] / weights[members].sum()
        found.append(share @ ratios[members])
        votes.append(int(members.sum()))
    if not found:
        return ratios, torch.zeros(0, dtype=torch.int64)
    return torch.stack(found), torch.tensor(votes)
