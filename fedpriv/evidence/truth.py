"""The images that a target was computed from. Only scorers hold them; no attack can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedpriv.evidence.pool import Pool, refuse_no_images
from fedpriv.util.errors import UserError

STRATA = ("1", "2-3", "4-10", ">10")


def stratum(n_c: int) -> str:
    """Return the stratum of a target that ``n_c`` images went into: "1", "2-3", "4-10" or ">10"."""
    if n_c < 1:
        raise ValueError(f"a target is made of at least one image, got {n_c}")
    return "1" if n_c == 1 else "2-3" if n_c <= 3 else "4-10" if n_c <= 10 else ">10"


@dataclass(frozen=True)
class Truth:
    """The private images behind one target, images that it had nothing to do with, and guesses made without it.

    Attributes:
        members: ``(m, c, h, w)`` in [0, 1]: the images that went into the target. One for a representation, the n_c
            images of the class for a prototype, all the client's images for an entangled representation, the n images
            of the batch for a gradient. Private.
        weights: ``(m,)`` >= 0, summing to one: each member's share in the upload.
        labels: ``(m,)`` int64 classes of the members. Private.
        pool: strangers, drawn by seed. Blind guesses and decoys are made of these alone.
        feature: ``(d,)`` the true representation that an attack with linear algebra tries to recover, or None.
        told: whether card or upload tell the attacker the members' classes; a guess may use them only then.
        nearest: ``(k,)`` int64 positions in ``pool.guesses`` of the strangers whose representations are nearest to the
            uploaded vector, the nearest first; None where the upload holds no vector, or the card grants no extractor.
        vectors: guesses ``(d,)`` at ``feature`` by name, made without the target's own upload.
    """

    members: Tensor
    weights: Tensor
    labels: Tensor
    pool: Pool
    feature: Tensor | None = None
    told: bool = True
    nearest: Tensor | None = None
    vectors: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        refuse_no_images("truth.members", self.members)
        if self.labels.shape != self.members.shape[:1]:
            raise UserError(f"truth.labels: expected {len(self.members)} labels, got shape {tuple(self.labels.shape)}")
        if self.members.shape[1:] != self.pool.guesses.shape[1:]:
            raise UserError(
                f"pool.guesses: images {tuple(self.pool.guesses.shape[1:])} differ in shape from the members "
                f"{tuple(self.members.shape[1:])}"
            )
        if self.weights.shape != self.labels.shape or not bool((self.weights >= 0).all()):
            raise UserError(f"truth.weights: expected {len(self.labels)} weights >= 0")
        if abs(float(self.weights.double().sum()) - 1) > 1e-4:
            raise UserError(f"truth.weights: expected a sum of 1, got {float(self.weights.sum()):.6g}")

    @classmethod
    def equal(cls, members: Tensor, labels: Tensor, pool: Pool, feature: Tensor | None = None) -> Truth:
        """Return a truth whose members all have the weight 1 / m."""
        weights = torch.full((len(members),), 1 / max(len(members), 1), dtype=torch.float64)
        return cls(members, weights, labels, pool, feature)

    @property
    def n_c(self) -> int:
        """Number of images that went into the target, m."""
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        channels, height, width = self.members.shape[1:]
        return channels, height, width

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
        names = [
            name for name in ("members", "weights", "labels", "feature", "nearest") if getattr(self, name) is not None
        ]
        held = [getattr(self, name) for name in names] + list(self.vectors.values())
        pool = self.pool.to_cpu()
        if pool is self.pool and not any(value.device.type != "cpu" or value.requires_grad for value in held):
            return self
        moved = {name: getattr(self, name).detach().cpu() for name in names}
        vectors = {name: value.detach().cpu() for name, value in self.vectors.items()}
        return replace(self, **moved, pool=pool, vectors=vectors)
