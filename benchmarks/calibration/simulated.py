"""Attacks that are simulated by what they return, so that only scoring and answering run: leaks of known size, and none.

A simulated inversion moves the baseline's image towards the truth until it is so many dB nearer; one that knows nothing
returns what needs no upload. A simulated inference draws scores, for a yes so much higher that its area is as wanted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from types import SimpleNamespace
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
from fedpriv.eval.floors import SHUFFLED
from fedpriv.eval.inference_case import InferenceCase, Ranked, area
from fedpriv.eval.intervals import Means, Values
from fedpriv.eval.membership import on_common_scale
from fedpriv.eval.records import ESTIMANDS, About, InferenceResult, Measure, Planted, Provenance, ReconstructionRecord
from fedpriv.eval.score import image_comparisons, score

NULLS = ("as good as the baseline", "another client's image", "mean of the class")
"""Inversions that know nothing of the target."""

BETWEEN, WITHIN, SPREAD = 0.3, 0.8, 0.3
"""Standard deviations of leaks: of images between clients and between targets of a client, dB; of scores between clients."""

LEAK = (8.0, 6.0)
"""Of a client that leaks where others do not: dB, and standard deviations of a score."""

PAGES = 1000
"""Simulated where there is no formula."""

ABLE = Planted(mean=10.0, ci95=(9.0, 11.0), n=20, n_clients=20, least=0.5)
"""Positive control: whether an attack is able is no matter of statistics, so all are."""


def about(world: World, attack: str, card: ThreatModel) -> dict[str, Any]:
    """Return the provenance of a simulated result."""
    names = dict.fromkeys(("method", "dataset"), "simulated")
    return {**names, "attack": attack, "target": "prototype", "knowledge": card, "seed": world.seed, "planted": ABLE}


# ---------------------------------------------------------------- inversions


def inverted(
    world: World, card: ThreatModel, advantage: float | str, *, leaking: int = 0, quick: bool = False
) -> ReconstructionRecord:
    """Return the record of a simulated inversion with its control.

    Args:
        world: the federation.
        card: the threat model.
        advantage: over the baseline in dB, or one of :data:`NULLS`.
        leaking: of so many clients all targets leak :data:`LEAK` besides.
        quick: whether only comparisons and PSNR are made anew, with all guesses that do not draw; the rest is a template's.
    """
    rng = world.rng("inversion", card.extractor)
    control = _nothing(world, advantage if isinstance(advantage, str) else NULLS[world.seed % len(NULLS)], rng)
    if isinstance(advantage, str):
        images = _nothing(world, advantage, rng)
    else:
        leaks = np.array([one.client < leaking for one in world.targets])
        images = _nearer(world, advantage + LEAK[0] * leaks, rng)
    if quick:
        return _compared(world, card, images, control)
    made, other = (
        Reconstruction(
            targets=world.targets,
            images=shown[:, None],
            objective=torch.zeros(len(shown), 1),
            labels=torch.tensor([[target.label] for target in world.targets]),
            cost=Cost(),
            converged=torch.ones(len(shown), dtype=torch.bool),
        )
        for shown in (images, control)
    )
    return score(made, world.truths, other, seed=0, about=About(**about(world, "decoder", card)))


def _compared(world: World, card: ThreatModel, images: Tensor, control: Tensor) -> ReconstructionRecord:
    pool, labels = world.pool, [one.label for one in world.targets]
    guesses = {"class_mean_image": pool.class_means, "optimal_class_image": pool.class_optimal}
    shown = {name: torch.stack([by_class[label] for label in labels]) for name, by_class in guesses.items()}
    shown |= {
        "mean_image": pool.mean.expand_as(images),
        "optimal_image": pool.optimal.expand_as(images),
        SHUFFLED: control,
    }
    floors: Any = {name: SimpleNamespace(psnr=_psnr(world, guess).numpy()) for name, guess in shown.items()}
    attack: Any = SimpleNamespace(psnr=_psnr(world, images).numpy())
    strata = [ESTIMANDS[truth.n_c > 1] for truth in world.truths]
    means = Means(tuple(target.client for target in world.targets))
    record = _template(replace(world, seed=0), card, "decoder")
    rows = zip(record.targets, attack.psnr.tolist(), strict=True)
    targets = tuple(row.model_copy(update={"psnr_db": value}) for row, value in rows)
    made: ReconstructionRecord = record.model_copy(
        update={"comparisons": image_comparisons(attack, floors, strata, means), "targets": targets}
    )
    return made


@lru_cache
def _template(world: World, card: ThreatModel, name: str) -> Any:
    """Return the record of a page like the one that is wanted, scored in full."""
    return inverted(world, card, 0.0) if name == "decoder" else inferred(world, card, name, 0.0)


def _psnr(world: World, images: Tensor) -> Tensor:
    """Return the mean PSNR of each target's images ``(T,)``."""
    errors = (images.double().clamp(0, 1).flatten(1)[:, None] - world.behind).square().mean(2)
    return -10 * errors.log10().mean(1)


