"""Transform: clients train on transformed images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedpriv.algebra.augmentations import PUBLISHED, margins, read_policy
from fedpriv.defenses.signals import NETWORK_NAMES
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import Defense, GradientTransform, ProtectionPlan, Step, Work


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

    name: ClassVar[str] = "transform"
    source: ClassVar[str] = "Gao, Guo, Zhang, Qiu, Wen, Liu (ATS), CVPR 2021"
    answers = (
        Answer(
            ("untransform",),
            NETWORK_NAMES,
            note="matches what was trained on, then tries what the policy can have done",
        ),
        Answer(note="the transformed image leaks as any other"),
    )

    def __post_init__(self) -> None:
        self._policies()

    def _policies(self) -> tuple[tuple[int, ...], ...]:
        return read_policy(self.policy, "options of defense transform")

    def guard(self, plan: ProtectionPlan) -> GradientTransform:
        policies = self._policies()

        def on_transformed(step: Step) -> Step:
            def transformed(work: Work, images: Tensor, labels: Tensor) -> Tensor:
                changed = [transform(image, policies, work.rng, crop=self.crop) for image in images]
                return step(work, torch.stack(changed) if changed else images, labels)

            return transformed

        return on_transformed


def transform(image: Tensor, policies: tuple[tuple[int, ...], ...], rng: torch.Generator, *, crop: bool) -> Tensor:
    """Return an image ``(c, h, w)`` in [0, 1], cropped and mirrored if asked, then changed by a policy that is drawn."""
    from fedpriv.algebra.augmentations import augmented

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
