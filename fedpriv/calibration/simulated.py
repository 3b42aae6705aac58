"""Attacks that are simulated by what they return, so that only scoring and wording run: nulls, and truth plus noise.

A simulated inversion returns images and vectors as good as its upload: what a perfect attack would make of an upload that
carries nothing is drawn from the class, and a leak is the truth with noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedpriv.attacks.inference.base import Asked, Inference, InferenceProblem, Scores
from fedpriv.attacks.observation import Cost, KnowledgeCard, Observation, Reconstruction
from fedpriv.calibration.world import CLASSES, SHAPE, World, raw
from fedpriv.scoring import inference
from fedpriv.scoring.inference_case import InferenceCase
from fedpriv.scoring.records import About, InferenceResult, Provenance, ReconstructionRecord
from fedpriv.scoring.score import score
from fedpriv.util.seeds import generator

INVERSIONS = ("same mean and covariance", "another client's", "another data set's", "the class alone")
"""Nulls of inversion: what a perfect attack makes of an upload that carries nothing."""

GRADES = {"truth": 0.01, "truth + little noise": 0.05, "truth + much noise": 0.15}
"""Leaks by the standard deviation of the noise on the true image, pixels in [0, 1]; of vectors, as a share of their norm,
twice that. The first is what a raw representation gives away."""

SOME = "the truth of some"
"""A leak of every third target, of which the first grade of the truth is returned; of the others, another client's."""

_EVERY = 3


def about(world: World, attack: str, target: str | None = None) -> About:
    """Provenance of a simulated result."""
    return About(
        target=target or world.kind,
        attack=attack,
        method="simulated",
        dataset="simulated",
        knowledge=KnowledgeCard(),
        seed=world.seed,
    )


def inverted(world: World, name: str) -> ReconstructionRecord:
    """The record of a simulated inversion with its control, by its name among :data:`INVERSIONS`, :data:`GRADES` or SOME."""
    if name == SOME:
        right, wrong = _truth_and_noise(world, "truth", 0), _null(world, "another client's", 1)
        leaks = torch.arange(len(world.targets)) % _EVERY == 0
        found = tuple(
            torch.where(leaks.view(-1, *[1] * (own.dim() - 1)), own, other)
            for own, other in zip(right, _null(world, "another client's", 0), strict=True)
        )
    elif name in GRADES:
        found, wrong = _truth_and_noise(world, name, 0), _null(world, "another client's", 1)
    else:
        found, wrong = _null(world, name, 0), _null(world, name, 1)
    truths = world.truths(world.evidence(raw(world)))
    return score(_wrapped(world, *found), truths, _wrapped(world, *wrong), seed=world.seed, about=about(world, name))


def _truth_and_noise(world: World, name: str, draw: int) -> tuple[Tensor, Tensor]:
    rng = generator(world.seed, name, draw)
    behind = [world.behind(target) for target in world.targets]
    images = torch.stack([members.mean(0) for members in behind])
    noisy = images + GRADES[name] * torch.randn(images.shape, generator=rng)
    features = torch.stack([world.represent(members).mean(0) for members in behind])
    spread = 2 * GRADES[name] * features.norm(dim=1, keepdim=True) / features.shape[1] ** 0.5
    return noisy.clamp(0, 1), features + spread * torch.randn(features.shape, generator=rng)


def _null(world: World, name: str, draw: int) -> tuple[Tensor, Tensor]:
    """Images ``(T, c, h, w)`` and vectors ``(T, d)`` that hold nothing of the targets."""
    labels = torch.tensor([target.label for target in world.targets])
    if name == "same mean and covariance":
        strange, classes = world.strangers
        means = torch.stack([strange[classes == label].mean(0) for label in range(CLASSES)])
        flat = (strange - means[classes]).flatten(1)
        root = torch.linalg.cholesky(torch.cov(flat.T) + 1e-6 * torch.eye(flat.shape[1]))
        noise = torch.randn(len(labels), flat.shape[1], generator=generator(world.seed, "pixels", draw))
        images = (means[labels] + (noise @ root.T).reshape(-1, *SHAPE)).clamp(0, 1)
    elif name == "another client's":
        images = torch.cat(
            [
                world.draw(labels[place : place + 1], "elsewhere", target.client, place, draw)
                for place, target in enumerate(world.targets)
            ]
        )
    elif name == "another data set's":
        images = world.draw(labels, "foreign", draw, patterns=world.smooth(CLASSES, "foreign patterns", draw))
    else:
        images = (0.5 + 0.13 * world.patterns[labels]).clamp(0, 1)
    return images, world.represent(images)


