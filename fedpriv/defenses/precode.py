"""PRECODE: a variational bottleneck before the head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import Tensor

from fedpriv.defenses.signals import WHOLE_NAMES
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import Defense, GradientTransform, ProtectionPlan, Step, Work
from fedpriv.models.split import Blueprint, VariationalBottleneck

_INTO = "of small batches it finds what goes into the bottleneck, whatever that draws"


@dataclass(frozen=True)
class Precode(Defense):
    """A variational bottleneck behind the representation mapping of every model; beta KL is added to the loss.

    The representation is mapped to means and standard deviations of a code of K entries, a code is drawn (in
    evaluation: the mean is taken) and mapped back; what methods upload as representation is what comes out. The model
    grows by 3 d K + 2 K + d parameters, which travel wherever the extractor does. Nothing is guaranteed: the
    bottleneck's own first layer is fully connected; where images of a batch can be separated the representation
    follows from its gradient in closed form, whatever code was drawn.

    Attributes:
        code: K >= 1 entries of the code; the paper takes 256.
        beta: weight of the divergence from N(0, 1), in units of the loss per nat.
    """

    code: Annotated[int, Ge(1)] = 256
    beta: Annotated[float, Ge(0)] = 1e-3

    name: ClassVar[str] = "precode"
    source: ClassVar[str] = "Scheliga, Maeder, Seeland, WACV 2022, section 3"
    answers = (
        Answer(("linear-layer",), ("model", "small-model", "extractor", "low-rank-model"), note=_INTO),
        Answer(
            ("inverting-gradients",),
            WHOLE_NAMES,
            {"ignore": "bottleneck.*+head.*"},
            note="leaves the random layers out",
            source="Scheliga et al. 2022, arXiv 2208.04767",
        ),
        Answer(note="the bottleneck draws anew, but is no secret: the server that has the network has it"),
    )

    def blueprint(self, blueprint: Blueprint) -> Blueprint:
        return replace(blueprint, bottleneck=self.code)

    def guard(self, plan: ProtectionPlan) -> GradientTransform:
        return lambda step: divergent_step(step, self.beta)


def divergent_step(step: Step, beta: float) -> Step:
    """Return the step of the loss plus beta times the divergence of every bottleneck that the loss passes through.

    A bottleneck that is passed several times in one loss counts as it was passed last.
    """

    def divergent(work: Work, images: Tensor, labels: Tensor) -> Tensor:
        bottlenecks = [layer for layer in work.module.modules() if isinstance(layer, VariationalBottleneck)]

        def with_divergence(batch: Tensor, classes: Tensor) -> Tensor:
            for layer in bottlenecks:
                layer.divergence = None
            value = work.loss(batch, classes)
            for layer in bottlenecks:
                if layer.divergence is not None:
                    value = value + beta * layer.divergence
            return value

        loss = step(replace(work, loss=with_divergence), images, labels)
        for layer in bottlenecks:
            layer.divergence = None  # lets go of the graph
        return loss

    return divergent
