"""The contestants of the arena: our default attacks, and public implementations of the same task, unmodified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from breaching_peer import Passes, attack_by_peer, imported
from cifar import Clock
from one_step import Problem, run_attack
from ordinary import invert
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.contract import Attack
from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.gradients.inverting import InvertingGradients
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.decoder import DecoderInversion
from fedpriv.attacks.inversion.vector import DipInversion, PixelInversion
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.models.split import SplitModel
from fedpriv.uploads.payloads import Representations


@dataclass(frozen=True)
class Task:
    """What all contestants of a row are given.

    Attributes:
        problem: uploads of one step, and the truth; of representations one upload, in which each image is a target.
        public: ``(p, c, h, w)`` images that an attacker may have, none of them a target.
        seed: of starts.
    """

    problem: Problem
    public: Tensor
    seed: int


@dataclass(frozen=True)
class Found:
    """What a contestant found, and what it took.

    Attributes:
        images: ``(T, M, c, h, w)``.
        evaluations: of the objective with its derivative, a target.
        seconds: CPU seconds of all targets.
    """

    images: Tensor
    evaluations: float
    seconds: float


Contestant = Callable[[Task, int], Found]
"""(task, evaluations a target that it may take) -> what it found."""


def ours(make: Callable[[int], Attack], task: Task, evaluations: int) -> Found:
    """Attack with our defaults but for the budget, which is given up to what the attack's own record says it took."""
    allowed = evaluations
    while True:
        clock = Clock()
        found = run_attack(make(allowed), task.problem, task.seed)
        seconds, over = clock.seconds(), found.cost.evaluations - evaluations
        if over <= 0 or allowed <= over:
            return Found(found.images, found.cost.evaluations, seconds)
        allowed -= over


def by_direction(iterations: int) -> Attack:
    """Return inverting gradients with a budget."""
    return InvertingGradients(iterations=iterations)


def by_lbfgs(evaluations: int) -> Attack:
    """Return DLG with at most about so many evaluations, 20 a call, and one more at the end of each search."""
    return DeepLeakage(outer_steps=max(1, (evaluations - 3) // 20))


def breaching(name: str, steps: int, overrides: tuple[str, ...], task: Task, evaluations: int) -> Found:
    """Let the public library attack; ``steps`` is how many evaluations one of its iterations takes."""
    number = f"optim.max_iterations={max(1, evaluations // steps)}"
    passes, targets = Passes(), len(task.problem.observations)
    peer = imported()
    clock = Clock()
    images = attack_by_peer(peer, task.problem, name, [*overrides, number], task.seed, passes=passes)
    return Found(images.unflatten(0, (targets, -1)), passes.number / targets, clock.seconds())


def representations(attack: Callable[[int], Attack], task: Task, evaluations: int) -> Found:
    """Invert representations with our defaults but for the budget."""
    problem = task.problem
    model, vectors = _vectors(problem)
    seen = (Observation(0, 0, (Representations(vectors, problem.labels),), ()),)
    made = attack(evaluations)
    card = ThreatModel(attacker_data="same_domain" if isinstance(made, DecoderInversion) else "none")
    shape = (int(problem.images.shape[1]), int(problem.images.shape[2]), int(problem.images.shape[3]))
    public = task.public if card.attacker_data != "none" else None
    known = Knowledge(card, shape, problem.n_classes, extractors={0: model.represent}, public_images=public)
    clock = Clock()
    found = made(seen, known, list_targets(seen, "representation"), seed=task.seed, device=torch.device("cpu"))
    return Found(found.images, found.cost.evaluations or evaluations, clock.seconds())


def vectors_by_dip(iterations: int) -> Attack:
    """Return ``dip`` with a budget."""
    return DipInversion(iterations=iterations)


def vectors_by_pixels(iterations: int) -> Attack:
    """Return ``pixels`` with a budget."""
    return PixelInversion(iterations=iterations)


def vectors_by_decoder(iterations: int) -> Attack:
    """Return ``decoder``, its refinement with a budget."""
    return DecoderInversion(refine_steps=iterations)


def ordinary_hourglass(task: Task, evaluations: int) -> Found:
    """Deep image prior as anybody would write it, one target after the other."""
    model, vectors = _vectors(task.problem)
    torch.manual_seed(task.seed)
    clock = Clock()
    size = int(task.problem.images.shape[-1])
    images = torch.stack([invert(model, wanted, evaluations, size) for wanted in vectors])
    return Found(images, evaluations, clock.seconds())


def ordinary_pixels(task: Task, evaluations: int) -> Found:
    """Pixels by Adam under squared differences of neighbours, as anybody would write it (Mahendran and Vedaldi 2015)."""
    model, vectors = _vectors(task.problem)
    torch.manual_seed(task.seed)
    clock, shape, images = Clock(), task.problem.images.shape[1:], []
    for wanted in vectors:
        point = torch.randn(1, *shape).mul(0.1).add(0.5).requires_grad_()
        optimiser = torch.optim.Adam([point], lr=0.05)
        for _ in range(evaluations):
            found = model.represent(point)
            loss = functional.mse_loss(found, wanted.unsqueeze(0)) / wanted.square().mean()
            loss = loss + 0.02 * sum(torch.diff(point, dim=axis).square().mean() for axis in (-1, -2))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            with torch.no_grad():
                point.clamp_(0, 1)
        images.append(point.detach())
    return Found(torch.stack(images), evaluations, clock.seconds())


def _vectors(problem: Problem) -> tuple[SplitModel, Tensor]:
    model = problem.model
    assert isinstance(model, SplitModel)
    model.eval().requires_grad_(False)
    with torch.no_grad():
        return model, model.represent(problem.images)


_IG, _DLG = "invertinggradients", "deepleakage"
_TV = "regularization.total_variation.scale"

DIRECTION: dict[str, Contestant] = {
    "breaching": partial(breaching, _IG, 1, ()),
    "breaching, variation 0.02": partial(breaching, _IG, 1, (f"{_TV}=0.02",)),
    "breaching, modern": partial(breaching, "modern", 1, ()),
}
"""Public implementations of inverting gradients, by the name of their settings."""

LBFGS: dict[str, Contestant] = {"breaching": partial(breaching, _DLG, 20, ("attack_type=optimization",))}

OURS: dict[str, Contestant] = {
    "inverting-gradients": partial(ours, by_direction),
    "dlg": partial(ours, by_lbfgs),
    "dip": partial(representations, vectors_by_dip),
    "pixels": partial(representations, vectors_by_pixels),
    "decoder": partial(representations, vectors_by_decoder),
}
"""Our attacks with their default options, by name."""

PEERS: dict[str, dict[str, Contestant]] = {
    "inverting-gradients": DIRECTION,
    "dlg": LBFGS,
    "dip": {"ordinary hourglass": ordinary_hourglass},
    "pixels": {"ordinary pixels": ordinary_pixels},
    "decoder": {"ordinary hourglass": ordinary_hourglass, "ordinary pixels": ordinary_pixels},
}
"""Who stands beside each."""
