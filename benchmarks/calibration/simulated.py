"""Attacks that are simulated by what they return, so that only scoring and answering run: leaks of known size, and none.

A simulated inversion moves the baseline's image towards the truth until it is so many dB nearer; one that knows nothing
returns what needs no upload. A simulated inference draws scores, for a yes so much higher that its area is as wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import ndtri
from torch import Tensor
from worlds import CLASSES, IMAGES, SHAPE, World

from fedpriv.attacks.inference.base import Asked, Inference, InferenceProblem, Scores
from fedpriv.attacks.inputs.targets import Said
from fedpriv.attacks.observation import Cost, Observation, Reconstruction, ThreatModel
from fedpriv.eval import inference
from fedpriv.eval.inference_case import InferenceCase, area
from fedpriv.eval.intervals import Values
from fedpriv.eval.records import About, InferenceResult, Planted, Provenance, ReconstructionRecord
from fedpriv.eval.score import score

NULLS = ("as good as the baseline", "another client's image", "mean of other images")
"""Inversions that know nothing of the target."""

BETWEEN, WITHIN = 0.3, 0.8
"""Standard deviations of a leak between clients and between targets of a client, dB."""

PAGES = 1000
"""Simulated where there is no formula."""

SPREAD = 0.3
"""Of a leak of scores between clients, in standard deviations of a score."""

LEAK = (8.0, 6.0)
"""Of a client that leaks where others do not: dB, and standard deviations of a score."""

ABLE = Planted(mean=10.0, ci95=(9.0, 11.0), n=20, n_clients=20, least=0.5)
"""Positive control: whether an attack is able is no matter of statistics, so all are."""


def about(world: World, attack: str, card: ThreatModel) -> dict[str, Any]:
    """Return the provenance of a simulated result."""
    names = dict.fromkeys(("method", "dataset"), "simulated")
    return {**names, "attack": attack, "target": "prototype", "knowledge": card, "seed": world.seed, "planted": ABLE}


# ---------------------------------------------------------------- inversions


def inverted(
    world: World, card: ThreatModel, advantage: float | str, *, leaking: int = 0, attack: str = "decoder"
) -> ReconstructionRecord:
    """Return the record of a simulated inversion with its control.

    Args:
        world: the federation.
        card: the threat model.
        advantage: over the baseline in dB, or one of :data:`NULLS`.
        leaking: of so many clients all targets leak :data:`LEAK` besides.
        attack: its name.
    """
    rng, number = world.rng("inversion", attack, card.extractor), len(world.targets)
    if isinstance(advantage, str):
        images, control = (_nothing(world, advantage, rng) for _ in range(2))
    else:
        gains = advantage + BETWEEN * clipped(rng, world.number)[[one.client for one in world.targets]]
        gains += WITHIN * clipped(rng, number) + LEAK[0] * np.array([one.client < leaking for one in world.targets])
        images, control = _nearer(world, gains), _nothing(world, NULLS[world.seed % len(NULLS)], rng)
    return score(
        _wrapped(world, images),
        world.truths,
        _wrapped(world, control),
        seed=0,
        about=About(**about(world, attack, card)),
    )


def clipped(rng: np.random.Generator, number: int) -> Values:
    """Return numbers ``(n,)`` of mean 0 and standard deviation 1, none above 2.2."""
    drawn = rng.standard_normal(number)
    return np.asarray(np.clip(drawn, -2.2, 2.2))


def _nearer(world: World, gains: Values) -> Tensor:
    """Return images ``(T, c, h, w)`` whose PSNR is the baseline's and so many dB ``(T,)``."""
    guess, several = world.pool.optimal.clamp(0, 1).flatten()[None], max(truth.n_c for truth in world.truths)
    flat = torch.stack([truth.members.double().flatten(1).expand(several, -1) for truth in world.truths])
    towards = flat.mean(1) - guess

    def psnr(step: Tensor) -> Tensor:
        images = guess + step[:, None] * towards
        return -10 * (images[:, None] - flat).square().mean(2).log10().mean(1)

    wanted = psnr(torch.zeros(len(flat), dtype=torch.float64)) + torch.as_tensor(gains)
    low, high = torch.full_like(wanted, -3), torch.ones_like(wanted)
    for _ in range(30):
        middle = (low + high) / 2
        short = psnr(middle) < wanted
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return (guess + low[:, None] * towards).float().reshape(-1, *SHAPE)


def _nothing(world: World, name: str, rng: np.random.Generator) -> Tensor:
    """Return images ``(T, c, h, w)`` that no upload tells."""
    if name == NULLS[0]:
        gains = BETWEEN * clipped(rng, world.number)[[one.client for one in world.targets]]
        return _nearer(world, gains + WITHIN * clipped(rng, len(world.targets)))
    labels = rng.integers(CLASSES, size=len(world.targets))
    if name == NULLS[1]:
        others = np.array([(one.client + 1) % world.number for one in world.targets])
        return world.draw(labels, others, "elsewhere", int(rng.integers(2**31)))
    more = world.draw(labels.repeat(20), None, "more", int(rng.integers(2**31)))
    return more.reshape(len(labels), 20, *SHAPE).mean(1)


