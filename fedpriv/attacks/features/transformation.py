"""The attack adapted to transformed inputs: match what was trained on, then try all that the policy can have done to it.

The policy is public: the client trained on x' = T(x), T one of few compositions of augmentations, signs and random crops.
Each candidate T is undone as far as that goes, what it cut off filled from the attacker's own images, and the likeliest
has the least

    sum of squares where T would have left black  +  h w mean over known pixels of (T^-1(x') - nearest)^2,

nearest being the mean over the k nearest own images, of the class where that is known.

Derived here, against Gao et al. (ATS), CVPR 2021.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import pad

from fedpriv.algebra.augmentations import PUBLISHED, margins, read_policy, signed, undone
from fedpriv.attacks.contract import Attack, AttackProblem
from fedpriv.attacks.gradients.secure_sum import inner_search
from fedpriv.attacks.observation import Needs, Reconstruction
from fedpriv.uploads.kinds import EXTRACTORS, NETWORKS

_NEAREST = 5
"""k."""

_OWN_IMAGES = Needs(batch=True, attacker_data=("same_domain",))


@dataclass(frozen=True, kw_only=True)
class TransformationSearch(Attack):
    """Match a client's update, then undo the transformation that explains the image found best.

    A target is an upload as a whole; its images are those of its steps before they were transformed.

    Attributes:
        search: what finds the transformed images: ``inverting-gradients`` or ``dlg``.
        iterations: of the search; ``dlg`` makes a call of L-BFGS of every twenty.
        restarts: of the search.
        policy: of the defense, as it is written there.
        crop: whether the defense crops and mirrors first.
    """

    search: Literal["inverting-gradients", "dlg"] = "inverting-gradients"
    iterations: Annotated[int, Ge(1)] = 2000
    restarts: Annotated[int, Ge(1)] = 1
    policy: str = PUBLISHED
    crop: bool = True

    name = "untransform"
    summary = "images whose gradient is the uploaded one, with a policy of augmentations undone"
    version = 4
    targets = NETWORKS
    unit = "upload"
    budget = "iterations"
    only_by_name = True
    needs = _OWN_IMAGES
    requirements_by_kind = ((EXTRACTORS, replace(_OWN_IMAGES, extractor=("white_box",))),)

    def __post_init__(self) -> None:
        read_policy(self.policy, f"attack {self.name!r}")

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Search for what was trained on, and undo what was done to it."""
        result = inner_search(self.search, self.iterations, self.restarts).run(problem)
        knowledge = problem.knowledge
        assert knowledge.public_images is not None
        current, classes = knowledge.public_images.cpu(), knowledge.public_labels
        images = result.images.cpu().clone()
        for row, labels in zip(images, result.labels.tolist(), strict=True):
            for index, label in enumerate(labels):
                of_class = None if classes is None else classes.cpu() == label
                alike = current if of_class is None or not bool(of_class.any()) else current[of_class]
                row[index] = self.untransformed(row[index], alike)
        return replace(result, images=images.to(result.images))

    def untransformed(self, image: Tensor, values: Tensor) -> Tensor:
        """Return an image ``(c, h, w)`` with the likeliest transformation undone, given own images ``(p, c, h, w)``."""
        lowest, best = math.inf, image
        for policy in read_policy(self.policy, f"attack {self.name!r}"):
            for result, known, contradiction in self._candidates(image, policy):
                filled, distance = completed(result, known, values)
                score, position = (contradiction + distance).min(0)
                if float(score) < lowest:
                    lowest, best = float(score), filled[int(position)]
        return best.clamp(0, 1)

    def _candidates(self, image: Tensor, policy: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for signs in product(*[(1, -1) if signed(number) else (1,) for number in policy]):
            now, known, contradiction = image, torch.ones_like(image[0], dtype=torch.bool), 0.0
            for number, sign in zip(reversed(policy), reversed(signs), strict=True):
                now, there, left = undone(now, number, sign)
                moved, _, _ = undone(known[None].float(), number, sign) if bool((~there).any()) else (known[None], 0, 0)
                known, contradiction = (moved[0] > 0.5) & there, contradiction + left
            whole = now[None], known[None], torch.tensor([contradiction])
            yield uncropped(now, known, contradiction) if self.crop else whole


def uncropped(image: Tensor, known: Tensor, contradiction: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return all images ``(K, c, h, w)`` that one can have been cropped and mirrored from, known pixels, contradictions."""
    height, width = image.shape[1:]
    down, across = margins(height, width)
    images, masks, left = [], [], []
    for turned, seen in ((image, known), (image.flip(2), known.flip(1))):
        wide = pad(turned, (across, across, down, down))
        there = pad(seen.float(), (across, across, down, down)) > 0
        for top, side in product(range(2 * down + 1), range(2 * across + 1)):
            images.append(wide[:, top : top + height, side : side + width])
            masks.append(there[top : top + height, side : side + width])
            # Moved back by (down - top, across - side): what falls off the other edge had been black.
            kept = torch.zeros_like(seen)
            rows = slice(max(0, top - down), height + min(0, top - down))
            columns = slice(max(0, side - across), width + min(0, side - across))
            kept[rows, columns] = True
            left.append(contradiction + float((turned.square() * (seen & ~kept)).sum()))
    return torch.stack(images), torch.stack(masks), torch.tensor(left)


def completed(images: Tensor, known: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return images ``(K, c, h, w)`` with unknown pixels filled from own ones, and scaled squared distances ``(K,)``."""
    mask = known[:, None].expand_as(images).flatten(1).to(images)
    seen, others = images.flatten(1) * mask, values.flatten(1)
    squares = seen.square().sum(1)[:, None] - 2 * seen @ others.T + mask @ others.square().T
    closest = squares.topk(min(_NEAREST, len(values)), dim=1, largest=False).indices
    typical = others[closest].mean(1)
    off = ((seen - typical) * mask).square().sum(1) / mask.sum(1).clamp_min(1) * mask.shape[1]
    off = torch.where(mask.sum(1) > 0, off, torch.inf)
    return (seen + (1 - mask) * typical).view_as(images), off
