"""The case that an inference is tried on, and the scores that it gives: areas under the ROC curve and rates at few errors.

Both are written as means of one value an answer (placement values: DeLong, DeLong and Clarke-Pearson 1988, Biometrics 44,
837-845; for a rate at given false positives with the slope of the curve: Hsieh and Turnbull 1996, Annals of Statistics 24,
25-40), so that intervals over clients are those of every other mean, and two sets of scores are compared answer by answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedpriv.attacks.contract import Trained
from fedpriv.attacks.inference.base import Candidates, Inference, InferenceProblem, Moment
from fedpriv.attacks.inputs.targets import Said
from fedpriv.eval.intervals import Values, against_guesses, clustered
from fedpriv.eval.records import AUC, FOUND_AT_1_PERCENT, Comparison, Measure, NamedClasses, Rate, Rates
from fedpriv.sources.case import Case
from fedpriv.sources.truth import Holdings


@dataclass(frozen=True)
class InferenceCase:
    """Case and truth.

    ``told`` is what clients said in clear in all rounds (of one that is not there the newest upload is asked); ``earlier``
    the evidence of rounds before the attacked one, in order, for an inference that takes several.
    """

    evidence: Case
    truth: Holdings
    kind: str
    seed: int
    told: Mapping[int, Said] = field(default_factory=dict)
    earlier: tuple[Case, ...] = ()
    trained: Trained = field(default_factory=Trained)

    @property
    def round(self) -> int:
        """The attacked round."""
        return max(seen.round for seen in self.evidence.observations)

    def problem(self, inference: Inference, candidates: Mapping[int, Candidates] | None = None) -> InferenceProblem:
        """Return the problem that an inference is handed, with candidate images by client where it asks about images."""
        used = self.earlier if inference.most_rounds > 1 else ()
        return InferenceProblem(
            self.evidence.observations,
            self.evidence.knowledge,
            self.kind,
            candidates or {},
            self.told,
            earlier=tuple(Moment(item.observations, item.knowledge) for item in used),
            seed=self.seed,
            trained=self.trained,
        )

    def shuffled(self, problem: InferenceProblem) -> InferenceProblem | None:
        """Return the problem with another client's upload in the place of each, in every round; None where there is none."""
        if self.evidence.shuffled is None:
            return None
        earlier = tuple(Moment(item.shuffled, item.knowledge) for item in self.earlier if item.shuffled is not None)
        return replace(problem, observations=self.evidence.shuffled, earlier=earlier if problem.earlier else ())


def named_classes(lines: Mapping[int, Said], truth: Holdings) -> NamedClasses | None:
    """Return for how many clients uploads name the classes exactly; None where they name none."""
    if all(item.classes is None for item in lines.values()):
        return None
    right, counts_right = 0, 0
    sets = Counter[tuple[int, ...]]()
    for client, item in lines.items():
        labels, counts = truth.labels(client).unique(return_counts=True)
        kept = dict(zip(labels.tolist(), counts.tolist(), strict=True))
        sets[tuple(sorted(kept))] += 1
        right += item.classes == tuple(sorted(kept))
        counts_right += item.counts == kept
    alike = max(sets.values())
    return NamedClasses(clients=len(lines), exact=right, counts_exact=counts_right, alike=alike)


Answers = NDArray[np.bool_]
FALSE_RATE = 0.01
"""Share of false positives at which members found are counted."""

CHANCE = "chance"
"""The guess that a comparison is against where no other guess does better than one that knows nothing."""


