"""Inversion by a trained decoder: one forward pass a target, once a network has learned to invert the extractors.

The attacker computes g_k(a) of auxiliary images by every client's extractor, and trains D to give a back: min sum_k
||D_k(g_k(a)) - a||^2. It needs no gradient through g_k. Where clients defend what they upload, D_k learns from g_k(a) as
the same defenses would have sent it. With z standardised,

    D_k(z, y) = m + m_y + W_k (z - z_y) + B(relu(V_k z + v_k)),

m being the mean image, and m_y and z_y the means of class y beyond those of all. The readouts W_k come from ridge
regression; V_k, v_k and the body B, two linear layers that all extractors share, are trained by Adam on what the readouts
leave over. A decoded image of one image's representation is then fitted to it, as far as that was seen to help.

Source: Dosovitskiy and Brox, "Inverting visual representations with convolutional networks" (CVPR 2016).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cosine_similarity, normalize

from fedpriv.attacks.contract import Attack, AttackProblem, Objective, Same
from fedpriv.attacks.inputs.outputs import DISTANCES, Match
from fedpriv.attacks.inputs.targets import OwnExtractors, observation_of, represented, require_extractors
from fedpriv.attacks.inversion.vector import FITS, uploaded_vectors, vector_distance
from fedpriv.attacks.observation import Cost, Needs, Reconstruction, Rehearsal, Stages, ThreatModel
from fedpriv.attacks.priors.spectral import (
    Frame,
    PixelPrior,
    SpectralPrior,
    centres_of,
    has_own_images,
    has_spectrum,
    images_to_train_on,
    spectrum_for,
)
from fedpriv.attacks.search.fit import Adam, Fitted, Prior, Schedule, fit
from fedpriv.uploads.kinds import OF_IMAGES, SEPARATE
from fedpriv.uploads.payloads import Prototypes
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import Last, derive_seed, generator, global_seed

TRIED, _THROUGH, _HELD_OUT = 6, 8, 10
"""Held-out images on which it is learned what a fit is worth, and extractors through which, at most; every so manieth image
is held out."""

_TIMES, _DRAWN_ROWS = 8, 4000
"""Times that an image is shown behind a defense that draws, at most, and rows of a client from which there are fewer."""

_RATE, _PIXEL_RATE, _FULL, _LONGER = 0.3, 0.02, 300, 1.5
"""First step sizes of Adam in fitting, over coordinates and over pixels, which fall to zero along half a cosine; steps from
which on a fit over coordinates takes its full one; steps of a fit for each step of training, where nobody says how many."""

_FOUND, _WORTHLESS, _ALIKE = 1e-4, 0.05, 0.99
"""Relative feature distance plus penalties below which a fit ends; worth of a fit below which there is none; cosine of rows
of one direction, and share of a length below which it was shortened."""

_LEARNING_RATE, _BATCH, _TOGETHER, _PATIENCE, _CHECK_EVERY = 2e-3, 32, 320, 60, 20
"""Adam's step size, pairs a step and extractor at most, and of all extractors together, steps without a better held-out
error after which training ends, and steps between two looks at it."""

_WIDEST, _ITERATIONS, _BESIDE = 1024, 2, 2.0
"""Numbers of a representation that a decoder reads; products by which the subspace of a wider one is found; images of no
class in particular that the mean of a class is taken with."""

_PENALTIES = tuple(10.0**power for power in (-4, -3, -2, -1, 0, 1))
"""Ridge penalties that are tried, in units of the mean eigenvalue of the second moments."""


@dataclass(frozen=True, kw_only=True)
class DecoderInversion(Attack):
    """Train one decoder for all clients' extractors, then decode the vectors of the targets.

    It is trained once for a run. Vectors that the upload says are of one image are then fitted, where the client's own
    extractor is granted: from the mean image of several a fit leads away. How far to go towards the fitted image, and
    what of a defended vector to believe, is learned on held-out images of the attacker's own. Coordinates of the images'
    spectrum are fitted (:mod:`fedpriv.attacks.priors.spectral`), around the middle between the decoded image and the class
    mean of the attacker's own, or around the decoded one where these are foreign; pixels of images below 16 x 16.

    Attributes:
        refine_steps: of the fit; 0 for none, None for one and a half times ``iterations``.
        iterations: most training steps of a decoder.
        width: outputs of each client's input layer; the body is twice as wide.
    """

    refine_steps: Annotated[int, Ge(0)] | None = None
    iterations: Annotated[int, Ge(1)] = 400
    width: Annotated[int, Ge(16)] = 256

    name = "decoder"
    summary = "one pass of a network that learned on the attacker's own images to invert all clients' extractors"
    version = 9
    targets = SEPARATE
    unit = "upload"
    budget = "iterations"
    needs = Needs(extractor=("white_box", "query", "shadow"), attacker_data=("same_domain",))

    def trains(self, card: ThreatModel) -> str:
        """Return its name: a decoder serves all attacks that decode."""
        return self.name

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Train a decoder unless there is one, decode, and go as far towards fitted images as helps.

        An image has converged if its decoder has, or if the fitted one fits. Refuses missing extractors, images and targets.
        """
        targets, device = problem.targets, problem.device
        require_extractors(problem.knowledge, targets)
        vectors = uploaded_vectors(problem)
        fitted_to = self._fitted_to(problem)
        steps_each = [self.iterations] + [self._steps] * (2 * bool(fitted_to))
        stages = Stages(problem.progress, steps_each)
        slots, decoder = self._trained(replace(problem, progress=stages.of(0)))
        labels = torch.tensor([target.label for target in targets], device=device)
        owners = torch.tensor([target.client for target in targets])
        images = vectors.new_zeros((len(targets), *problem.knowledge.image_shape))
        for client in problem.clients:
            rows = (owners == client).nonzero().flatten().to(device)
            images[rows] = decoder(vectors[rows], slots[client], labels[rows])

        @torch.no_grad()
        def distances(places: Tensor, match: Match) -> Tensor:
            return vector_distance(problem, match)(images[places.to(device), None], places)

        if fitted_to:
            self._learned(replace(problem, progress=stages.of(1)))
        objective, fits, steps = distances(torch.arange(len(targets)), "vector"), self._fits(problem), 0
        converged = torch.full_like(objective, decoder.settled, dtype=torch.bool)
        problem = replace(problem, progress=stages.of(len(steps_each) - 1))
        matches = sorted({each.match for each in fits if each.share})
        parts = Stages(problem.progress, [self._steps] * len(matches))
        for part, match in enumerate(matches):
            places = torch.tensor([index for index, each in enumerate(fits) if each.share and each.match == match])
            some = places.to(device)
            chosen = [fits[index] for index in places.tolist()]
            shares = torch.tensor([each.share for each in chosen], device=device)
            longer = torch.tensor([each.longer for each in chosen], device=device)
            within = replace(problem, progress=parts.of(part))
            fitted = self._refined(within, images[some], vectors[some], owners[places], labels[some], match, longer)
            images[some] = torch.lerp(images[some], fitted.images, shares.view(-1, 1, 1, 1))
            objective[some] = distances(places, match)
            converged[some] |= fitted.converged
            steps = max(steps, fitted.iterations)
        return Reconstruction(
            targets=targets,
            images=images.unsqueeze(1),
            objective=objective.unsqueeze(1),
            labels=labels.unsqueeze(1),
            cost=Cost(iterations=decoder.steps + steps, rows=len(targets), evaluations=steps),
            converged=converged,
            features=vectors,
        )

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the distance of images' representations to what is believed of the uploaded vectors; queries are enough."""
        believed = [each.match for each in self._fits(problem)]
        distances = {match: vector_distance(problem, match) for match in dict.fromkeys(believed)}

        def distance(images: Tensor) -> Tensor:
            values = images.new_zeros(len(images))
            for match, apart in distances.items():
                places = torch.tensor([index for index, other in enumerate(believed) if other == match])
                there = places.to(images.device)
                values[there] = apart(images[there], places)
            return values

        return distance

    def _auxiliary(self, problem: AttackProblem) -> Pairs:
        """Return the attacker's images, with classes where those of all targets are known as well."""
        images, labels = images_to_train_on(self.name, problem.knowledge), problem.knowledge.public_labels
        known = labels is not None and bool((labels >= 0).all()) and min(each.label for each in problem.targets) >= 0
        return Pairs([], images.to(problem.device), labels.to(problem.device) if known and labels is not None else None)

    def _trained(self, problem: AttackProblem) -> tuple[dict[int, int], Decoder]:
        """Return the place of each client's extractor, and the decoder of all places, trained once for all attacks.

        Clients whose extractors and defenses are the same have one place.
        """
        extractors, known, seed = problem.knowledge.extractors, self._auxiliary(problem), decoder_seed(problem)
        images, everyone = images_to_train_on(self.name, problem.knowledge), sorted(extractors)
        pairs = [(extractors[k], guard) for k, guard in zip(everyone, defenses_of(problem, everyone), strict=True)]
        keys = [(Same(extractor), Same(guard)) for extractor, guard in pairs]
        distinct = dict(zip(keys, pairs, strict=True))
        number = {key: place for place, key in enumerate(distinct)}
        parts = (*distinct, Same(images))
        key = ("decoder", self.iterations, self.width, seed, parts, problem.device, known.labels is None)

        def tick(done: int) -> None:
            if problem.progress is not None:
                problem.progress(done, self.iterations)

        def train() -> Decoder:
            defended = [guard for _, guard in distinct.values()]
            features = [represented(each, images, problem.device, problem.trained) for each, _ in distinct.values()]
            inside, outside = divided(replace(known, features=features), seed)
            inside = through_defenses(inside, defended, derive_seed(seed, "defended"))
            outside = through_defenses(outside, defended, derive_seed(seed, "defended, held out"))
            return train_decoder(inside, outside, self.iterations, self.width, seed, tick)

        decoder = problem.trained.get(key, train)
        return {k: number[key] for k, key in zip(everyone, keys, strict=True)}, decoder

    @property
    def _steps(self) -> int:
        return int(_LONGER * self.iterations) if self.refine_steps is None else self.refine_steps

    def _fitted_to(self, problem: AttackProblem) -> list[int]:
        """Return the numbers of the targets whose vectors the uploads say are of one image, where fits are possible."""
        if not self._steps or problem.knowledge.card.extractor != "white_box":
            return []
        numbers = []
        for index, target in enumerate(problem.targets):
            payload = SEPARATE.first(observation_of(problem.observations, target).upload)
            counts = payload.counts if isinstance(payload, Prototypes) else None
            of_image = payload is not None and payload.kind in OF_IMAGES
            if of_image or (counts is not None and int(counts[target.index]) == 1):
                numbers.append(index)
        return numbers

    def _fits(self, problem: AttackProblem) -> list[LearnedFit]:
        """Return of each target what of its vector is believed, and how far to go from the decoded image to the fitted."""
        fits = [LearnedFit("vector", 0.0)] * len(problem.targets)
        for index in self._fitted_to(problem):
            fits[index] = self._learned(problem)
        return fits

    def _learned(self, problem: AttackProblem) -> LearnedFit:
        """Return the fit that is learned, once, on the attacker's own images through the extractors of some clients."""
        slots, decoder = self._trained(problem)
        differing = sorted({slot: client for client, slot in slots.items()}.values())
        number = min(_THROUGH, len(differing))
        clients = [differing[place * len(differing) // number] for place in range(number)]
        extractors, seed = [problem.knowledge.extractors[client] for client in clients], decoder_seed(problem)
        defended = defenses_of(problem, clients)

        def learn() -> LearnedFit:
            kept, longer = divided(self._auxiliary(problem), seed)[1], 1.0
            known = kept.of(torch.arange(min(TRIED, len(kept.images)), device=kept.images.device))
            draws = derive_seed(seed, "worth")
            with torch.no_grad():
                plain = [extractor(known.images) for extractor in extractors]
                rows = [guard(part, draws) for guard, part in zip(defended, plain, strict=True)]
                parts = [decoder(part, slots[k], known.labels) for part, k in zip(rows, clients, strict=True)]
                every, sent, decoded = map(torch.cat, (plain, rows, parts))
                tried = matches_for(every, sent)
                if "direction" in tried:
                    again = [extractor(part) for extractor, part in zip(extractors, parts, strict=True)]
                    longer = float(every.norm(dim=1).sum() / torch.cat(again).norm(dim=1).sum().clamp_min(1e-12))
            owners = torch.tensor(clients).repeat_interleave(len(known.images))
            labels = None if known.labels is None else known.labels.repeat(number)
            fitted: dict[Match, Tensor] = {}
            stages, times = Stages(problem.progress, [self._steps] * len(tried)), torch.full((len(owners),), longer)
            for stage, match in enumerate(tried):
                within = replace(problem, progress=stages.of(stage))
                fitted[match] = self._refined(within, decoded, sent, owners, labels, match, times).images
            return learned_fit(decoded, fitted, known.images.repeat(number, 1, 1, 1), longer)

        through = (*map(Same, extractors), *map(Same, defended))
        key = ("worth", self._steps, seed, Same(decoder), Same(problem.knowledge.public_images), through)
        return problem.trained.get(key, learn)

    def _refined(
        self,
        problem: AttackProblem,
        decoded: Tensor,
        vectors: Tensor,
        owners: Tensor,
        labels: Tensor | None,
        match: Match,
        longer: Tensor,
    ) -> Fitted:
        """Return decoded images ``(N, c, h, w)`` after Adam's steps towards their vectors ``(N, d)``, under a penalty.

        If directions alone are believed, vectors get the lengths of the first images' ones times ``longer`` ``(N,)``:
        directions leave an image's contrast open, and a penalty takes it away.
        """
        extracted, steps = OwnExtractors(problem.knowledge), self._steps
        if match == "direction":
            with torch.no_grad():
                lengths = extracted(decoded, owners).norm(dim=1) * longer.to(vectors)
            vectors, match = lengths[:, None] * normalize(vectors, dim=1), "vector"
        prior: Prior
        if has_spectrum(problem.knowledge.image_shape):
            centres = decoded
            if has_own_images(problem.knowledge):  # class means of the decoder's training images alone
                inside = divided(self._auxiliary(problem), decoder_seed(problem))[0]
                wanted = torch.full((len(decoded),), -1, device=decoded.device) if labels is None else labels
                centres = (centres_of(inside.images, inside.labels, wanted) + decoded) / 2
            spectrum = spectrum_for(problem.knowledge, problem.trained).to(decoded.device)
            frame = Frame(centres.unsqueeze(1), spectrum)
            prior = SpectralPrior(frame.points(decoded.unsqueeze(1))[:, 0], frame)
            rate = _RATE * math.sqrt(min(1.0, steps / _FULL))
        else:
            prior, rate = PixelPrior(decoded), _PIXEL_RATE

        @Last
        def goals(which: Tensor) -> tuple[Tensor, Tensor]:
            return owners[which], vectors[which.to(vectors.device)]

        def distance(images: Tensor, which: Tensor) -> Tensor:
            mine, goal = goals(which)
            return DISTANCES[match](extracted(images, mine), goal)

        schedule = Schedule(steps, rate, anneal=True, tolerance=_FOUND, patience=steps, fits=FITS)
        tell = problem.progress or (lambda done, planned: None)
        fitted = fit(prior, distance, schedule, lambda step: tell(step, steps))
        return replace(fitted, images=fitted.images.detach(), objective=fitted.objective.detach())


@dataclass(frozen=True)
class LearnedFit:
    """A fit that is learned through clients' extractors and defenses."""

    match: Match  # what of a vector it is best to believe
    share: float  # how far to go from the decoded to the fitted image, in [0, 1]; 0 fits none
    longer: float = 1.0  # lengths of images' representations over those of decoded ones, if lengths are not believed


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

    >>> zeros, ones = torch.zeros(2, 1, 2, 2), torch.ones(2, 1, 2, 2)
    >>> worth(zeros, ones, 0.25 * ones), worth(zeros, ones, -ones), worth(zeros, zeros, ones)
    (0.25, 0.0, 0.0)
    """
    step = fitted - decoded
    share = float((step * (true - decoded)).sum() / step.square().sum().clamp_min(1e-12))
    return min(1.0, max(0.0, share))


def undefended(rows: Tensor, seed: int) -> Tensor:
    """Return rows as they are."""
    return rows


def defenses_of(problem: AttackProblem, clients: Sequence[int]) -> list[Rehearsal]:
    """Return clients' defenses of the attacked round, on rows; none for clients of whom nothing is known."""
    rounds = {target.client: target.round for target in problem.targets}
    last = max(rounds.values())
    return [problem.knowledge.defended.get((rounds.get(client, last), client), undefended) for client in clients]


@dataclass(frozen=True)
class Pairs:
    """Representations and the images that they should become."""

    features: Sequence[Tensor]  # (n, d_k) for each of K extractors; widths may differ
    images: Tensor  # (n, c, h, w) in [0, 1]
    labels: Tensor | None = None  # (n,) int64 classes of the images, where a decoder is given those of its targets

    def of(self, rows: Tensor) -> Pairs:
        """Return those of some rows (int64 positions)."""
        labels = None if self.labels is None else self.labels[rows]
        return Pairs([part[rows] for part in self.features], self.images[rows], labels)


def decoder_seed(problem: AttackProblem) -> int:
    """Return the seed of a run's decoder, which also draws the images held out of it."""
    return derive_seed(problem.seed, "decoder", 0)


def divided(known: Pairs, seed: int) -> tuple[Pairs, Pairs]:
    """Return the pairs that a decoder is trained on, and those held out of them, which ``seed`` draws."""
    order = torch.randperm(len(known.images), generator=generator(seed, "held out")).to(known.images.device)
    kept = max(1, len(order) // _HELD_OUT)
    return known.of(order[kept:]), known.of(order[:kept])


def through_defenses(known: Pairs, defended: Sequence[Rehearsal], seed: int) -> Pairs:
    """Return pairs of K extractors whose representations went through K defenses, several times where these draw."""
    times = range(max(1, min(_TIMES, _DRAWN_ROWS // len(known.images))))
    pairs = enumerate(zip(known.features, defended, strict=True))
    drawn = [[defend(rows, derive_seed(seed, index, time)) for time in times] for index, (rows, defend) in pairs]
    if all(torch.equal(of_client[0], other) for of_client in drawn for other in of_client[1:]):
        return replace(known, features=[of_client[0] for of_client in drawn])
    again = known.of(torch.arange(len(known.images), device=known.images.device).repeat(len(times)))
    return replace(again, features=[torch.cat(of_client) for of_client in drawn])


class _Network(nn.Module):
    """Entries, one an extractor, and the body behind them; starts as zero everywhere."""

    def __init__(self, extractors: int, width_in: int, width: int, pixels: int) -> None:
        super().__init__()
        self.entry = nn.Parameter(torch.randn(extractors, width_in, width) / math.sqrt(width_in))
        self.shift = nn.Parameter(torch.zeros(extractors, 1, width))
        self.body = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, pixels))
        for value in self.body[2].parameters():
            nn.init.zeros_(value)

    def forward(self, scaled: Tensor, which: slice) -> Tensor:
        """Return the correction ``(K, n, pixels)`` for representations ``(K, n, d)`` of the extractors ``which``."""
        correction: Tensor = self.body(torch.baddbmm(self.shift[which], scaled, self.entry[which]).relu())
        return correction


@dataclass(frozen=True)
class ClassMeans:
    """Means by class beyond those of all, of images ``(C + 1, pixels)`` and codes ``(K, C + 1, m)``; zero of no class."""

    images: Tensor
    codes: Tensor

    @classmethod
    def of(cls, labels: Tensor | None, wanted: Tensor, known: Tensor) -> ClassMeans:
        """Return the means of images ``(n, pixels)`` and codes ``(K, n, m)``, each class with a few of no class."""
        member = wanted[:, :0] if labels is None else functional.one_hot(labels).to(wanted.dtype)
        shares = (member / (member.sum(0) + _BESIDE)).T
        return cls(functional.pad(shares @ wanted, (0, 0, 0, 1)), functional.pad(shares @ known, (0, 0, 0, 1)))

    def rows(self, labels: Tensor | None, number: int) -> Tensor:
        """Return the row of each class ``(n,)``; the last for -1 and for classes of which there were no images."""
        last = len(self.images) - 1
        if labels is None:
            return torch.full((number,), last, device=self.images.device)
        return torch.where((labels >= 0) & (labels < last), labels, last)


@dataclass(frozen=True)
class Decoder:
    """A trained decoder of K extractors; those of less width are filled up with zeros."""

    network: _Network
    readout: Tensor  # (K, m, pixels) of codes
    mean_image: Tensor  # (pixels,)
    mean: Tensor  # (K, 1, d) of the training representations
    spread: Tensor  # (K, 1, d)
    basis: Tensor | None  # (K, d, m) leading directions of wide representations; None where codes are all d numbers
    classes: ClassMeans
    image_shape: torch.Size
    settled: bool  # whether training ended by its own rule before the steps were used up
    steps: int

    @torch.no_grad()
    def __call__(self, features: Tensor, extractor: int, labels: Tensor | None = None) -> Tensor:
        """Return the images ``(n, c, h, w)`` in [0, 1] of the k-th extractor's ``(n, d_k)``; labels are -1 for none."""
        which = slice(extractor, extractor + 1)
        code = (_filled(features[None], self.mean.shape[2]) - self.mean[which]) / self.spread[which]
        code = code if self.basis is None else code @ self.basis[which]
        rows = self.classes.rows(labels, len(features))
        linear = (code - self.classes.codes[which, rows]) @ self.readout[which]
        flat = self.mean_image + self.classes.images[rows] + linear + self.network(code, which)
        images: Tensor = flat[0].clamp(0, 1).reshape(-1, *self.image_shape)
        return images


def train_decoder(
    inside: Pairs, outside: Pairs, iterations: int, width: int, seed: int, tick: Callable[[int], None] | None = None
) -> Decoder:
    """Train one decoder for several extractors; penalties and the moment to stop are chosen on the pairs ``outside``."""
    widest = max(part.shape[1] for part in inside.features)
    known, kept = (torch.stack([_filled(part, widest) for part in pairs.features]) for pairs in (inside, outside))
    mean, spread = known.mean(1, keepdim=True), known.std(1, keepdim=True)
    # A representation may be dead in some coordinates on all of the attacker's images, but alive on the target.
    spread = spread.clamp_min(0.1 * spread.mean(2, keepdim=True).clamp_min(1e-6))
    known, kept = (known - mean) / spread, (kept - mean) / spread
    basis = _leading(known, generator(seed, "leading")) if widest > _WIDEST else None
    if basis is not None:
        known, kept = known @ basis, kept @ basis
    mean_image = inside.images.flatten(1).mean(0)
    wanted, unseen = (pairs.images.flatten(1) - mean_image for pairs in (inside, outside))
    classes = ClassMeans.of(inside.labels, wanted, known)
    rows, rows_kept = (classes.rows(pairs.labels, len(pairs.images)) for pairs in (inside, outside))
    wanted, unseen = wanted - classes.images[rows], unseen - classes.images[rows_kept]
    apart, apart_kept = known - classes.codes[:, rows], kept - classes.codes[:, rows_kept]
    readout = torch.stack([_ridge(z, wanted, h, unseen) for z, h in zip(apart, apart_kept, strict=True)])
    left, left_unseen = wanted - apart @ readout, unseen - apart_kept @ readout
    with global_seed(derive_seed(seed, "decoder weights")):
        network = _Network(len(known), known.shape[2], width, wanted.shape[1]).to(known.device)
    optimiser = Adam(network.parameters(), _LEARNING_RATE, weight_decay=1e-2, fused=True)
    draws = generator(seed, "pairs")
    everyone, each = slice(None), torch.arange(len(known), device=known.device)[:, None]
    size = max(1, min(_BATCH, _TOGETHER // len(known)))
    best, lowest, best_at, step = copy.deepcopy(network.state_dict()), float(left_unseen.square().mean()), 0, 0
    while step < iterations and step - best_at < _PATIENCE:
        drawn = torch.randint(known.shape[1], (len(known), size), generator=draws).to(known.device)
        optimiser.descend(functional.mse_loss(network(known[each, drawn], everyone), left[each, drawn]))
        step += 1
        if step % _CHECK_EVERY == 0 or step == iterations:
            with torch.no_grad():
                error = float(functional.mse_loss(network(kept, everyone), left_unseen))
            if error < lowest:
                best, lowest, best_at = copy.deepcopy(network.state_dict()), error, step
            if tick is not None:
                tick(step)
    network.load_state_dict(best)
    settled, shape = step < iterations, inside.images.shape[1:]
    network.requires_grad_(False)
    return Decoder(network, readout, mean_image, mean, spread, basis, classes, shape, settled, step)


def _leading(known: Tensor, rng: torch.Generator) -> Tensor:
    """Return orthogonal directions ``(K, d, m)``, by subspace iteration, in which rows ``(K, n, d)`` vary most."""
    several, rows, width = known.shape
    number = min(_WIDEST, rows)
    result = torch.randn(several, width, number, generator=rng).to(known)
    for _ in range(_ITERATIONS):
        result = torch.linalg.qr(known.mT @ (known @ result)).Q
    directions: Tensor = result * math.sqrt(number / width)
    return directions


def _ridge(known: Tensor, wanted: Tensor, kept: Tensor, unseen: Tensor) -> Tensor:
    """Return the readout ``(d, pixels)`` of the penalty that does best on the held-out pairs."""
    gram = known.T @ known
    if not bool(gram.isfinite().all()):
        raise UserError("a decoder got representations of the attacker's own images that are not finite")
    try:
        values, vectors = torch.linalg.eigh(gram)
    except RuntimeError:  # of which its LinAlgError is one
        values = torch.full_like(gram[0], torch.nan)
    # Equal eigenvalues do not always come out in single precision, and no error may tell.
    if not bool(values.isfinite().all()):
        values, vectors = (part.to(gram.dtype) for part in torch.linalg.eigh(gram.double()))
    values, moments = values.clamp_min(0)[:, None], vectors.T @ (known.T @ wanted)
    scale = values.mean().clamp_min(1e-12)
    results = [vectors @ (moments / (values + penalty * scale)) for penalty in _PENALTIES]
    errors = [float((kept @ item - unseen).square().mean()) for item in results]
    best: Tensor = results[errors.index(min(errors))]
    return best


def _filled(features: Tensor, width: int) -> Tensor:
    return functional.pad(features, (0, width - features.shape[-1]))
