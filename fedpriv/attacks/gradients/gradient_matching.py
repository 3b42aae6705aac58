"""Distances of N rows' candidate images from the updates they are to explain, whatever the model and the steps.

One step's gradient is matched as it is. An update that sums up S steps of SGD is matched either unrolled, by letting the
candidates take the same S steps, or approximately, as if it were S times one gradient at the broadcast weights (the
first-order term of the same sum, exact only as the learning rate goes to zero).

Unrolling: Geiping et al., "Inverting Gradients" (NeurIPS 2020), section 6; Dimitrov et al., "Data Leakage in Federated
Averaging" (TMLR 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from fedpriv.attacks.gradients.chain_aims import Aim, Kind
from fedpriv.attacks.gradients.chain_distance import ChainGradients, InputsAim
from fedpriv.attacks.gradients.row_gradients import (
    FormedGradient,
    LayerGradient,
    RowGradients,
    cosine_distance,
    squared_distance,
)
from fedpriv.attacks.gradients.update import LocalStep, StepModel, equal_weights, same_weights, stacked
from fedpriv.attacks.inputs.updates import SentEntries, Tangent, Weights, stacked_projection
from fedpriv.attacks.observation import BatchFacts
from fedpriv.attacks.search.objectives import squared_length

SeveralSteps = Literal["unrolled", "approximate"]
"""Treatment of an update of several steps."""

Projection = Callable[[Mapping[str, Tensor]], Weights] | None
"""The comparable part of one gradient; None for everything."""

_LOOPED = 500_000
"""Parameters from which, on a CPU, rows with weights of their own are faster one after the other than vectorised."""


def batch_sizes(count: int, facts: BatchFacts) -> list[int]:
    """Return the sizes of the batches that a round of ``count`` images was split into, in order.

    Where they are known and of so many images, these. Else batches hold ``facts.batch_size`` images, the last one what is
    left; where that would make more steps than there were, the tail was joined to the batch before (networks with batch
    norm cannot train on one image).
    """
    if sum(facts.sizes) == count:
        return list(facts.sizes)
    sizes = [len(part) for part in torch.arange(count).split(facts.batch_size)]
    while len(sizes) > max(facts.steps, 1):
        tail = sizes.pop()
        sizes[-1] += tail
    return sizes


@dataclass(frozen=True)
class _Group:
    """Rows that began from equal weights, hold equally many images, in equal batches, and have one kind of loss.

    Attributes:
        rows: ``(R,)`` int64 on the CPU, their numbers among all rows.
        weights: broadcast parameters by name, without leading axis.
        fixed: parameters that the loss takes but the client did not send; each ``(R, ...)`` where ``own_fixed``.
        wanted: observed gradients by name, each ``(R, ...)``.
        norms: ``(R,)`` their norms.
        sizes: images of each batch, in order.
        readout: layer in whose output the loss is linear, or nothing.
        own_fixed: whether every row has its own.
        known: what went into the readout, whose distance is added; or None.
    """

    rows: Tensor
    weights: Weights
    fixed: Weights
    wanted: Weights
    norms: Tensor
    sizes: tuple[int, ...]
    readout: str
    own_fixed: bool = False
    known: InputsAim | None = None

    @property
    def count(self) -> int:
        """Images a row."""
        return sum(self.sizes)

    @property
    def everything(self) -> Weights:
        """All parameters that the loss takes."""
        return self.weights | self.fixed


class Matcher:
    """Compares what clients would have sent, had they trained on candidate images, with what they sent.

    Args:
        model: architecture; its weights do not matter.
        image_shape: (channels, height, width).
        facts: of the local steps, for those that do not say themselves what their batches were.
        several_steps: what to do where there are several.
        device: where to compute.
        proximal: weight mu of mu / 2 |w - w_broadcast|^2 in the clients' loss, which unrolled steps have too.
    """

    def __init__(
        self,
        model: nn.Module,
        image_shape: tuple[int, int, int],
        facts: BatchFacts,
        several_steps: SeveralSteps,
        device: torch.device,
        proximal: float = 0.0,
    ) -> None:
        self.facts = facts
        self._proximal = proximal
        self.unrolls = several_steps == "unrolled"
        self._alone = StepModel(model, device)
        self._chain = ChainGradients(model, image_shape, device)
        self._together = RowGradients(model, image_shape, device)
        size = sum(parameter.numel() for parameter in model.parameters())
        self._looped = device.type == "cpu" and size >= _LOOPED

    @property
    def takes_inputs(self) -> bool:
        """True where a step's known inputs to its readout can be asked for together with its update."""
        return self._chain.supported

    def against(
        self, steps: Sequence[LocalStep], counts: Sequence[int], known: Sequence[tuple[Tensor, Tensor] | None] = ()
    ) -> Matching:
        """Return the comparison with N steps, one a row, whose rounds had these numbers of images.

        Args:
            steps: N.
            counts: N.
            known: for each step what its images put into the readout ``(n, k)``, with the weights ``(n,)`` that the relative
                squared distances from it have, mean over images, in what :class:`Matching` returns; or None. Nothing for
                nothing; else :attr:`takes_inputs` must be true.
        """
        kinds = [
            (step.sizes or tuple(batch_sizes(count, self.facts)), step.readout)
            for step, count in zip(steps, counts, strict=True)
        ]
        # A chain takes every row's own head; what is unrolled takes one.
        unrolled = self.unrolls and any(len(sizes) > 1 for sizes, _ in kinds)
        groups = []
        for alike in same_weights(steps, fixed=unrolled or not self._chain.supported):
            for kind in dict.fromkeys(kinds[row] for row in alike):
                rows = [row for row in alike if kinds[row] == kind]
                group = _group(rows, [steps[row] for row in rows], *kind)
                groups.append(replace(group, known=_inputs_aim([known[row] for row in rows])) if known else group)
        return Matching(self, groups, [step.project for step in steps])

    def distance(self, share: _Share, images: Tensor, labels: Tensor, kind: Kind, *, beside: bool) -> Tensor:
        """Return the distances ``(R,)`` of what rows' images ``(R, n, c, h, w)`` with labels ``(R, n, C)`` lead to.

        With ``beside`` those of what is known to have gone into the readout are added.
        """
        group = share.group
        if self._unrolled(group) or not self._chain.supported:
            layers = self._gradients(group, images, labels, share.projection)
            return (cosine_distance if kind == "cosine" else squared_distance)(layers, group.wanted, group.norms)
        if kind not in share.aims:
            share.aims[kind] = Aim(kind, group.wanted, group.norms, share.projection, self._chain.linear)
        known = group.known if beside else None
        return self._chain.distance(group.everything, images, labels, group.readout, share.aims[kind], known)

    def _gradients(
        self, group: _Group, images: Tensor, labels: Tensor, projection: Tangent | SentEntries | None
    ) -> list[LayerGradient]:
        """Return the gradient, or several steps' sum, that each row leads to."""
        if not self._unrolled(group) and self._together.supported:
            layers = self._together(group.everything, images, labels, group.readout)
        else:
            layers = [FormedGradient(self._by_row(group, images, labels))]
        if projection is None:
            return layers
        formed = {name: value for layer in layers for name, value in layer.formed().items() if name in group.wanted}
        return [FormedGradient(projection(formed))]

    def _unrolled(self, group: _Group) -> bool:
        return self.unrolls and len(group.sizes) > 1

    def _by_row(self, group: _Group, images: Tensor, labels: Tensor) -> Weights:
        if not self._looped:
            return dict(vmap(lambda *own: self._one(group, *own))(images, labels))
        pairs = zip(images, labels, strict=True)
        rows = [self._one(group, own, label) for own, label in pairs]
        return {name: torch.stack([row[name] for row in rows]) for name in group.weights}

    def _one(self, group: _Group, images: Tensor, labels: Tensor) -> Weights:
        weights, fixed, sizes = group.weights, group.fixed, group.sizes
        if not self._unrolled(group):
            return self._alone.gradient(weights, images, labels, fixed, group.readout)
        now, total = weights, {name: torch.zeros_like(value) for name, value in weights.items()}
        for batch, own in zip(images.split(sizes), labels.split(sizes), strict=True):
            gradient = self._alone.gradient(now, batch, own, fixed)
            if self._proximal:
                gradient = {name: gradient[name] + self._proximal * (now[name] - weights[name]) for name in gradient}
            total = {name: total[name] + gradient[name] for name in total}
            now = {name: now[name] - self.facts.learning_rate * gradient[name] for name in now}
        return total