def _wrapped(world: World, images: Tensor) -> Reconstruction:
    number = len(world.targets)
    return Reconstruction(
        targets=world.targets,
        images=images[:, None],
        objective=torch.zeros(number, 1),
        chosen=torch.zeros(number, dtype=torch.int64),
        labels=torch.tensor([[target.label] for target in world.targets]),
        cost=Cost(),
        converged=torch.ones(number, dtype=torch.bool),
    )


# ---------------------------------------------------------------- inferences


@dataclass(frozen=True, kw_only=True)
class Drawn(Inference):
    """Scores that are drawn; of other uploads than the client's own they tell nothing.

    Attributes:
        world: holds the truth, which no real inference is handed.
        seen: the uploads that tell something.
        question: about classes; empty for members.
        shift: by how many standard deviations of a score a yes lies above a no, mean over clients.
        leaking: of so many clients it is :data:`LEAK` besides.
        knowing: weight of what needs no upload: brightness as the client's is, and how many clients hold a class.
        parts: of the seed.
    """

    world: World
    seen: tuple[Observation, ...]
    question: str = ""
    shift: float = 0.0
    leaking: int = 0
    knowing: float = 0.0
    parts: tuple[str, ...] = ()

    name = "simulated"
    summary = "scores that are drawn"
    targets: ClassVar[tuple[str, ...]] = ("prototype",)

    @property
    def asks(self) -> Literal["images", "classes"]:  # type: ignore[override]
        """Images, or classes."""
        return "classes" if self.question else "images"

    def ask(self, problem: InferenceProblem) -> Asked:
        """Ask about candidates as usual, or about every class of every client."""
        if not self.question:
            return super().ask(problem)
        return Asked({client: torch.arange(CLASSES) for client in problem.uploads}, self.question)

    def answers(self, counts: Tensor, question: str) -> Tensor:
        """Return whether a client has images of each class, or most of that."""
        return counts > 0 if question == "holds" else counts == counts.max()

    def run(self, problem: InferenceProblem) -> Scores:
        """Draw scores."""
        asked, own = self.ask(problem), problem.observations is self.seen
        rng = self.world.rng("scores", *self.parts, int(own))
        values = {}
        for client, labels in asked.classes.items():
            if self.question:
                counts = torch.as_tensor(self.world.counts)
                yes, known = self.answers(counts[client], self.question), (counts > 0).double().mean(0)
            else:
                images = problem.candidates[client].images
                yes, known = self.world.is_member(client, images), self.world.brightness(client, images)
            above = own * (self.shift + SPREAD * rng.standard_normal() + LEAK[1] * (client < self.leaking))
            noise = torch.as_tensor(rng.standard_normal(len(labels)))
            values[client] = self.knowing * known + above * yes.double() + noise
        return Scores(asked, values)


QUESTIONS = {"labels": "holds", "property": "majority", "membership": ""}
"""Primary attacks that return scores, and what they ask about classes."""


def inferred(
    world: World,
    card: ThreatModel,
    primary: str,
    advantage: float,
    *,
    leaking: int = 0,
    knowing: float = 0.0,
    attack: str = "",
) -> InferenceResult:
    """Return the record of an inference with its control; by default named as the primary attack.

    Args:
        world: the federation.
        card: the threat model.
        primary: one of :data:`QUESTIONS`.
        advantage: area over one half; None for no leak of anybody.
        leaking, knowing: see :class:`Drawn`.
        attack: its name.
    """
    evidence, shift = world.evidence(card), shift_for(advantage, world.number if primary == "membership" else 0)
    name = attack or primary
    made = Drawn(
        world=world,
        seen=evidence.observations,
        question=QUESTIONS[primary],
        shift=shift,
        leaking=leaking,
        knowing=knowing,
        parts=(name, card.extractor),
    )
    silent = {client: Said(None, None) for client in range(world.number)}
    case = InferenceCase(evidence, world.held, "prototype", world.seed, silent)
    return inference.evaluate(made, case, Provenance(**about(world, name, card)))


@lru_cache
def shift_for(advantage: float, clients: int) -> float:
    """Return the shift at which the area is one half and so much.

    Where scores of so many clients are put on a common scale it is found by simulation; elsewhere, for none, by formula.
    """
    if advantage == 0:
        return 0.0  # shifts of clients differ, on either side
    if not clients:
        return float(ndtri(0.5 + advantage) * (2 + SPREAD**2) ** 0.5)
    rng, yes = np.random.default_rng(0), np.arange(2 * IMAGES) < IMAGES
    noise = rng.standard_normal((PAGES, clients, 2 * IMAGES))
    own = SPREAD * rng.standard_normal((PAGES, clients, 1))

    def off(shift: float) -> float:
        scores = noise + (shift + own) * yes
        scores -= np.median(scores, axis=2, keepdims=True)
        scores /= np.median(np.abs(scores), axis=2, keepdims=True)
        every = np.tile(yes, clients)
        return float(np.mean([area(page.ravel(), every) for page in scores])) - 0.5 - advantage

    return float(brentq(off, 0, 3, xtol=1e-3))
