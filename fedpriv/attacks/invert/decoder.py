"""Inversion by a trained decoder: one forward pass a target, once a network has learned to invert the extractor.

The attacker owns images a of the same domain, computes g(a), and trains D to give a back: min ||D(g(a)) - a||^2. It needs
no gradient through g, so that answers to queries are enough. A mean of several images' representations asks for their
mean image; where the attacker's images are labelled, means of images of one class are trained on as well.

Source: Dosovitskiy and Brox, "Inverting visual representations with convolutional networks" (CVPR 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.invert.decoder_network import Decoder, DecoderTraining, train_decoder
from fedpriv.attacks.invert.vector_distance import vector_distance
from fedpriv.attacks.observation import Cost, Knowledge, Needs, Observation, Reconstruction, TargetId
from fedpriv.attacks.optim.fitting import Schedule, fit
from fedpriv.attacks.optim.objectives import relative_feature_distance
from fedpriv.attacks.priors.pixels import PixelPrior, PixelSettings
from fedpriv.attacks.read.extractors import represent_rows, require_extractors
from fedpriv.attacks.read.target_features import observation_of, target_feature
from fedpriv.attacks.trained import Same
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator
from fedpriv.wire.kinds import SEPARATE
from fedpriv.wire.payloads import Prototypes, find_payload

LEAST_IMAGES = 16
"""Images of its own below which an attacker has nothing to train on."""

Tick = Callable[[int], None]

_GROUPS = (2, 8)
"""Fewest and most images of one class whose mean is trained on."""


@dataclass(frozen=True, kw_only=True)
class DecoderInversion(Attack):
    """Train a decoder for each attacked client's extractor, then decode the vectors of the targets.

    Attributes:
        iterations: most training steps of a decoder.
        restarts: decoders a client; of each target the image whose representation is nearest to the upload is kept.
        learning_rate: Adam's step size.
        batch_size: pairs a step.
        channels: channels of the decoder's first map.
        refine: steps of fitting the decoded pixels to the vector afterwards; needs gradients through the extractor.
        refine_rate: Adam's first step size in that.
    """

    iterations: Annotated[int, Ge(1)] = 800
    restarts: Annotated[int, Ge(1)] = 1
    learning_rate: Annotated[float, Gt(0)] = 2e-3
    batch_size: Annotated[int, Ge(2)] = 32
    channels: Annotated[int, Ge(16)] = 64
    refine: Annotated[int, Ge(0)] = 0
    refine_rate: Annotated[float, Gt(0)] = 0.02

    name = "decoder"
    summary = "one pass of a network that learned on the attacker's own images to invert the extractor"
    targets = SEPARATE
    unit = "upload"
    budget = "iterations"
    needs = Needs(extractor=("white_box", "query", "shadow"), attacker_data=("same_domain", "other_domain"))

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
                f"{LEAST_IMAGES} (train the run with --public N, or name a larger foreign data set)"
            )
        if self.refine and knowledge.card.extractor == "query":
            raise UserError("attack 'decoder' with refine > 0 needs gradients; expected extractor=white_box or shadow")
        vectors = torch.stack([target_feature(problem.observations, target).to(device) for target in targets])
        clients = sorted({target.client for target in targets})
        planned, steps = self.iterations * self.restarts * len(clients), 0
        images = vectors.new_zeros((len(targets), self.restarts, *knowledge.image_shape))
        settled = torch.zeros(len(targets), self.restarts, dtype=torch.bool)
        for number, client in enumerate(clients):
            mine = torch.tensor([place for place, target in enumerate(targets) if target.client == client])
            means = any(_is_mean(problem.observations, targets[place]) for place in mine.tolist())
            for again in range(self.restarts):
                offset = (number * self.restarts + again) * self.iterations

                def tick(done: int, offset: int = offset) -> None:
                    if problem.progress is not None:
                        problem.progress(offset + done, planned)

                decoder = self._trained(problem, own, client, means, derive_seed(problem.seed, client, again), tick)
                tick(self.iterations)
                images[mine.to(device), again] = decoder(vectors[mine.to(device)])
                settled[mine, again] = decoder.settled
                steps = max(steps, decoder.steps)
        rows = images.flatten(0, 1)
        owners = torch.tensor([target.client for target in targets]).repeat_interleave(self.restarts)
        wanted = vectors.repeat_interleave(self.restarts, 0)
        rows, objective = self._finish(knowledge, rows, wanted, owners, problem.seed, device)
        objective = objective.view(len(targets), self.restarts)
        chosen = objective.nan_to_num(nan=torch.inf).argmin(1)
        here = torch.arange(len(targets), device=device)
        return Reconstruction(
            targets=targets,
            images=rows.view_as(images)[here, chosen].unsqueeze(1),
            objective=objective,
            chosen=chosen,
            labels=torch.tensor([[target.label] for target in targets], device=device),
            cost=Cost(iterations=steps + self.refine, rows=len(rows)),
            converged=settled.to(device)[here, chosen],
            features=vectors,
        )

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the distance of images' representations to the uploaded vectors; queries are enough for it."""
        apart, places = vector_distance(problem), torch.arange(len(problem.targets))
        return lambda images: apart(images, places)

    def _trained(self, problem: AttackProblem, own: Tensor, client: int, means: bool, seed: int, tick: Tick) -> Decoder:
        """Return the decoder of a client's extractor, which is trained once for all that ask for the same."""
        extractor, labels = problem.knowledge.extractors[client], problem.knowledge.public_labels
        training = DecoderTraining(self.iterations, self.learning_rate, self.batch_size, self.channels)
        groups = labels.cpu() if means and labels is not None else None
        key = ("decoder", training, seed, Same(extractor), Same(own), groups is not None, problem.device)

        def train() -> Decoder:
            return _train(extractor, own.to(problem.device), groups, training, seed, tick)

        return problem.trained.get(key, train)

    def _finish(
        self, knowledge: Knowledge, images: Tensor, wanted: Tensor, owners: Tensor, seed: int, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return the images, refined where asked, and their relative feature distance."""

        def distance(candidates: Tensor, which: Tensor) -> Tensor:
            features = represent_rows(knowledge, candidates, owners[which])
            return relative_feature_distance(features, wanted[which.to(device)])

        if not self.refine:
            with torch.no_grad():
                return images, distance(images, torch.arange(len(images)))
        draws = [generator(seed, "refine", row) for row in range(len(images))]
        prior = PixelPrior(draws, knowledge.image_shape, PixelSettings(), device)
        prior.parameters = [images.clone().requires_grad_()]
        schedule = Schedule(self.refine, self.refine_rate, anneal=True)
        fitted = fit(prior, distance, schedule, lambda _: None)
        return fitted.images, fitted.objective


def _train(
    extractor: Callable[[Tensor], Tensor],
    images: Tensor,
    labels: Tensor | None,
    training: DecoderTraining,
    seed: int,
    tick: Tick,
) -> Decoder:
    """Train a decoder on images, and where labels are given on as many means of images of one class."""
    with torch.no_grad():
        features = torch.cat([extractor(batch) for batch in images.split(256)])
    if labels is not None:
        groups = class_groups(labels, len(images), generator(seed, "groups"))
        features = torch.cat([features, *(features[group.to(images.device)].mean(0, keepdim=True) for group in groups)])
        images = torch.cat([images, *(images[group.to(images.device)].mean(0, keepdim=True) for group in groups)])
    return train_decoder(features, images, training, seed, tick)


def class_groups(labels: Tensor, number: int, rng: torch.Generator) -> list[Tensor]:
    """Draw groups of 2 to 8 images of one class, as many as ``number`` where some class has two images.

    Args:
        labels: ``(p,)`` int64.
        number: groups wanted.
        rng: draws class, size and members.

    Returns:
        Positions ``(size,)`` of each group's images, distinct within it.
    """
    classes = [places for c in labels.unique() if len(places := (labels == c).nonzero().flatten()) >= _GROUPS[0]]
    if not classes:
        return []
    groups = []
    for _ in range(number):
        places = classes[int(torch.randint(len(classes), (1,), generator=rng))]
        most = min(_GROUPS[1], len(places))
        size = int(torch.randint(_GROUPS[0], most + 1, (1,), generator=rng))
        groups.append(places[torch.randperm(len(places), generator=rng)[:size]])
    return groups


def _is_mean(observations: Sequence[Observation], target: TargetId) -> bool:
    """Whether a target may be a mean of several images' representations."""
    means = find_payload(observation_of(observations, target).upload, Prototypes)
    return means is not None and (means.counts is None or int(means.counts[target.index]) > 1)
