"""Membership inference: was this very image among those that a client's upload was computed from?

Candidates are scored, higher for likelier members, by the upload and the client's extractor g; scores are calibrated by the
other clients' uploads and averaged over rounds. By kind:

- prototypes, representations, mixtures: ||g(x) - p||^2 / ||p||^2 with the nearest p uploaded for the candidate's class;
  where the attacker has labelled images of the clients' domain, of means and mixtures rather the deviation of
  :func:`fedpriv.attacks.inference.membership_scores.deviation_scores`;
- class outputs: KL(u_y || softmax(head(g(x)))), with u_y the uploaded mean output of the class;
- kernels and outputs on public samples: what ridge regression over pixels makes of them at the candidate;
- trained weights: :mod:`fedpriv.attacks.inference.update_scores`.

A candidate of a class that the upload does not contain cannot be a member: minus infinity.

**Calibration.** Clients' data are mostly disjoint, so the other clients' uploads, each under its own extractor, show how
near an upload comes that was not computed from the candidate (the principle of FedMIA: Zhu et al., CVPR 2025).

Distances d_k(x) from client k's upload: score = 1/2 mean over other clients j of log d_j(x) - log d_k(x).

Signals s_k(x) of trained weights: c_k(x) = s_k(x) - (n m_k(class of x) + m_k) / (n + 1), with m_k the median of all
candidates and m_k(y) of the n of a class, on the scale of its own spread; score = c_k(x) - 1/2 mean over other j of c_j(x).

Signals from public inputs: z(x) = (s_k(x) - mean of the others' s_j(x)) / (d(x) + 0.3 median of d), d(x) the standard
deviation of the others' signals, less the class median as above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.inference.base import Candidates, Inference, InferenceProblem, Scores
from fedpriv.attacks.inference.mean_uploads import AVERAGES, enough_images, read_mean_round
from fedpriv.attacks.inference.membership_scores import (
    COMPARED,
    deviation_scores,
    kernel_signals,
    nearness_to_upload,
    public_signals,
)
from fedpriv.attacks.inference.update_scores import update_signals
from fedpriv.attacks.inputs.targets import upload_holds
from fedpriv.attacks.observation import Knowledge, Needs, Observation, RequirementsByKind, ThreatModel
from fedpriv.util.errors import UserError
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

LEAST_DISTANCE, FEWEST_FOR_A_SPREAD = 1e-9, 3
"""A distance that counts as none, and other clients below which a candidate's spread is not taken."""

SHARE, FLOOR = 0.5, 0.3
"""Share of the others' mean that is taken off, and of the median spread of their signals that is added to each. Chosen on a
few federations, confirmed on others."""


@dataclass(frozen=True, kw_only=True)
class MembershipInference(Inference):
    """Score candidates by how near they are to what was uploaded.

    Attributes:
        candidates: the most members, and as many non-members, for each client.
        classes: of mixtures: ``sent``, those that the label encoding gives weight, or ``any``, where encodings hide weights
            (the adaptive attack on ``hide-labels``).
    """

    candidates: Annotated[int, Ge(1)] = 100
    classes: Literal["sent", "any"] = "sent"

    name = "membership"
    version = 8
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

    def rounds_on(self, kind: str, card: ThreatModel) -> int:
        """Return the default number of rounds: of distances the newest alone; several do no better."""
        if kind in AVERAGES and card.attacker_data == "same_domain":
            return MOST_ROUNDS_OF_MEANS
        return 1 if kind in COMPARED else self.most_rounds

    def run(self, problem: InferenceProblem) -> Scores:
        """Score the candidates of every client."""
        results = {client: self._score(problem, candidate) for client, candidate in problem.candidates.items()}
        return Scores(self.ask(problem), results)

    def _score(self, problem: InferenceProblem, candidates: Candidates) -> Tensor:
        mine = problem.uploads_of(candidates.client)
        newest, knowledge = mine[-1]
        kind = problem.kind
        if kind is None:
            sent = (ANSWERS | COMPARED).first(newest.upload)
            if sent is None:
                raise UserError(
                    f"{upload_holds(newest)}; attack 'membership' compares with one of {', '.join(COMPARED)}"
                )
            kind = sent.kind
        if self._deviates(newest, knowledge, kind):
            current, labels = knowledge.public_images, knowledge.public_labels
            assert current is not None
            assert labels is not None
            each = [(seen, known) for seen, known in mine if self._deviates(seen, known, kind)]
            return deviation_scores(
                [read_mean_round(seen, known, candidates.images, current, labels) for seen, known in each],
                candidates.labels.cpu(),
            )
        rounds = []
        for moment in problem.rounds:
            seen = [observation for observation in moment.observations if observation.client == candidates.client]
            if seen:
                beside = [item for item in moment.observations if _calibrates(item, seen[0], kind, moment.knowledge)]
                rounds.append(self._score_round([*seen[:1], *beside], candidates, moment.knowledge, kind))
        return average_rounds(rounds)

    def _deviates(self, seen: Observation, knowledge: Knowledge, kind: str) -> bool:
        """True where a mean or a mixture is scored by its deviation from the attacker's own images."""
        sent, labels = COMPARED.first(seen.upload), knowledge.public_labels
        if kind not in COMPARED or sent is None or sent.kind not in AVERAGES:
            return False
        if self.classes == "any" and sent.said("weights") is not None:
            return False
        return labels is not None and knowledge.card.attacker_data == "same_domain" and enough_images(labels)

    def _score_round(self, seen: list[Observation], candidates: Candidates, knowledge: Knowledge, kind: str) -> Tensor:
        """Return scores ``(n,)`` by one round's uploads, the client's first."""
        if kind in TRAINED:
            nearest = sorted(seen[1:], key=lambda item: (item.client <= candidates.client, item.client))
            shared = kind in WHOLE and payload_kind(kind).space == "weights"
            most = FEW_OTHERS if kind in LAYERS else MOST_OTHERS if shared else FEWEST_OTHERS
            uploads = [seen[0], *nearest[:most]]
            return calibrate_by_class(
                update_signals(uploads, candidates.images, candidates.labels, knowledge), candidates.labels
            )
        if kind in ANSWERS:
            signals = kernel_signals if kind in KERNELS else public_signals
            return calibrate_by_spread(
                signals(seen, candidates.images, candidates.labels, knowledge), candidates.labels
            )
        every_class = self.classes == "any"
        distances = [
            nearness_to_upload(entry, replace(candidates, client=entry.client), knowledge, every_class=every_class)
            for entry in seen
        ]
        return calibrate_by_other_clients(distances[0], distances[1:])


