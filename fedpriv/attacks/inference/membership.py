"""Membership inference: was this very image among those that a client's upload was computed from?

It scores candidates, higher for likelier members, from the upload and the client's extractor g. No shadow federation is
trained (:mod:`fedpriv.attacks.inference.likelihood_ratio` trains shadow clients). Scores are calibrated by the other
clients' uploads and averaged over rounds (:mod:`fedpriv.attacks.inference.calibration`), but with ``null=none``. By kind of
upload:

- prototypes, representations, mixtures: ||g(x) - p||^2 / ||p||^2 with the nearest p uploaded for the candidate's class (or
  one less their cosine); where the attacker has labelled images of the clients' domain, of means and mixtures rather the
  deviation of :func:`fedpriv.attacks.inference.membership_scores.deviation_scores`;
- class outputs: KL(u_y || softmax(head(g(x)))), with u_y the uploaded mean output of the class;
- kernels and outputs on public samples: what ridge regression over pixels makes of them at the candidate
  (:mod:`fedpriv.attacks.inference.membership_scores`);
- trained weights: :mod:`fedpriv.attacks.inference.update_scores`.

A candidate of a class that the upload does not contain cannot be a member: minus infinity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.inference.base import Candidates, Inference, InferenceProblem, Scores
from fedpriv.attacks.inference.calibration import (
    AUXILIARY,
    CandidateScores,
    Rule,
    average_rounds,
    calibrate_by_class,
    calibrate_by_other_clients,
    calibrate_by_spread,
    score_candidates,
)
from fedpriv.attacks.inference.mean_uploads import AVERAGES, enough_images, read_mean_round
from fedpriv.attacks.inference.membership_scores import (
    COMPARED,
    deviation_scores,
    group_by_class,
    kernel_signals,
    leave_one_out_scores,
    nearness_to_upload,
    public_signals,
)
from fedpriv.attacks.inference.update_scores import Judge, update_signals
from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Needs, Observation, RequirementsByKind
from fedpriv.util.seeds import generator
from fedpriv.wire.kinds import (
    ANSWERS,
    BESIDE_A_HEAD,
    CLASS_OUTPUTS,
    HEADS,
    KERNELS,
    LAYERS,
    PUBLIC_OUTPUTS,
    TRAINED,
    WHOLE,
    payload_kind,
)

MOST_ROUNDS_OF_MEANS = 15
"""Default rounds of deviations: a mixture is separated by weights that change often."""

MOST_OTHERS, FEW_OTHERS, FEWEST_OTHERS = 20, 4, 2
"""The most other clients that calibrate trained weights: of whole models, where all share the candidates' gradients; of
single layers; and where each takes another pass through a network, or another projection."""

MOST_OWN_IMAGES = 100
"""The most images of the attacker's own that are scored for a client."""


