"""Soteria: gradients of the layer that leaks most are pruned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from fedpriv.defenses.signals import WHOLE_NAMES as UPLOADS_WITH_HEAD
from fedpriv.federation.answer import NO_OTHERS, Answer
from fedpriv.federation.defense import Defense, GradientTransform, ProtectionPlan, Step, Work
from fedpriv.models.split import SplitModel
from fedpriv.uploads.kinds import HEADED
from fedpriv.util.errors import UserError

_AT_ONCE = 64
"""Entries of the representation that are differentiated together."""


@dataclass(frozen=True)
class Soteria(Defense):
    """Zero columns of the gradient of the head's weight: those of entries r_j with a low score, in every local step.

    The score of entry j of the head's input r is ||d r_j / d x||_2 / (r_j + 0.1), summed over the images of the batch,
    as in the authors' code; columns whose score's absolute value lies below the percentile of all scores are zeroed.
    Nothing is guaranteed: an attacker who leaves the head's weight out of the comparison sees what it sees without the
    defense.

    Attributes:
        percentile: share of the columns that are zeroed, in per cent of [0, 100]; the authors take 1 against DLG,
            and up to 80 against Inverting Gradients.
    """

    percentile: Annotated[float, Ge(0), Le(100)] = 80.0

    name: ClassVar[str] = "soteria"
    source: ClassVar[str] = "Sun, Li, Wang, Yang, Li, Chen, CVPR 2021, section 5"
    answers = (
        Answer(
            ("dlg", "inverting-gradients"), UPLOADS_WITH_HEAD, {"ignore": "head.weight"}, note="match all other layers"
        ),
        Answer(("head-update",), ("classifier",), {"match": "nonzero"}, note="inverts the columns that are left"),
    )
    unanswered: ClassVar[str] = NO_OTHERS

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
