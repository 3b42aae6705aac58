"""Scores of membership inference: members told from non-members, and the classes that a client holds read off.

Candidates are balanced: for each member drawn there is one non-member of the same class, so that knowing which classes a
client holds is worth nothing. Scores of a client are put on a common scale by the median and spread of all its candidates,
which needs no knowledge of who is a member. Reported are the area under the ROC curve and the true-positive rate at 1 % and
0.1 % false positives (Carlini et al. 2022, Membership inference attacks from first principles), with intervals over clients,
and what lies above chance and permuted uploads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.attacks.infer.contract import Candidates, Inference, Scores
from fedpriv.attacks.read.disclosed_labels import Said
from fedpriv.evidence.held import HeldImages
from fedpriv.scoring.floors import PERMUTED
from fedpriv.scoring.inference_case import InferenceCase
from fedpriv.scoring.records import Measure, MembershipRecord, Provenance
from fedpriv.scoring.records.inference import NamedClasses, Seconds, StratumArea
from fedpriv.scoring.roc import Ranked, area
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed

MEASURES: dict[Measure, str] = {"membership": "auc", "members_found": "tpr_at_1_percent"}
"""Quantities compared with a guess, by the rate that each is."""

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Trial:
    """One client's candidates with the answer, which no attack is handed.

    Attributes:
        candidates: what the attack is handed.
        member: ``(n,)`` bool, which of them the client trained on.
        n_c: ``(n,)`` how many training images of its class the client holds; for trained weights, how many the round used.
    """

    candidates: Candidates
    member: NDArray[np.bool_]
    n_c: NDArray[np.int64]


def draw_trials(truth: HeldImages, clients: Sequence[int], number: int, seed: int) -> list[Trial]:
    """Draw members of each client, and for each a non-member of the same class, in mixed order.

    Args:
        truth: who holds what. Members are images that went into the upload, non-members are not the client's.
        clients: whose members are looked for.
        number: members a client at most.
        seed: of the drawing.
    """
    labels = truth.samples.labels.numpy()
    n_classes = int(labels.max()) + 1
    trials = []
    for client in clients:
        rng = np.random.default_rng(derive_seed(seed, "membership", client))
        held = truth.held[client]
        own = rng.permutation(truth.used.get(client, held))
        outside = rng.permutation(np.setdiff1d(np.arange(len(labels)), held))
        pools = {label: list(outside[labels[outside] == label]) for label in np.unique(labels[own])}
        pairs = [(i, pools[labels[i]].pop()) for i in own if pools[labels[i]]][:number]
        index = np.array([i for pair in pairs for i in pair], dtype=np.int64)
        member = np.tile([True, False], len(pairs))
        order = rng.permutation(len(index))
        index, member = index[order], member[order]
        of_class = np.bincount(labels[own], minlength=n_classes)
        images, classes = truth.samples.batch(torch.as_tensor(index))
        trials.append(Trial(Candidates(client, images.to(truth.device), classes), member, of_class[labels[index]]))
    return trials


def on_common_scale(scores: Values) -> Values:
    """Return one client's scores less their median, over their spread; ruled-out candidates just below the others."""
    finite = np.isfinite(scores)
    if not finite.any():
        return np.zeros_like(scores)
    middle = np.median(scores[finite])
    spread = np.median(np.abs(scores[finite] - middle)) or 1.0
    scaled = (np.where(finite, scores, middle) - middle) / spread
    return np.where(finite, scaled, scaled.min() - 1)


def evaluate(inference: Inference, case: InferenceCase, about: Provenance) -> MembershipRecord:
    """Ask about every client's candidates, and by permuted uploads, and return the record.

    Args:
        inference: one that asks about images.
        case: evidence and truth.
        about: how the record was made.

    Raises:
        UserError: when no client has both members and non-members.
    """
    evidence = case.evidence
    trials = trials_for(inference, case)
    problem = case.problem(inference, {trial.candidates.client: trial.candidates for trial in trials})
    member = [trial.member for trial in trials]

    def in_order(found: Scores) -> list[Values]:
        return [on_common_scale(found.values[trial.candidates.client].numpy()) for trial in trials]

    found = inference(problem)
    scores = in_order(found)
    units = [about.unit_of(trial.candidates.client) for trial in trials]
    ranked, permuted = Ranked.of(scores, member, units), None
    if evidence.permuted is not None:
        wrong = inference(replace(problem, observations=evidence.permuted))
        permuted = Ranked.of(in_order(wrong), member, units)
    return MembershipRecord(
        **dict(about),
        **dict(ranked.rates()),
        round=case.round,
        n_clients=len(set(units)),
        n_candidates=int(sum(len(m) for m in member)),
        n_nonmembers=int(sum((~m).sum() for m in member)),
        strata=_strata(scores, trials),
        permuted=None if permuted is None else permuted.rates(),
        comparisons=ranked.against({PERMUTED: permuted}, MEASURES),
        classes=_classes(problem.said(), case.truth),
        cost=Seconds(seconds=found.seconds),
    )


def trials_for(inference: Inference, case: InferenceCase) -> list[Trial]:
    """Return the candidates of every client that has some.

    Raises:
        UserError: when no client has both members and non-members.
    """
    drawn = draw_trials(case.truth, sorted(case.problem(inference).uploads), inference.n_candidates, case.seed)
    trials = [trial for trial in drawn if len(trial.member)]
    if not trials:
        raise UserError(f"{inference.name}: no image outside the clients' training sets has a class that they hold")
    return trials


def _strata(scores: Sequence[Values], trials: Sequence[Trial]) -> dict[str, StratumArea]:
    """Return the AUC by how many images of the class the client holds."""
    values = np.concatenate(scores)
    member = np.concatenate([trial.member for trial in trials])
    n_c = np.concatenate([trial.n_c for trial in trials])
    bounds = {"1": (1, 1), "2-3": (2, 3), "4-10": (4, 10), ">10": (11, np.inf)}
    found = {}
    for name, (low, high) in bounds.items():
        chosen = (n_c >= low) & (n_c <= high)
        if chosen.any():  # then some of either, for candidates come in pairs of a class
            found[name] = StratumArea(n=int(chosen.sum()), auc=area(values[chosen], member[chosen]))
    return found


def _classes(told: Mapping[int, Said], truth: HeldImages) -> NamedClasses | None:
    """Return for how many clients uploads say exactly which classes, and how many images of each, they hold."""
    named, right, counted, counts_right = 0, 0, 0, 0
    for client, one in told.items():
        labels, counts = truth.labels(client).unique(return_counts=True)
        held = dict(zip(labels.tolist(), counts.tolist(), strict=True))
        named += one.classes is not None
        right += one.classes == tuple(sorted(held))
        counted += one.counts is not None
        counts_right += one.counts == held
    if not named:
        return None
    return NamedClasses(clients=len(told), exact=right, counted=counted, counts_exact=counts_right)
