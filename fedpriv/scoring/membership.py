"""Scores of membership inference: members told from non-members, and the classes that a client holds read off.

Candidates are balanced: for each member drawn there is one non-member of the same class, so that knowing which classes a
client holds is worth nothing. Non-members are the client's own held-out images, so that knowing how a client's images look
is worth nothing either. Where nobody brings held-out images, others' images take their place, and no leak is claimed.
Scores of a client are put on a common scale by the median and spread of all its candidates, which needs no knowledge of who
is a member. Reported are the area under the ROC curve and the true-positive rate at 1 % and 0.1 % false positives (Carlini
et al. 2022, Membership inference attacks from first principles), with intervals over clients; the difference to chance, to
shuffled uploads and to a score without the upload (:mod:`fedpriv.scoring.membership_baseline`); and the same among
candidates that are alike (:mod:`fedpriv.scoring.membership_strata`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.attacks.inference.base import Candidates, Inference
from fedpriv.attacks.inputs.targets import Said
from fedpriv.scoring.floors import SHUFFLED
from fedpriv.scoring.inference_case import InferenceCase
from fedpriv.scoring.intervals import Values
from fedpriv.scoring.membership_baseline import baseline_scores
from fedpriv.scoring.membership_strata import RARITIES, SIZES, Strata, rarities
from fedpriv.scoring.records import Measure, MembershipRecord, Provenance
from fedpriv.scoring.records.inference import Baseline, NamedClasses, Seconds
from fedpriv.scoring.roc import Ranked
from fedpriv.sources.truth import Holdings
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed

MEASURES: dict[Measure, str] = {"membership": "auc", "members_found": "tpr_at_1_percent"}
"""Quantities compared with a guess, by the rate that each is."""


@dataclass(frozen=True)
class Trial:
    """One client's candidates with the answer, which no attack is handed.

    Attributes:
        candidates: what the attack is handed.
        member: ``(n,)`` bool, which of them the client trained on.
        n_c: ``(n,)`` how many training images of its class the client holds; for trained weights, how many the round used.
        left_out: members for whom there is no non-member of their class.
    """

    candidates: Candidates
    member: NDArray[np.bool_]
    n_c: NDArray[np.int64]
    left_out: int = 0


def draw_trials(truth: Holdings, clients: Sequence[int], number: int, seed: int) -> list[Trial]:
    """Draw members of each client, and for each a non-member of the same class, in mixed order.

    Args:
        truth: who holds what. Members are images that went into the upload. Non-members are the client's held-out images;
            where nobody has any, images that are not the client's.
        clients: whose members are looked for.
        number: members a client at most.
        seed: of the drawing.
    """
    labels = truth.samples.labels.numpy()
    n_classes = int(labels.max()) + 1
    trials = []
    for client in clients:
        rng = np.random.default_rng(derive_seed(seed, "membership", client))
        kept = truth.train[client]
        current = rng.permutation(np.unique(truth.used.get(client, kept)))
        outside = truth.held_out.get(client, kept[:0])
        if not truth.held_out:
            outside = np.setdiff1d(np.arange(len(labels)), kept)
        outside = rng.permutation(np.unique(outside))
        pools = {label: list(outside[labels[outside] == label]) for label in np.unique(labels[current])}
        pairs = [(i, pools[labels[i]].pop()) for i in current if pools[labels[i]]]
        left_out, pairs = len(current) - len(pairs), pairs[:number]
        index = np.array([i for pair in pairs for i in pair], dtype=np.int64)
        member = np.tile([True, False], len(pairs))
        order = rng.permutation(len(index))
        index, member = index[order], member[order]
        of_class = np.bincount(labels[current], minlength=n_classes)
        images, classes = truth.samples.batch(torch.as_tensor(index))
        candidates = Candidates(client, images.to(truth.device), classes)
        trials.append(Trial(candidates, member, of_class[labels[index]], left_out))
    return trials


@dataclass(frozen=True)
class CommonScale:
    """A client's scores less their median, over their spread, which takes no knowledge of who is a member.

    Attributes:
        middle: median of the finite scores; None where there are none.
        spread: median distance from it, or 1.
        least: of the finite scores, on the scale.
    """

    middle: float | None
    spread: float = 1.0
    least: float = 0.0

    @classmethod
    def of(cls, scores: Values) -> CommonScale:
        """Return the scale of a client's candidates."""
        finite = scores[np.isfinite(scores)]
        if not len(finite):
            return cls(None)
        middle = float(np.median(finite))
        spread = float(np.median(np.abs(finite - middle))) or 1.0
        return cls(middle, spread, float((finite.min() - middle) / spread))

    def __call__(self, scores: Values) -> Values:
        """Return scores on the scale; ruled-out ones just below all others of the client's candidates."""
        if self.middle is None:
            return np.zeros_like(scores)
        finite = np.isfinite(scores)
        scaled = (np.where(finite, scores, self.middle) - self.middle) / self.spread
        return np.where(finite, scaled, min(self.least, scaled.min(initial=0.0)) - 1)


