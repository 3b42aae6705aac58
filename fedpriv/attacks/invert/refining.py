"""Refinement of decoded images: each is fitted to the vector that it was decoded from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from fedpriv.attacks.inputs.extractors import OwnExtractors
from fedpriv.attacks.inputs.targets import observation_of
from fedpriv.attacks.invert.decoder_network import Decoder
from fedpriv.attacks.invert.decoder_weights import DecoderWeights, bytes_of_copy
from fedpriv.attacks.invert.inversion import FITS
from fedpriv.attacks.observation import Knowledge, Observation, TargetId
from fedpriv.attacks.optim.fitting import Fitted, Prior, fit
from fedpriv.attacks.optim.objectives import DISTANCES, Match
from fedpriv.attacks.optim.rows import rows_that_fit
from fedpriv.attacks.optim.schedule import Schedule
from fedpriv.attacks.priors.frames import Frame
from fedpriv.attacks.priors.pixels import PixelPrior, PixelSettings
from fedpriv.attacks.priors.spectral import SpectralPrior, SpectralSettings
from fedpriv.util.last import Last
from fedpriv.wire.kinds import OF_IMAGES, SEPARATE
from fedpriv.wire.payloads import Prototypes


@dataclass(frozen=True)
class Aims:
    """Vectors that N images are fitted to.

    Attributes:
        knowledge: whose extractors lead from images to vectors.
        vectors: ``(N, d)``.
        owners: ``(N,)`` int64 on the CPU, the client of each.
        match: what of a vector is believed (:data:`fedpriv.attacks.optim.objectives.Match`).
    """

    knowledge: Knowledge
    vectors: Tensor
    owners: Tensor
    match: Match = "vector"

    def distances(self, images: Tensor) -> Tensor:
        """Return the distance ``(N,)`` of N images, relative to the squared lengths of their vectors."""
        with torch.no_grad():
            return DISTANCES[self.match](OwnExtractors(self.knowledge)(images, self.owners), self.vectors, None)

    def with_lengths(self, images: Tensor, longer: Tensor) -> Aims:
        """Return vectors as they are or, if directions alone are believed, as long as images' ones times ``longer`` (N).

        Directions alone leave the contrast of an image open where a network is nearly homogeneous, and what holds images
        back then takes it away.
        """
        if self.match != "direction":
            return self
        with torch.no_grad():
            lengths = OwnExtractors(self.knowledge)(images, self.owners).norm(dim=1) * longer.to(images)
        return replace(self, vectors=lengths[:, None] * normalize(self.vectors, dim=1), match="vector")

    def of(self, rows: Tensor) -> Aims:
        """Return those of some rows (int64 positions on the CPU)."""
        return replace(self, vectors=self.vectors[rows.to(self.vectors.device)], owners=self.owners[rows])


Over = Literal["spectrum", "pixels", "weights"]
"""What is moved: an image's coordinates in a spectrum, its pixels, or a copy of the decoder's weights, and its code."""

RATES: dict[Over, float] = {"spectrum": 0.3, "pixels": 0.02, "weights": 2e-3}
"""First step sizes of Adam, which fall to zero along half a cosine; over coordinates, of fits of :data:`_FULL` steps."""

_FULL = 300
"""Steps from which on a fit over coordinates takes its full step size: by few such steps it leads away from its start."""

_WORTHLESS = 0.05
"""Worth of a fit below which there is none: it is learned on a few images only."""

_ALIKE = 0.99
"""Cosine of rows of one direction, and share of a length below which it was shortened."""

_FOUND = 1e-4
"""Relative feature distance plus penalties below which a fit ends. Before its step size falls, it may stand still."""


@dataclass(frozen=True)
class Start:
    """Where a search begins.

    Attributes:
        images: ``(N, c, h, w)`` that the decoder gave.
        decoder: which decoder.
        extractors: of each image, by which of the decoder's extractors its vector was decoded.
        labels: ``(N,)`` classes that the decoder was told, or None.
        frame: of N rows of one image, in whose coordinates it may be moved.
    """

    images: Tensor
    decoder: Decoder
    extractors: Sequence[int]
    labels: Tensor | None
    frame: Frame

    def of(self, rows: Tensor) -> Start:
        """Return those of some rows (int64 positions on the CPU)."""
        labels = None if self.labels is None else self.labels[rows.to(self.labels.device)]
        images = self.images[rows.to(self.images.device)]
        return Start(images, self.decoder, [self.extractors[k] for k in rows.tolist()], labels, self.frame.of(rows))


def refined(start: Start, aims: Aims, steps: int, over: Over, rate: float | None = None) -> Fitted:
    """Return N images after so many steps of Adam towards their vectors, under a penalty.

    Args:
        start: the decoded images.
        aims: what they are fitted to.
        steps: most of them.
        over: what is moved.
        rate: first step size; None for that of :data:`RATES`, over coordinates less for fewer than :data:`_FULL` steps.
    """
    few = math.sqrt(min(1.0, steps / _FULL)) if over == "spectrum" else 1.0
    first = few * RATES[over] if rate is None else rate
    schedule = Schedule(steps, first, anneal=True, tolerance=_FOUND, patience=steps, fits=FITS)
    if over == "spectrum":
        points = start.frame.points(start.images.unsqueeze(1))[:, 0]
        return _fitted(SpectralPrior(points, start.frame, SpectralSettings()), aims, schedule)
    if over == "pixels":
        return _fitted(_pixels(start.images), aims, schedule)
    some = torch.arange(len(start.images)).split(rows_that_fit(bytes_of_copy(start.decoder), start.images.device))
    parts = []
    for rows in some:
        here, own = aims.of(rows), start.of(rows)
        parts.append(_fitted(DecoderWeights(own.decoder, here.vectors, own.extractors, own.labels), here, schedule))
    return Fitted(
        images=torch.cat([part.images for part in parts]),
        objective=torch.cat([part.objective for part in parts]),
        converged=torch.cat([part.converged for part in parts]),
        steps=torch.cat([part.steps for part in parts]),
    )


def _pixels(images: Tensor) -> Prior:
    draws = [torch.Generator() for _ in images]  # of a start that the images take the place of
    shape = (images.shape[1], images.shape[2], images.shape[3])
    prior = PixelPrior(draws, shape, PixelSettings(), images.device)
    prior.parameters = [images.clone().requires_grad_()]
    return prior


def _fitted(prior: Prior, aims: Aims, schedule: Schedule) -> Fitted:
    extracted = OwnExtractors(aims.knowledge)

    @Last
    def asked(which: Tensor) -> tuple[Tensor, Tensor]:
        return aims.owners[which], aims.vectors[which.to(aims.vectors.device)]

    def distance(candidates: Tensor, which: Tensor) -> Tensor:
        owners, vectors = asked(which)
        return DISTANCES[aims.match](extracted(candidates, owners), vectors, None)

    found = fit(prior, distance, schedule, lambda _: None)
    return replace(found, images=found.images.detach(), objective=found.objective.detach())


@dataclass(frozen=True)
class LearnedFit:
    """A fit that is learned through a client's extractor and defenses.

    Attributes:
        match: what of a vector it is best to believe.
        share: how far to go from the decoded to the fitted image, in [0, 1]; 0 fits none.
        longer: lengths of images' representations over those of what was decoded for them, where lengths are not believed.
    """

    match: Match
    share: float
    longer: float = 1.0


def matches_for(plain: Tensor, sent: Tensor) -> tuple[Match, ...]:
    """Return the matches that may be worth trying, by the changes that a defense makes to rows ``(n, d)``.

    The direction where it shortens rows that it leaves alike, entries that were sent where it sets others to zero.

    >>> rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    >>> matches_for(rows, rows), matches_for(rows, rows / 2)
    (('vector',), ('vector', 'direction'))
    >>> matches_for(rows, rows * torch.tensor([0.0, 1.0]))
    ('vector', 'nonzero', 'pruned')
    """
    found: list[Match] = ["vector"]
    lengths = sent.norm(dim=1) / plain.norm(dim=1).clamp_min(1e-12)
    if bool((cosine_similarity(plain, sent) > _ALIKE).all()) and bool((lengths < _ALIKE).any()):
        found.append("direction")
    if bool(((sent == 0) & (plain != 0)).any()):
        found += ["nonzero", "pruned"]
    return tuple(found)


def learned_fit(decoded: Tensor, fitted: Mapping[Match, Tensor], true: Tensor, longer: float = 1.0) -> LearnedFit:
    """Return the match and the share whose images ``(n, c, h, w)`` come nearest to the true ones, by :func:`worth`."""
    found = {match: worth(decoded, images, true) for match, images in fitted.items()}
    found = {match: share if share >= _WORTHLESS else 0.0 for match, share in found.items()}

    def apart(match: Match) -> float:
        return float((torch.lerp(decoded, fitted[match], found[match]) - true).square().sum())

    best = min(found, key=apart)
    return LearnedFit(best, found[best], longer)


def worth(decoded: Tensor, fitted: Tensor, true: Tensor) -> float:
    """Return the weight in [0, 1] of fitted beside decoded images ``(n, c, h, w)`` that comes nearest to the true ones.

    Least squares over all pixels of images that the attacker knows.

    >>> zeros, ones = torch.zeros(2, 1, 2, 2), torch.ones(2, 1, 2, 2)
    >>> worth(zeros, ones, 0.25 * ones), worth(zeros, ones, -ones), worth(zeros, zeros, ones)
    (0.25, 0.0, 0.0)
    """
    step, wanted = fitted - decoded, true - decoded
    share = float((step * wanted).sum() / step.square().sum().clamp_min(1e-12))
    return min(1.0, max(0.0, share))


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