def _calibrates(seen: Observation, observation: Observation, kind: str, knowledge: Knowledge) -> bool:
    """True for another client's upload that candidates can be compared with; not for the same one (secure aggregation)."""
    among = next(kinds for kinds in (TRAINED, ANSWERS, COMPARED) if kind in kinds)
    mine, theirs = among.first(observation.upload), among.first(seen.upload)
    if seen.client == observation.client or mine is None or theirs is None:
        return False
    first, second = mine.tensors(), theirs.tensors()
    if first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items()):
        return False
    if kind in ANSWERS | WHOLE:
        return True
    private = kind in CLASS_OUTPUTS or (kind in TRAINED and kind not in HEADS)
    return seen.client in (knowledge.heads if private else knowledge.extractors)


# ---------------------------------------------------------------- calibration


def average_rounds(rounds: Sequence[Tensor]) -> Tensor:
    """Return the mean over rounds of scores ``(n,)``, each less its median and over its spread.

    Candidates that the last round rules out stay ruled out. One round is returned as it is.
    """
    if len(rounds) == 1:
        return rounds[0]
    scaled = []
    for item in rounds:
        finite = item[item.isfinite()]
        if len(finite):
            middle = finite.median()
            spread = (finite - middle).abs().median()
            scaled.append((item - middle) / (spread if spread > 0 else 1.0))
    if not scaled:
        return rounds[-1]
    table = torch.stack(scaled)
    there = table.isfinite()
    mean = torch.where(there, table, 0.0).sum(0) / there.sum(0).clamp_min(1)
    return mean.masked_fill(~(there.any(0) & rounds[-1].isfinite()), -torch.inf)


def calibrate_by_other_clients(values: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Return scores ``(n,)`` of distances, float64; minus infinity where the client's own upload rules the candidate out.

    Distances ``(n,)`` from the client's upload and the others' are at least 0, infinite where membership is ruled out. The
    calibration is the mean over the others whose uploads hold the candidate's class, or where none does over all
    candidates.
    """
    if not others:
        return -values.double()
    logs = torch.stack([other.double().clamp_min(LEAST_DISTANCE).log() for other in others])
    finite = logs.isfinite()
    known, number = torch.where(finite, logs, 0.0), finite.sum(0)
    overall = known.sum() / finite.sum().clamp_min(1)
    null = torch.where(number > 0, known.sum(0) / number.clamp_min(1), overall)
    return SHARE * null - values.double().clamp_min(LEAST_DISTANCE).log()


def calibrate_by_class(signals: Tensor, labels: Tensor) -> Tensor:
    """Return scores ``(n,)`` of signals of trained weights ``(k, n)``, the client's first, by candidates' classes."""
    left = _less_class_median(signals.double(), labels)
    spread = left.abs().median(1, keepdim=True).values
    left = left / torch.where(spread > 0, spread, 1.0)
    return left[0] - SHARE * left[1:].mean(0) if len(left) > 1 else left[0]


def calibrate_by_spread(signals: Tensor, labels: Tensor) -> Tensor:
    """Return scores ``(n,)`` of signals of answers to public inputs ``(k, n)``, the client's first."""
    above, others = signals[:1].double(), signals[1:].double()
    if len(others):
        above = above - others.mean(0)
    if len(others) >= FEWEST_FOR_A_SPREAD:
        spread = others.std(0)
        floor = FLOOR * spread.quantile(0.5)
        above = above / torch.where(floor > 0, spread + floor, 1.0)
    return _less_class_median(above, labels)[0]


def _less_class_median(values: Tensor, labels: Tensor) -> Tensor:
    """Return values ``(k, n)`` less the median of their class, drawn towards the median of all."""
    _, position, number = labels.cpu().unique(return_inverse=True, return_counts=True)
    middles = torch.stack([values[:, position == index].quantile(0.5, dim=1) for index in range(len(number))], 1)
    usual = (number * middles + values.quantile(0.5, dim=1, keepdim=True)) / (number + 1)
    result: Tensor = values - usual[:, position]
    return result
