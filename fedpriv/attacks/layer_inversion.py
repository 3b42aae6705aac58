"""Invert what went into a fully connected layer, through the broadcast weights before it.

Beside the representation a the update holds the gradients of the layers before it. With the derivative D of the loss at the
layer's outputs known for each image, they are sum_i J(x_i)^T W^T D_i, whatever the loss behind the layer was, so a candidate
can be asked to lead to them as well: that tells apart images that pooling and ReLUs make alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv import seeds
from fedpriv.attacks.fitting import Schedule, fit
from fedpriv.attacks.inversion import bytes_of_generator
from fedpriv.attacks.layer_inputs import LayerInputs
from fedpriv.attacks.objectives import relative_feature_distance
from fedpriv.attacks.observation import Knowledge, Progress, TargetId
from fedpriv.attacks.priors.dip import Hourglass
from fedpriv.attacks.priors.several import SeveralImages
from fedpriv.attacks.rows import Chosen, Row, Solved, solve_rows
from fedpriv.attacks.updates import Weights


@dataclass(frozen=True)
class Layer:
    """What is known of one target's layer and of the layers before it.

    Attributes:
        view: images to the layer's inputs, by the broadcast weights.
        inputs: ``(n, k)`` what went in, one row an image.
        pulls: ``(n, k)`` derivative of the loss at the inputs, or None where it is not known.
        earlier: gradients of the parameters before the layer, by name; empty where they are not to be matched.
        project: what can be compared of such gradients.
    """

    view: LayerInputs
    inputs: Tensor
    pulls: Tensor | None
    earlier: Weights
    project: Callable[[Weights], Weights]

    def distance(self, images: Tensor, share: float) -> Tensor:
        """Return how far images ``(n, c, h, w)`` are from what is known, a scalar differentiable in them.

        Args:
            images: one for each row of ``inputs``.
            share: weight of the earlier gradients' cosine distance beside the inputs' relative squared distance.
        """
        wanted = torch.is_grad_enabled() and images.requires_grad
        if self.pulls is None or not self.earlier:
            return relative_feature_distance(self.view(images), self.inputs).mean()
        with torch.enable_grad():
            found, parameters = self.view.with_parameters(images, self.earlier)
            slopes = torch.autograd.grad((found * self.pulls).sum(), list(parameters.values()), create_graph=wanted)
        own = self.project(dict(zip(parameters, slopes, strict=True)))
        inner = torch.stack([(own[name] * value).sum() for name, value in self.earlier.items()]).sum()
        sizes = [_square_norm(own), _square_norm(self.earlier)]
        angle = 1 - inner / (sizes[0] * sizes[1]).clamp_min(1e-30).sqrt()
        return relative_feature_distance(found, self.inputs).mean() + share * angle


def _square_norm(values: Weights) -> Tensor:
    return torch.stack([value.square().sum() for value in values.values()]).sum()


def invert_layers(
    layers: Sequence[Layer],
    targets: tuple[TargetId, ...],
    knowledge: Knowledge,
    schedule: Schedule,
    *,
    share: float,
    restarts: int,
    labels: Tensor,
    seed: int,
    device: torch.device,
    chunk_rows: int | None,
    progress: Progress | None,
) -> Chosen:
    """Invert every target's inputs under one deep image prior an image.

    Args:
        layers: T layers.
        targets: T targets.
        knowledge: card and grants.
        schedule: how to optimise.
        share: see :meth:`Layer.distance`.
        restarts: rows a target.
        labels: ``(T, M)``, M the largest number of images of a target; passed through.
        seed: the run's seed.
        device: where to compute.
        chunk_rows: rows at a time.
        progress: called as the work goes on.
    """
    count = labels.shape[1]
    shape = Hourglass()

    def solve(rows: Sequence[Row], tick: Callable[[int], None]) -> Solved:
        known = [layers[row.position] for row in rows]

        def distance(pictures: Tensor, which: Tensor) -> Tensor:
            images = pictures.unflatten(1, (count, -1))
            pairs = zip(images, which.tolist(), strict=True)
            return torch.stack([known[row].distance(own[: len(known[row].inputs)], share) for own, row in pairs])

        draws = [
            [seeds.generator(seed, r.target.round, r.target.client, r.target.index, r.restart, i) for i in range(count)]
            for r in rows
        ]
        fitted = fit(SeveralImages(draws, knowledge.image_shape, shape, device), distance, schedule, tick)
        images = fitted.images.unflatten(1, (count, -1))
        # A batch of fewer images shows them again, and again.
        shown = [own[torch.arange(count) % len(one.inputs)] for own, one in zip(images, known, strict=True)]
        return Solved(
            images=torch.stack(shown),
            objective=fitted.objective,
            converged=fitted.objective < schedule.tolerance,
            labels=labels[[row.position for row in rows]].to(device),
            iterations=fitted.iterations,
        )

    _, height, width = knowledge.image_shape
    return solve_rows(
        targets,
        solve,
        restarts=restarts,
        iterations=schedule.iterations,
        bytes_per_row=count * (bytes_of_generator(shape, knowledge.image_shape) + 4 * 1000 * height * width),
        device=device,
        chunk_rows=chunk_rows,
        progress=progress,
    )
