"""The images that a target was computed from. Only scorers hold them; no attack can."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedpriv.util.errors import UserError

STRATA = ("1", "2-3", "4-10", ">10")


def stratum(n_c: int) -> str:
    """Return the stratum of a target that ``n_c`` images went into: "1", "2-3", "4-10" or ">10"."""
    if n_c < 1:
        raise ValueError(f"a target is made of at least one image, got {n_c}")
    return "1" if n_c == 1 else "2-3" if n_c <= 3 else "4-10" if n_c <= 10 else ">10"


@dataclass(frozen=True)
class Truth:
    """The private images behind one target, and images that it had nothing to do with.

    Attributes:
        members: ``(m, c, h, w)`` in [0, 1]: the images that went into the target. One for a representation, the n_c
            images of the class for a prototype, all the client's images for an entangled representation, the n images
            of the batch for a gradient. Private.
        weights: ``(m,)`` >= 0, summing to one: each member's share in the upload.
        labels: ``(m,)`` int64 classes of the members. Private.
        nonmembers: ``(p, c, h, w)`` in [0, 1], p >= 1: images that the attack had nothing to do with, drawn by seed.
            Floors and decoys are made of these alone.
        nonmember_labels: ``(p,)`` int64.
        feature: ``(d,)`` the true representation that an attack with linear algebra tries to recover, or None.
    """

    members: Tensor
    weights: Tensor
    labels: Tensor
    nonmembers: Tensor
    nonmember_labels: Tensor
    feature: Tensor | None = None

    def __post_init__(self) -> None:
        for name, labels in (("members", "labels"), ("nonmembers", "nonmember_labels")):
            images, numbers = getattr(self, name), getattr(self, labels)
            if images.dim() != 4 or len(images) == 0 or not images.is_floating_point():
                raise UserError(f"truth.{name}: expected float images (n >= 1, c, h, w), got {tuple(images.shape)}")
            # The comparison is false for NaN too.
            if not bool(((images >= 0) & (images <= 1)).all()):
                raise UserError(f"truth.{name}: expected values in [0, 1]")
            if numbers.shape != images.shape[:1]:
                raise UserError(f"truth.{labels}: expected {len(images)} labels, got shape {tuple(numbers.shape)}")
        if self.members.shape[1:] != self.nonmembers.shape[1:]:
            raise UserError(
                f"truth.nonmembers: images {tuple(self.nonmembers.shape[1:])} differ in shape from the members "
                f"{tuple(self.members.shape[1:])}"
            )
        if self.weights.shape != self.labels.shape or not bool((self.weights >= 0).all()):
            raise UserError(f"truth.weights: expected {len(self.labels)} weights >= 0")
        if abs(float(self.weights.double().sum()) - 1) > 1e-4:
            raise UserError(f"truth.weights: expected a sum of 1, got {float(self.weights.sum()):.6g}")

    @classmethod
    def equal(
        cls,
        members: Tensor,
        labels: Tensor,
        nonmembers: Tensor,
        nonmember_labels: Tensor,
        feature: Tensor | None = None,
    ) -> Truth:
        """Return a truth whose members all have the weight 1 / m."""
        weights = torch.full((len(members),), 1 / max(len(members), 1), dtype=torch.float64)
        return cls(members, weights, labels, nonmembers, nonmember_labels, feature)

    @property
    def n_c(self) -> int:
        """Number of images that went into the target, m."""
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        channels, height, width = self.members.shape[1:]
        return channels, height, width

    @cached_property
    def pool_mean(self) -> Tensor:
        """The mean of the non-members ``(c, h, w)``, float64."""
        return self.nonmembers.mean(dim=0, dtype=torch.float64)

    def mean_image(self) -> Tensor:
        """Return the weighted mean of the members ``(c, h, w)``, float64."""
        return torch.einsum("m,mchw->chw", self.weights.double(), self.members.double())

    def label_weights(self) -> dict[int, float]:
        """Return the share of each class among the members: the label encoding of an entangled upload."""
        shares: dict[int, float] = {}
        for label, weight in zip(self.labels.tolist(), self.weights.tolist(), strict=True):
            shares[label] = shares.get(label, 0.0) + weight
        return dict(sorted(shares.items()))

    def to_cpu(self) -> Truth:
        """Return the same on the CPU."""
        names = ("members", "weights", "labels", "nonmembers", "nonmember_labels")
        held = [getattr(self, name) for name in names] + ([] if self.feature is None else [self.feature])
        if not any(value.device.type != "cpu" or value.requires_grad for value in held):
            return self
        feature = None if self.feature is None else self.feature.detach().cpu()
        return replace(self, **{name: getattr(self, name).detach().cpu() for name in names}, feature=feature)
