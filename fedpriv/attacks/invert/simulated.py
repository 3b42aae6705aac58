"""Inversion without the extractor: simulators stand in for it, and what they have in common is decoded.

Several simulators (:mod:`fedpriv.attacks.invert.simulator`) are trained on what a client uploaded, and a decoder for all of
them. An image is the mean of what the uploaded vector decodes to as each one's. How far it may be trusted is learned from
the simulators alone: each in turn plays the private extractor on held-out images, the others' decoders answer, and
least squares gives the share of the way from the mean image of the class to the decoded one that is worth going.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.inputs.targets import observation_of
from fedpriv.attacks.invert.decoder import LEAST_IMAGES, divided, pairs
from fedpriv.attacks.invert.decoder_network import Decoder, DecoderTraining, Pairs, train_decoder
from fedpriv.attacks.invert.simulator import (
    Answers,
    SimulatorNetwork,
    SimulatorTraining,
    simulator_network,
    train_simulator,
)
from fedpriv.attacks.observation import Cost, Needs, Reconstruction
from fedpriv.attacks.optim.objectives import relative_feature_distance
from fedpriv.attacks.trained import Same
from fedpriv.datasets.types import Samples
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed
from fedpriv.wire.kinds import OF_IMAGES
from fedpriv.wire.payloads import Classifier, Representations, find_payload

Tick = Callable[[int], None]
Head = Callable[[Tensor], Tensor]

_BODY = DecoderTraining(2000, 2e-3, 32, 256)
"""The training of the decoder, as the attack ``decoder`` has it, with steps enough to end by its own rule."""


@dataclass(frozen=True)
class Substitutes:
    """Trained simulators of one client's extractor, and what decodes them.

    Attributes:
        simulators: from images ``(n, c, h, w)`` to representations ``(n, d)``.
        decoder: of as many extractors.
        means: ``(C, c, h, w)`` mean image of each class, over the attacker's images.
        worth: share in [0, 1] of the way from a class's mean image to the decoded one.
    """

    simulators: tuple[SimulatorNetwork, ...]
    decoder: Decoder
    means: Tensor
    worth: float

    def images(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Return images ``(n, c, h, w)`` in [0, 1] of uploaded vectors ``(n, d)`` of classes ``(n,)``."""
        return torch.lerp(self.means[labels], _decoded(self.decoder, vectors, range(len(self.simulators))), self.worth)

    def distance(self, images: Tensor, vectors: Tensor) -> Tensor:
        """Return the relative feature distance ``(n,)`` of images from vectors, the mean over the simulators."""
        with torch.no_grad():
            apart = [relative_feature_distance(one(images), vectors) for one in self.simulators]
        return torch.stack(apart).mean(0)


