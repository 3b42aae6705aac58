"""Distances of candidate images from the updates that they are to explain, for many candidates at once.

An update of several SGD steps is matched unrolled: Geiping et al., "Inverting Gradients" (NeurIPS 2020), section 6; Dimitrov
et al., "Data Leakage in Federated Averaging" (TMLR 2022). The inputs of a layer, and statistics before batch norms, may be
matched too: Yin et al., "Dreaming to Distill" (CVPR 2020), equation 4; Huang et al. (NeurIPS 2021), section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedpriv.attacks.gradients import row_gradients
from fedpriv.attacks.gradients.layers import Known, LayerInputs
from fedpriv.attacks.gradients.update import (
    LocalStep,
    SentEntries,
    StepModel,
    Tangent,
    Weights,
    batch_sizes,
    equal_weights,
    stacked_projection,
)
from fedpriv.attacks.inputs.outputs import squared_length
from fedpriv.attacks.observation import BatchFacts, Statistics
from fedpriv.attacks.search.lbfgs import Evaluate
from fedpriv.models import ImageShape

_LOOPED = 500_000  # parameters from which, on a CPU, candidates with own weights are faster one by one than vectorised
_STATISTICS = 0.01  # weight of the distance between statistics before batch norms


class _Inputs(NamedTuple):
    view: LayerInputs
    values: Tensor  # (R, n, k) known inputs of the readout
    weights: Tensor  # (R, n) of each image's squared distance from them


@dataclass(frozen=True)
class _Group:
    """Candidates whose clients began from equal weights, with equally many images in equal batches, and one kind of loss."""

    rows: Tensor  # (R,) int64 on the CPU, their numbers among all candidates
    weights: Weights  # broadcast parameters by name, without leading axis
    fixed: Weights  # parameters that the loss takes but the client did not send; each (R, ...) where own_fixed
    target: Weights  # observed gradients by name, each (R, ...)
    norms: Tensor  # (R,) their norms
    sizes: tuple[int, ...]  # images of each batch, in order
    readout: str  # layer in whose output the loss is linear, or nothing
    own_fixed: bool  # whether every candidate has its own
    inputs: _Inputs | None  # of the readout, whose distance is added
    statistics: Mapping[str, tuple[Tensor, Tensor]]  # means and variances (R, C) before batch norms
    projection: Tangent | SentEntries | None = None  # of the gradients before they are compared

    def of(self, members: Tensor, projection: Tangent | SentEntries | None) -> _Group:
        """Return the group of some members ``(A,)``, in that order."""
        if torch.equal(members, torch.arange(len(self.rows))):
            return replace(self, projection=projection)
        there = members.to(self.norms.device)
        return replace(
            self,
            rows=self.rows[members],
            norms=self.norms[there],
            target={name: value[there] for name, value in self.target.items()},
            fixed={name: value[there] for name, value in self.fixed.items()} if self.own_fixed else self.fixed,
            inputs=self.inputs and _Inputs(self.inputs.view, self.inputs.values[there], self.inputs.weights[there]),
            statistics={name: (both[0][there], both[1][there]) for name, both in self.statistics.items()},
            projection=projection,
        )


class Matcher:
    """Compares the updates that clients would have sent, had they trained on candidate images, with those they sent.

    ``facts`` are of steps that do not name their batches; ``proximal`` is mu of mu / 2 |w - w_broadcast|^2 in the loss.
    """

    def __init__(
        self, model: nn.Module, image_shape: ImageShape, facts: BatchFacts, device: torch.device, proximal: float = 0.0
    ) -> None:
        self._facts, self._proximal = facts, proximal
        self._alone, self.together = StepModel(model, device), row_gradients.RowGradients(model, image_shape, device)
        size = sum(parameter.numel() for parameter in model.parameters())
        self._looped = device.type == "cpu" and size >= _LOOPED

    def against(
        self,
        steps: Sequence[LocalStep],
        counts: Sequence[int],
        known: Sequence[tuple[Known, float] | None] = (),
        statistics: Sequence[Statistics] = (),
    ) -> Matching:
        """Return the comparison with N steps of so many images, one a candidate."""
        pairs = zip(steps, counts, strict=True)
        kinds = [(step.sizes or tuple(batch_sizes(count, self._facts)), step.readout) for step, count in pairs]
        # Those of one pass may each have a head of their own.
        one_head = not self.together.supported or any(len(sizes) > 1 for sizes, _ in kinds)
        alike: list[list[int]] = []
        for row, step in enumerate(steps):
            for rows in alike:
                first = steps[rows[0]]
                alike_heads = equal_weights if one_head else _equal_shapes
                same = kinds[rows[0]] == kinds[row] and alike_heads(first.fixed, step.fixed)
                if same and equal_weights(first.weights, step.weights):
                    rows.append(row)
                    break
            else:
                alike.append([row])
        return Matching(self, [_group(rows, steps, *kinds[rows[0]], known, statistics) for rows in alike], steps)

    def gradients(self, group: _Group, images: Tensor, labels: Tensor) -> tuple[row_gradients.Gradients, Tensor]:
        """Return compared updates by images ``(R, n, c, h, w)`` of labels ``(R, n, C)``, and the readout's inputs."""
        gradients: row_gradients.Gradients
        inputs = images.new_empty(0)
        if self.together.supported and len(group.sizes) == 1:
            gradients, inputs = self.together(group.weights | group.fixed, images, labels, group.readout)
        else:
            gradients = self._each(group, images, labels)
        sent = group.projection
        if isinstance(sent, Tangent):
            gradients = {name: row_gradients.tangent_part(gradients[name], sent, name) for name in group.target}
        elif sent is not None:
            gradients = sent({name: row_gradients.formed(gradients[name]) for name in group.target})
        return gradients, inputs

    def _each(self, group: _Group, images: Tensor, labels: Tensor) -> Weights:
        if not self._looped:
            try:
                return dict(vmap(lambda *current: self._one(group, *current))(images, labels))
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # the network decides by values, or writes in place: then one by one
                self._looped = True
        rows = [self._one(group, image, label) for image, label in zip(images, labels, strict=True)]
        return {name: torch.stack([row[name] for row in rows]) for name in group.weights}

    def _one(self, group: _Group, images: Tensor, labels: Tensor) -> Weights:
        weights, fixed, sizes = group.weights, group.fixed, group.sizes
        if len(sizes) == 1:
            return self._alone.gradient(weights, images, labels, fixed, group.readout)
        now, total = weights, {name: torch.zeros_like(value) for name, value in weights.items()}
        for batch, current in zip(images.split(sizes), labels.split(sizes), strict=True):
            gradient = self._alone.gradient(now, batch, current, fixed)
            if self._proximal:
                gradient = {name: gradient[name] + self._proximal * (now[name] - weights[name]) for name in gradient}
            total = {name: total[name] + gradient[name] for name in total}
            now = {name: now[name] - self._facts.learning_rate * gradient[name] for name in now}
        return total


