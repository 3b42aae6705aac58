"""Questions about a client as a whole, what settles them, and what answers look like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedpriv.attacks.infer.contract import Asked
from fedpriv.attacks.inputs.targets import Said
from fedpriv.attacks.observation import Observation
from fedpriv.wire.kinds import PUBLIC_OUTPUTS

Property = Literal["holds", "majority", "share"]

QUESTIONS: dict[str, str] = {
    "holds": "has the client any image of the class?",
    "majority": "is it the client's most frequent class?",
    "share": "does it make up more than the threshold of the client's images?",
}

IN_CLEAR = ("the upload itself", "the uploads of all rounds themselves")
"""Origins of answers that are read off: the attacked round, or any up to it."""

BY_DEVIATION = "how far uploads deviate from images of the attacker's own"
"""Origin of answers by numbers of members."""

BY_GRADIENTS = "gradients of images of the attacker's own"
"""Origin of answers by mixtures of gradients."""

BY_BIASES = "the changes of the head's biases"
"""Origin of answers by biases alone."""

CERTAIN = 1e6
"""Score of certain answers: above, or below, whatever is only likely."""

Means = Literal["learned", "compared", "deviation", "gradients", "biases"]
"""How answers that are not in clear are come by."""


@dataclass(frozen=True, kw_only=True)
class Inquiry(Asked):
    """A question, and how it can be answered.

    Attributes:
        told: what clients said in clear, by client.
        certain: clients whose answer is in clear.
        learns: whether there is anybody to learn the others' answers from.
        means: by which the others' answers are come by.
        compared: classes and scores of answers to public images, which are compared with one another, by client; empty for
            other uploads.
    """

    question: Property = "holds"
    told: Mapping[int, Said]
    certain: frozenset[int]
    learns: bool
    means: Means
    compared: Mapping[int, tuple[Tensor, Tensor]]


def answers(counts: Tensor, question: str, threshold: float) -> Tensor:
    """Return the true answer for each class ``(C,)`` bool of a client with ``counts`` images ``(C,)``."""
    if question == "holds":
        return counts > 0
    if question == "majority":
        return counts == counts.max()
    return counts > threshold * counts.sum()


def read_off(told: Said, question: Property, n_classes: int, threshold: float) -> tuple[Tensor, Tensor] | None:
    """Return classes ``(k,)`` and certain scores ``(k,)`` where a client gave the answer in clear; else None."""
    if told.counts is not None:
        counts = torch.tensor([told.counts.get(label, 0) for label in range(n_classes)])
        return torch.arange(n_classes), answers(counts, question, threshold).double()
    if question == "holds" and told.classes is not None:
        classes = torch.arange(n_classes)
        return classes, torch.isin(classes, torch.tensor(told.classes, dtype=torch.int64)).double()
    return None


def odds(held: Tensor, question: Property) -> Tensor:
    """Return scores of classes ``(k,)`` of which a client has these shares."""
    return held.log() - (-held).log1p() if question == "share" else held.log()


def are_outputs(uploads: Mapping[int, Observation]) -> bool:
    """True where what is compared are outputs on public samples, not kernels."""
    return all(PUBLIC_OUTPUTS.first(seen.upload) is not None for seen in uploads.values())