@dataclass(frozen=True)
class Ranked:
    """Scores ``(n,)`` with their answers, some yes and some no, and the independent units that they are of."""

    scores: Values
    yes: Answers
    unit: NDArray[np.int64]

    @classmethod
    def of(
        cls, scores: Sequence[Values], answers: Sequence[Answers], units: Sequence[int], *, apart: bool = False
    ) -> Ranked:
        """Put together the scores and answers of each client, and of which unit it is; or each answer is ``apart``."""
        unit = np.repeat(units, [len(score) for score in scores])
        unit = np.arange(len(unit)) if apart else unit
        return cls(np.concatenate(list(scores)), np.concatenate(list(answers)), unit)

    @cached_property
    def weights(self) -> Values:
        """Weights ``(n,)`` under which yes and no count the same."""
        n_yes = int(self.yes.sum())
        return np.where(self.yes, 0.5 / n_yes, 0.5 / (len(self.yes) - n_yes))

    @cached_property
    def _others(self) -> tuple[Values, int]:
        """Scores with the answer no, the highest first, and how many of them may be above a threshold."""
        others = np.sort(self.scores[~self.yes])[::-1]
        return others, int(np.floor(FALSE_RATE * len(others)))

    def rate(self, name: str) -> float:
        """``auc`` or ``tpr_at_1_percent``, in [0, 1]."""
        if name == "auc":
            return area(self.scores, self.yes)
        others, allowed = self._others
        return float((self.scores[self.yes] > others[allowed]).mean())

    def values(self, name: str) -> Values:
        """A rate as values ``(n,)`` whose weighted mean it is, and whose spread is its own."""
        mean = self.rate(name)
        if name == "auc":
            current, others = np.sort(self.scores[self.yes]), np.sort(self.scores[~self.yes])
            position = np.where(self.yes, _below(self.scores, others), 1 - _below(self.scores, current))
            # Twice, for each half of the weights bears one of the two errors.
            return np.asarray(mean + 2 * (position - mean), dtype=np.float64)
        others, allowed = self._others
        above = (self.scores > others[allowed]).astype(np.float64)
        false, slope = float(above[~self.yes].mean()), 0.0
        if far := min(2 * allowed + 4, len(others) - 1):  # of the ROC curve, from no false positives to so many
            found = [float((self.scores[self.yes] > others[at]).mean()) for at in (0, far)]
            slope = (found[1] - found[0]) * len(others) / far
        errors = np.where(self.yes, above - mean, -slope * (above - false))
        return np.asarray(mean + 2 * errors, dtype=np.float64)

    def rates(self) -> Rates:
        """Area and rate, each with its interval over clients."""
        return Rates(auc=self.with_interval("auc"), tpr_at_1_percent=self.with_interval("tpr_at_1_percent"))

    def with_interval(self, name: str) -> Rate:
        """A rate with its interval over clients."""
        interval = clustered(self.values(name), self.unit.tolist(), "share", self.weights).interval()
        return Rate(value=self.rate(name), ci95=interval)

    def against(
        self, guesses: Mapping[str, Ranked | None], measures: Sequence[Measure], named: str = CHANCE
    ) -> tuple[Comparison, ...]:
        """Compare by each measure with the baseline: the guess named in advance, or chance where it was not made.

        Another one of the guesses by name (None: not made) is it where it is surely stronger; a leak is above all of them.
        """
        results = []
        for measure in measures:
            name, chance, least = "auc", 0.5, AUC
            if measure == "members_found":
                name, chance, least = "tpr_at_1_percent", FALSE_RATE, FOUND_AT_1_PERCENT
            current, theirs = self.values(name), {CHANCE: np.full(len(self.yes), chance)}
            theirs |= {guess: item.values(name) for guess, item in guesses.items() if item is not None}
            item = against_guesses(
                {guess: current - values for guess, values in theirs.items()},
                named if named in theirs else CHANCE,
                self.unit.tolist(),
                measure=measure,
                least=least - chance,
                weights=self.weights,
                shares={CHANCE: chance},
            )
            results.append(item)
        return tuple(results)


def _below(scores: Values, others: Values) -> Values:
    twice = np.searchsorted(others, scores, "left") + np.searchsorted(others, scores, "right")
    return np.asarray(twice / (2 * len(others)), dtype=np.float64)


def area(scores: Values, yes: Answers) -> float:
    """Return the area under the ROC curve: the chance that a yes outscores a no, ties counting half."""
    return float(_below(scores[yes], np.sort(scores[~yes])).mean())