def _nearer(world: World, gains: Values | float, rng: np.random.Generator) -> Tensor:
    """Return images ``(T, c, h, w)`` whose PSNR is the baseline's and so many dB ``(T,)`` on average."""
    own, each = (np.clip(rng.standard_normal(n), -2.2, 2.2) for n in (world.number, len(world.targets)))
    gains = gains + BETWEEN * own[[one.client for one in world.targets]] + WITHIN * each
    best = world.pool.class_optimal
    guess = torch.stack([best[one.label] for one in world.targets])
    towards = world.behind.mean(1).reshape(guess.shape) - guess

    def shown(step: Tensor) -> Tensor:
        return guess + step[:, None, None, None] * towards

    wanted = _psnr(world, guess) + torch.as_tensor(gains)
    low, high = torch.full_like(wanted, -3), torch.ones_like(wanted)
    for _ in range(30):
        middle = (low + high) / 2
        short = _psnr(world, shown(middle)) < wanted
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return shown(low).float()


def _nothing(world: World, name: str, rng: np.random.Generator) -> Tensor:
    """Return images ``(T, c, h, w)`` that no upload tells."""
    labels, draw = np.array([one.label for one in world.targets]), int(rng.integers(2**31))
    if name == NULLS[0]:
        return _nearer(world, 0.0, rng)
    if name == NULLS[1]:
        return world.draw(labels, np.array([(one.client + 1) % world.number for one in world.targets]), "other", draw)
    return world.draw(labels.repeat(20), None, "more", draw).reshape(len(labels), 20, *SHAPE).mean(1)


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
    attack: str = "",
    quick: bool = False,
    **more: Any,
) -> InferenceResult:
    """Return the record of an inference with its control; by default named as the primary attack.

    Args:
        world: the federation.
        card: the threat model.
        primary: one of :data:`QUESTIONS`.
        advantage: area over one half.
        attack: its name.
        quick: whether only comparisons and area are made anew, the baseline being noise; the rest is a template's.
        more: fields of :class:`Drawn`.
    """
    shift = shift_for(advantage, world.number if primary == "membership" else 0)
    name = attack or primary
    if quick:
        return _ranked(world, card, primary, shift, more.get("leaking", 0))
    evidence = world.evidence(card)
    known = {"world": world, "seen": evidence.observations, "parts": (name, card.extractor)}
    made = Drawn(question=QUESTIONS[primary], shift=shift, **known, **more)
    silent = {client: Said(None, None) for client in range(world.number)}
    case = InferenceCase(evidence, world.held, "prototype", world.seed, silent)
    return inference.evaluate(made, case, Provenance(**about(world, name, card)))


def _ranked(world: World, card: ThreatModel, primary: str, shift: float, leaking: int) -> InferenceResult:
    rng, counts = world.rng("quick", primary, card.extractor), world.counts
    if primary == "membership":
        yes = [np.arange(2 * number) < number for number in counts.sum(1)]
    else:
        yes = list(counts > 0 if primary == "labels" else counts == counts.max(1, keepdims=True))

    def ranked(known: bool) -> Ranked:
        scores = []
        for client, answers in enumerate(yes):
            above = known * (shift + SPREAD * rng.standard_normal() + LEAK[1] * (client < leaking))
            scores.append(rng.standard_normal(len(answers)) + above * answers)
        return Ranked.of(
            list(map(on_common_scale, scores)) if primary == "membership" else scores, yes, range(len(yes))
        )

    own, guesses = ranked(True), {SHUFFLED: ranked(False)}
    if primary == "membership" and card.extractor != "none":
        guesses["assumed_extractor"] = ranked(False)
    measure: Measure = "membership" if primary == "membership" else "property"
    compared = own.against(guesses, {measure: "auc"}, "assumed_extractor")
    record = _template(replace(world, seed=0), card, primary)
    made: InferenceResult = record.model_copy(update={"auc": own.with_interval("auc"), "comparisons": compared})
    return made


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
