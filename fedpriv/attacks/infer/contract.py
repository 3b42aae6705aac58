"""The contract of inferences, which answer questions about clients by scores: a third one is a file and a line in the table.

An inference sees uploads, what the card grants, and what is asked. It is handed neither a run nor an answer, so that it
works over any evidence; whoever has the answers judges the scores (:mod:`fedpriv.scoring.inference`).
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from fedpriv.attacks.contract import Declared
from fedpriv.attacks.inputs.targets import Said, said
from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Observation, Progress
from fedpriv.attacks.trained import Trained
from fedpriv.util.errors import UserError


@dataclass(frozen=True)
class Candidates:
    """Images of which some were a client's training images; which, is not said.

    Attributes:
        client: whose members are looked for.
        images: ``(n, c, h, w)`` in [0, 1].
        labels: ``(n,)`` their classes, which the attacker knows.
    """

    client: int
    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Moment:
    """A round before the newest: what the server saw of it, and the grants about it."""

    observations: tuple[Observation, ...]
    knowledge: Knowledge


@dataclass(frozen=True)
class InferenceProblem:
    """One call's problem. Everything by client holds the clients that uploaded in the newest round.

    Attributes:
        observations: what the server saw.
        knowledge: card and grants.
        kind: of upload that is attacked, where a message holds several; None for whatever can be compared directly.
        candidates: client -> images that are asked about; empty for an inference that asks about classes.
        disclosed: client -> what it said in clear in any round; of one that is not there its newest upload is asked.
        colluders: client -> how many images of each class it has ``(C,)`` int64, of clients in league with the attacker.
        seed: of everything drawn.
        progress: called with (units done, units planned) by an inference whose work has units.
        earlier: rounds before the newest, in order, for an inference that takes several.
        trained: shadows that are trained already.
    """

    observations: tuple[Observation, ...]
    knowledge: Knowledge
    kind: str | None = None
    candidates: Mapping[int, Candidates] = field(default_factory=dict)
    disclosed: Mapping[int, Said] = field(default_factory=dict)
    colluders: Mapping[int, Tensor] = field(default_factory=dict)
    seed: int = 0
    progress: Progress | None = None
    earlier: tuple[Moment, ...] = ()
    trained: Trained = field(default_factory=Trained)

    @property
    def uploads(self) -> dict[int, Observation]:
        """Client -> what was seen of it in the newest round."""
        newest = max(seen.round for seen in self.observations)
        return {seen.client: seen for seen in self.observations if seen.round == newest}

    def said(self) -> dict[int, Said]:
        """Return each client's words in clear."""
        return {k: self.disclosed.get(k) or said((seen.upload,)) for k, seen in self.uploads.items()}


@dataclass(frozen=True)
class Asked:
    """Questions, and of whom.

    Attributes:
        classes: client -> the class ``(n,)`` that each of its questions is about.
        question: a name of it.
        threshold: where it depends on one.
    """

    classes: Mapping[int, Tensor]
    question: str = ""
    threshold: float | None = None


@dataclass(frozen=True)
class Scores:
    """Answers of an inference.

    Attributes:
        asked: what of whom.
        values: client -> a score of each question ``(n,)`` float64 on the CPU; higher for a likelier yes, minus infinity
            where a yes is ruled out.
        source: in words, where scores were learned from; empty where nothing was learned.
        colluders: in words, who was in league with the attacker; empty for nobody.
        seconds: what it took, measured by the call.
        shares: client -> an estimate of its class shares ``(C,)`` that sum to one, float64 on the CPU, of an inference that
            makes one.
        null: client -> scores ``(m,)`` of what the attacker knows to be a no, on the scale of the client's ``values``, from
            which thresholds are set; nothing where it knows of none.
        null_source: in words, what those are.
    """

    asked: Asked
    values: Mapping[int, Tensor]
    source: str = ""
    colluders: str = ""
    seconds: float = 0.0
    shares: Mapping[int, Tensor] = field(default_factory=dict)
    null: Mapping[int, Tensor] = field(default_factory=dict)
    null_source: str = ""


@dataclass(frozen=True, kw_only=True)
class Inference(Declared):
    """An attack that returns scores.

    Attributes:
        asks: whether a candidate image was a member (the answer is who trained on it), or something of a class (the answer
            follows from how many images of each class a client has).
        reads_every_round: whether it uses what clients said in clear in all stored rounds; its card then says so.
        most_rounds: rounds that it takes one by one and puts together, where nobody says how many; 1 where it never takes
            more than the newest.
    """

    result = "scores"
    asks: ClassVar[Literal["images", "classes"]]
    reads_every_round: ClassVar[bool] = False
    most_rounds: ClassVar[int] = 1

    def takes_extractor(self, kind: str, granted: KnowledgeCard) -> bool:
        """True if it uses clients' extractors on a kind of upload, where these are granted; otherwise uploads are enough."""
        return True

    def card(self, granted: KnowledgeCard, kind: str) -> KnowledgeCard:
        """Return its part of the grants: one round, and no extractor where uploads of a kind are enough."""
        extractor = granted.extractor if self.takes_extractor(kind, granted) else "none"
        return replace(granted, rounds_seen=1, extractor=extractor)

    @property
    def uses_rounds(self) -> bool:
        """True where it takes several rounds one by one."""
        return self.most_rounds > 1

    def rounds_on(self, kind: str, card: KnowledgeCard) -> int:
        """Return the number of rounds that it takes of a kind of upload, by these grants, where nobody says how many."""
        return self.most_rounds

    @property
    def colludes(self) -> bool:
        """True where it is told how many images of each class other clients have."""
        return False

    @property
    def n_candidates(self) -> int:
        """Members, and as many non-members, that are tried for each client at most, where it asks about images."""
        return 100

    def ask(self, problem: InferenceProblem) -> Asked:
        """Return the questions, before anything is computed, or refuse where they cannot be answered."""
        return Asked({client: one.labels for client, one in problem.candidates.items()})

    def answers(self, counts: Tensor, question: str) -> Tensor:
        """Return the true answer for each class ``(C,)`` bool of a client with ``counts`` images ``(C,)``."""
        raise NotImplementedError(f"{type(self).__name__} asks about images")

    @final
    def __call__(self, problem: InferenceProblem) -> Scores:
        """Answer the questions of a problem.

        Raises:
            UserError: when the card lacks a grant, nothing can be answered, or ``run`` returned no score for each question.
        """
        self.requirements_for(problem.kind).refuse(self.name, problem.knowledge.card)
        began = time.perf_counter()
        found = replace(self.run(problem), seconds=time.perf_counter() - began)
        for client, classes in found.asked.classes.items():
            values = found.values.get(client, torch.empty(0))
            if values.shape != classes.shape or bool(values.isnan().any()):
                raise UserError(
                    f"attack {self.name!r} returned scores {tuple(values.shape)} for client {client}; expected "
                    f"{tuple(classes.shape)} numbers"
                )
        return found

    @abstractmethod
    def run(self, problem: InferenceProblem) -> Scores:
        """Return a score for each question; the card has been checked."""
