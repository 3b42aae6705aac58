"""Local training that leaks less: gradients without their most telling part, and images that are not the client's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.nn.functional import pad

from fedpriv.algebra.augmentations import PUBLISHED, augmented, margins, read_policy
from fedpriv.defenses.signals import WHOLE_NAMES
from fedpriv.federation.answer import NO_OTHERS, Answer
from fedpriv.federation.defense import Defense, GradientTransform, ProtectionPlan, Step, Work
from fedpriv.models.split import Blueprint, SplitModel, VariationalBottleneck
from fedpriv.uploads.kinds import HEADED
from fedpriv.util.errors import UserError

_AT_ONCE = 64
"""Entries of the representation that are differentiated together."""

_INTO = "of small batches it finds what goes into the bottleneck, whatever that draws"
_MIXED = "finds the mixed batch with its soft labels; neither mixing nor signs are undone"


@dataclass(frozen=True)
class Soteria(Defense):
    """Zero columns of the gradient of the head's weight: those of entries r_j with a low score, in every local step.

    The score of entry j of the head's input r is ||d r_j / d x||_2 / (r_j + 0.1), summed over the images of the batch,
    as in the authors' code; columns whose score's absolute value lies below the percentile of all scores are zeroed.
    Nothing is guaranteed: an attacker who leaves the head's weight out of the comparison sees what it sees without the
    defense. ``percentile`` is the share of the columns that are zeroed, in per cent of [0, 100]; the authors take 1 against
    DLG, and up to 80 against Inverting Gradients.
    """

    percentile: Annotated[float, Ge(0), Le(100)] = 80.0

    name = "soteria"
    source = "Sun, Li, Wang, Yang, Li, Chen, CVPR 2021, section 5"
    answers = (
        Answer(("dlg", "inverting-gradients"), WHOLE_NAMES, {"ignore": "head.weight"}, note="match all other layers"),
        Answer(("head-update",), ("classifier",), {"match": "nonzero"}, note="inverts the columns that are left"),
    )
    unanswered = NO_OTHERS

    def check(self, plan: ProtectionPlan) -> None:
        if not any(kind in HEADED for kind in plan.uploads):
            raise UserError(
                f"defense {self.name!r} changes the head's gradient, but clients of method {plan.method!r} upload no head; "
                f"it fits uploads of: {', '.join(HEADED)}"
            )
        refuse_private_gradients(self.name, plan)

    def guard(self, plan: ProtectionPlan) -> GradientTransform:
        return lambda step: pruned_step(step, self.percentile)


def refuse_private_gradients(name: str, plan: ProtectionPlan) -> None:
    """Refuse to look at a batch again after its gradient was made private."""
    if plan.private_gradients:
        raise UserError(
            f"defense {name!r} behind {plan.private_gradients!r} would void its guarantee; leave one of them out, or, "
            f"where it can go first, give {name!r} before {plan.private_gradients!r}"
        )


def pruned_step(step: Step, percentile: float) -> Step:
    """Return the step that zeroes the columns of every head's gradient whose score is below a percentile in [0, 100]."""

    def pruned(work: Work, images: Tensor, labels: Tensor) -> Tensor:
        heads = [model.head for model in work.module.modules() if isinstance(model, SplitModel)]
        totals: dict[nn.Linear, Tensor] = {}

        def loss(batch: Tensor, classes: Tensor) -> Tensor:
            batch = batch.detach().requires_grad_()

            def score(head: nn.Module, inputs: tuple[Any, ...]) -> None:
                assert isinstance(head, nn.Linear)
                if inputs[0].requires_grad and torch.is_grad_enabled():
                    new = scores(inputs[0], batch)
                    if new is not None:
                        totals[head] = totals[head] + new if head in totals else new

            hooks = [head.register_forward_pre_hook(score) for head in heads]
            try:
                return work.loss(batch, classes)
            finally:
                for hook in hooks:
                    hook.remove()

        value = step(replace(work, loss=loss), images, labels)
        for head, total in totals.items():
            if head.weight.grad is not None:
                head.weight.grad[:, total.abs() < torch.quantile(total, percentile / 100)] = 0
        return value

    return pruned


def scores(features: Tensor, images: Tensor) -> Tensor | None:
    """Return ||d r_j / d x||_2 / (r_j + 0.1) of r ``(n, d)``, summed over images; None where r is no function of x."""
    width = features.shape[1]
    norms: list[Tensor] = []
    for chosen in torch.arange(width, device=features.device).split(_AT_ONCE):
        picks = nn.functional.one_hot(chosen, width).to(features)[:, None].expand(-1, len(features), -1)
        slopes: Tensor | None = torch.autograd.grad(
            features, images, picks, retain_graph=True, is_grads_batched=True, allow_unused=True
        )[0]
        if slopes is None:
            return None
        norms.append(slopes.flatten(2).norm(dim=2))
    return (torch.cat(norms).T / (features.detach() + 0.1)).sum(0)


