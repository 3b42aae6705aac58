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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import linear, one_hot

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.inputs.extractors import OwnExtractors, require_extractors
from fedpriv.attacks.inputs.outputs import output_distance, uploaded_output
from fedpriv.attacks.invert.inversion import DipFitting, FittedInversion, ImageShape
from fedpriv.attacks.observation import Knowledge, Observation, TargetId
from fedpriv.attacks.optim.fitting import Distance, Prior
from fedpriv.attacks.optim.schedule import Schedule
from fedpriv.attacks.priors.pixels import PixelPrior, PixelSettings
from fedpriv.util.errors import UserError
from fedpriv.util.last import Last
from fedpriv.wire.kinds import CLASS_OUTPUTS


@dataclass(frozen=True, kw_only=True)
class ClassInversion(DipFitting, FittedInversion):
    """Find an image for each uploaded class output.

    Attributes:
        match: ``outputs`` matches the uploaded numbers, ``class`` only the class they are said to be of.
        prior: ``dip`` is an untrained network (see :mod:`fedpriv.attacks.priors.dip`), ``pixels`` total variation, with ten
            times the step size, falling to zero, and no running mean.
        pixels: what holds pixels back (``pixels``).
    """

    iterations: Annotated[int, Ge(1)] = 300
    tolerance: Annotated[float, Ge(0)] = 1e-3
    patience: Annotated[int, Ge(1)] = 150
    match: Literal["outputs", "class"] = "outputs"
    prior: Literal["dip", "pixels"] = "dip"
    pixels: PixelSettings = PixelSettings(jitter=1)

    name = "class-inversion"
    version = 3
    summary = "an image that the client's model answers as the upload says that it answers a class"
    targets = CLASS_OUTPUTS

    @property
    def schedule(self) -> Schedule:
        """Adam as the prior wants it."""
        planned = super().schedule
        if self.prior == "dip":
            return planned
        # A pixel moves by a step size directly; a network's weights move it by far more.
        return replace(planned, learning_rate=10 * self.learning_rate, anneal=True, average=0.0)

    def prior_of(self, generators: Sequence[torch.Generator], image_shape: ImageShape, device: torch.device) -> Prior:
        """Return the prior that is asked for."""
        if self.prior == "dip":
            return super().prior_of(generators, image_shape, device)
        return PixelPrior(generators, image_shape, self.pixels, device)

    def distance(self, problem: AttackProblem) -> Distance:
        """Return the distance of the model's answers to the uploaded outputs."""
        knowledge, device, targets = problem.knowledge, problem.device, problem.targets
        require_extractors(knowledge, targets)
        for client in sorted(set(problem.clients) - set(knowledge.heads)):
            raise UserError(f"no head of client {client} was handed over; attack {self.name!r} needs the whole model")
        outputs = [self._wanted(problem.observations, target, knowledge.n_classes) for target in targets]
        wanted = torch.stack([one for one, _ in outputs]).to(device)
        softmax = torch.tensor([one for _, one in outputs], device=device)
        owners, answered = torch.tensor([target.client for target in targets]), Answers(knowledge, device)

        @Last
        def asked(places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            there = places.to(device)
            return owners[places], wanted[there], softmax[there]

        def distance(images: Tensor, places: Tensor) -> Tensor:
            whose, aims, alike = asked(places)
            logits = answered(images, whose)
            as_softmax = output_distance(logits, aims, softmax=True)
            return torch.where(alike, as_softmax, output_distance(logits, aims, softmax=False))

        return distance

    def _wanted(self, observations: Sequence[Observation], target: TargetId, n_classes: int) -> tuple[Tensor, bool]:
        if self.match == "outputs":
            return uploaded_output(observations, target)
        if not 0 <= target.label < n_classes:
            raise UserError(f"attack {self.name!r} with match=class: no class is named for target {target.index}")
        return one_hot(torch.tensor(target.label), n_classes).float(), True


class Answers:
    """The models of clients as one map of images of several.

    Args:
        knowledge: extractors and heads.
        device: of the images.
    """

    def __init__(self, knowledge: Knowledge, device: torch.device) -> None:
        self._classes, self._extracted = knowledge.n_classes, OwnExtractors(knowledge)
        heads = knowledge.heads.items()
        self._heads = {client: (weight.to(device), bias.to(device)) for client, (weight, bias) in heads}
        self._places: Last[Tensor, list[tuple[int, Tensor]]] = Last(
            lambda owners: [(k, (owners == k).nonzero().flatten().to(device)) for k in _each(owners)]
        )

    def __call__(self, images: Tensor, owners: Tensor) -> Tensor:
        """Return the logits ``(n, C)`` of images, each by the model of its own client, which ``owners`` ``(n,)`` name."""
        features = self._extracted(images, owners)
        logits = features.new_zeros(len(features), self._classes)
        for client, mine in self._places(owners):
            logits = logits.index_copy(0, mine, linear(features[mine], *self._heads[client]))
        return logits


def _each(owners: Tensor) -> list[int]:
    return sorted(set(owners.tolist()))
