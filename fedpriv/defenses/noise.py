"""Noise: as large as the entries, without a guarantee."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from fedpriv.defenses.signals import (
    AVERAGED,
    CLASS_IDS,
    COMPARED,
    LIKENESS,
    MOST_LIKELY,
    NETWORK_NAMES,
    SEARCHES,
    SignalDefense,
    norm,
    signal,
    transform,
)
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import UploadContext
from fedpriv.uploads.payload import Message

_OWN_SIZE = "every tensor has noise of its own size, and counts by it"


Distribution = Literal["gaussian", "laplace"]


@dataclass(frozen=True)
class Noise(SignalDefense):
    """Add independent noise to every entry of a signal: a heuristic without a guarantee; nothing bounds the signal.

    Attributes:
        scale: standard deviation of the noise, of either distribution.
        kind: ``gaussian``, or ``laplace`` (of scale parameter scale / sqrt(2)).
        unit: ``rms`` for a multiple of each tensor's root mean square (of the update where a network is uploaded),
            ``absolute`` for the tensor's own units.
    """

    scale: Annotated[float, Gt(0)] = 0.1
    kind: Distribution = "gaussian"
    unit: Literal["rms", "absolute"] = "rms"

    name: ClassVar[str] = "noise"
    source: ClassVar[str] = "Zhu et al., NeurIPS 2019 (noisy gradients)"
    guarantee: ClassVar[str] = "none (heuristic)"
    answers = (
        *AVERAGED,
        Answer(SEARCHES, NETWORK_NAMES, {"match": "relative"}, {"unit": "rms"}, _OWN_SIZE),
        replace(MOST_LIKELY, where={"unit": "absolute"}),
        *(LIKENESS, CLASS_IDS, COMPARED),
        Answer(("inverting-gradients", "membership"), ("low-rank-model",), note="as they are: go by direction"),
    )

    def change(self, value: Tensor, context: UploadContext) -> Tensor:
        rms = float(value.double().square().mean().sqrt()) if value.numel() else 0.0
        deviation = self.scale * (rms if self.unit == "rms" else 1.0)
        return value + deviation * standard_noise(value, self.kind, context.rng)


def standard_noise(like: Tensor, kind: Distribution, rng: torch.Generator) -> Tensor:
    """Return noise of zero mean and unit variance in the shape of a tensor, drawn on the CPU."""
    gaussian = kind == "gaussian"
    drawn = torch.randn(like.shape, generator=rng) if gaussian else laplace(like.shape, rng) / math.sqrt(2)
    return drawn.to(like)


def laplace(shape: torch.Size, rng: torch.Generator) -> Tensor:
    """Return float32 draws of the Laplace distribution of scale 1 (variance 2)."""
    uniform = torch.rand(shape, generator=rng, dtype=torch.float64) - 0.5
    return (-uniform.sign() * torch.log1p(-2 * uniform.abs().clamp(max=0.5 - 1e-16))).float()


def clipped_and_noisy(message: Message, context: UploadContext, bound: float, deviation: float) -> Message:
    """Return a message whose signals together are no longer than ``bound``, with Gaussian noise on every entry."""
    signals = [signal(payload, context.broadcast) for payload in message]
    length = norm({f"{index}.{name}": value for index, values in enumerate(signals) for name, value in values.items()})
    share = min(1.0, bound / max(length, 1e-12))

    def change(_: str, value: Tensor) -> Tensor:
        return value * share + deviation * standard_noise(value, "gaussian", context.rng)

    return transform(message, context.broadcast, change)
