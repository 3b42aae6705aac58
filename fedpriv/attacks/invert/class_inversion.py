"""Class inversion: an image that the client's own model answers as the upload says its images of a class are answered.

The mean output of a class is C numbers over all images of the class, so no single image can come out of it. What can is
what the model takes the class to look like. An image x is sought whose answer f(g(x)) is the uploaded mean output u_c,
by KL(u_c || softmax f(g(x))) where outputs are softmax vectors and by relative squared distance where they are logits,
under a deep image prior or over pixels with total variation.

``match="class"`` is the same without the numbers: u_c is replaced by certainty of the class, which the class ids alone
allow. It is Fredrikson, Jha and Ristenpart's attack ("Model inversion attacks that exploit confidence information",
CCS 2015) under a prior, and shows what the uploaded numbers add.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor
from torch.nn.functional import linear, one_hot

from fedpriv.attacks.contract import Attack, AttackProblem
from fedpriv.attacks.invert.inversion import bytes_of_generator
from fedpriv.attacks.observation import Knowledge, Needs, Observation, Reconstruction, TargetId
from fedpriv.attacks.optim.fitting import Prior, Schedule, fit
from fedpriv.attacks.optim.rows import Row, Solved, solve_rows
from fedpriv.attacks.priors.dip import DeepImagePrior, Hourglass
from fedpriv.attacks.priors.pixels import PixelPrior, PixelSettings
from fedpriv.attacks.read.class_outputs import output_distance, uploaded_output
from fedpriv.attacks.read.extractors import represent_rows, require_extractors
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import CLASS_OUTPUTS


@dataclass(frozen=True, kw_only=True)
class ClassInversion(Attack):
    """Find an image for each uploaded class output.

    Attributes:
        iterations: most steps of a row.
        restarts: rows a target; the one with the lowest objective is kept.
        match: ``outputs`` matches the uploaded numbers, ``class`` only the class they are said to be of.
        prior: ``dip`` is an untrained network (see :mod:`fedpriv.attacks.priors.dip`), ``pixels`` total variation.
        learning_rate: Adam's step size.
        average: decay of the running mean of the images (``dip``).
        tolerance: distance below which a row is finished, and converged.
        patience: steps without 1 % gain after which a row is finished.
        generator: shape of the generator network (``dip``).
        pixels: what holds pixels back (``pixels``).
    """

    iterations: Annotated[int, Ge(1)] = 300
    restarts: Annotated[int, Ge(1)] = 1
    match: Literal["outputs", "class"] = "outputs"
    prior: Literal["dip", "pixels"] = "dip"
    learning_rate: Annotated[float, Gt(0)] = 5e-3
    average: Annotated[float, Ge(0), Lt(1)] = 0.99
    tolerance: Annotated[float, Ge(0)] = 1e-3
    patience: Annotated[int, Ge(1)] = 150
    generator: Hourglass = Hourglass()
    pixels: PixelSettings = PixelSettings(jitter=1)

    name = "class-inversion"
    summary = "an image that the client's model answers as the upload says that it answers a class"
    targets = CLASS_OUTPUTS
    unit = "upload"
    budget = "iterations"
    needs = Needs(extractor=("white_box", "shadow"))

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Invert the class outputs of the targets.

        Raises:
            UserError: when a model is missing, or a target is not there.
        """
        knowledge, device, targets = problem.knowledge, problem.device, problem.targets
        require_extractors(knowledge, targets)
        for client in sorted({target.client for target in targets} - set(knowledge.heads)):
            raise UserError(f"no head of client {client} was handed over; attack {self.name!r} needs the whole model")
        outputs = [self._wanted(problem.observations, target, knowledge.n_classes) for target in targets]
        schedule = Schedule(
            self.iterations,
            # A pixel moves by a step size directly; a network's weights move it by far more.
            self.learning_rate if self.prior == "dip" else 10 * self.learning_rate,
            anneal=self.prior == "pixels",
            average=self.average if self.prior == "dip" else 0.0,
            tolerance=self.tolerance,
            patience=self.patience,
        )

        def solve(rows: Sequence[Row], tick: Callable[[int], None]) -> Solved:
            wanted = torch.stack([outputs[row.position][0] for row in rows]).to(device)
            softmax = torch.tensor([outputs[row.position][1] for row in rows], device=device)
            owners = torch.tensor([row.target.client for row in rows])

            def distance(images: Tensor, which: Tensor) -> Tensor:
                logits = answers(knowledge, images, owners[which])
                there = which.to(device)
                as_softmax = output_distance(logits, wanted[there], softmax=True)
                return torch.where(softmax[there], as_softmax, output_distance(logits, wanted[there], softmax=False))

            draws = [row.generator(problem.seed) for row in rows]
            fitted = fit(self._prior(draws, knowledge.image_shape, device), distance, schedule, tick)
            return Solved(
                images=fitted.images.unsqueeze(1),
                objective=fitted.objective,
                converged=fitted.objective < schedule.tolerance,
                labels=torch.tensor([[row.target.label] for row in rows], device=device),
                iterations=fitted.iterations,
            )

        return solve_rows(
            problem,
            solve,
            restarts=self.restarts,
            iterations=self.iterations,
            bytes_per_row=bytes_of_generator(self.generator, knowledge.image_shape),
        )

    def _wanted(self, observations: Sequence[Observation], target: TargetId, n_classes: int) -> tuple[Tensor, bool]:
        if self.match == "outputs":
            return uploaded_output(observations, target)
        if not 0 <= target.label < n_classes:
            raise UserError(f"attack {self.name!r} with match=class: no class is named for target {target.index}")
        return one_hot(torch.tensor(target.label), n_classes).float(), True

    def _prior(
        self, draws: Sequence[torch.Generator], image_shape: tuple[int, int, int], device: torch.device
    ) -> Prior:
        if self.prior == "dip":
            return DeepImagePrior(draws, image_shape, self.generator, device)
        return PixelPrior(draws, image_shape, self.pixels, device)


def answers(knowledge: Knowledge, images: Tensor, owners: Tensor) -> Tensor:
    """Return the logits ``(n, C)`` of each image by the model of its own client.

    Args:
        knowledge: holds extractor and head of each owner.
        images: ``(n, c, h, w)`` in [0, 1].
        owners: ``(n,)`` int64 clients, on the CPU.
    """
    features = represent_rows(knowledge, images, owners)
    logits = features.new_empty(len(features), knowledge.n_classes)
    for client in sorted(set(owners.tolist())):
        mine = (owners == client).nonzero().flatten().to(features.device)
        weight, bias = (value.to(features.device) for value in knowledge.heads[client])
        logits = logits.index_copy(0, mine, linear(features[mine], weight, bias))
    return logits