@dataclass(frozen=True)
class _Share:
    """The asked rows that are of one group.

    Attributes:
        asked: ``(A,)`` which of the asked rows they are; None for all.
        group: of these rows alone.
        projection: what is compared of their gradients.
        aims: by distance, for a network that is a chain; else empty.
    """

    asked: Tensor | None
    group: _Group
    projection: Tangent | SentEntries | None
    aims: dict[Kind, Aim] = field(default_factory=dict)


class Matching:
    """N rows' candidates against N observed updates.

    Which rows are asked for is looked at only where it is another tensor than the last time, or was written to.
    """

    def __init__(self, matcher: Matcher, groups: Sequence[_Group], projections: Sequence[Projection]) -> None:
        self._matcher = matcher
        self._groups = groups
        self._projections = projections
        self._known: tuple[Tensor, int, list[_Share]] | None = None

    def cosine(self, images: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """Return one minus the cosine between some rows' updates and their candidates' update ``(R,)``, in [0, 2].

        A row's images beyond its own count, in ``(R, M, c, h, w)`` with probabilities ``(R, M, C)``, have no part.
        """
        return self._over_groups(images, labels, rows, "cosine", beside=True)

    def of_updates(self, images: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """Return the cosine distance alone, without what else is known of candidates."""
        return self._over_groups(images, labels, rows, "cosine", beside=False)

    def squared(self, images: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """Return the squared L2 distance ``(R,)`` over all parameters (DLG, Zhu et al. 2019, equation 4)."""
        return self._over_groups(images, labels, rows, "squared", beside=True)

    @property
    def asks_for_inputs(self) -> bool:
        """True where anything is asked of candidates beside their update."""
        return any(group.known is not None for group in self._groups)

    def _over_groups(self, images: Tensor, labels: Tensor, rows: Tensor, kind: Kind, *, beside: bool) -> Tensor:
        found = None
        for share in self._shares(rows):
            count = share.group.count
            if share.asked is None:
                return self._matcher.distance(share, images[:, :count], labels[:, :count], kind, beside=beside)
            own = images[share.asked][:, :count], labels[share.asked][:, :count]
            value = self._matcher.distance(share, *own, kind, beside=beside)
            found = images.new_zeros(len(rows)) if found is None else found
            found = found.index_copy(0, share.asked, value)
        return images.new_zeros(len(rows)) if found is None else found

    def _shares(self, rows: Tensor) -> list[_Share]:
        if self._known is None or self._known[0] is not rows or self._known[1] != rows._version:
            self._known = (
                rows,
                rows._version,
                [one for group in self._groups for one in self._share(group, rows.cpu())],
            )
        return self._known[2]

    def _share(self, group: _Group, rows: Tensor) -> list[_Share]:
        """Return the part of the asked rows that a group has (on the CPU), nothing where that is none."""
        match = rows.unsqueeze(1) == group.rows
        asked = match.any(1).nonzero().flatten()
        if not len(asked):
            return []
        member = match.int().argmax(1)[asked]
        projection = stacked_projection([self._projections[row] for row in rows[asked].tolist()])
        device = group.norms.device
        if not torch.equal(member, torch.arange(len(group.rows))):
            there = member.to(device)
            wanted = {name: value[there] for name, value in group.wanted.items()}
            fixed = {name: value[there] for name, value in group.fixed.items()} if group.own_fixed else group.fixed
            known = group.known and InputsAim(group.known.inputs[there], group.known.shares[there])
            own = group.rows[member], group.norms[there]
            group = replace(group, rows=own[0], norms=own[1], wanted=wanted, fixed=fixed, known=known)
        return [_Share(None if len(asked) == len(rows) else asked.to(device), group, projection)]


def _group(rows: Sequence[int], steps: Sequence[LocalStep], sizes: tuple[int, ...], readout: str) -> _Group:
    first, wanted = steps[0], stacked(steps)
    own = not all(equal_weights(first.fixed, step.fixed) for step in steps)
    fixed = {name: torch.stack([step.fixed[name] for step in steps]) for name in first.fixed} if own else first.fixed
    norms = sum_of_squares(wanted).sqrt()
    return _Group(torch.tensor(rows), first.weights, fixed, wanted, norms, sizes, readout, own)


def _inputs_aim(known: Sequence[tuple[Tensor, Tensor] | None]) -> InputsAim | None:
    """Return the inputs that R rows are asked for; rows of which nothing is known ask with no weight."""
    there = next((one[0] for one in known if one is not None), None)
    if there is None:
        return None
    wanted = torch.stack([torch.zeros_like(there) if one is None else one[0] for one in known])
    none = there.new_zeros(len(there))
    weights = torch.stack([none if one is None else one[1].to(there) / len(there) for one in known])
    squares = squared_length(wanted.flatten(0, 1)).view(wanted.shape[:2])
    return InputsAim(wanted, weights / squares)


def sum_of_squares(gradients: Mapping[str, Tensor]) -> Tensor:
    """Return the sum over all parameters ``(R,)`` of gradients ``(R, ...)`` by name."""
    return torch.stack([value.square().flatten(1).sum(1) for value in gradients.values()]).sum(0)


def one_hot(labels: Tensor, n_classes: int) -> Tensor:
    """Return labels ``(R, M)`` as probabilities ``(R, M, C)``; a label of -1 has none."""
    return functional.one_hot(labels.clamp_min(0), n_classes).float() * (labels >= 0).unsqueeze(2)
