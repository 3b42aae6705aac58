"""The case that an inference is tried on: the evidence, and the truth, of which it gets candidates alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedpriv.attacks.inference.base import Candidates, Inference, InferenceProblem, Moment
from fedpriv.attacks.inputs.targets import Said
from fedpriv.sources.case import Case
from fedpriv.sources.truth import Holdings


@dataclass(frozen=True)
class InferenceCase:
    """Case and truth.

    Attributes:
        evidence: what the server saw, with extractors of every client that uploaded in the attacked round where granted.
        truth: who holds which images.
        kind: of upload that is attacked.
        seed: of candidates, and of everything drawn.
        told: what clients said in clear in all rounds (:meth:`fedpriv.sources.source.Source.disclosed`); of one that is not
            there its newest upload is asked.
        earlier: evidence of rounds before the attacked one, in order, for an inference that takes several.
    """

    evidence: Case
    truth: Holdings
    kind: str
    seed: int
    told: Mapping[int, Said] = field(default_factory=dict)
    earlier: tuple[Case, ...] = ()

    @property
    def round(self) -> int:
        """The attacked round."""
        return max(seen.round for seen in self.evidence.observations)

    def problem(self, inference: Inference, candidates: Mapping[int, Candidates] | None = None) -> InferenceProblem:
        """Return the problem that an inference is handed.

        Args:
            inference: which.
            candidates: client -> images that are asked about, where it asks about images.
        """
        requested = InferenceProblem(
            self.evidence.observations, self.evidence.knowledge, self.kind, candidates or {}, self.told, seed=self.seed
        )
        if inference.most_rounds > 1:
            requested = replace(
                requested, earlier=tuple(Moment(item.observations, item.knowledge) for item in self.earlier)
            )
        return requested

    def shuffled(self, problem: InferenceProblem) -> InferenceProblem | None:
        """Return the problem with another client's upload in the place of each, in every round; None where there is none."""
        if self.evidence.shuffled is None:
            return None
        earlier = tuple(Moment(item.shuffled, item.knowledge) for item in self.earlier if item.shuffled is not None)
        return replace(problem, observations=self.evidence.shuffled, earlier=earlier if problem.earlier else ())

    def counts(self, problem: InferenceProblem) -> dict[int, Tensor]:
        """Return the counts of images by class ``(C,)`` of each client that uploaded."""
        n_classes = self.evidence.knowledge.n_classes
        return {k: torch.bincount(self.truth.labels(k), minlength=n_classes) for k in problem.uploads}
