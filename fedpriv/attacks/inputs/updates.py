"""The change of weights that a client trained and uploads, and the part of its gradient that the upload tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedpriv.algebra.low_rank import LEFT, RIGHT, leading, recover
from fedpriv.attacks.inputs.targets import kinds_in
from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import NETWORKS

Weights = dict[str, Tensor]

HEAD = "head."
"""Prefix of the names of a model's head; an extractor travels without it."""

GradientMatch = Literal["all", "sent", "signs", "censored", "relative"]
"""The compared part of an update: ``all`` entries; those ``sent``, which are not zero (``prune``); their ``signs``; all as
far as a ``censored`` update tells of them (``percentile-privacy``); or all ``relative`` to the tensor's size
(``noise``)."""

_SMOOTH = 0.03
"""Width of the smooth sign, in root mean squares of the candidate's gradient."""

_TINY = 1e-30

_TRUNCATED = 1 - 1e-3
"""Share of the largest magnitude from which an entry counts as truncated: weights are rounded after it was added to
them."""


@dataclass(frozen=True)
class Tangent:
    """The part of a gradient that the truncated matrix it led to gives away.

    A client takes a step from W to W' = W - lr G and uploads the leading singular triples of W', W'_t = U S V. As U^T W' =
    S V and W' V^T = U S, the server knows U^T G and G V^T exactly, but nothing of what is orthogonal to both:

        G - (I - U U^T) G (I - V^T V)

    is the orthogonal projection onto the tangent space of the matrices of rank t at W'_t. Candidates that are projected
    likewise are compared without error; the same holds of a sum of steps. Convolution kernels are projected slice by slice.

    Attributes:
        left: name -> U ``(..., a, t)`` with orthonormal or zero columns; parameters that are not named pass unchanged.
        right: name -> V ``(..., t, b)`` with orthonormal or zero rows.
    """

    left: Mapping[str, Tensor] = field(default_factory=dict)
    right: Mapping[str, Tensor] = field(default_factory=dict)

    def __call__(self, gradient: Mapping[str, Tensor]) -> Weights:
        """Return the projection of ``gradient``; leading axes of a stack are kept."""
        return {name: self._project(name, value) if name in self.left else value for name, value in gradient.items()}

    def at(self, weights: Mapping[str, Tensor]) -> Tangent:
        """Return the same of other truncated matrices, of the same ranks, by name."""
        factors = {name: leading(weights[name], left.shape[-1]) for name, left in self.left.items()}
        return Tangent(
            {name: factor[0] for name, factor in factors.items()}, {name: item[2] for name, item in factors.items()}
        )

    def _project(self, name: str, value: Tensor) -> Tensor:
        left, right = self.left[name], self.right[name]
        beside = value - left @ (left.mT @ value)
        return value - (beside - (beside @ right.mT) @ right)


@dataclass(frozen=True)
class Update:
    """Broadcast and uploaded weights by the same names, of a low-rank model recovered ones.

    ``project`` is what can be compared of ``before - after``; None for everything.
    """

    before: Weights
    after: Weights
    project: Callable[[Mapping[str, Tensor]], Weights] | None = None

    def gradient(self, learning_rate: float) -> Weights:
        """Return ``(before - after) / learning rate``, projected where the upload is truncated: the sum of the steps'."""
        change = {name: (value - self.after[name]) / learning_rate for name, value in self.before.items()}
        return change if self.project is None else self.project(change)


