"""Differentially private local training: clip what each image adds to a gradient, add noise, count the steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor
from torch.nn.utils import get_total_norm

from fedpriv.defenses.accounting import ACCOUNTANT, epsilon, noise_multiplier_for, refuse_two_targets
from fedpriv.defenses.signals import facts_in_clear
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import Defense, GradientTransform, ProtectionPlan, Step, Work
from fedpriv.models.build import extractor_batch_norms
from fedpriv.models.split import Blueprint
from fedpriv.uploads.kinds import Kinds
from fedpriv.util.errors import UserError

COVERED = Kinds(lambda kind: kind.computed_from in ("training", "public"))
"""Kinds of upload that are functions of the trained weights and of nothing else that is private."""

PUBLIC = Kinds(lambda kind: kind.values_field() is None and kind.field_that_says("size") is not None)
"""Kinds that the guarantee takes for public."""

_HOLDS = "what is guaranteed holds against any attack; fedpriv audit-dp holds the epsilon to what canaries show"
_SHUFFLED = "the accounting is for Poisson samples, which shuffled batches of fixed size are not: an approximation"


@dataclass(frozen=True)
class DPSGD(Defense):
    """DP-SGD on every client: per-image gradients clipped to an L2 norm, Gaussian noise on their sum, Renyi accounting.

    In every local step each image's gradient, that of the method's own loss on that image alone, over all trained
    parameters, is shortened to ``clip`` = S; to the sum is added N(0, (z S)^2) on every entry; the result is divided by
    the mean batch size.

    Guarantee, with ``sampling`` = ``poisson``: (epsilon, delta)-DP of the trained weights, over all local steps of all
    rounds, for one image more or less in a client's training set, for the client with the highest epsilon; an image takes
    part in a step with probability q = min(1, batch size / n). For ``batches``, shuffled and of fixed size, the figure is
    an approximation (Chua et al., ICML 2024), and the record says so. Uploads computed from the images once more
    (prototypes, representations, class outputs, label counts) do not inherit it: the record has an epsilon of the weights
    alone. Numbers of images, batch size and steps are taken for public. Noise comes from the run's seed: this simulates
    the mechanism.

    Batch normalisation is refused, unless ``norm`` = ``group`` has it replaced; the record names that change.

    Attributes:
        clip: S > 0, in units of the gradient of the loss.
        noise_multiplier: z >= 0; 0 clips alone and guarantees nothing. Or
        epsilon: the target over the whole run, from which z is computed; exactly one of the two.
        delta: in (0, 1).
        sampling: ``poisson`` draws each batch anew, its size random; or ``batches``.
        norm: ``refuse`` or ``group``.
    """

    clip: Annotated[float, Gt(0)] = 1.0
    noise_multiplier: Annotated[float, Ge(0)] | None = None
    epsilon: Annotated[float, Gt(0)] | None = None
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    sampling: Literal["poisson", "batches"] = "poisson"
    norm: Literal["refuse", "group"] = "refuse"

    name = "dp-sgd"
    source = "Abadi et al., CCS 2016, algorithm 1; Mironov, Talwar, Zhang 2019 (accounting)"
    guarantee = "(epsilon, delta)-DP of the trained weights over all rounds, L2, one image more or less at a client"
    answers = (Answer(note=_HOLDS),)

    def __post_init__(self) -> None:
        refuse_two_targets(self.name, self.noise_multiplier, self.epsilon)

    def check(self, plan: ProtectionPlan) -> None:
        if plan.non_sgd_computation:
            raise UserError(
                f"defense {self.name!r} does not fit method {plan.method!r}, which computes more from images than "
                f"gradients: {plan.non_sgd_computation}"
            )
        if plan.mixing:
            raise UserError(
                f"defense {self.name!r} bounds what one image adds to a gradient, but {plan.mixing[-1]!r} lets images "
                "into one another's; leave one of them out"
            )
        if plan.private_gradients:
            raise UserError(f"defense {self.name!r} is given twice; give it once")
        for blueprint in plan.trained:
            layers = extractor_batch_norms(blueprint)
            if layers:
                raise UserError(
                    f"defense {self.name!r}: {blueprint.name} has {layers} layers of batch normalisation, through which "
                    f"images see one another; pass {self.name}:norm=group to have group normalisation in their place, or "
                    "take models without it (small, cnn4, cnn-1 to cnn-5, lenet-sigmoid)"
                )
        self.privacy(plan)  # says before training that opacus is missing

    def after(self, plan: ProtectionPlan) -> ProtectionPlan:
        return replace(plan, private_gradients=self.name)

    def blueprint(self, blueprint: Blueprint) -> Blueprint:
        return replace(blueprint, group_norm=True) if self.norm == "group" else blueprint

    def poisson(self) -> bool:
        return self.sampling == "poisson"

    def guard(self, plan: ProtectionPlan) -> GradientTransform:
        spread = self.multiplier(plan) * self.clip
        return lambda step: private_step(step, self.clip, spread)

    def multiplier(self, plan: ProtectionPlan) -> float:
        """Return z for a run: enough for the client that needs most."""
        if self.epsilon is None:
            return self.noise_multiplier or 0.0
        needed = 0.0
        worst_first = sorted(releases(plan), key=lambda pair: -pair[1] * math.sqrt(pair[0]))
        for steps, rate in worst_first:
            if not needed or epsilon(needed, steps, self.delta, rate) > self.epsilon:
                needed = noise_multiplier_for(self.epsilon, self.delta, steps, rate)
        return needed

    def privacy(self, plan: ProtectionPlan) -> dict[str, Any]:
        z = self.multiplier(plan)
        each = (epsilon(z, steps, self.delta, rate) for steps, rate in releases(plan))
        spent = max(each, default=0.0) if z else None  # of the worst client; without noise nothing is guaranteed
        uncovered = [kind for kind in plan.uploads if kind not in COVERED | PUBLIC]
        layers = {item.name: extractor_batch_norms(replace(item, group_norm=False)) for item in plan.trained}
        return {
            "epsilon": None if uncovered else spent,
            "epsilon_of_weights": spent,
            "delta": self.delta,
            "noise_multiplier": z,
            "clip": self.clip,
            "norm": "L2",
            "unit": "image",
            "neighbours": "one image more or less in a client's training set",
            "given": "" if self.poisson() else _SHUFFLED,
            "not_protected": [f"{kind}, which is computed from images beside the weights" for kind in uncovered]
            + [fact for kind in plan.uploads if kind in PUBLIC for fact in facts_in_clear(kind)],
            "sampling": self.sampling,
            "sample_rate": max((rate for _, rate in releases(plan)), default=0.0),
            "releases": max((steps for steps, _ in releases(plan)), default=0),
            "model_changes": [
                f"{name}: {number} layers of group normalisation in place of batch normalisation"
                for name, number in layers.items()
                if number and self.norm == "group"
            ],
            "accountant": ACCOUNTANT,
        }


def releases(plan: ProtectionPlan) -> set[tuple[int, float]]:
    """Return the distinct (steps over the whole run, sampling rate) of a run's clients that train at all.

    Every client counts as if it took part in all rounds.
    """
    pairs = zip(plan.steps, plan.train_sizes, strict=True)
    return {(steps * plan.rounds, min(1.0, plan.batch_size / size)) for steps, size in pairs if steps}


def private_step(step: Step, clip: float, spread: float) -> Step:
    """Return the step that adds up gradients of single images, clipped in L2 norm, and noise of deviation ``spread``."""

    def private(work: Work, images: Tensor, labels: Tensor) -> Tensor:
        totals = [torch.zeros_like(parameter) for parameter in work.parameters]
        loss = torch.zeros((), device=images.device)
        for index in range(len(labels)):
            for parameter in work.parameters:
                parameter.grad = None
            loss += step(work, images[index : index + 1], labels[index : index + 1])
            pairs = zip(totals, work.parameters, strict=True)
            gradients = [(total, parameter.grad) for total, parameter in pairs if parameter.grad is not None]
            norm = get_total_norm([gradient for _, gradient in gradients])
            share = (clip / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1)
            for total, gradient in gradients:
                total += share * gradient
        number = len(labels) if work.expected is None else work.expected
        for total, parameter in zip(totals, work.parameters, strict=True):
            if spread:
                total += spread * torch.randn(total.shape, generator=work.rng).to(total)
            parameter.grad = total / number
        return loss / number

    return private