@dataclass(frozen=True)
class Precode(Defense):
    """A variational bottleneck behind the representation mapping of every model; beta KL is added to the loss.

    The representation is mapped to means and standard deviations of a code of K entries, a code is drawn (in
    evaluation: the mean is taken) and mapped back; what methods upload as representation is what comes out. The model
    grows by 3 d K + 2 K + d parameters, which travel wherever the extractor does. Nothing is guaranteed: the
    bottleneck's own first layer is fully connected; where images of a batch can be separated the representation
    follows from its gradient in closed form, whatever code was drawn.

    Attributes:
        code: K >= 1 entries of the code; the paper takes 256.
        beta: weight of the divergence from N(0, 1), in units of the loss per nat.
    """

    code: Annotated[int, Ge(1)] = 256
    beta: Annotated[float, Ge(0)] = 1e-3

    name = "precode"
    source = "Scheliga, Maeder, Seeland, WACV 2022, section 3"
    answers = (
        Answer(("linear-layer",), ("model", "small-model", "extractor", "low-rank-model"), note=_INTO),
        Answer(
            ("inverting-gradients",),
            WHOLE_NAMES,
            {"ignore": "bottleneck.*+head.*"},
            note="leaves the random layers out",
            source="Scheliga et al. 2022, arXiv 2208.04767",
        ),
        Answer(note="the bottleneck draws anew, but is no secret: the server that has the network has it"),
    )

    def blueprint(self, blueprint: Blueprint) -> Blueprint:
        return replace(blueprint, bottleneck=self.code)

    def guard(self, plan: ProtectionPlan) -> GradientTransform:
        return lambda step: divergent_step(step, self.beta)


def divergent_step(step: Step, beta: float) -> Step:
    """Return the step of the loss plus beta times the divergence of every bottleneck that the loss passes through.

    A bottleneck that is passed several times in one loss counts as it was passed last.
    """

    def divergent(work: Work, images: Tensor, labels: Tensor) -> Tensor:
        bottlenecks = [layer for layer in work.module.modules() if isinstance(layer, VariationalBottleneck)]

        def with_divergence(batch: Tensor, classes: Tensor) -> Tensor:
            for layer in bottlenecks:
                layer.divergence = None
            value = work.loss(batch, classes)
            for layer in bottlenecks:
                if layer.divergence is not None:
                    value = value + beta * layer.divergence
            return value

        loss = step(replace(work, loss=with_divergence), images, labels)
        for layer in bottlenecks:
            layer.divergence = None  # lets go of the graph
        return loss

    return divergent


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

    name = "mixup"
    source = "Zhang et al., ICLR 2018; Huang et al. (InstaHide), ICML 2020"
    answers = (
        Answer(("dlg",), WHOLE_NAMES, {"labels": "joint"}, note=_MIXED),
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
            raise UserError(f"defense {self.name!r} mixes the images of a batch, which needs batch_size=2 or more")

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


@dataclass(frozen=True)
class Transform(Defense):
    """Train on augmented images: each image in each step by one of the policies, chosen at random.

    A policy is a row of augmentations, by their numbers in the table of the authors' code (0..49), one after the other;
    a hybrid one is several, of which every image gets one. Signs are drawn anew each time. With ``crop`` images are
    first padded by an eighth of their side with black, cropped at random and mirrored with probability 1/2, as the
    authors do. Departs from their code in computing on numbers in [0, 1] instead of bytes. Nothing is guaranteed: the
    transformed image leaks as before. Attacks are scored against the image as the client holds it.

    Attributes:
        policy: for example ``3-1-7+43-18-18``, the published hybrid.
        crop: whether to crop and mirror first.
    """

    policy: str = PUBLISHED
    crop: bool = True

    name = "transform"
    source = "Gao, Guo, Zhang, Qiu, Wen, Liu (ATS), CVPR 2021"
    answers = (Answer(note="the transformed image leaks as any other"),)

    def __post_init__(self) -> None:
        read_policy(self.policy)

    def guard(self, plan: ProtectionPlan) -> GradientTransform:
        policies = read_policy(self.policy)

        def on_transformed(step: Step) -> Step:
            def transformed(work: Work, images: Tensor, labels: Tensor) -> Tensor:
                changed = [transform(image, policies, work.rng, crop=self.crop) for image in images]
                return step(work, torch.stack(changed) if changed else images, labels)

            return transformed

        return on_transformed


def transform(image: Tensor, policies: tuple[tuple[int, ...], ...], rng: torch.Generator, *, crop: bool) -> Tensor:
    """Return an image ``(c, h, w)`` in [0, 1], cropped and mirrored if asked, then changed by a policy that is drawn."""
    if crop:
        image = cropped(image, rng)
    for number in policies[_draw(len(policies), rng)]:
        image = augmented(image, number, _draw(2, rng) * 2 - 1)
    return image.clamp(0, 1)


def cropped(image: Tensor, rng: torch.Generator) -> Tensor:
    """Return an image ``(c, h, w)`` moved by up to an eighth of each side, black coming in, and mirrored or not."""
    height, width = image.shape[1:]
    down, across = margins(height, width)
    top, left = _draw(2 * down + 1, rng), _draw(2 * across + 1, rng)
    moved = pad(image, (across, across, down, down))[:, top : top + height, left : left + width]
    return moved.flip(2) if _draw(2, rng) else moved


def _draw(number: int, rng: torch.Generator) -> int:
    return int(torch.randint(number, (1,), generator=rng))