@dataclass(frozen=True, kw_only=True)
class SimulatedInversion(Attack):
    """Decode uploaded representations by what was learned of their extractor from them alone.

    Attributes:
        iterations: training steps of a simulator.
        simulators: simulators of each client's extractor; two at least, since each is held to what the others decode.
        learning_rate: Adam's step size.
        batch_size: uploaded vectors, and images of the attacker's own, a step.
        matching: weight of the discrepancy of distributions beside the cross-entropy of the head that was sent.
    """

    iterations: Annotated[int, Ge(1)] = 600
    simulators: Annotated[int, Ge(2)] = 3
    learning_rate: Annotated[float, Gt(0)] = 1e-3
    batch_size: Annotated[int, Ge(2)] = 128
    matching: Annotated[float, Ge(0)] = 100.0

    name = "simulator"
    summary = "an image by networks that learned to answer as a private extractor was seen to answer"
    targets = OF_IMAGES
    unit = "upload"
    budget = "iterations"
    needs = Needs(extractor=("none",), attacker_data=("same_domain",))

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Train each client's simulators and their decoder, and decode.

        Raises:
            UserError: when the attacker has too few labelled images of a client's classes, too few representations were
                uploaded, or a target is not there.
        """
        targets, device = problem.targets, problem.device
        images = torch.zeros(len(targets), *problem.knowledge.image_shape, device=device)
        vectors: list[Tensor] = []
        objective = torch.zeros(len(targets), 1, device=device)
        settled = torch.zeros(len(targets), dtype=torch.bool, device=device)
        labels = torch.zeros(len(targets), 1, dtype=torch.int64, device=device)
        for place, target in enumerate(targets):
            sent, there = self._sent(problem, place), self._trained(problem, place)
            if not 0 <= target.index < len(sent.features):
                raise UserError(f"attack {self.name!r}: client {target.client} uploaded no row {target.index}")
            vector, label = sent.features[target.index][None].to(device), sent.labels[target.index][None].to(device)
            images[place], labels[place] = there.images(vector, label)[0], label
            objective[place] = there.distance(images[place][None], vector)
            settled[place] = there.decoder.settled
            vectors.append(vector[0])
        return Reconstruction(
            targets=targets,
            images=images.unsqueeze(1),
            objective=objective,
            chosen=torch.zeros(len(targets), dtype=torch.int64, device=device),
            labels=labels,
            cost=Cost(iterations=self.iterations, rows=len(targets)),
            converged=settled,
            features=torch.stack(vectors),
        )

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the distance of images' simulated representations to the uploaded vectors, the mean over simulators."""

        def apart(images: Tensor) -> Tensor:
            found = []
            for place, (target, each) in enumerate(zip(problem.targets, images, strict=True)):
                vector = self._sent(problem, place).features[target.index][None].to(each.device)
                found.append(self._trained(problem, place).distance(each[:1], vector)[0])
            return torch.stack(found)

        return apart

    def caveat(self, problem: AttackProblem) -> str:
        """Return why the true images need not fit best."""
        return "what images are fitted through is learned, not the client's own extractor"

    def _sent(self, problem: AttackProblem, place: int) -> Representations:
        target = problem.targets[place]
        found = find_payload(observation_of(problem.observations, target).upload, Representations)
        if found is None:
            raise UserError(f"attack {self.name!r}: client {target.client} uploaded no representations of images")
        return found

    def _trained(self, problem: AttackProblem, place: int) -> Substitutes:
        """Return the simulators of a target's client, trained once for its upload."""
        target, sent, knowledge = problem.targets[place], self._sent(problem, place), problem.knowledge
        if knowledge.public_images is None or knowledge.public_labels is None:
            raise UserError(
                f"attack {self.name!r} needs labelled images of the clients' domain (train the run with "
                f"{argument('strangers', 0.5)})"
            )
        seed = derive_seed(problem.seed, "simulator", target.client)
        training = SimulatorTraining(self.iterations, self.batch_size, self.learning_rate, self.matching)
        key = ("simulators", self.simulators, training, seed, Same(sent.features), Same(knowledge.public_images))
        turn, all_turns = problem.clients.index(target.client), len(problem.clients)

        def tick(done: int) -> None:
            if problem.progress is not None:
                each = self.simulators * self.iterations
                problem.progress(turn * each + done, all_turns * each)

        def train() -> Substitutes:
            assert knowledge.public_images is not None
            assert knowledge.public_labels is not None
            own = Samples(knowledge.public_images.to(problem.device), knowledge.public_labels.to(problem.device))
            seen = observation_of(problem.observations, target)
            head = find_payload(seen.upload, Classifier) or find_payload(seen.broadcast, Classifier)
            answers = Answers(
                sent.features.to(problem.device),
                sent.labels.to(problem.device),
                _linear(head, sent.features.shape[1], problem.device),
            )
            return self._train(answers, own, knowledge.n_classes, training, seed, tick)

        return problem.trained.get(key, train)

    def _train(
        self, answers: Answers, own: Samples, n_classes: int, training: SimulatorTraining, seed: int, tick: Tick
    ) -> Substitutes:
        assert answers.labels is not None
        # Of other classes nothing was seen: what a simulator makes of their images, no decoder should learn from.
        alike = torch.isin(own.labels, answers.labels)
        if int(alike.sum()) < LEAST_IMAGES:
            raise UserError(
                f"attack {self.name!r}: the attacker has {int(alike.sum())} images of a client's classes; expected at "
                f"least {LEAST_IMAGES} (set more strangers aside)"
            )
        near = Samples(own.images[alike], own.labels[alike])
        simulators = tuple(simulator_network(answers, own, seed, number) for number in range(self.simulators))
        for number, network in enumerate(simulators):
            train_simulator(
                network, answers, own, training, derive_seed(seed, "draws", number), _after(number, tick, training)
            )
        inside, outside = pairs(simulators, near.images, seed)
        decoder = train_decoder(inside, outside, _BODY, seed)
        _, held_labels = divided(Pairs([], near.labels), seed)
        known_means = class_means(Samples(inside.images, divided(Pairs([], near.labels), seed)[0].images), n_classes)
        worth = worth_among(decoder, outside, known_means[held_labels.images])
        return Substitutes(simulators, decoder, class_means(near, n_classes), worth)


def class_means(samples: Samples, n_classes: int) -> Tensor:
    """Return the mean image ``(C, c, h, w)`` of each class; of a class without images, that of all."""
    member = functional.one_hot(samples.labels, n_classes).to(samples.images.dtype)
    sums, numbers = torch.tensordot(member.T, samples.images, 1), member.sum(0)
    means: Tensor = torch.where(
        (numbers > 0).view(-1, 1, 1, 1), sums / numbers.clamp_min(1).view(-1, 1, 1, 1), samples.images.mean(0)
    )
    return means


def worth_among(decoder: Decoder, held: Pairs, means: Tensor) -> float:
    """Return the share in [0, 1] of the way from mean images to decoded ones that brings held-out images nearest.

    Each extractor in turn is decoded as if it were each of the others, as a private one is.

    Args:
        decoder: of two or more extractors.
        held: held-out images and their representations by each.
        means: ``(n, c, h, w)`` mean image of each held-out image's class.
    """
    along, squares = 0.0, 0.0
    everyone = range(len(held.features))
    for number, features in enumerate(held.features):
        way = _decoded(decoder, features, [other for other in everyone if other != number]) - means
        along += float((way * (held.images - means)).sum())
        squares += float(way.square().sum())
    return min(1.0, max(0.0, along / squares)) if squares else 0.0


def _decoded(decoder: Decoder, vectors: Tensor, extractors: Sequence[int]) -> Tensor:
    return torch.stack([decoder(vectors, number) for number in extractors]).mean(0)


def _linear(head: Classifier | None, width: int, device: torch.device) -> Head | None:
    """Return a head as a function of representations; None for one of another width (that of a small model)."""
    if head is None or head.state["weight"].shape[1] != width:
        return None
    weight, bias = head.state["weight"].to(device), head.state["bias"].to(device)
    return lambda features: functional.linear(features, weight, bias)


def _after(number: int, tick: Tick, training: SimulatorTraining) -> Tick:
    """Return a tick that counts the steps of the simulators before."""
    return lambda step: tick(number * training.steps + step)