class Matching:
    """N candidates against N observed updates; which are asked for is looked at only where the tensor is another."""

    def __init__(self, matcher: Matcher, groups: Sequence[_Group], steps: Sequence[LocalStep]) -> None:
        self._matcher, self._groups, self._steps = matcher, groups, steps
        self._last: tuple[Tensor, int, list[tuple[Tensor, _Group]]] | None = None

    def cosine(self, images: Tensor, labels: Tensor, rows: Tensor, *, beside: bool = True) -> Tensor:
        """Return one minus the cosine between some candidates' updates and the observed ones ``(R,)``, in [0, 2].

        Of images ``(R, M, c, h, w)`` with probabilities ``(R, M, C)``, those beyond a candidate's count have no part.
        What else candidates are asked for is added where ``beside``.
        """
        return self._over_groups(images, labels, rows, row_gradients.cosine_distance, beside)

    def squared(self, images: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """Return the squared L2 distance ``(R,)`` over all parameters (DLG, Zhu et al. 2019, equation 4), likewise."""
        return self._over_groups(images, labels, rows, row_gradients.squared_distance, True)

    def descent(self, shown: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Evaluate:
        """Return the squared distance and its derivative at points ``(R, D)``; ``shown`` gives images and labels."""

        def evaluate(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            points = points.detach().requires_grad_()
            losses = self.squared(*shown(points, rows), rows)
            (slopes,) = torch.autograd.grad(losses.sum(), points)
            return losses.detach(), slopes

        return evaluate

    @torch.no_grad()
    def explained(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return all N candidates' cosine distance without what else is known of candidates."""
        return self.cosine(images, labels, torch.arange(len(images), device=images.device), beside=False)

    def _over_groups(
        self,
        images: Tensor,
        labels: Tensor,
        rows: Tensor,
        compare: Callable[[row_gradients.Gradients, Weights, Tensor], Tensor],
        beside: bool,
    ) -> Tensor:
        if self._last is None or self._last[0] is not rows or self._last[1] != rows._version:
            self._last = rows, rows._version, [part for group in self._groups for part in self._part(group, rows.cpu())]
        result = images.new_zeros(len(rows))
        for places, group in self._last[2]:
            every, count = len(places) == len(rows), sum(group.sizes)
            image, label = (values[:, :count] if every else values[places, :count] for values in (images, labels))
            gradients, inputs = self._matcher.gradients(group, image, label)
            value = compare(gradients, group.target, group.norms)
            if beside and group.inputs is not None:
                if not inputs.numel():
                    inputs = group.inputs.view(image.flatten(0, 1)).view_as(group.inputs.values)
                value = value + (group.inputs.weights * (inputs - group.inputs.values).square().sum(2)).sum(1)
            if beside and group.statistics:
                together, weights = self._matcher.together, group.weights | group.fixed
                value = value + _STATISTICS * together.statistics_distance(weights, image, group.statistics)
            if every:
                return value
            result = result.index_copy(0, places, value)
        return result

    def _part(self, group: _Group, rows: Tensor) -> list[tuple[Tensor, _Group]]:
        """Return the places of a group's members among ``rows``, and the group of them alone; nothing for none."""
        match = rows.unsqueeze(1) == group.rows
        places = match.any(1).nonzero().flatten()
        if not len(places):
            return []
        projection = stacked_projection([self._steps[row].project for row in rows[places].tolist()])
        return [(places.to(group.norms.device), group.of(match.int().argmax(1)[places], projection))]


def _equal_shapes(first: Weights, second: Weights) -> bool:
    return {name: value.shape for name, value in first.items()} == {name: value.shape for name, value in second.items()}


def _group(
    rows: Sequence[int],
    every: Sequence[LocalStep],
    sizes: tuple[int, ...],
    readout: str,
    known: Sequence[tuple[Known, float] | None],
    statistics: Sequence[Statistics],
) -> _Group:
    steps = [every[row] for row in rows]
    first, fixed = steps[0], steps[0].fixed
    target = {name: torch.stack([step.gradient[name] for step in steps]) for name in first.gradient}
    own_fixed = not all(equal_weights(fixed, step.fixed) for step in steps)
    if own_fixed:
        fixed = {name: torch.stack([step.fixed[name] for step in steps]) for name in fixed}
    norms = torch.stack([value.square().flatten(1).sum(1) for value in target.values()]).sum(0).sqrt()
    each = [statistics[row] for row in rows] if statistics else []
    both = {name: list(zip(*[entry[name] for entry in each], strict=True)) for name in (each[0] if each else ())}
    stacked = {name: (torch.stack(means), torch.stack(variances)) for name, (means, variances) in both.items()}
    inputs = _inputs([known[row] for row in rows]) if known else None
    return _Group(torch.tensor(rows), first.weights, fixed, target, norms, sizes, readout, own_fixed, inputs, stacked)


def _inputs(known: Sequence[tuple[Known, float] | None]) -> _Inputs | None:
    """Return the inputs that R candidates are asked for; those of which nothing is known ask with no weight."""
    first = next((entry[0] for entry in known if entry is not None), None)
    if first is None:
        return None
    none = Known(first.view, torch.zeros_like(first.inputs), torch.zeros(len(first.inputs)))
    pairs = [entry or (none, 0.0) for entry in known]
    values = torch.stack([items.inputs for items, _ in pairs])
    squares = squared_length(values.flatten(0, 1)).view(values.shape[:2])
    weights = torch.stack([weight * item.sure.to(values) / len(item.inputs) for item, weight in pairs])
    return _Inputs(first.view, values, weights / squares)
