"""Inversion by a trained decoder: one forward pass a target, once a network has learned to invert the extractors.

The attacker owns images a of the same domain, computes g_k(a) by every client's extractor, and trains D to give a back:
min sum_k ||D_k(g_k(a)) - a||^2, where the D_k share all but their input layers. It needs no gradient through g_k, so that
answers to queries are enough. A mean of several images' representations asks for their mean image, which the linear part
of D_k gives. A decoded image of one image's representation is then fitted to it, as far as that was seen to help.

Where clients defend what they upload, D_k learns from g_k(a) as the same defenses would have sent it, drawn anew: so it
learns how much of an image is left behind noise, and takes none of the noise for an image.

Source: Dosovitskiy and Brox, "Inverting visual representations with convolutional networks" (CVPR 2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from fedpriv.attacks.contract import Attack, AttackProblem, Objective, Same
from fedpriv.attacks.inputs.extractors import OwnExtractors, represented, require_extractors
from fedpriv.attacks.inputs.targets import observation_of
from fedpriv.attacks.inversion.decoder_network import Decoder, DecoderTraining, Pairs, train_decoder
from fedpriv.attacks.inversion.vector import FITS, uploaded_vectors, vector_distance
from fedpriv.attacks.observation import (
    Cost,
    Knowledge,
    Needs,
    Observation,
    Reconstruction,
    Rehearsal,
    TargetId,
    ThreatModel,
)
from fedpriv.attacks.priors.pixels import LEAST_IMAGES, PixelPrior, PixelSettings, images_to_train_on
from fedpriv.attacks.priors.spectral import (
    Frame,
    SpectralPrior,
    SpectralSettings,
    centres_of,
    has_own_images,
    has_spectrum,
    spectrum_for,
)
from fedpriv.attacks.search.fit import Fitted, Prior, Schedule, fit
from fedpriv.attacks.search.objectives import DISTANCES, Match
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import Last, derive_seed, generator
from fedpriv.wire.kinds import OF_IMAGES, SEPARATE
from fedpriv.wire.payloads import Prototypes

REFINED = 600
"""Steps by which the decoded image of a single image's representation is fitted, where nobody says otherwise."""

TRIED = 6
"""Held-out images of the attacker's own on which it learns what a fit through a client's extractor is worth."""

_HELD_OUT = 10
"""Every so manieth image is held out of the training."""

_TIMES, _DRAWN_ROWS = 8, 4000
"""Times that an image is shown behind a defense that draws, at most, and rows of a client from which there are fewer."""

_RATE, _PIXEL_RATE = 0.3, 0.02
"""First step sizes of Adam in fitting, over coordinates and over pixels; they fall to zero along half a cosine."""

_FULL = 300
"""Steps from which on a fit over coordinates takes its full step size: by few such steps it leads away from its start."""

_FOUND = 1e-4
"""Relative feature distance plus penalties below which a fit ends. Before its step size falls, it may stand still."""

_WORTHLESS = 0.05
"""Worth of a fit below which there is none: it is learned on a few images only."""

_ALIKE = 0.99
"""Cosine of rows of one direction, and share of a length below which it was shortened."""


