"""Attacks that are simulated by what they return, so that only scoring and wording run: nulls, and truth plus noise.

A simulated inversion returns images and vectors as good as its upload: what a perfect attack would make of an upload that
carries nothing is drawn from the class, and a leak is the truth with noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from worlds import CLASSES, SHAPE, World

from fedpriv.attacks.inference.base import Asked, Inference, InferenceProblem, Scores
from fedpriv.attacks.observation import Cost, Reconstruction, ThreatModel
from fedpriv.eval import inference
from fedpriv.eval.inference_case import InferenceCase
from fedpriv.eval.records import About, InferenceResult, Provenance, ReconstructionRecord
from fedpriv.eval.score import score
from fedpriv.util.seeds import generator

INVERSIONS = ("same mean and covariance", "another client's", "another data set's", "the class alone")
"""Nulls of inversion: what a perfect attack makes of an upload that carries nothing."""

GRADES = {"truth": 0.01, "truth + little noise": 0.05, "truth + much noise": 0.15}
"""Leaks by the standard deviation of the noise on the true image, pixels in [0, 1]; of vectors, as a share of their norm,
twice that. The first is what a raw representation gives away."""

SOME = "the truth of some"
"""A leak of every third target, of which the first grade of the truth is returned; of the others, another client's."""


def _origin(world: World) -> dict[str, Any]:
    names = dict.fromkeys(("method", "dataset"), "simulated")
    return {**names, "target": world.kind, "knowledge": ThreatModel(), "seed": world.seed}


def inverted(world: World, name: str) -> ReconstructionRecord:
    """The record of a simulated inversion with its control, by its name among :data:`INVERSIONS`, :data:`GRADES` or SOME."""
    if name == SOME:
        right, wrong = _truth_and_noise(world, "truth", 0), _null(world, "another client's", 1)
        leaks = torch.arange(len(world.targets)) % 3 == 0
        found = tuple(
            torch.where(leaks.view(-1, *[1] * (own.dim() - 1)), own, other)
            for own, other in zip(right, _null(world, "another client's", 0), strict=True)
        )
    elif name in GRADES:
        found, wrong = _truth_and_noise(world, name, 0), _null(world, "another client's", 1)
    else:
        found, wrong = _null(world, name, 0), _null(world, name, 1)
    about = About(attack=name, **_origin(world))
    return score(_wrapped(world, *found), world.truths, _wrapped(world, *wrong), seed=world.seed, about=about)


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
        strange, classes = world.auxiliary
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
class Simulated(Inference):
    """Scores that are drawn: noise, the class's own, or the truth with noise.

    Attributes:
        world: holds the truth, which no real inference is handed.
        asks: who was a member, or which two of four classes a client holds most of.
        shift: by how many standard deviations of a score a yes lies above a no; 0 for a null.
        by_class: standard deviation of what a class adds to its scores, which tells nothing of the client.
    """

    world: World
    asks: Literal["images", "classes"] = "images"
    shift: float = 0.0
    by_class: float = 0.0

    name = "simulated"
    summary = "scores that are drawn"
    targets: ClassVar[tuple[str, ...]] = ("representation", "prototype")

    def ask(self, problem: InferenceProblem) -> Asked:
        """Candidates as usual, or every class of every client."""
        if self.asks == "images":
            return super().ask(problem)
        return Asked({client: torch.arange(CLASSES) for client in problem.uploads}, "majority")

    def answers(self, counts: Tensor, question: str) -> Tensor:
        """The two classes of most images."""
        return counts > counts.float().median()

    def run(self, problem: InferenceProblem) -> Scores:
        """Score; of other uploads than the world's own nothing is known."""
        world, asked = self.world, self.ask(problem)
        seen = problem.observations[0].upload[0].tensors()["features"]
        known = torch.equal(seen, world.uploads[0].upload[0].tensors()["features"])
        rng = generator(problem.seed, "scores", int(known), str(self.shift), str(self.by_class))
        general = self.by_class * torch.randn(CLASSES, generator=rng)
        values = {}
        for client, labels in asked.classes.items():
            if self.asks == "images":
                images, members = problem.candidates[client].images.flatten(1), world.images[client].flatten(1)
                yes = torch.cdist(images, members).min(1).values < 1e-6
            else:
                yes = self.answers(torch.bincount(world.held.labels(client), minlength=CLASSES), "majority")
            noise = torch.randn(len(labels), generator=rng) + 0.3 * torch.randn(1, generator=rng)
            values[client] = (general[labels] + noise + self.shift * known * yes.float()).double()
        return Scores(asked, values)


def inferred(world: World, attack: Inference, name: str) -> InferenceResult:
    """The record of an inference on a world's uploads, with its control."""
    case = InferenceCase(world.evidence, world.held, world.kind, world.seed)
    return inference.evaluate(attack, case, Provenance(attack=name, **_origin(world)))
