"""Scoring many targets, and SSIM alone beside torchmetrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedpriv.experiment.benchmarks.contract import QUICK, Asked, Case, Comparison, Goal, Side
from fedpriv.experiment.benchmarks.turns import Turns

if TYPE_CHECKING:
    from torch import Tensor

    from fedpriv.attacks.observation import Reconstruction
    from fedpriv.evidence.truth import Truth

_HERE = "fedpriv.experiment.benchmarks.scoring_many"

PER_CLIENT = 10
STRANGERS = 400
"""Images of strangers that floors and decoys are made of."""


def _cases(asked: Asked) -> tuple[Case, ...]:
    targets, pairs = (500, 5) if asked.full else (100, 3)
    settings = asked.settings(targets=targets)
    whole = Case(
        name=f"{targets} targets of 64x64",
        sides=(Side("fedpriv", f"{_HERE}:by_fedpriv", settings, units=targets),),
        unit="targets",
        pairs=pairs,
        goal=Goal("500 targets in at most 10 CPU seconds", at_most=10.0),
        smaller="" if asked.full else QUICK,
    )
    shapes = ((500, 1, 28, 20), (500, 3, 64, 1)) if asked.full else ((200, 1, 28, 10), (100, 3, 64, 1))
    return whole, *(
        Case(
            name=f"SSIM of {count} images {channels}x{side}x{side}",
            sides=tuple(
                Side(
                    name,
                    f"{_HERE}:{work}",
                    asked.settings(shape=[count, channels, side, side], times=times),
                    units=count * times,
                )
                for name, work in (("fedpriv", "similar_by_fedpriv"), ("torchmetrics", "similar_by_torchmetrics"))
            ),
            unit="images",
            pairs=pairs,
        )
        for count, channels, side, times in shapes
    )


COMPARISON = Comparison("scoring of 500 targets of 64x64; SSIM beside torchmetrics", _cases)


def by_fedpriv(settings: dict[str, Any], turns: Turns) -> None:
    """Score a reconstruction with its control, once a turn: all floors, decoys, intervals and strata."""
    import torch

    from fedpriv.attacks.observation import KnowledgeCard
    from fedpriv.scoring.records import About
    from fedpriv.scoring.score import score

    torch.set_num_threads(1)
    found, permuted, truths = _problem(settings["targets"], settings["seed"])
    about = About(
        target="representation", attack="dip", method="fedallrep", dataset="random", knowledge=KnowledgeCard(), seed=0
    )
    for _ in turns:
        score(found, truths, permuted, seed=0, about=about)


def _problem(n: int, seed: int) -> tuple[Reconstruction, Reconstruction, tuple[Truth, ...]]:
    """Return reconstructions of noise around the truths, the same of other clients' truths, and n truths."""
    import torch

    from fedpriv.attacks.observation import Cost, Reconstruction, TargetId
    from fedpriv.evidence.pool import Pool
    from fedpriv.evidence.truth import Truth
    from fedpriv.experiment.benchmarks.pictures import CLASSES
    from fedpriv.util.seeds import generator

    made = generator(seed, "benchmark scoring")
    images = torch.rand(n, 3, 64, 64, generator=made)
    pool = torch.rand(STRANGERS, 3, 64, 64, generator=made)
    outside = Pool.divided(pool, torch.arange(STRANGERS) % CLASSES, seed)
    truths = tuple(Truth.equal(images[t : t + 1], torch.tensor([t % CLASSES]), outside) for t in range(n))
    targets = tuple(TargetId(1, t // PER_CLIENT, t, t % CLASSES) for t in range(n))

    def reconstructed(near: Tensor) -> Reconstruction:
        guesses = (near + 0.1 * torch.randn(near.shape, generator=made)).clamp(0, 1).unsqueeze(1)
        return Reconstruction(
            targets=targets,
            images=guesses,
            objective=torch.zeros(n, 1),
            chosen=torch.zeros(n, dtype=torch.int64),
            labels=torch.full((n, 1), -1),
            cost=Cost(1.0, 1, n, "cpu"),
            converged=torch.ones(n, dtype=torch.bool),
        )

    return reconstructed(images), reconstructed(images.roll(PER_CLIENT, 0)), truths


def similar_by_fedpriv(settings: dict[str, Any], turns: Turns) -> None:
    """Take the SSIM of pairs of images, once a turn."""
    from fedpriv.scoring.ssim import structural_similarity

    images, truth = _pairs(settings)
    for _ in turns:
        for _ in range(settings["times"]):
            structural_similarity(images, truth)


def similar_by_torchmetrics(settings: dict[str, Any], turns: Turns) -> None:
    """Take the same of torchmetrics in single precision, single windows at the border left out, once a turn."""
    import torch
    from torchmetrics.functional.image import structural_similarity_index_measure

    images, truth = _pairs(settings)
    for _ in turns:
        for _ in range(settings["times"]):
            _, maps = structural_similarity_index_measure(
                images.float(), truth.float(), sigma=1.5, data_range=1.0, reduction="none", return_full_image=True
            )
            maps[..., 5:-5, 5:-5].mean(dim=(1, 2, 3), dtype=torch.float64)


def _pairs(settings: dict[str, Any]) -> tuple[Tensor, Tensor]:
    import torch

    from fedpriv.util.seeds import generator

    torch.set_num_threads(1)
    made = generator(settings["seed"], "benchmark similarity")
    count, channels, height, width = settings["shape"]
    shape = (count, channels, height, width)
    return torch.rand(shape, generator=made, dtype=torch.float64), torch.rand(
        shape, generator=made, dtype=torch.float64
    )