@dataclass(frozen=True, kw_only=True)
class DecoderInversion(Attack):
    """Train one decoder for all clients' extractors, then decode the vectors of the targets.

    It is trained once for a run: the control, every budget and every attack that decodes share it.

    Attributes:
        refine: steps of fitting the decoded images to the vectors, which needs gradients through the extractor.
            ``auto``: ``refine_steps`` where the client's own extractor is granted and the upload says that the vector is of
            one image, else none: a mean of several is decoded into their mean image, from which a fit to one image leads
            away. What a fit is worth depends on the extractor: how far to go towards the fitted image is learned on held-out
            images of the attacker's own, for each client. Coordinates of images' spectrum are fitted
            (:mod:`fedpriv.attacks.priors.spectral`), around the middle between the decoded image and the class mean of the
            attacker's own, or around the decoded one where these are foreign; pixels of images below 16 x 16.
        refine_steps: of ``auto``.
        iterations: most training steps of a decoder.
        learning_rate: Adam's step size.
        batch_size: pairs a step and client.
        width: outputs of each client's input layer; see :mod:`fedpriv.attacks.inversion.decoder_network`.
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
    iterations: Annotated[int, Ge(1)] = 400
    learning_rate: Annotated[float, Gt(0)] = 2e-3
    batch_size: Annotated[int, Ge(2)] = 32
    width: Annotated[int, Ge(16)] = 256
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

    def trains(self, card: ThreatModel) -> str:
        """Return its name: a decoder serves all attacks that decode."""
        return self.name

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Train a decoder for each client, unless there is one, and decode.

        Raises:
            UserError: when extractors or images are missing, there are too few images, or a target is not there.
        """
        targets, device = problem.targets, problem.device
        require_extractors(problem.knowledge, targets)
        images_to_train_on(self.name, problem.knowledge)
        if self.refine not in (0, "auto") and problem.knowledge.card.extractor == "query":
            raise UserError("attack 'decoder' with refine > 0 needs gradients; expected extractor=white_box or shadow")
        vectors = uploaded_vectors(problem)
        clients, decoder = self._trained(problem)
        labels = torch.tensor([target.label for target in targets], device=device)
        owners = torch.tensor([target.client for target in targets])
        images = vectors.new_zeros((len(targets), *problem.knowledge.image_shape))
        for client in problem.clients:
            rows = (owners == client).nonzero().flatten().to(device)
            images[rows] = decoder(vectors[rows], clients.index(client), labels[rows])
        start = _Start(images, self._frame(problem, images, labels), vectors, owners)
        finished = self._finish(problem, start, self._fits(problem), decoder.settled)
        return Reconstruction(
            targets=targets,
            images=finished.images.unsqueeze(1),
            objective=finished.objective.unsqueeze(1),
            chosen=torch.zeros(len(targets), dtype=torch.int64, device=device),
            labels=labels.unsqueeze(1),
            cost=Cost(
                iterations=decoder.steps + finished.iterations, rows=len(targets), evaluations=finished.iterations
            ),
            converged=finished.converged,
            features=vectors,
        )

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the distance of images' representations to what is believed of the uploaded vectors; queries are enough."""
        images = problem.knowledge.public_images
        believed: list[Match] = ["vector" if self.match == "auto" else self.match] * len(problem.targets)
        if self.match == "auto" and images is not None and len(images) >= LEAST_IMAGES:
            believed = [each.match for each in self._fits(problem)]
        distances = {match: vector_distance(problem, match) for match in dict.fromkeys(believed)}

        def distance(images: Tensor) -> Tensor:
            values = images.new_zeros(len(images))
            for match, apart in distances.items():
                places = torch.tensor([index for index, other in enumerate(believed) if other == match])
                values[places.to(images.device)] = apart(images[places.to(images.device)], places)
            return values

        return distance

    def _seed(self, problem: AttackProblem) -> int:
        return derive_seed(problem.seed, "decoder", 0)

    def _own(self, problem: AttackProblem) -> Pairs:
        """Return the attacker's images, with classes where those of all targets are known as well."""
        images, labels = images_to_train_on(self.name, problem.knowledge), problem.knowledge.public_labels
        if labels is not None:
            unknown = self.classes == "ignored" or min(target.label for target in problem.targets) < 0
            labels = None if unknown or not bool((labels >= 0).all()) else labels.to(problem.device)
        return Pairs([], images.to(problem.device), labels)

    def _frame(self, problem: AttackProblem, decoded: Tensor, classes: Tensor | None) -> Frame | None:
        """Return the coordinates in which decoded images ``(N, c, h, w)`` are fitted; None for pixels.

        They are around the middle between a class mean and the decoded image where images of the same data set are granted,
        the means being of the decoder's training images alone.
        """
        if not has_spectrum(problem.knowledge.image_shape):
            return None
        spectrum = spectrum_for(problem.knowledge, problem.trained).to(decoded.device)
        if not has_own_images(problem.knowledge):
            return Frame(decoded.unsqueeze(1), spectrum)
        inside = divided(self._own(problem), self._seed(problem))[0]
        wanted = torch.full((len(decoded),), -1, device=decoded.device) if classes is None else classes
        means = centres_of(inside.images, inside.labels, wanted)
        return Frame(((means + decoded) / 2).unsqueeze(1), spectrum)

    def _trained(self, problem: AttackProblem) -> tuple[tuple[int, ...], Decoder]:
        """Return the clients whose extractors were granted, and their decoder, trained once for all attacks."""
        extractors, current, seed = problem.knowledge.extractors, self._own(problem), self._seed(problem)
        images = problem.knowledge.public_images
        assert images is not None
        clients = tuple(sorted(extractors))
        training = DecoderTraining(self.iterations, self.learning_rate, self.batch_size, self.width)
        defended = self._defended(problem, clients)
        own = tuple(Same(value) for value in (*(extractors[k] for k in clients), images, *defended))
        key = ("decoder", training, seed, clients, own, problem.device, current.labels is None)

        def tick(done: int) -> None:
            if problem.progress is not None:
                problem.progress(done, self.iterations)

        def train() -> Decoder:
            features = [represented(extractors[k], images, problem.device, problem.trained) for k in clients]
            inside, outside = divided(replace(current, features=features), seed)
            inside = through_defenses(inside, defended, derive_seed(seed, "defended"))
            outside = through_defenses(outside, defended, derive_seed(seed, "defended, held out"))
            return train_decoder(inside, outside, training, seed, tick)

        return clients, problem.trained.get(key, train)

    def _defended(self, problem: AttackProblem, clients: Sequence[int]) -> list[Rehearsal | None]:
        return [None] * len(clients) if self.defenses == "ignored" else defenses_of(problem, clients)

    def _fits(self, problem: AttackProblem) -> list[LearnedFit]:
        """Return of each target what of its vector is believed, and how far to go from the decoded image to the fitted."""
        fitted = [self.refine != "auto" and self.refine > 0] * len(problem.targets)
        if self.refine == "auto" and problem.knowledge.card.extractor == "white_box":
            fitted = of_one_image(problem.observations, problem.targets)
        clients = [target.client if item else None for target, item in zip(problem.targets, fitted, strict=True)]
        learned = {client: self._learned(problem, client) for client in sorted({k for k in clients if k is not None})}
        fits = [LearnedFit("vector", 0.0) if client is None else learned[client] for client in clients]
        return fits if self.refine in (0, "auto") else [replace(each, share=1.0) for each in fits]

    def _learned(self, problem: AttackProblem, client: int) -> LearnedFit:
        """Return the fit that is learned through a client's extractor, once, on the attacker's own images."""
        clients, decoder = self._trained(problem)
        extractor, position, seed = problem.knowledge.extractors[client], clients.index(client), self._seed(problem)
        defended = self._defended(problem, [client])[0]

        def learn() -> LearnedFit:
            kept = divided(self._own(problem), seed)[1]
            known = kept.of(torch.arange(min(TRIED, len(kept.images)), device=kept.images.device))

            def sent(rows: Tensor) -> Tensor:
                return rows if defended is None else defended(rows, derive_seed(seed, "worth"))

            with torch.no_grad():
                plain = extractor(known.images)
                vectors = sent(plain)
                tried = matches_for(plain, vectors) if self.match == "auto" else (self.match,)
                decoded, longer = decoder(vectors, position, known.labels), 1.0
                if "direction" in tried:
                    every = extractor(kept.images)
                    once_more = extractor(decoder(sent(every), position, kept.labels))
                    longer = float(every.norm(dim=1).sum() / once_more.norm(dim=1).sum().clamp_min(1e-12))
            if self.refine != "auto" and len(tried) == 1:
                return LearnedFit(tried[0], 1.0, longer)
            owners, times = torch.full((len(decoded),), client), torch.full((len(decoded),), longer)
            start = _Start(decoded, self._frame(problem, decoded, known.labels), vectors, owners)
            fitted = {match: self._refined(problem, start, match, times).images for match in tried}
            return learned_fit(decoded, fitted, known.images, longer)

        images = problem.knowledge.public_images
        key = ("worth", self._steps, self.match, seed, Same(decoder), Same(extractor), Same(images), Same(defended))
        return problem.trained.get(key, learn)

    def _finish(
        self, problem: AttackProblem, start: _Start, fits: Sequence[LearnedFit], settled_decoder: bool
    ) -> Fitted:
        """Return the decoded images, so far towards the fitted ones as these are worth, and their distances.

        An image has converged if its decoder has, or if the fitted one fits.
        """
        knowledge, images = problem.knowledge, start.images
        objective = _distances(knowledge, start, images, "vector")
        settled = torch.full_like(objective, settled_decoder, dtype=torch.bool)
        steps = torch.zeros(len(images), dtype=torch.int64)
        for match in sorted({each.match for each in fits if each.share}):
            places = torch.tensor([index for index, each in enumerate(fits) if each.share and each.match == match])
            there, some = places.to(images.device), start.of(places)
            longer, shares = (
                torch.tensor([getattr(fits[position], name) for position in places.tolist()], device=images.device)
                for name in ("longer", "share")
            )
            fitted = self._refined(problem, some, match, longer)
            between = torch.lerp(images[there], fitted.images, shares.view(-1, 1, 1, 1))
            images = images.index_copy(0, there, between)
            objective = objective.index_copy(0, there, _distances(knowledge, some, between, match))
            settled = settled.index_copy(0, there, settled[there] | fitted.converged)
            steps = steps.index_copy(0, places, fitted.steps)
        return Fitted(images, objective, settled, steps)

    @property
    def _steps(self) -> int:
        return self.refine_steps if self.refine == "auto" else self.refine

    def _refined(self, problem: AttackProblem, start: _Start, match: Match, longer: Tensor) -> Fitted:
        """Return images after Adam's steps towards their vectors, under a penalty.

        If directions alone are believed, vectors get the lengths of the first images' ones times ``longer`` ``(N,)``:
        directions leave the contrast of an image open where a network is nearly homogeneous, and a penalty takes it away.
        """
        extracted, vectors, steps = OwnExtractors(problem.knowledge), start.vectors, self._steps
        if match == "direction":
            with torch.no_grad():
                lengths = extracted(start.images, start.owners).norm(dim=1) * longer.to(vectors)
            vectors, match = lengths[:, None] * normalize(vectors, dim=1), "vector"
        if start.frame is not None:
            points = start.frame.points(start.images.unsqueeze(1))[:, 0]
            prior: Prior = SpectralPrior(points, start.frame, SpectralSettings())
            rate = _RATE * math.sqrt(min(1.0, steps / _FULL))
        else:
            prior, rate = PixelPrior(start.images, PixelSettings().total_variation), _PIXEL_RATE

        @Last
        def goals(which: Tensor) -> tuple[Tensor, Tensor]:
            return start.owners[which], vectors[which.to(vectors.device)]

        def distance(images: Tensor, which: Tensor) -> Tensor:
            owners, goal = goals(which)
            return DISTANCES[match](extracted(images, owners), goal, None)

        schedule = Schedule(steps, rate, anneal=True, tolerance=_FOUND, patience=steps, fits=FITS)
        fitted = fit(prior, distance, schedule, lambda _: None)
        return replace(fitted, images=fitted.images.detach(), objective=fitted.objective.detach())