def _wrapped(world: World, images: Tensor, features: Tensor) -> Reconstruction:
    number = len(world.targets)
    return Reconstruction(
        targets=world.targets,
        images=images[:, None],
        objective=torch.zeros(number, 1),
        chosen=torch.zeros(number, dtype=torch.int64),
        labels=torch.tensor([[target.label] for target in world.targets]),
        cost=Cost(),
        converged=torch.ones(number, dtype=torch.bool),
        features=features if world.kind == "prototype" else None,
    )


@dataclass(frozen=True, kw_only=True)
class SimulatedInference(Inference):
    """Scores that are drawn: noise, the class's own, or the truth with noise.

    Attributes:
        world: holds the truth, which no real inference is handed.
        shift: by how many standard deviations of a score a yes lies above a no; 0 for a null.
        by_class: standard deviation of what a class adds to its scores, which tells nothing of the client.
    """

    world: World
    shift: float = 0.0
    by_class: float = 0.0

    name = "simulated"
    summary = "scores that are drawn"
    targets: ClassVar[tuple[str, ...]] = ("representation", "prototype")

    def scored(self, problem: InferenceProblem, asked: Asked, yes: dict[int, Tensor]) -> Scores:
        """Scores of questions with these answers; of other uploads than the world's own they know nothing."""
        own = problem.observations[0].upload[0].tensors()["features"]
        known = torch.equal(own, raw(self.world)[0].upload[0].tensors()["features"])
        rng = generator(problem.seed, "scores", int(known), str(self.shift), str(self.by_class))
        general = self.by_class * torch.randn(CLASSES, generator=rng)
        values = {}
        for client, labels in asked.classes.items():
            noise = torch.randn(len(labels), generator=rng) + 0.3 * torch.randn(1, generator=rng)
            values[client] = (general[labels] + noise + self.shift * known * yes[client].float()).double()
        return Scores(asked, values)


@dataclass(frozen=True, kw_only=True)
class SimulatedMembership(SimulatedInference):
    """Who was a member."""

    asks: ClassVar[Literal["images", "classes"]] = "images"

    def run(self, problem: InferenceProblem) -> Scores:
        """Score candidates."""
        yes = {}
        for client, one in problem.candidates.items():
            own = self.world.images[client].flatten(1)
            yes[client] = (torch.cdist(one.images.flatten(1), own).min(1).values < 1e-6).long()
        return self.scored(problem, self.ask(problem), yes)


@dataclass(frozen=True, kw_only=True)
class SimulatedProperty(SimulatedInference):
    """Which classes a client holds most of: of four, two."""

    asks: ClassVar[Literal["images", "classes"]] = "classes"

    def ask(self, problem: InferenceProblem) -> Asked:
        """Every class of every client."""
        return Asked({client: torch.arange(CLASSES) for client in problem.uploads}, "majority")

    def answers(self, counts: Tensor, question: str) -> Tensor:
        """The two of most images."""
        return counts > counts.float().median()

    def run(self, problem: InferenceProblem) -> Scores:
        """Score classes."""
        asked = self.ask(problem)
        held = self.world.held
        counts = {k: torch.bincount(held.labels(k), minlength=CLASSES) for k in asked.classes}
        return self.scored(problem, asked, {k: self.answers(own, "majority").long() for k, own in counts.items()})


def inferred(world: World, attack: Inference, observations: tuple[Observation, ...], name: str) -> InferenceResult:
    """The record of an inference on a world's uploads, with its control."""
    case = InferenceCase(world.evidence(observations), world.held, world.kind, world.seed)
    known = about(world, name)
    return inference.evaluate(attack, case, Provenance(**{key: getattr(known, key) for key in Provenance.model_fields}))
