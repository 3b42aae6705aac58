"""Property inference: what does an upload tell of a client as a whole, such as which class it has most of?

Counts and label sets that travel in clear, in whichever round, are read off. Everything else is learned: a logistic
regression on what uploads say about each class (:mod:`fedpriv.attacks.infer.property_features`), from clients of which the
answer is known. Those are clients that the attacker makes up of its own images
(:mod:`fedpriv.attacks.infer.shadow_clients`), or,
only where ``known="others"`` says so, all other clients of the federation, which are then in league with it. Kernels over
public images are compared with one another, and nothing is learned (:mod:`fedpriv.attacks.infer.kernel_classes`).

Sources: Ateniese et al., "Hacking smart machines with smarter ones" (2015); Melis et al., "Exploiting unintended feature
leakage in collaborative learning" (IEEE S&P 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from fedpriv.algebra.entanglement import Mechanism
from fedpriv.attacks.contract import Declared
from fedpriv.attacks.infer.property_features import describe
from fedpriv.attacks.observation import Needs, NeedsOn, Observation
from fedpriv.attacks.read.disclosed_labels import Said, said
from fedpriv.wire.kinds import CLASS_OUTPUTS, HEADS, KERNELS, VECTORS

Property = Literal["holds", "majority", "share"]


@dataclass(frozen=True)
class KnownClient:
    """A client of which the attacker knows how many images of each class it has.

    Attributes:
        observation: its upload.
        counts: ``(C,)`` int64.
    """

    observation: Observation
    counts: Tensor


@dataclass(frozen=True)
class Learned:
    """A logistic regression on standardised numbers; one answer only where all examples had the same."""

    centre: Tensor
    scale: Tensor
    weight: Tensor
    bias: float

    def __call__(self, numbers: Tensor) -> Tensor:
        """Return the log-odds ``(k,)`` of numbers ``(k, f)``."""
        return ((numbers - self.centre) / self.scale) @ self.weight + self.bias


@dataclass(frozen=True, kw_only=True)
class PropertyInference(Declared):
    """Answer a question about each class of a client.

    Attributes:
        question: ``holds`` (has the client any image of the class?), ``majority`` (is it the client's most frequent class?),
            ``share`` (does it make up more than ``threshold`` of the client's images?); ``auto`` asks for the majority
            where uploads name their classes, and otherwise which classes are held. Where there is nobody to learn the
            majority from, it asks for the classes that uploads name.
        known: of whom the attacker knows the answer: ``shadow`` clients that it makes of the images which the card grants,
            if any, or all ``others`` of the federation, who tell it how many images of each class they hold.
        threshold: of ``share``, in (0, 1).
        shadow_clients: clients made up of the attacker's own images, where the card grants some.
        epochs: passes of a shadow client over its images.
        mechanism: of shadow clients' entangled uploads; the protocol is public.
        penalty: strength of the regression's L2 penalty.
    """

    question: Literal["auto", "holds", "majority", "share"] = "auto"
    known: Literal["shadow", "others"] = "shadow"
    threshold: Annotated[float, Gt(0), Lt(1)] = 0.3
    shadow_clients: Annotated[int, Ge(2)] = 32
    epochs: Annotated[int, Ge(1)] = 30
    mechanism: Mechanism = "RAP"
    penalty: Annotated[float, Gt(0)] = 1.0

    name = "property"
    summary = "scores of classes: which ones the client holds, or has most of"
    result = "scores"
    targets = VECTORS | CLASS_OUTPUTS | HEADS | KERNELS
    needs_on: ClassVar[NeedsOn] = ((KERNELS, Needs(attacker_data=("same_domain",))),)
    needs_in_words: ClassVar[str] = (
        "nothing for what is sent in clear; else attacker_data=same_domain, or other clients in league: option known=others"
    )

    def asked(self, told: Sequence[Said]) -> Property:
        """Return the question that clients are asked, by what they said in clear."""
        if self.question != "auto":
            return self.question
        return "holds" if any(client.classes is None for client in told) else "majority"

    def answers(self, counts: Tensor, question: Property) -> Tensor:
        """Return the true answer for each class ``(C,)`` bool of a client with ``counts`` images ``(C,)``."""
        if question == "holds":
            return counts > 0
        if question == "majority":
            return counts == counts.max()
        return counts > self.threshold * counts.sum()

    def read_off(self, told: Said, question: Property, n_classes: int) -> tuple[Tensor, Tensor] | None:
        """Return classes ``(k,)`` and certain scores ``(k,)`` where a client gave the answer in clear; else None."""
        if told.counts is not None:
            counts = torch.tensor([told.counts.get(label, 0) for label in range(n_classes)])
            return torch.arange(n_classes), self.answers(counts, question).double()
        if question == "holds" and told.classes is not None:
            held = torch.zeros(n_classes, dtype=torch.float64).index_fill(
                0, torch.tensor(told.classes, dtype=torch.int64), 1.0
            )
            return torch.arange(n_classes), held
        return None

    def learn(self, known: Sequence[KnownClient], question: Property, n_classes: int) -> Learned:
        """Fit the regression to clients whose answers are known.

        Args:
            known: at least one.
            question: what is asked.
            n_classes: C.
        """
        numbers, truth = [], []
        for client in known:
            classes, rows = describe(client.observation, n_classes)
            numbers.append(rows)
            truth.append(self.answers(client.counts, question)[classes])
        table, wanted = torch.cat(numbers), torch.cat(truth)
        centre, scale = table.mean(0), table.std(0, unbiased=False).clamp_min(1e-9)
        width = table.shape[1]
        if bool(wanted.all()) or not bool(wanted.any()):
            return Learned(centre, scale, torch.zeros(width, dtype=torch.float64), 0.0)
        from sklearn.linear_model import LogisticRegression  # slow to import, and reports read this module

        fitted = LogisticRegression(C=1 / self.penalty, class_weight="balanced", max_iter=2000)
        fitted.fit(((table - centre) / scale).numpy(), wanted.numpy())
        weight = torch.from_numpy(np.asarray(fitted.coef_[0], dtype=np.float64))
        return Learned(centre, scale, weight, float(fitted.intercept_[0]))

    def run(
        self,
        observation: Observation,
        question: Property,
        n_classes: int,
        learned: Learned | None,
        told: Said | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return classes ``(k,)`` and a score for each ``(k,)``, float64; a higher score is a likelier yes.

        Scores that are read off are 0 and 1. Without these and without anything learned all are the same.

        Args:
            observation: the client's upload, or the permuted control.
            question: what is asked.
            n_classes: C.
            learned: what was learned from known clients; not needed where the answer is read off.
            told: what the client said in clear in all rounds; default what this upload says.
        """
        certain = self.read_off(said((observation.upload,)) if told is None else told, question, n_classes)
        if certain is not None:
            return certain
        classes, rows = describe(observation, n_classes)
        odds = torch.zeros(len(rows), dtype=torch.float64) if learned is None else learned(rows)
        # One class of a client has the majority, so its classes compete with one another.
        return classes, odds.log_softmax(0) if question == "majority" else odds
