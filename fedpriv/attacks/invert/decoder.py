"""Inversion by a trained decoder: one forward pass a target, once a network has learned to invert the extractors.

The attacker owns images a of the same domain, computes g_k(a) by every client's extractor, and trains D to give a back:
min sum_k ||D_k(g_k(a)) - a||^2, where the D_k share all but their input layers. It needs no gradient through g_k, so that
answers to queries are enough. A mean of several images' representations asks for their mean image, which the linear part
of D_k gives.

Source: Dosovitskiy and Brox, "Inverting visual representations with convolutional networks" (CVPR 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.invert.decoder_network import Decoder, DecoderTraining, Pairs, train_decoder
from fedpriv.attacks.invert.refining import Aims, of_one_image, refined
from fedpriv.attacks.invert.vector_distance import vector_distance
from fedpriv.attacks.observation import Cost, KnowledgeCard, Needs, Reconstruction
from fedpriv.attacks.read.extractors import require_extractors
from fedpriv.attacks.read.target_features import target_feature
from fedpriv.attacks.trained import Same
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator
from fedpriv.wire.kinds import SEPARATE

LEAST_IMAGES = 16
"""Images of its own below which an attacker has nothing to train on."""

REFINED = 300
"""Steps by which the decoded image of a single image's representation is fitted, where nobody says otherwise."""

_HELD_OUT = 10
"""Every so manieth image is held out of the training."""


@dataclass(frozen=True, kw_only=True)
class DecoderInversion(Attack):
    """Train one decoder for all clients' extractors, then decode the vectors of the targets.

    It is trained once for a run: the control, every budget and every attack that decodes share it.

    Attributes:
        refine: steps of fitting the decoded pixels to the vector afterwards, which needs gradients through the extractor.
            ``auto``: 300 where the client's own extractor is granted and the upload says that the vector is of one image,
            else none: a mean of several is decoded into their mean image, from which a fit to one image leads away.
        restarts: decoders; of each target the image whose representation is nearest to the upload is kept.
        iterations: most training steps of a decoder.
        learning_rate: Adam's step size.
        batch_size: pairs a step and client.
        width: outputs of each client's input layer; see :mod:`fedpriv.attacks.invert.decoder_network`.
        refine_rate: Adam's first step size in fitting.
    """

    refine: Literal["auto"] | Annotated[int, Ge(0)] = "auto"
    restarts: Annotated[int, Ge(1)] = 1
    iterations: Annotated[int, Ge(1)] = 400
    learning_rate: Annotated[float, Gt(0)] = 2e-3
    batch_size: Annotated[int, Ge(2)] = 32
    width: Annotated[int, Ge(16)] = 256
    refine_rate: Annotated[float, Gt(0)] = 0.02

    name = "decoder"
    summary = "one pass of a network that learned on the attacker's own images to invert all clients' extractors"
    version = 3
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
        images = vectors.new_zeros((len(targets), self.restarts, *knowledge.image_shape))
        settled = torch.zeros(len(targets), self.restarts, dtype=torch.bool, device=device)
        steps = 0
        for again in range(self.restarts):
            clients, decoder = self._trained(problem, own, again)
            for client in problem.clients:
                mine = torch.tensor([place for place, target in enumerate(targets) if target.client == client])
                images[mine.to(device), again] = decoder(vectors[mine.to(device)], clients.index(client))
            settled[:, again] = decoder.settled
            steps = max(steps, decoder.steps)
        owners = torch.tensor([target.client for target in targets])
        number = self._refining(problem)
        rows, objective, fits, taken = self._finish(
            images.flatten(0, 1),
            Aims(knowledge, vectors, owners).of(torch.arange(len(targets)).repeat_interleave(self.restarts)),
            number.repeat_interleave(self.restarts),
            problem.seed,
        )
        objective, settled = objective.view(settled.shape), settled | fits.view(settled.shape)
        chosen = objective.nan_to_num(nan=torch.inf).argmin(1)
        here = torch.arange(len(targets), device=device)
        return Reconstruction(
            targets=targets,
            images=rows.view_as(images)[here, chosen].unsqueeze(1),
            objective=objective,
            chosen=chosen,
            labels=torch.tensor([[target.label] for target in targets], device=device),
            cost=Cost(iterations=steps + taken, rows=len(rows)),
            converged=settled[here, chosen],
            features=vectors,
        )

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the distance of images' representations to the uploaded vectors; queries are enough for it."""
        apart, places = vector_distance(problem), torch.arange(len(problem.targets))
        return lambda images: apart(images, places)

    def _trained(self, problem: AttackProblem, own: Tensor, again: int) -> tuple[tuple[int, ...], Decoder]:
        """Return the clients whose extractors were granted, and their decoder, trained once for all that ask."""
        extractors = problem.knowledge.extractors
        clients, seed = tuple(sorted(extractors)), derive_seed(problem.seed, "decoder", again)
        training = DecoderTraining(self.iterations, self.learning_rate, self.batch_size, self.width)
        key = ("decoder", training, seed, clients, *(Same(extractors[k]) for k in clients), Same(own), problem.device)

        def tick(done: int) -> None:
            if problem.progress is not None:
                problem.progress(again * self.iterations + done, self.restarts * self.iterations)

        def train() -> Decoder:
            inside, outside = pairs([extractors[k] for k in clients], own.to(problem.device), seed)
            return train_decoder(inside, outside, training, seed, tick)

        return clients, problem.trained.get(key, train)

    def _refining(self, problem: AttackProblem) -> Tensor:
        """Return the steps ``(T,)`` by which each target's image is fitted; those of one search are all alike, or none."""
        if self.refine != "auto":
            return torch.full((len(problem.targets),), self.refine)
        gradients = problem.knowledge.card.extractor == "white_box"
        return REFINED * gradients * of_one_image(problem.observations, problem.targets)

    def _finish(self, images: Tensor, aims: Aims, steps: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor, int]:
        """Return the images, fitted where that is asked for, their objectives, which of them fit, and the steps taken."""
        objective = aims.distances(images)
        fits = torch.zeros_like(objective, dtype=torch.bool)
        places = steps.nonzero().flatten()
        if not len(places):
            return images, objective, fits, 0
        there = places.to(images.device)
        found = refined(images[there], aims.of(places), int(steps.max()), self.refine_rate, seed)
        images, objective = images.index_copy(0, there, found.images), objective.index_copy(0, there, found.objective)
        return images, objective, fits.index_copy(0, there, found.converged), found.iterations


def pairs(extractors: Sequence[Callable[[Tensor], Tensor]], images: Tensor, seed: int) -> tuple[Pairs, Pairs]:
    """Return the pairs that a decoder is trained on, and those held out of them.

    Args:
        extractors: from images ``(n, c, h, w)`` to representations ``(n, d)``.
        images: ``(n, c, h, w)`` of the attacker's own.
        seed: draws which are held out.
    """
    with torch.no_grad():
        features = [torch.cat([extractor(batch) for batch in images.split(256)]) for extractor in extractors]
    return divided(Pairs(features, images), seed)


def divided(known: Pairs, seed: int) -> tuple[Pairs, Pairs]:
    """Return the pairs that a decoder is trained on, and those held out of them, which ``seed`` draws."""
    order = torch.randperm(len(known.images), generator=generator(seed, "held out")).to(known.images.device)
    held = max(1, len(order) // _HELD_OUT)
    inside, outside = (
        Pairs([part[rows] for part in known.features], known.images[rows]) for rows in (order[held:], order[:held])
    )
    return inside, outside