def read_update(seen: Observation, shapes: Mapping[str, torch.Size], device: torch.device) -> Update:
    """Return the change of the weights that a client trained and uploads; refuse parameters of other shapes.

    Those of the head are left out where an extractor travels without it.
    """
    where = f"client {seen.client} in round {seen.round}"
    states: list[Weights] = []
    tangent: Tangent | None = None
    for side, message in (("broadcast", seen.broadcast), ("upload", seen.upload)):
        payload = NETWORKS.first(message)
        if payload is None:
            raise UserError(
                f"{where}: expected the weights of a network ({', '.join(NETWORKS)}) in the {side}, got "
                f"{kinds_in(message)}"
            )
        state = payload.parameters()
        if payload.space == "factors":
            factors = {name: value.to(device) for name, value in state.items()}
            state = recover(factors)
            if side == "upload":
                left = {name: factors[name + LEFT] for name in state if name + LEFT in factors}
                tangent = Tangent(left, {name: factors[name + RIGHT] for name in left})
        if payload.network == "extractor":
            shapes = {name: shape for name, shape in shapes.items() if not name.startswith(HEAD)}
        for name, shape in shapes.items():
            if name not in state or state[name].shape != shape:
                got = tuple(state[name].shape) if name in state else "nothing"
                raise UserError(f"{where}: {side} parameter {name!r} should be {tuple(shape)}, got {got}")
        states.append({name: state[name].to(device) for name in shapes})
    before, after = states
    return Update(before, after, tangent)


def require_facts(attack: str, knowledge: Knowledge, client: int) -> BatchFacts:
    """Return the facts of a client's local steps, or refuse where they were not handed over."""
    facts = knowledge.facts_of(client)
    if facts is None:
        raise UserError(
            f"attack {attack!r} needs the batch facts (size, learning rate, steps), but none were handed over"
        )
    return facts


def stacked_projection(
    projections: Sequence[Callable[[Mapping[str, Tensor]], Weights] | None],
) -> Tangent | SentEntries | None:
    """Return the projections of N updates as one, for gradients ``(N, ...)``; None where nothing is projected.

    Smaller ranks are filled up with zeros, which changes no projection.
    """
    if all(projection is None for projection in projections):
        return None
    entries = [projection for projection in projections if isinstance(projection, SentEntries)]
    if len(entries) == len(projections):
        return stacked_entries(entries)
    tangents = [projection for projection in projections if isinstance(projection, Tangent)]
    if len(tangents) < len(projections):
        raise TypeError("some updates are projected and some are not; they cannot be stacked")
    names = dict.fromkeys(name for tangent in tangents for name in tangent.left)
    left, right = {}, {}
    for name in names:
        # Sent whole by some client: its factors span everything.
        pairs = [_factors(tangent, name, tangents) for tangent in tangents]
        rank = max(item.shape[-1] for item, _ in pairs)
        left[name] = torch.stack([pad(entry, (0, rank - entry.shape[-1])) for entry, _ in pairs])
        right[name] = torch.stack([pad(other, (0, 0, 0, rank - other.shape[-2])) for _, other in pairs])
    return Tangent(left, right)


def _factors(tangent: Tangent, name: str, among: Sequence[Tangent]) -> tuple[Tensor, Tensor]:
    if name in tangent.left:
        return tangent.left[name], tangent.right[name]
    left, right = next((other.left[name], other.right[name]) for other in among if name in other.left)
    rows, columns = left.shape[-2], right.shape[-1]
    whole = torch.eye(rows, dtype=left.dtype, device=left.device).expand(*left.shape[:-2], rows, rows)
    return whole, right.new_zeros(*right.shape[:-2], rows, columns)


