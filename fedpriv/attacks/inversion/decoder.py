"""A trained decoder as the prior of a search: each row moves its own copy of the body's weights, and its own code.

The decoder that the attacker trained on its images is the start, so that the search begins where decoding ends; what it can
show are images that such a network shows, held smooth by total variation.


Refinement of decoded images: each is fitted to the vector that it was decoded from.

Inversion by a trained decoder: one forward pass a target, once a network has learned to invert the extractors.

The attacker owns images a of the same domain, computes g_k(a) by every client's extractor, and trains D to give a back:
min sum_k ||D_k(g_k(a)) - a||^2, where the D_k share all but their input layers. It needs no gradient through g_k, so that
answers to queries are enough. A mean of several images' representations asks for their mean image, which the linear part
of D_k gives.

Where clients defend what they upload, D_k learns from g_k(a) as the same defenses would have sent it, drawn anew: so it
learns how much of an image is left behind noise, and takes none of the noise for an image.

Source: Dosovitskiy and Brox, "Inverting visual representations with convolutional networks" (CVPR 2016).

"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.inputs.extractors import OwnExtractors, represented, require_extractors
from fedpriv.attacks.inputs.targets import observation_of, target_feature
from fedpriv.attacks.inversion.decoder_network import Decoder, DecoderTraining, Pairs, train_decoder
from fedpriv.attacks.inversion.vector import FITS, vector_distance
from fedpriv.attacks.observation import (
    Cost,
    Knowledge,
    KnowledgeCard,
    Needs,
    Observation,
    Reconstruction,
    Rehearsal,
    TargetId,
)
from fedpriv.attacks.priors.pixels import PixelPrior, PixelSettings, total_variation
from fedpriv.attacks.priors.spectral import (
    Frame,
    SpectralPrior,
    SpectralSettings,
    centres_of,
    has_own_images,
    has_spectrum,
    spectrum_for,
)
from fedpriv.attacks.search.candidates import rows_that_fit
from fedpriv.attacks.search.fit import Fitted, Prior, Schedule, fit
from fedpriv.attacks.search.objectives import DISTANCES, Match
from fedpriv.attacks.trained import Same
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.last import Last
from fedpriv.util.seeds import derive_seed, generator
from fedpriv.wire.kinds import OF_IMAGES, SEPARATE
from fedpriv.wire.payloads import Prototypes

SMOOTH = 0.02
"""Weight of total variation."""


class DecoderWeights:
    """N copies of a decoder, each with its representation: a prior for :func:`fedpriv.attacks.search.fit.fit`.

    Args:
        decoder: the start of every row.
        features: ``(N, d)`` representations; those of extractors of less width filled up with zeros.
        extractors: of each row, by which of the decoder's extractors its representation was made.
        labels: ``(N,)`` classes that the attacker is told, or None.
    """

    def __init__(
        self, decoder: Decoder, features: Tensor, extractors: Sequence[int], labels: Tensor | None = None
    ) -> None:
        which = torch.tensor(list(extractors), device=features.device)
        code = decoder.code(features[:, None], which).detach()
        first, last = decoder.network.layers
        rows = len(features)

        def copies(values: Tensor) -> Tensor:
            return values.detach().expand(rows, *values.shape).clone()

        start = [code, copies(first.weight.T), copies(first.bias[None]), copies(last.weight.T), copies(last.bias[None])]
        self.parameters: list[Tensor] = [values.requires_grad_() for values in start]
        self._shape = decoder.image_shape
        begin, apart = decoder.offsets(labels, which)
        begin, apart = begin.expand(rows, -1), apart.expand(rows, 1, code.shape[2])
        readout = decoder.readout[which]
        self._fixed = (begin, apart, readout, decoder.network.entry[which], decoder.network.shift[which])

    def prepare(self, progress: float) -> Hashable:
        """Draw nothing; all iterations are alike."""
        return 0

    def shown(self, moving: Tensor) -> Tensor:
        """Return this iteration's images ``(N, c, h, w)``: there is no noise."""
        return self.clean()

    def clean(self) -> Tensor:
        """Return the images ``(N, c, h, w)`` in [0, 1] of the present weights and codes."""
        code, first, shift, last, bias = self.parameters
        begin, apart, readout, entry, entry_shift = self._fixed
        hidden = torch.baddbmm(entry_shift, code, entry).relu()
        body = torch.baddbmm(bias, torch.baddbmm(shift, hidden, first).relu(), last)
        flat = begin[:, None] + torch.bmm(code - apart, readout) + body
        return flat.clamp(0, 1).reshape(-1, *self._shape)

    def penalty(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the weighted total variation of each image, ``(N,)``."""
        return total_variation(images, 1.0, SMOOTH)

    def project(self) -> None:
        """Leave the weights as they are: they are free."""

    def compile(self) -> None:
        """Leave everything as it is: two layers gain nothing."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, ``rows`` being int64 positions on the CPU."""
        there = rows.to(self._fixed[0].device)
        begin, apart, readout, entry, shift = (values[there] for values in self._fixed)
        self._fixed = (begin, apart, readout, entry, shift)
        self.parameters = [values.detach()[there].requires_grad_() for values in self.parameters]


def bytes_of_copy(decoder: Decoder) -> int:
    """Estimate the memory that a row takes: weights with gradient and Adam's moments, and its extractor's readout."""
    free = sum(value.numel() for value in decoder.network.body.parameters())
    return 4 * (5 * free + decoder.readout[0].numel() + decoder.network.entry[0].numel())


@dataclass(frozen=True)
class Aims:
    """Vectors that N images are fitted to.

    Attributes:
        knowledge: whose extractors lead from images to vectors.
        vectors: ``(N, d)``.
        owners: ``(N,)`` int64 on the CPU, the client of each.
        match: what of a vector is believed (:data:`fedpriv.attacks.search.objectives.Match`).
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


LEAST_IMAGES = 16
"""Images of its own below which an attacker has nothing to train on."""

REFINED = 600
"""Steps by which the decoded image of a single image's representation is fitted, where nobody says otherwise."""

_TRIED = 6
"""Held-out images of the attacker's own on which it learns what a fit through a client's extractor is worth."""

_HELD_OUT = 10
"""Every so manieth image is held out of the training."""

_TIMES, _DRAWN_ROWS = 8, 4000
"""Times that an image is shown behind a defense that draws, at most, and rows of a client from which there are fewer."""


@dataclass(frozen=True, kw_only=True)
class DecoderInversion(Attack):
    """Train one decoder for all clients' extractors, then decode the vectors of the targets.

    It is trained once for a run: the control, every budget and every attack that decodes share it.

    Attributes:
        refine: steps of fitting the decoded pixels to the vector afterwards, which needs gradients through the extractor.
            ``auto``: ``refine_steps`` where the client's own extractor is granted and the upload says that the vector is of
            one image, else none: a mean of several is decoded into their mean image, from which a fit to one image leads
            away. What a fit is worth depends on the extractor: how far to go towards the fitted image is learned on held-out
            images of the attacker's own, for each client.
        refine_steps: of ``auto``.
        restarts: decoders; of each target the image whose representation is nearest to the upload is kept.
        iterations: most training steps of a decoder.
        learning_rate: Adam's step size.
        batch_size: pairs a step and client.
        width: outputs of each client's input layer; see :mod:`fedpriv.attacks.inversion.decoder_network`.
        refine_over: what is moved in fitting. ``spectrum``: coordinates of images' spectrum
            (:mod:`fedpriv.attacks.priors.spectral`), around the middle between the decoded image and the class mean of the
            attacker's own, or around the decoded one where these are foreign. ``pixels``. ``weights``: a copy of the
            decoder's weights with its code for each target. ``auto`` takes pixels of images of fewer than 16 x 16, and else
            coordinates.
        refine_rate: Adam's first step size in fitting; None for 0.3 over coordinates (less for fewer than 300 steps), 0.02
            over pixels and 2e-3 over weights.
        defenses: of the upload: ``learned`` with, where the protocol says them; or ``ignored``, as by an attacker who does
            not know of them.
        match: what of a vector the fitted image is to have, where a defense may have changed it: ``vector``, ``direction``,
            ``nonzero`` or ``pruned`` (:data:`fedpriv.attacks.search.objectives.Match`). ``auto``: what brings images of the
            attacker's own nearest, behind the client's defenses; without any, ``vector``.
        classes: of the targets, where uploads tell them and those of the attacker's images are known: ``told`` to the
            decoder, or ``ignored``.
    """

    refine: Literal["auto"] | Annotated[int, Ge(0)] = "auto"
    refine_steps: Annotated[int, Ge(1)] = REFINED
    restarts: Annotated[int, Ge(1)] = 1
    iterations: Annotated[int, Ge(1)] = 400
    learning_rate: Annotated[float, Gt(0)] = 2e-3
    batch_size: Annotated[int, Ge(2)] = 32
    width: Annotated[int, Ge(16)] = 256
    refine_over: Literal["auto"] | Over = "auto"
    refine_rate: Annotated[float, Gt(0)] | None = None
    defenses: Literal["learned", "ignored"] = "learned"
    match: Literal["auto"] | Match = "auto"
    classes: Literal["told", "ignored"] = "told"

    name = "decoder"
    summary = "one pass of a network that learned on the attacker's own images to invert all clients' extractors"
    version = 6
    targets = SEPARATE
    unit = "upload"
    budget = "iterations"
    needs = Needs(extractor=("white_box", "query", "shadow"), attacker_data=("same_domain", "other_domain"))

    def trains(self, card: KnowledgeCard) -> str:
        """Return its name: a decoder serves all who decode."""
        return self.name

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Train a decoder for each client, unless there is one, and decode.

        Raises:
            UserError: when extractors or images are missing, there are too few images, or a target is not there.
        """
        knowledge, device, targets = problem.knowledge, problem.device, problem.targets
        require_extractors(knowledge, targets)
        own = knowledge.public_images
        if own is None or len(own) < LEAST_IMAGES:
            raise UserError(
                f"attack {self.name!r} got {0 if own is None else len(own)} images to train on; expected at least "
                f"{LEAST_IMAGES} (train the run with {argument('strangers', 0.5)}, or name a larger foreign data set)"
            )
        if self.refine not in (0, "auto") and knowledge.card.extractor == "query":
            raise UserError("attack 'decoder' with refine > 0 needs gradients; expected extractor=white_box or shadow")
        vectors = torch.stack([target_feature(problem.observations, target).to(device) for target in targets])
        aims = Aims(knowledge, vectors, torch.tensor([target.client for target in targets]))
        done, steps = [], 0
        for again in range(self.restarts):
            start = self._decoded(problem, own, vectors, again)
            done.append(self._finish(problem, start, aims, self._fits(problem, own, again)))
            steps = max(steps, start.decoder.steps + done[-1].iterations)
        images, objective, settled = (
            torch.stack([getattr(one, name) for one in done], 1) for name in ("images", "objective", "converged")
        )
        chosen = objective.nan_to_num(nan=torch.inf).argmin(1)
        here = torch.arange(len(targets), device=device)
        return Reconstruction(
            targets=targets,
            images=images[here, chosen].unsqueeze(1),
            objective=objective,
            chosen=chosen,
            labels=torch.tensor([[target.label] for target in targets], device=device),
            cost=Cost(
                iterations=steps,
                rows=objective.numel(),
                evaluations=int(torch.stack([one.steps for one in done]).sum(0).max()),
            ),
            converged=settled[here, chosen],
            features=vectors,
        )

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the distance of images' representations to what is believed of the uploaded vectors; queries are enough."""
        own = problem.knowledge.public_images
        given: Match = "vector" if self.match == "auto" else self.match
        believed = [given] * len(problem.targets)
        if self.match == "auto" and own is not None and len(own) >= LEAST_IMAGES:
            believed = [one.match for one in self._fits(problem, own, 0)]
        ways = {match: vector_distance(problem, match) for match in dict.fromkeys(believed)}
        places = {match: torch.tensor([k for k, other in enumerate(believed) if other == match]) for match in ways}

        def distance(images: Tensor) -> Tensor:
            found = images.new_zeros(len(images))
            for match, way in ways.items():
                found[places[match].to(images.device)] = way(images[places[match].to(images.device)], places[match])
            return found

        return distance

    def _decoded(self, problem: AttackProblem, own: Tensor, vectors: Tensor, again: int) -> Start:
        """Return the targets' images as the decoder of a restart gives them."""
        clients, decoder = self._trained(problem, own, again)
        places = [clients.index(target.client) for target in problem.targets]
        images = vectors.new_zeros((len(places), *problem.knowledge.image_shape))
        labels = torch.tensor([target.label for target in problem.targets], device=vectors.device)
        for place in sorted(set(places)):
            mine = torch.tensor([number for number, other in enumerate(places) if other == place]).to(vectors.device)
            images[mine] = decoder(vectors[mine], place, labels[mine])
        return Start(images, decoder, places, labels, self._frame(problem, own, images, labels, again))

    def _frame(self, problem: AttackProblem, own: Tensor, decoded: Tensor, classes: Tensor | None, again: int) -> Frame:
        """Return the coordinates in which decoded images ``(N, c, h, w)`` are fitted; ``classes`` are ``(N,)``, if known.

        They are around the middle between a class mean and the decoded image where images of the same data set are granted:
        around the mean alone a fit leads away where representations hold little, around the decoded image alone it stays too
        near to it where they hold much (``docs/attacks/decoder.md``). The means are of what the decoder was trained on, so
        that they tell no more of the images on which the worth of a fit is learned than of the targets.
        """
        spectrum = spectrum_for(problem.knowledge, problem.trained).to(decoded.device)
        if not has_own_images(problem.knowledge):
            return Frame(decoded.unsqueeze(1), spectrum)
        seed = derive_seed(problem.seed, "decoder", again)
        inside = divided(Pairs([], own.to(problem.device), self._labels(problem)), seed)[0]
        wanted = torch.full((len(decoded),), -1, device=decoded.device) if classes is None else classes
        means = centres_of(inside.images, inside.labels, wanted)
        return Frame(((means + decoded) / 2).unsqueeze(1), spectrum)

    def _over(self, problem: AttackProblem) -> Over:
        """Return the things that are moved in fitting, by the size of images where nobody says which."""
        if self.refine_over != "auto":
            return self.refine_over
        return "spectrum" if has_spectrum(problem.knowledge.image_shape) else "pixels"

    def _trained(self, problem: AttackProblem, own: Tensor, again: int) -> tuple[tuple[int, ...], Decoder]:
        """Return the clients whose extractors were granted, and their decoder, trained once for all that ask."""
        extractors = problem.knowledge.extractors
        clients, seed = tuple(sorted(extractors)), derive_seed(problem.seed, "decoder", again)
        training = DecoderTraining(self.iterations, self.learning_rate, self.batch_size, self.width)
        defended, labels = self._defended(problem, clients), self._labels(problem)
        key = ("decoder", training, seed, clients, *(Same(extractors[k]) for k in clients), Same(own), problem.device)
        key = (*key, labels is None, *(Same(one) for one in defended))

        def tick(done: int) -> None:
            if problem.progress is not None:
                problem.progress(again * self.iterations + done, self.restarts * self.iterations)

        def train() -> Decoder:
            features = [represented(extractors[k], own, problem.device, problem.trained) for k in clients]
            inside, outside = divided(Pairs(features, own.to(problem.device), labels), seed)
            inside = through_defenses(inside, defended, derive_seed(seed, "defended"))
            outside = through_defenses(outside, defended, derive_seed(seed, "defended, held out"))
            return train_decoder(inside, outside, training, seed, tick)

        return clients, problem.trained.get(key, train)

    def _defended(self, problem: AttackProblem, clients: Sequence[int]) -> list[Rehearsal | None]:
        """Return the defenses of each client's upload, None for those without any, or to be ignored."""
        return [None] * len(clients) if self.defenses == "ignored" else defenses_of(problem, clients)

    def _labels(self, problem: AttackProblem) -> Tensor | None:
        """Return the classes of the attacker's images, where those of all targets are known as well."""
        own = problem.knowledge.public_labels
        if own is None or self.classes == "ignored" or min(target.label for target in problem.targets) < 0:
            return None
        return own.to(problem.device) if bool((own >= 0).all()) else None

    def _fits(self, problem: AttackProblem, own: Tensor, again: int) -> list[LearnedFit]:
        """Return of each target what of its vector is believed, and how far to go from the decoded image to the fitted."""
        wanted = of_one_image(problem.observations, problem.targets).tolist()
        granted = problem.knowledge.card.extractor == "white_box"
        if self.refine != "auto":
            wanted, granted = [self.refine > 0] * len(problem.targets), True
        fitted = sorted({target.client for target, one in zip(problem.targets, wanted, strict=True) if one and granted})
        learned = {client: self._learned(problem, own, again, client) for client in fitted}
        none = LearnedFit("vector", 0.0)
        found = [
            learned.get(target.client, none) if one else none
            for target, one in zip(problem.targets, wanted, strict=True)
        ]
        return found if self.refine == "auto" else [replace(one, share=float(self.refine > 0)) for one in found]

    def _learned(self, problem: AttackProblem, own: Tensor, again: int, client: int) -> LearnedFit:
        """Return the fit that is learned through a client's extractor, once, on the attacker's own images."""
        clients, decoder = self._trained(problem, own, again)
        extractor, place = problem.knowledge.extractors[client], clients.index(client)
        seed = derive_seed(problem.seed, "decoder", again)
        defended, labels = self._defended(problem, [client])[0], self._labels(problem)
        steps = self.refine_steps if self.refine == "auto" else self.refine

        def learn() -> LearnedFit:
            held = divided(Pairs([], own.to(problem.device), labels), seed)[1]
            known, classes = held.images[:_TRIED], None if held.labels is None else held.labels[:_TRIED]

            def sent(rows: Tensor) -> Tensor:
                return rows if defended is None else defended(rows, derive_seed(seed, "worth"))

            with torch.no_grad():
                plain = extractor(known)
                vectors = sent(plain)
                tried = matches_for(plain, vectors) if self.match == "auto" else (self.match,)
                decoded, longer = decoder(vectors, place, classes), 1.0
                if "direction" in tried:
                    every = extractor(held.images)
                    once_more = extractor(decoder(sent(every), place, held.labels))
                    longer = float(every.norm(dim=1).sum() / once_more.norm(dim=1).sum().clamp_min(1e-12))
            if again:  # objectives of restarts are compared
                tried = (self._learned(problem, own, 0, client).match,)
            if self.refine != "auto" and len(tried) == 1:
                return LearnedFit(tried[0], 1.0, longer)
            frame = self._frame(problem, own, decoded, classes, again)
            start = Start(decoded, decoder, [place] * len(known), classes, frame)
            aims = Aims(problem.knowledge, vectors, torch.full((len(known),), client))
            times = torch.full((len(known),), longer)
            fitted = {match: self._fitted(problem, start, replace(aims, match=match), times).images for match in tried}
            return learned_fit(decoded, fitted, known, longer)

        fitting = (steps, self._over(problem), self.refine_rate, self.match)
        key = ("worth", *fitting, seed, Same(decoder), Same(extractor), Same(own), Same(defended))
        return problem.trained.get(key, learn)

    def _finish(self, problem: AttackProblem, start: Start, aims: Aims, fits: Sequence[LearnedFit]) -> Fitted:
        """Return the decoded images, so far towards the fitted ones as these are worth, and their distances.

        An image has converged if its decoder has, or if the fitted one fits.
        """
        images, objective = start.images, aims.distances(start.images)
        settled = torch.full_like(objective, start.decoder.settled, dtype=torch.bool)
        taken = torch.zeros(len(images), dtype=torch.int64)
        for match in sorted({one.match for one in fits if one.share}):
            places = torch.tensor([place for place, one in enumerate(fits) if one.share and one.match == match])
            there, mine = places.to(images.device), replace(aims.of(places), match=match)
            times = torch.tensor([fits[place].longer for place in places.tolist()])
            found = self._fitted(problem, start.of(places), mine, times)
            shares = torch.tensor([fits[place].share for place in places.tolist()], device=images.device)
            images = images.index_copy(0, there, torch.lerp(images[there], found.images, shares.view(-1, 1, 1, 1)))
            objective = objective.index_copy(0, there, mine.distances(images[there]))
            settled = settled.index_copy(0, there, settled[there] | found.converged)
            taken = taken.index_copy(0, places, found.steps)
        return Fitted(images, objective, settled, taken)

    def _fitted(self, problem: AttackProblem, start: Start, aims: Aims, longer: Tensor) -> Fitted:
        steps = self.refine_steps if self.refine == "auto" else self.refine
        return refined(start, aims.with_lengths(start.images, longer), steps, self._over(problem), self.refine_rate)


def defenses_of(problem: AttackProblem, clients: Sequence[int]) -> list[Rehearsal | None]:
    """Return clients' defenses of the attacked round, on rows; None for clients of whom nothing is known."""
    rounds = {target.client: target.round for target in problem.targets}
    last = max(rounds.values())
    return [problem.knowledge.defended.get((rounds.get(client, last), client)) for client in clients]


def pairs(
    extractors: Sequence[Callable[[Tensor], Tensor]], images: Tensor, seed: int, labels: Tensor | None = None
) -> tuple[Pairs, Pairs]:
    """Return the pairs that a decoder is trained on, and those held out of them.

    Args:
        extractors: from images ``(n, c, h, w)`` to representations ``(n, d)``.
        images: ``(n, c, h, w)`` of the attacker's own.
        seed: draws which are held out.
        labels: ``(n,)`` classes of the images, or None.
    """
    features = [represented(extractor, images, images.device) for extractor in extractors]
    return divided(Pairs(features, images, labels), seed)


def through_defenses(known: Pairs, defended: Sequence[Rehearsal | None], seed: int) -> Pairs:
    """Return pairs whose representations went through the clients' defenses, several times where these draw.

    Args:
        known: pairs of K extractors.
        defended: K defenses, or None where an extractor's representations are sent as they are.
        seed: of the draws.
    """
    if all(one is None for one in defended) or not len(known.images):
        return known
    times = max(1, min(_TIMES, _DRAWN_ROWS // len(known.images)))
    drawn = []
    for place, (rows, defend) in enumerate(zip(known.features, defended, strict=True)):
        own = [derive_seed(seed, place, time) for time in range(times)]
        drawn.append([rows] * times if defend is None else [defend(rows, one) for one in own])
    if all(torch.equal(of_one[0], other) for of_one in drawn for other in of_one[1:]):
        return replace(known, features=[of_one[0] for of_one in drawn])
    again = known.of(torch.arange(len(known.images), device=known.images.device).repeat(times))
    return replace(again, features=[torch.cat(of_one) for of_one in drawn])


def divided(known: Pairs, seed: int) -> tuple[Pairs, Pairs]:
    """Return the pairs that a decoder is trained on, and those held out of them, which ``seed`` draws."""
    order = torch.randperm(len(known.images), generator=generator(seed, "held out")).to(known.images.device)
    held = max(1, len(order) // _HELD_OUT)
    return known.of(order[held:]), known.of(order[:held])