@dataclass(frozen=True)
class _Start:
    """N decoded images, before they are fitted.

    Attributes:
        images: ``(N, c, h, w)``.
        frame: of N rows of one image, in whose coordinates they are fitted; None for pixels.
        vectors: ``(N, d)`` that they are fitted to.
        owners: ``(N,)`` int64 on the CPU, the client of each.
    """

    images: Tensor
    frame: Frame | None
    vectors: Tensor
    owners: Tensor

    def of(self, rows: Tensor) -> _Start:
        """Return those of some rows (int64 positions on the CPU)."""
        there, frame = rows.to(self.images.device), None if self.frame is None else self.frame.of(rows)
        return _Start(self.images[there], frame, self.vectors[there], self.owners[rows])


@torch.no_grad()
def _distances(knowledge: Knowledge, start: _Start, images: Tensor, match: Match) -> Tensor:
    return DISTANCES[match](OwnExtractors(knowledge)(images, start.owners), start.vectors, None)


@dataclass(frozen=True)
class LearnedFit:
    """A fit that is learned through a client's extractor and defenses.

    Attributes:
        match: what of a vector it is best to believe.
        share: how far to go from the decoded to the fitted image, in [0, 1]; 0 fits none.
        longer: lengths of images' representations over those of their decoded images, where lengths are not believed.
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
    matches: list[Match] = ["vector"]
    lengths = sent.norm(dim=1) / plain.norm(dim=1).clamp_min(1e-12)
    if bool((cosine_similarity(plain, sent) > _ALIKE).all()) and bool((lengths < _ALIKE).any()):
        matches.append("direction")
    if bool(((sent == 0) & (plain != 0)).any()):
        matches += ["nonzero", "pruned"]
    return tuple(matches)


def learned_fit(decoded: Tensor, fitted: Mapping[Match, Tensor], true: Tensor, longer: float = 1.0) -> LearnedFit:
    """Return the match and the share whose images ``(n, c, h, w)`` come nearest to the true ones, by :func:`worth`."""
    shares = {match: worth(decoded, images, true) for match, images in fitted.items()}
    shares = {match: share if share >= _WORTHLESS else 0.0 for match, share in shares.items()}

    def apart(match: Match) -> float:
        return float((torch.lerp(decoded, fitted[match], shares[match]) - true).square().sum())

    best = min(shares, key=apart)
    return LearnedFit(best, shares[best], longer)


def worth(decoded: Tensor, fitted: Tensor, true: Tensor) -> float:
    """Return the weight in [0, 1] of fitted beside decoded images ``(n, c, h, w)`` that comes nearest to the true ones.

    Least squares over all pixels of images that the attacker knows.

    >>> zeros, ones = torch.zeros(2, 1, 2, 2), torch.ones(2, 1, 2, 2)
    >>> worth(zeros, ones, 0.25 * ones), worth(zeros, ones, -ones), worth(zeros, zeros, ones)
    (0.25, 0.0, 0.0)
    """
    step = fitted - decoded
    share = float((step * (true - decoded)).sum() / step.square().sum().clamp_min(1e-12))
    return min(1.0, max(0.0, share))


def of_one_image(observations: Sequence[Observation], targets: Sequence[TargetId]) -> list[bool]:
    """Return, for each target, true where its vector is known to be of one image alone.

    A representation is; a class mean is where the upload says that the class has one image.
    """
    single = []
    for target in targets:
        payload = SEPARATE.first(observation_of(observations, target).upload)
        counts = payload.counts if isinstance(payload, Prototypes) else None
        of_image = payload is not None and payload.kind in OF_IMAGES
        single.append(of_image or (counts is not None and int(counts[target.index]) == 1))
    return single


def defenses_of(problem: AttackProblem, clients: Sequence[int]) -> list[Rehearsal | None]:
    """Return clients' defenses of the attacked round, on rows; None for clients of whom nothing is known."""
    rounds = {target.client: target.round for target in problem.targets}
    last = max(rounds.values())
    return [problem.knowledge.defended.get((rounds.get(client, last), client)) for client in clients]