@dataclass(frozen=True)
class SentEntries:
    """The projection of candidate gradients onto what N clients sent.

    Entries of a pruned update that are zero were small, not zero, and are left out. An update of signs is compared with the
    smooth signs of candidates. A *censored* update, without its smallest entries and with its large ones truncated, bounds
    those: candidates in keeping with that are not pulled anywhere. Where noise is in proportion to each tensor, tensors are
    taken *relative* to their root mean square in the update.

    Attributes:
        wanted: name -> observed gradient ``(N, ...)``; zero where nothing was sent.
        signs: whether it holds signs times one magnitude a tensor. Candidates' entries g then become
            ``magnitude * g / sqrt(g^2 + (0.03 rms(g))^2)``, with rms(g) over the entries that were sent.
        limits: ``(N, 2)`` smallest and largest magnitude sent, over all tensors, where updates are censored; else None.
        relative: name -> what a tensor is divided by ``(N, 1, ...)``; None for nothing.
    """

    wanted: Mapping[str, Tensor]
    signs: bool = False
    limits: Tensor | None = None
    relative: Mapping[str, Tensor] | None = None

    def __call__(self, gradient: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the projection of gradients ``(N, ...)`` by name."""
        if self.limits is not None:
            return {name: censored(value, self.wanted[name], self.limits) for name, value in gradient.items()}
        if self.relative is not None:
            return {name: value / self.relative[name] for name, value in gradient.items()}
        results = {}
        for name, value in gradient.items():
            sent = self.wanted[name] != 0
            kept = value * sent
            if self.signs:
                rows = tuple(range(1, value.dim()))
                number = sent.sum(rows, keepdim=True).clamp_min(1)
                square = kept.square().sum(rows, keepdim=True) / number
                magnitude = self.wanted[name].abs().amax(rows, keepdim=True)
                kept = magnitude * kept / (kept.square() + _SMOOTH**2 * square + _TINY).sqrt()
            results[name] = kept
        return results


def sent_entries(gradient: Mapping[str, Tensor], match: GradientMatch) -> SentEntries | None:
    """Return the projection for one observed gradient, by name and without leading axis; None for ``all``."""
    if match == "all":
        return None
    wanted = {name: value.unsqueeze(0) for name, value in gradient.items()}
    if match == "relative":
        return SentEntries(wanted, relative={name: _size(value) for name, value in wanted.items()})
    return SentEntries(wanted, match == "signs", _limits(gradient) if match == "censored" else None)


def censored(gradient: Tensor, wanted: Tensor, limits: Tensor) -> Tensor:
    """Return candidates' gradients ``(N, ...)`` less all that a censored update leaves open, of magnitudes in the limits.

    Where nothing was sent, what exceeds the smallest magnitude sent; where the largest was sent, the gradient but no more
    than that; elsewhere the gradient. Equal to ``wanted`` for the gradient that it was made of.
    """
    least, most = (limits[:, position].view(-1, *[1] * (wanted.dim() - 1)) for position in (0, 1))
    sign = wanted.sign()
    beyond = gradient.sign() * (gradient.abs() - least).clamp_min(0)
    shortened = sign * torch.minimum(sign * gradient, most)
    truncated = wanted.abs() >= _TRUNCATED * most
    return torch.where(wanted == 0, beyond, torch.where(truncated, shortened, gradient))


def _size(gradient: Tensor) -> Tensor:
    """Return the root mean square of each row of ``(N, ...)``, which broadcasts; one where all is zero."""
    size = gradient.square().flatten(1).mean(1).sqrt().view(-1, *[1] * (gradient.dim() - 1))
    return torch.where(size > 0, size, 1.0)


def _limits(gradient: Mapping[str, Tensor]) -> Tensor:
    """Return the smallest magnitude that is not zero, and the largest, over all tensors ``(1, 2)``; zeros for none."""
    magnitudes = torch.cat([value.detach().abs().flatten() for value in gradient.values()])
    kept = magnitudes[magnitudes > 0]
    return torch.stack([kept.min(), kept.max()])[None] if len(kept) else magnitudes.new_zeros(1, 2)


def stacked_entries(projections: Sequence[SentEntries]) -> SentEntries:
    """Return the projections of several updates of the same parameters as one."""
    wanted = {
        name: torch.cat([projection.wanted[name] for projection in projections]) for name in projections[0].wanted
    }
    limits = [entry.limits for entry in projections if entry.limits is not None]
    sizes = [item.relative for item in projections if item.relative is not None]
    relative = {name: torch.cat([size[name] for size in sizes]) for name in sizes[0]} if sizes else None
    return SentEntries(wanted, projections[0].signs, torch.cat(limits) if limits else None, relative)
