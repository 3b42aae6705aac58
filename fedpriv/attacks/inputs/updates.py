"""The change of weights that a client trained and uploads, and the part of its gradient that the upload tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedpriv.algebra.low_rank import LEFT, RIGHT, recover
from fedpriv.attacks.inputs.targets import kinds_in
from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation
from fedpriv.uploads.kinds import NETWORKS
from fedpriv.util.errors import UserError

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

    Parameters that are not named pass unchanged.
    """

    left: Mapping[str, Tensor] = field(default_factory=dict)  # name -> U (..., a, t), columns orthonormal or zero
    right: Mapping[str, Tensor] = field(default_factory=dict)  # name -> V (..., t, b), rows orthonormal or zero

    def __call__(self, gradient: Mapping[str, Tensor]) -> Weights:
        """Return the projection of ``gradient``; leading axes of a stack are kept."""
        return {name: self._project(name, value) if name in self.left else value for name, value in gradient.items()}

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

    Smaller ranks are filled up with zeros, which changes no projection; factors of what a client sent whole span everything.
    """
    if all(projection is None for projection in projections):
        return None
    entries = [projection for projection in projections if isinstance(projection, SentEntries)]
    if len(entries) == len(projections):
        return _stacked_entries(entries)
    tangents = [projection for projection in projections if isinstance(projection, Tangent)]
    if len(tangents) < len(projections):
        raise TypeError("some updates are projected and some are not; they cannot be stacked")
    lefts, rights = {}, {}
    for name in dict.fromkeys(name for tangent in tangents for name in tangent.left):
        left, right = next((each.left[name], each.right[name]) for each in tangents if name in each.left)
        identity = torch.eye(left.shape[-2], dtype=left.dtype, device=left.device)
        whole = identity.expand(*left.shape[:-1], left.shape[-2])
        nothing = right.new_zeros(*right.shape[:-2], left.shape[-2], right.shape[-1])
        pairs = [(each.left.get(name, whole), each.right.get(name, nothing)) for each in tangents]
        rank = max(first.shape[-1] for first, _ in pairs)
        lefts[name] = torch.stack([pad(first, (0, rank - first.shape[-1])) for first, _ in pairs])
        rights[name] = torch.stack([pad(second, (0, 0, 0, rank - second.shape[-2])) for _, second in pairs])
    return Tangent(lefts, rights)


@dataclass(frozen=True)
class SentEntries:
    """The projection of candidate gradients onto what N clients sent.

    Entries of a pruned update that are zero are left out. A *censored* update, without its smallest entries and with its
    large ones truncated, bounds those. Where noise is in proportion to each tensor, tensors are taken *relative* to their
    root mean square in the update. Of signs times one magnitude a tensor, candidates' entries g become ``magnitude * g /
    sqrt(g^2 + (0.03 rms(g))^2)``, with rms(g) over the entries that were sent.
    """

    wanted: Mapping[str, Tensor]  # name -> observed gradient (N, ...); zero where nothing was sent
    signs: bool = False
    limits: Tensor | None = None  # (N, 2) least and largest magnitude sent, over all tensors, of censored updates
    relative: Mapping[str, Tensor] | None = None  # name -> what a tensor is divided by (N, 1, ...)

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
        sizes = {name: value.square().mean().sqrt().expand(1, *[1] * value.dim()) for name, value in gradient.items()}
        return SentEntries(wanted, relative={name: torch.where(size > 0, size, 1.0) for name, size in sizes.items()})
    if match != "censored":
        return SentEntries(wanted, match == "signs")
    magnitudes = torch.cat([value.detach().abs().flatten() for value in gradient.values()])
    sent = magnitudes[magnitudes > 0]
    limits = torch.stack([sent.min(), sent.max()]) if len(sent) else magnitudes.new_zeros(2)
    return SentEntries(wanted, limits=limits[None])


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


def _stacked_entries(projections: Sequence[SentEntries]) -> SentEntries:
    """Return the projections of several updates of the same parameters as one."""

    def stacked(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    limits = [entry.limits for entry in projections if entry.limits is not None]
    sizes = [entry.relative for entry in projections if entry.relative is not None]
    return SentEntries(
        stacked([entry.wanted for entry in projections]),
        projections[0].signs,
        torch.cat(limits) if limits else None,
        stacked(sizes) if sizes else None,
    )