def on_common_scale(scores: Values) -> Values:
    """Return one client's scores less their median, over their spread; ruled-out candidates just below the others."""
    return CommonScale.of(scores)(scores)


def evaluate(inference: Inference, case: InferenceCase, about: Provenance) -> MembershipRecord:
    """Ask about every client's candidates, and by shuffled uploads, and return the record.

    Args:
        inference: one that asks about images.
        case: evidence and truth.
        about: how the record was made.

    Raises:
        UserError: when no client has both members and non-members.
    """
    trials, n_left_out = trials_for(inference, case)
    problem = case.problem(inference, {trial.candidates.client: trial.candidates for trial in trials})
    member = [trial.member for trial in trials]

    units = [about.unit_of(trial.candidates.client) for trial in trials]

    def rank(values: Mapping[int, Tensor]) -> Ranked:
        scores = [on_common_scale(values[trial.candidates.client].numpy()) for trial in trials]
        return Ranked.of(scores, member, units)

    result = inference(problem)
    ranked, wrong = rank(result.values), case.shuffled(problem)
    shuffled = None if wrong is None else rank(inference(wrong).values)
    name, alone = baseline_scores(problem)
    baseline = rank(alone) if alone else None
    guesses = {SHUFFLED: shuffled, name: baseline}
    strata = _strata(trials)
    return MembershipRecord(
        **dict(about),
        **dict(ranked.rates()),
        round=case.round,
        n_clients=len(set(units)),
        n_candidates=int(sum(len(m) for m in member)),
        n_nonmembers=int(sum((~m).sum() for m in member)),
        n_left_out=n_left_out,
        nonmembers="held_out" if case.truth.held_out else "others",
        baseline=None if baseline is None else Baseline(name=name, auc=baseline.area()),
        strata=strata.areas(ranked, tuple(SIZES)),
        rarity=strata.areas(ranked, tuple(RARITIES)),
        shuffled=None if shuffled is None else shuffled.rates(),
        comparisons=ranked.against(guesses, MEASURES) + strata.compared(ranked, guesses),
        classes=_classes(problem.said(), case.truth),
        cost=Seconds(seconds=result.seconds),
    )


def trials_for(inference: Inference, case: InferenceCase) -> tuple[list[Trial], int]:
    """Return the candidates of every client that has some, and how many members of all clients are left out.

    Raises:
        UserError: when no client has both members and non-members.
    """
    drawn = draw_trials(case.truth, sorted(case.problem(inference).uploads), inference.n_candidates, case.seed)
    trials = [trial for trial in drawn if len(trial.member)]
    if not trials:
        which = "held-out image of a client" if case.truth.held_out else "image outside the clients' training sets"
        raise UserError(f"{inference.name}: no {which} has the class of one of its training images")
    return trials, sum(trial.left_out for trial in drawn)


def _strata(trials: Sequence[Trial]) -> Strata:
    rarity = rarities([trial.candidates.images for trial in trials], [entry.candidates.labels for entry in trials])
    return Strata.of(np.concatenate([item.n_c for item in trials]), np.concatenate(rarity))


def _classes(lines: Mapping[int, Said], truth: Holdings) -> NamedClasses | None:
    """Return for how many clients uploads say exactly which classes, and how many images of each, they hold."""
    named, right, counted, counts_right = 0, 0, 0, 0
    for client, item in lines.items():
        labels, counts = truth.labels(client).unique(return_counts=True)
        kept = dict(zip(labels.tolist(), counts.tolist(), strict=True))
        named += item.classes is not None
        right += item.classes == tuple(sorted(kept))
        counted += item.counts is not None
        counts_right += item.counts == kept
    if not named:
        return None
    return NamedClasses(clients=len(lines), exact=right, counted=counted, counts_exact=counts_right)