@dataclass(frozen=True, kw_only=True)
class MembershipInference(Inference):
    """Score candidates by how near they are to what was uploaded.

    Attributes:
        candidates: the most members, and as many non-members, for each client.
        score: of vectors: relative squared ``distance``, or ``cosine``; ``auto`` for the deviation of means and mixtures
            from their expectation where the attacker has labelled images of the clients' domain, else ``distance``.
        null: calibration by the other ``clients``' uploads (of trained weights, kernels and outputs on public samples also
            by the other candidates of a class), or ``none``.
        judge: of trained weights: ``span``, ``gradient`` or ``loss``; ``auto`` for the first where a layer before the head
            is uploaded, else the second, because a few images fill a head's span.
        classes: of mixtures: ``sent``, those that the label encoding gives weight, or ``any``, where encodings hide weights
            (the adaptive attack on ``hide-labels``).
    """

    candidates: Annotated[int, Ge(1)] = 100
    score: Literal["auto", "distance", "cosine"] = "auto"
    null: Literal["clients", "none"] = "clients"
    judge: Judge = "auto"
    classes: Literal["sent", "any"] = "sent"

    name = "membership"
    version = 7
    summary = "scores of candidate images: which ones the client trained on"
    asks = "images"
    most_rounds = 5
    targets = COMPARED | ANSWERS | TRAINED
    needs = Needs(extractor=("white_box", "query"))
    requirements_by_kind: ClassVar[RequirementsByKind] = (
        (KERNELS | WHOLE, Needs()),
        (PUBLIC_OUTPUTS, Needs(attacker_data=("same_domain",))),
        (BESIDE_A_HEAD, Needs(extractor=("white_box",))),
    )

    def rounds_on(self, kind: str, card: KnowledgeCard) -> int:
        """Return the default number of rounds: of distances the newest alone; several do no better."""
        if kind in AVERAGES and self.score == "auto" and card.attacker_data == "same_domain":
            return MOST_ROUNDS_OF_MEANS
        return 1 if kind in COMPARED else self.most_rounds

    @property
    def n_candidates(self) -> int:
        """The most members, and as many non-members, for each client."""
        return self.candidates

    def run(self, problem: InferenceProblem) -> Scores:
        """Score the candidates of every client."""
        found = {client: self._score_client(problem, asked) for client, asked in problem.candidates.items()}
        null = {client: one.null() for client, one in found.items() if one.known}
        known = "images of the attacker's own" if self._has_non_members(problem) else "other clients' uploads"
        return Scores(
            self.ask(problem),
            {client: one.scores for client, one in found.items()},
            null=null,
            null_source=known if null else "",
        )

    def _score_client(self, problem: InferenceProblem, asked: Candidates) -> CandidateScores:
        seen = [(one.knowledge, {upload.client: upload for upload in one.observations}) for one in problem.rounds]
        seen = [(knowledge, uploads) for knowledge, uploads in seen if asked.client in uploads]
        kind = problem.kind or _answer_in(seen[-1][1][asked.client])
        if self._deviates(seen[-1][1][asked.client], seen[-1][0], kind):
            mine = [(uploads[asked.client], knowledge) for knowledge, uploads in seen]
            return _by_deviation(problem, asked, [one for one in mine if self._deviates(*one, kind)])
        with_own = self._with_own_images(problem, asked)
        rounds: list[CandidateScores] = []
        for knowledge, uploads in seen:
            own, others = self._signals(uploads, with_own, knowledge, kind)
            rule = self._rule(kind, with_own.labels, bool(others))
            rounds.append(score_candidates(own, others, len(asked.labels), rule))
        return average_rounds(rounds)

    def _deviates(self, seen: Observation, knowledge: Knowledge, kind: str | None) -> bool:
        """True where a mean or a mixture is scored by its deviation from the attacker's own images."""
        if self.score != "auto" or (kind is not None and kind not in COMPARED):
            return False
        sent, labels = COMPARED.first(seen.upload), knowledge.public_labels
        if sent is None or sent.kind not in AVERAGES or (self.classes == "any" and sent.said("weights") is not None):
            return False
        return labels is not None and knowledge.card.attacker_data == "same_domain" and enough_images(labels)

    def _rule(self, kind: str | None, labels: Tensor, beside: bool) -> Rule:
        if kind is not None and kind in ANSWERS | TRAINED and self.null == "clients":
            return calibrate_by_spread(labels) if kind in ANSWERS else calibrate_by_class(labels)
        if beside and (kind is None or kind in COMPARED):
            return lambda own, others: calibrate_by_other_clients(-own, [-one for one in others])
        return lambda own, others: own

    def _signals(
        self, uploads: Mapping[int, Observation], asked: Candidates, knowledge: Knowledge, kind: str | None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Return the signals of the client's upload ``(n,)``, and those of other clients' uploads."""
        mine = uploads[asked.client]
        beside = [seen for seen in uploads.values() if self._calibrates(knowledge, kind, mine, seen)]
        if kind is not None and kind in TRAINED | ANSWERS:
            if kind in TRAINED:
                nearest = sorted(beside, key=lambda seen: (seen.client <= mine.client, seen.client))
                beside = nearest[: _most_others(kind)]
                rows = update_signals([mine, *beside], asked.images, asked.labels, knowledge, self.judge)
            else:
                rows = _answer_signals([mine, *beside], asked, knowledge)
            return rows[0], {seen.client: row for seen, row in zip(beside, rows[1:], strict=True)}
        others = {seen.client: self._nearness(seen, replace(asked, client=seen.client), knowledge) for seen in beside}
        return self._nearness(mine, asked, knowledge), others

    def _nearness(self, seen: Observation, asked: Candidates, knowledge: Knowledge) -> Tensor:
        every_class = self.classes == "any"
        return nearness_to_upload(seen, asked, knowledge, cosine=self.score == "cosine", every_class=every_class)

    def _calibrates(self, knowledge: Knowledge, kind: str | None, own: Observation, seen: Observation) -> bool:
        """True for another client's upload that candidates can be compared with as with the client's own.

        Behind secure aggregation all clients' uploads are the same, and no null.
        """
        if seen.client == own.client or self.null == "none":
            return False
        among = next((kinds for kinds in (TRAINED, ANSWERS) if kind is not None and kind in kinds), COMPARED)
        mine, theirs = among.first(own.upload), among.first(seen.upload)
        if mine is None or theirs is None or (kind is not None and kind not in among):
            return False
        if among is not COMPARED:
            if _same(mine.tensors(), theirs.tensors()):
                return False
            if among is ANSWERS or kind in WHOLE:
                return True
            return seen.client in knowledge.extractors if kind in HEADS else seen.client in knowledge.heads
        if seen.client not in knowledge.extractors:
            return False
        if mine.kind in CLASS_OUTPUTS and seen.client not in knowledge.heads:
            return False
        return not torch.equal(mine.rows(), theirs.rows())

    def _has_non_members(self, problem: InferenceProblem) -> bool:
        """True where the attacker has labelled images that no client trained on, which public ones may be."""
        kind = problem.kind or next(filter(None, map(_answer_in, problem.uploads.values())), None)
        return problem.knowledge.public_labels is not None and (kind is None or kind not in ANSWERS)

    def _with_own_images(self, problem: InferenceProblem, asked: Candidates) -> Candidates:
        """Return candidates followed by the attacker's own images of the same classes."""
        images, labels = problem.knowledge.public_images, problem.knowledge.public_labels
        if images is None or labels is None or not self._has_non_members(problem):
            return asked
        there = torch.isin(labels.cpu(), asked.labels.cpu()).nonzero().squeeze(1)
        order = torch.randperm(len(there), generator=generator(problem.seed, "strangers", asked.client))
        chosen = there[order[:MOST_OWN_IMAGES]]
        return Candidates(
            asked.client,
            torch.cat([asked.images, images[chosen].to(asked.images.device)]),
            torch.cat([asked.labels, labels.to(asked.labels.device)[chosen]]),
        )


def _by_deviation(
    problem: InferenceProblem, asked: Candidates, seen: Sequence[tuple[Observation, Knowledge]]
) -> CandidateScores:
    own, labels = problem.knowledge.public_images, problem.knowledge.public_labels
    assert own is not None
    assert labels is not None
    rounds = [read_mean_round(observation, knowledge, asked.images, own, labels) for observation, knowledge in seen]
    groups, classes = group_by_class(rounds, labels.cpu()), asked.labels.cpu()
    null = leave_one_out_scores(groups, labels.cpu(), classes, problem.seed, "own images", asked.client)
    return CandidateScores(deviation_scores(groups, classes), {AUXILIARY: null})


def _most_others(kind: str) -> int:
    if kind in LAYERS:
        return FEW_OTHERS
    return MOST_OTHERS if kind in WHOLE and payload_kind(kind).space == "weights" else FEWEST_OTHERS


def _answer_in(seen: Observation) -> str | None:
    """Return the kind of an upload about public inputs, if it is one."""
    answer = ANSWERS.first(seen.upload)
    return None if answer is None else answer.kind


def _answer_signals(seen: Sequence[Observation], asked: Candidates, knowledge: Knowledge) -> Tensor:
    signals = kernel_signals if KERNELS.first(seen[0].upload) is not None else public_signals
    return signals(seen, asked.images, asked.labels, knowledge)


def _same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())