def pairs(
    extractors: Sequence[Callable[[Tensor], Tensor]], images: Tensor, seed: int, labels: Tensor | None = None
) -> tuple[Pairs, Pairs]:
    """Return the pairs of images ``(n, c, h, w)`` that a decoder is trained on, and those held out of them."""
    features = [represented(extractor, images, images.device) for extractor in extractors]
    return divided(Pairs(features, images, labels), seed)


def through_defenses(known: Pairs, defended: Sequence[Rehearsal | None], seed: int) -> Pairs:
    """Return pairs of K extractors whose representations went through K defenses, several times where these draw."""
    if all(defend is None for defend in defended) or not len(known.images):
        return known
    times = max(1, min(_TIMES, _DRAWN_ROWS // len(known.images)))
    drawn = [
        [rows if defend is None else defend(rows, derive_seed(seed, index, time)) for time in range(times)]
        for index, (rows, defend) in enumerate(zip(known.features, defended, strict=True))
    ]
    if all(torch.equal(of_client[0], other) for of_client in drawn for other in of_client[1:]):
        return replace(known, features=[of_client[0] for of_client in drawn])
    again = known.of(torch.arange(len(known.images), device=known.images.device).repeat(times))
    return replace(again, features=[torch.cat(of_client) for of_client in drawn])


def divided(known: Pairs, seed: int) -> tuple[Pairs, Pairs]:
    """Return the pairs that a decoder is trained on, and those held out of them, which ``seed`` draws."""
    order = torch.randperm(len(known.images), generator=generator(seed, "held out")).to(known.images.device)
    kept = max(1, len(order) // _HELD_OUT)
    return known.of(order[kept:]), known.of(order[:kept])
