"""Add noise to what is uploaded, without accounting for what it guarantees."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from fedpriv.defenses.shared.adapted import AVERAGED, CLASS_IDS, COMPARED, LIKENESS, MOST_LIKELY, NETWORKS
from fedpriv.defenses.shared.signals import require, rms, transform
from fedpriv.federation.answer import NO_OTHERS, Answer
from fedpriv.federation.defense import Defense, ProtectionPlan, UploadContext
from fedpriv.wire.kinds import SIGNALS
from fedpriv.wire.payloads import Message

Distribution = Literal["gaussian", "laplace"]


@dataclass(frozen=True)
class Noise(Defense):
    """Add independent noise to every entry of a signal: a heuristic without a guarantee.

    Nothing bounds the signal, so no scale means the same for two uploads, and a scale that is relative to the signal
    gives away its size. See ``dp-noise`` for noise with a guarantee.

    Attributes:
        scale: standard deviation of the noise, of either distribution: a multiple of the root mean square of the
            tensor (of the update where a network is uploaded), or in the tensor's own units.
        kind: ``gaussian``, or ``laplace`` (of scale parameter scale / sqrt(2)).
        unit: ``rms`` for a multiple of each tensor's root mean square, ``absolute`` for the tensor's own units.
    """

    scale: Annotated[float, Gt(0)] = 0.1
    kind: Distribution = "gaussian"
    unit: Literal["rms", "absolute"] = "rms"

    name: ClassVar[str] = "noise"
    source: ClassVar[str] = "Zhu et al., NeurIPS 2019 (noisy gradients)"
    guarantee: ClassVar[str] = "none (heuristic)"
    answers: ClassVar[tuple[Answer, ...]] = (
        *AVERAGED,
        Answer(
            ("dlg", "inverting-gradients", "gradient-dip"),
            NETWORKS,
            {"match": "relative"},
            where={"unit": "rms"},
            note="every tensor has noise of its own size, and counts by it",
        ),
        replace(MOST_LIKELY, where={"unit": "absolute"}),
        LIKENESS,
        CLASS_IDS,
        COMPARED,
        Answer(("inverting-gradients", "membership"), ("low-rank-model",), note="as they are: go by direction"),
    )
    unanswered: ClassVar[str] = NO_OTHERS

    def check(self, plan: ProtectionPlan) -> None:
        """Refuse methods that upload no signal."""
        require(self.name, plan, SIGNALS)

    def preserves_sensitivity(self) -> bool:
        """True if the noise is the same whatever the images are, which noise relative to the signal is not."""
        return self.unit == "absolute"

    def upload(self, message: Message, context: UploadContext) -> Message:
        """Return the message with noise on its signals."""

        def noisy(_: str, value: Tensor) -> Tensor:
            deviation = self.scale * (rms(value) if self.unit == "rms" else 1.0)
            return value + deviation * standard_noise(value, self.kind, context.rng)

        return transform(message, context.broadcast, noisy)


def standard_noise(like: Tensor, kind: Distribution, rng: torch.Generator) -> Tensor:
    """Return noise of zero mean and unit variance in the shape of a tensor, drawn on the CPU."""
    gaussian = kind == "gaussian"
    drawn = torch.randn(like.shape, generator=rng) if gaussian else laplace(like.shape, rng) / math.sqrt(2)
    return drawn.to(like)


def laplace(shape: torch.Size, rng: torch.Generator) -> Tensor:
    """Return float32 draws of the Laplace distribution of scale 1 (variance 2)."""
    uniform = torch.rand(shape, generator=rng, dtype=torch.float64) - 0.5
    return (-uniform.sign() * torch.log1p(-2 * uniform.abs().clamp(max=0.5 - 1e-16))).float()
