"""Mixup: clients train on mixtures of images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from fedpriv.defenses.signals import WHOLE_NAMES
from fedpriv.defenses.soteria import refuse_private_gradients
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import Defense, GradientTransform, ProtectionPlan, Step, Work
from fedpriv.util.errors import UserError

_WEIGHTS = "the gradient of soft labels tells the weights of images of different classes"


_ENCODED = "finds the encoded batch with its soft labels; signs of single pixels are not undone"


@dataclass(frozen=True)
class Mixup(Defense):
    """Replace each image of a batch by a weighted sum of k images of the batch; the loss is weighted alike.

    Every step draws k weights, uniformly among those that sum to one and do not exceed ``most``, and k - 1 orders of
    the batch: x' = w_1 x + w_2 x[order 2] + ..., and the loss is w_1 loss(x', y) + w_2 loss(x', y[order 2]) + ... With
    ``signs`` every pixel is then mirrored at mid-grey with probability 1/2: InstaHide within a client's own images.
    Evaluation is on images as they are. Nothing is guaranteed: gradients give away x' and the mixed labels, which tell
    the weights (Carlini et al. 2021, Is Private Learning Possible with Instance Encoding?).

    Attributes:
        images: k >= 2.
        most: the largest weight, > 1/k and at most 1.
        signs: whether to flip signs.
    """

    images: Annotated[int, Ge(2)] = 4
    most: Annotated[float, Gt(0), Le(1)] = 0.65
    signs: bool = False

    name: ClassVar[str] = "mixup"
    source: ClassVar[str] = "Zhang et al., ICLR 2018; Huang et al. (InstaHide), ICML 2020"
    answers = (
        Answer(("demix",), WHOLE_NAMES, {}, {"signs": False}, _WEIGHTS),
        Answer(("dlg",), WHOLE_NAMES, {"labels": "joint"}, {"signs": True}, _ENCODED),
        Answer(note="they find what was trained on, which is mixed"),
    )

    def __post_init__(self) -> None:
        if self.most * self.images <= 1:
            raise UserError(
                f"options of defense mixup: most: weights of {self.images} images sum to one, so one of them is at least "
                f"{1 / self.images:.3g}; got {self.most:g}, which has to be larger"
            )

    def check(self, plan: ProtectionPlan) -> None:
        refuse_private_gradients(self.name, plan)
        if plan.batch_size < 2:
            least = "batch_size=2"
            raise UserError(f"defense {self.name!r} mixes the images of a batch, which needs {least} or more")

    def after(self, plan: ProtectionPlan) -> ProtectionPlan:
        return replace(plan, mixing=(*plan.mixing, self.name))

    def guard(self, plan: ProtectionPlan) -> GradientTransform:
        return lambda step: mixed_step(step, self)


def mixed_step(step: Step, mixup: Mixup) -> Step:
    """Return the step on mixed images."""

    def mixed(work: Work, images: Tensor, labels: Tensor) -> Tensor:
        weights = bounded_weights(mixup.images, mixup.most, work.rng).tolist()
        orders = [torch.arange(len(labels))]
        orders += [torch.randperm(len(labels), generator=work.rng) for _ in range(mixup.images - 1)]
        blend = torch.zeros_like(images)
        for weight, order in zip(weights, orders, strict=True):
            blend += weight * images[order.to(images.device)]
        if mixup.signs:
            keep = torch.rand(blend.shape, generator=work.rng).to(blend.device) < 0.5
            blend = torch.where(keep, blend, 1 - blend)

        def loss(batch: Tensor, classes: Tensor) -> Tensor:
            value = torch.zeros((), device=batch.device)
            for weight, order in zip(weights, orders, strict=True):
                value = value + weight * work.loss(batch, classes[order.to(classes.device)])
            return value

        return step(replace(work, loss=loss), blend, labels)

    return mixed


def bounded_weights(number: int, most: float, rng: torch.Generator) -> Tensor:
    """Return weights ``(k,)`` float64, uniform on the simplex where none exceeds ``most`` > 1/k.

    Where little of the simplex is left, drawing takes long and the weights are pulled to the middle instead.
    """
    for _ in range(1000):
        spacings = -torch.rand(number, generator=rng, dtype=torch.float64).clamp(min=1e-300).log()
        weights = spacings / spacings.sum()
        if float(weights.max()) <= most:
            return weights
    middle = 1 / number
    return middle + (weights - middle) * (most - middle) / (weights.max() - middle)
