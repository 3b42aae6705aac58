"""Invert what went into a fully connected layer, through the broadcast weights before it.

Beside the representation a the update holds the gradients of the layers before it. With the derivative D of the loss at the
layer's outputs known for each image, they are sum_i J(x_i)^T W^T D_i, whatever the loss behind the layer was, so a candidate
can be asked to lead to them as well: that tells apart images that pooling and ReLUs make alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.gradient_matching import Matcher, Matching
from fedpriv.attacks.gradients.layer_inputs import LayerInputs, UpToLayer
from fedpriv.attacks.gradients.local_step import LocalStep
from fedpriv.attacks.gradients.separated_batch import Known, KnownInputs
from fedpriv.attacks.invert.inversion import bytes_of_generator
from fedpriv.attacks.observation import BatchFacts, Reconstruction
from fedpriv.attacks.optim.rows import Row, Solved, fit_rows, solve_rows
from fedpriv.attacks.optim.schedule import Schedule
from fedpriv.attacks.priors.dip import Hourglass
from fedpriv.attacks.priors.several import SeveralImages
from fedpriv.attacks.read.updates import Tangent, Weights
from fedpriv.util.last import Last

_GENERATOR = Hourglass(channels=(16, 32, 64, 64))
"""As good here as the default, whose deepest level holds two thirds of the weights, at three quarters of the time."""


@dataclass(frozen=True)
class Layer:
    """One target's layer and the layers before it.

    Attributes:
        view: images to the layer's inputs, by the broadcast weights; one object for targets of equal weights.
        inputs: ``(n, k)`` what went in, one row an image.
        pulls: ``(n, k)`` derivative of the loss at the inputs; empty where it is not known.
        gradient: of the parameters of the view, by their names in it; empty where it is not compared.
        project: what can be compared of such gradients; None for everything.
    """

    view: LayerInputs
    inputs: Tensor
    pulls: Tensor
    gradient: Weights
    project: Tangent | None

    @property
    def matchable(self) -> bool:
        """True where candidates can be asked for the gradients of the layers before."""
        return len(self.pulls) == len(self.inputs) and bool(self.gradient)


def invert_layers(
    model: nn.Module,
    name: str,
    layers: Sequence[Layer],
    problem: AttackProblem,
    schedule: Schedule,
    *,
    share: float,
    restarts: int,
    labels: Tensor,
) -> Reconstruction:
    """Invert every target's inputs to the layer ``name`` under one deep image prior an image.

    The objective of a row is the relative squared distance of the inputs, mean over its images, and ``share`` times the
    cosine distance of the gradients of the layers before, where those can be matched. Labels ``(T, M)``, M the largest
    number of images of a target, are passed through.
    """
    image_shape, device = problem.knowledge.image_shape, problem.device
    count = labels.shape[1]
    shape = _GENERATOR
    matcher = None
    if share and any(layer.matchable for layer in layers):
        upto = UpToLayer(model, name, image_shape, padded=True)
        matcher = Matcher(upto, image_shape, BatchFacts(count, 1.0, 1), "approximate", device)

    def solve(rows: Sequence[Row], tick: Callable[[int], None]) -> Solved:
        known = [layers[row.position] for row in rows]
        features = KnownInputs(
            [Known(layer.view, layer.inputs, torch.ones(len(layer.inputs), dtype=torch.bool)) for layer in known]
        )
        gradients = None
        if matcher is not None and any(layer.matchable for layer in known):
            gradients = _Gradients(known, count, matcher)

        def distance(pictures: Tensor, which: Tensor) -> Tensor:
            images = pictures.unflatten(1, (count, -1))
            value = features.distance(images, which)
            return value if gradients is None else value + share * gradients.distance(images, which)

        draws = [[row.generator(problem.seed, image) for image in range(count)] for row in rows]
        prior = SeveralImages(draws, image_shape, shape, device)
        found = fit_rows(rows, prior, distance, schedule, tick, count=count, restarts=restarts)
        # A batch of fewer images shows them again, and again.
        shown = [_filled(own, count, len(one.inputs)) for own, one in zip(found.images, known, strict=True)]
        own_labels = labels[[row.position for row in rows]].to(device)
        return replace(found, images=torch.stack(shown), labels=own_labels)

    _, height, width = image_shape
    return solve_rows(
        problem,
        solve,
        restarts=restarts,
        iterations=schedule.iterations,
        together=bool(schedule.halvings),
        bytes_per_row=count * (bytes_of_generator(shape, image_shape) + 4 * 1000 * height * width),
    )


class _Gradients:
    """Distances of the gradients of the layers before from those that candidates lead to.

    The loss is linear in the layer's inputs, <D W, a>. That is a cross-entropy of ``(a, 0)`` with "labels" ``(-D W, sum
    D W)``, which sum to zero, so the matcher of cross-entropies computes it.
    """

    def __init__(self, known: Sequence[Layer], count: int, matcher: Matcher) -> None:
        self._mine = torch.tensor([place for place, layer in enumerate(known) if layer.matchable])
        chosen = [known[place] for place in self._mine.tolist()]
        self._labels = torch.stack([_filled(_as_labels(layer.pulls), count) for layer in chosen])
        steps = [LocalStep(one.view.weights, one.gradient, project=one.project) for one in chosen]
        self._matching: Matching = matcher.against(steps, [len(layer.inputs) for layer in chosen])
        self._asked = Last(self._among)

    def distance(self, images: Tensor, which: Tensor) -> Tensor:
        """Return the cosine distances ``(R,)``, zero for rows whose gradients cannot be matched."""
        there, labels, member = self._asked(which)
        if not len(there):
            return images.new_zeros(len(which))
        value = self._matching.cosine(images[there], labels, member)
        return images.new_zeros(len(which)).index_copy(0, there, value)

    def _among(self, which: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the positions of rows that can be matched, their labels, and their numbers among those (on the CPU)."""
        match = which[:, None] == self._mine
        asked = match.any(1).nonzero().squeeze(1)
        member, device = match.int().argmax(1)[asked], self._labels.device
        return asked.to(device), self._labels[member.to(device)], member


def _filled(values: Tensor, count: int, own: int | None = None) -> Tensor:
    """Return the first ``own`` rows, by default all, again and again until there are ``count`` of them."""
    return values[torch.arange(count) % (own or len(values))]


def _as_labels(pulls: Tensor) -> Tensor:
    # The matcher takes the mean over the n images; pulls are of the sum.
    return len(pulls) * torch.cat([-pulls, pulls.sum(1, keepdim=True)], 1)
