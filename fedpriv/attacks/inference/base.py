"""The contract of inferences, which answer questions about clients by scores and never see the true answers."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from fedpriv.attacks.contract import Declared, Trained
from fedpriv.attacks.inputs.targets import Said, said
from fedpriv.attacks.observation import Knowledge, Observation, Progress, ThreatModel
from fedpriv.util.errors import UserError


@dataclass(frozen=True)
class Candidates:
    """Images ``(n, c, h, w)`` in [0, 1] of classes ``(n,)``, some of which were the client's training images."""

    client: int
    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Moment:
    """A round: what the server saw of it, and the grants about it."""

    observations: tuple[Observation, ...]
    knowledge: Knowledge


@dataclass(frozen=True)
class InferenceProblem:
    """The input of one call. Mappings by client hold the clients that uploaded in the newest round."""

    observations: tuple[Observation, ...]
    knowledge: Knowledge
    kind: str  # of upload that is attacked
    candidates: Mapping[int, Candidates] = field(default_factory=dict)  # client -> images; empty if asked about classes
    disclosed: Mapping[int, Said] = field(default_factory=dict)  # client -> in any round; else by its newest upload
    seed: int = 0
    progress: Progress | None = None  # called with (units done, units planned)
    earlier: tuple[Moment, ...] = ()  # rounds before the newest, in order
    trained: Trained = field(default_factory=Trained)  # networks and rows that several attacks use

    @property
    def uploads(self) -> dict[int, Observation]:
        """Client -> what was seen of it in the newest round."""
        newest = max(seen.round for seen in self.observations)
        return {seen.client: seen for seen in self.observations if seen.round == newest}

    @property
    def rounds(self) -> tuple[Moment, ...]:
        """All rounds in order; of the newest the uploads of that round alone."""
        return (*self.earlier, Moment(tuple(self.uploads.values()), self.knowledge))

    def uploads_of(self, client: int) -> list[tuple[Observation, Knowledge]]:
        """Return a client's uploads in all rounds, each with the grants about its round."""
        return [(seen, item.knowledge) for item in self.rounds for seen in item.observations if seen.client == client]

    def said(self) -> dict[int, Said]:
        """Return each client's disclosed labels and counts."""
        return {k: self.disclosed.get(k) or said((seen.upload,)) for k, seen in self.uploads.items()}


@dataclass(frozen=True)
class Asked:
    """The questions: client -> the class ``(n,)`` of each of them, and the question's name."""

    classes: Mapping[int, Tensor]
    question: str = ""


@dataclass(frozen=True)
class Scores:
    """Answers of an inference; all numbers float64 on the CPU."""

    asked: Asked
    values: Mapping[int, Tensor]  # client -> score of each question (n,), higher for a likelier yes, -inf for a sure no
    source: str = ""  # in words, where scores were learned from; empty where nothing was learned
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Inference(Declared):
    """An attack that returns scores.

    Attributes:
        asks: about ``images`` (was it a member?) or ``classes`` (how many images of it has the client?).
        reads_every_round: whether it uses disclosed labels of all stored rounds; its card then says so.
        most_rounds: rounds that it combines by default; 1 where it never takes more than the newest.
    """

    result = "scores"
    asks: ClassVar[Literal["images", "classes"]]
    reads_every_round: ClassVar[bool] = False
    most_rounds: ClassVar[int] = 1

    def takes_extractor(self, kind: str, granted: ThreatModel) -> bool:
        """True if it uses clients' extractors, where granted, on a kind of upload."""
        return True

    def card(self, granted: ThreatModel, kind: str) -> ThreatModel:
        """Return the grants that it uses: one round, and an extractor only where it takes one."""
        extractor = granted.extractor if self.takes_extractor(kind, granted) else "none"
        return replace(granted, rounds_seen=1, extractor=extractor)

    def uses_rounds_on(self, kind: str) -> bool:
        """True where it combines several rounds."""
        return self.most_rounds > 1

    def rounds_on(self, kind: str, card: ThreatModel) -> int:
        """Return the default number of rounds for a kind of upload and these grants."""
        return self.most_rounds

    @property
    def n_candidates(self) -> int:
        """The most members, and as many non-members, for each client, where it asks about images."""
        return int(getattr(self, "candidates", 100))

    def ask(self, problem: InferenceProblem) -> Asked:
        """Return the questions, before anything is computed; raises UserError where they cannot be answered."""
        return Asked({client: candidate.labels for client, candidate in problem.candidates.items()})

    def answers(self, counts: Tensor, question: str) -> Tensor:
        """Return the true answer for each class ``(C,)`` bool of a client with ``counts`` images ``(C,)``."""
        raise NotImplementedError(f"{type(self).__name__} asks about images")

    @final
    def __call__(self, problem: InferenceProblem) -> Scores:
        """Answer the questions of a problem; raises UserError when a grant or a score is missing."""
        self.requirements_for(problem.kind).refuse(self.name, problem.knowledge.card)
        began = time.perf_counter()
        scores = replace(self.run(problem), seconds=time.perf_counter() - began)
        for client, classes in scores.asked.classes.items():
            values = scores.values.get(client, torch.empty(0))
            if values.shape != classes.shape or bool(values.isnan().any()):
                raise UserError(
                    f"attack {self.name!r} returned scores {tuple(values.shape)} for client {client}; expected "
                    f"{tuple(classes.shape)} numbers"
                )
        return scores

    @abstractmethod
    def run(self, problem: InferenceProblem) -> Scores:
        """Return a score for each question; the card has been checked."""
