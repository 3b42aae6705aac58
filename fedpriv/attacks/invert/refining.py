"""Refinement of decoded images: each is fitted, over its pixels, to the vector that it was decoded from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.invert.inversion import FITS
from fedpriv.attacks.observation import Knowledge, Observation, TargetId
from fedpriv.attacks.optim.fitting import Fitted, fit
from fedpriv.attacks.optim.objectives import relative_feature_distance
from fedpriv.attacks.optim.schedule import Schedule
from fedpriv.attacks.priors.pixels import PixelPrior, PixelSettings
from fedpriv.attacks.read.extractors import OwnExtractors
from fedpriv.attacks.read.target_features import observation_of
from fedpriv.util.seeds import generator
from fedpriv.wire.kinds import OF_IMAGES, SEPARATE
from fedpriv.wire.payloads import Prototypes


@dataclass(frozen=True)
class Aims:
    """What N images are fitted to.

    Attributes:
        knowledge: whose extractors lead from images to vectors.
        vectors: ``(N, d)``.
        owners: ``(N,)`` int64 on the CPU, the client of each.
    """

    knowledge: Knowledge
    vectors: Tensor
    owners: Tensor

    def distances(self, images: Tensor) -> Tensor:
        """Return the relative feature distance ``(N,)`` of N images."""
        with torch.no_grad():
            return relative_feature_distance(OwnExtractors(self.knowledge)(images, self.owners), self.vectors)

    def of(self, rows: Tensor) -> Aims:
        """Return those of some rows (int64 positions on the CPU)."""
        return Aims(self.knowledge, self.vectors[rows.to(self.vectors.device)], self.owners[rows])


def refined(images: Tensor, aims: Aims, steps: int, rate: float, seed: int) -> Fitted:
    """Return images ``(N, c, h, w)`` after so many steps of Adam on their pixels, under total variation.

    The step size begins with ``rate`` and falls to zero along half a cosine.
    """
    extracted = OwnExtractors(aims.knowledge)

    def distance(candidates: Tensor, which: Tensor) -> Tensor:
        features = extracted(candidates, aims.owners[which])
        return relative_feature_distance(features, aims.vectors[which.to(aims.vectors.device)])

    draws = [generator(seed, "refine", row) for row in range(len(images))]
    prior = PixelPrior(draws, (images.shape[1], images.shape[2], images.shape[3]), PixelSettings(), images.device)
    prior.parameters = [images.clone().requires_grad_()]
    return fit(prior, distance, Schedule(steps, rate, anneal=True, fits=FITS), lambda _: None)


def of_one_image(observations: Sequence[Observation], targets: Sequence[TargetId]) -> Tensor:
    """Return ``(T,)`` bool on the CPU, whether each target's vector is known to be of one image alone.

    A representation is; a class mean is where the upload says that the class has one image.
    """
    found = []
    for target in targets:
        payload = SEPARATE.first(observation_of(observations, target).upload)
        counts = payload.counts if isinstance(payload, Prototypes) else None
        single = payload is not None and payload.kind in OF_IMAGES
        found.append(single or (counts is not None and int(counts[target.index]) == 1))
    return torch.tensor(found, dtype=torch.bool)
