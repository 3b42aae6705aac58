"""The verdict on one attack as data, and why the absence of a leak would say little: what makes it inconclusive."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, TypeVar

from pydantic import FiniteFloat

from fedpriv.eval.records import (
    Comparison,
    InferenceResult,
    Measure,
    MembershipRecord,
    Premise,
    ReconstructionRecord,
    Training,
    Units,
)
from fedpriv.eval.storage import AttackRecord, scored
from fedpriv.util.config import Record as Model

Record = ReconstructionRecord | InferenceResult
Judged = AttackRecord | Record
K = TypeVar("K")

FEW_CLIENTS = 5
"""From fewer clients than this nothing is claimed beyond the attacked targets."""

CONVERGED = 0.5
"""Share of targets whose search must have converged."""

SPECIFIC = 0.5
"""Share of targets of a single image whose fit must be specific to their upload."""

AT_CHANCE = 0.1
"""A model that is right in less than this share of what a constant guess leaves wrong counts as untrained."""

FAR = 0.5
"""Undertrained is less than this share of what the method gains elsewhere on the page, of what constant guesses leave."""

Kind = Literal["leaks", "some", "vectors", "classes", "membership", "property", "none", "untested"]
"""The most severe thing that stands: images leak on average; some come back; recovered vectors, or classes of images, beat
the baseline; members, or a property of clients, leak. ``none``: no leak detected, though the attack was able to show one.
``untested``: inconclusive, with reasons."""

ReasonName = Literal[
    "premise",
    "few_clients",
    "no_control",
    "no_held_out",
    "not_converged",
    "not_specific",
    "caveat",
    "at_chance",
    "undertrained",
    "no_comparison",
    "not_sure",
    "not_excluded",
]
"""Why a result without a leak is inconclusive. ``premise``: true images, put through the computation that attacks assume,
do not give the uploads. ``few_clients``: fewer than five, so that nothing is claimed beyond the attacked targets.
``no_control``: shuffled uploads were not attacked. ``no_held_out``: non-members are others' images, which their client's
look gives away. ``not_converged``: the search converged for fewer than half of the targets. ``not_specific``: for fewer
than half of the targets of a single image the fit is much better than that of other images. ``caveat``: the attack says of
itself that its search tells nothing here. ``at_chance``: the attacked model is hardly better than a constant guess;
``undertrained``: it is far from what its method reaches elsewhere on the page. ``no_comparison``: there was no guess to
compare with. ``not_sure``: something lies above the baseline by its own interval, but does not stand among all comparisons
of the page. ``not_excluded``: too few targets or clients to exclude an effect that counts."""


class Reason(Model):
    """Why a result without a leak is inconclusive.

    Attributes:
        value: number of independent units, share of targets that converged or are specific, accuracy, or the end of an
            interval: the lower one for ``not_sure``, the upper one for ``not_excluded``.
        beside: what the value is compared with: five units, half of the targets, the least effect, accuracy of a constant
            guess or elsewhere.
        text: the attack's own words, for ``caveat``.
        measure, stratum: of the comparison that says little; None where the whole attack says little.
        premise: that fails, for ``premise``.
    """

    name: ReasonName
    value: FiniteFloat | None = None
    beside: FiniteFloat | None = None
    text: str = ""
    measure: Measure | None = None
    stratum: str = "all"
    premise: Premise | None = None


class JudgedComparison(Comparison):
    """A comparison as a page judges it: the attack's value, the p-value adjusted for the page, and whether it is claimed."""

    value: FiniteFloat | None
    adjusted: FiniteFloat | None
    stands: bool

    @property
    def guess(self) -> float | None:
        """The baseline's value over the same targets. Of an error less is better."""
        if self.value is None or self.mean is None:
            return None
        return self.value + self.mean if self.measure == "vectors" else self.value - self.mean


class Verdict(Model):
    """The verdict on one attack.

    Attributes:
        attack: what tables call it.
        target: kind of upload.
        subject: the vectors that it recovers, in the plural.
        question: what was asked, of a property; else empty.
        kind: the most severe thing that stands.
        compared: every comparison of the attack, as judged.
        reasons: why the absence of a leak would say little; also beside leaks.
        n_targets: of attacks that make images, over all seeds; else 0.
        n_clients: independent units, of the seed with the fewest.
        n_seeds: how many are told of together.
        n_compared: comparisons of the whole page that were judged together.
        converged: share of targets whose search converged, in [0, 1]; None for inferences.
        specific: share of targets of a single image whose fit is specific to their upload; None where it was not measured.
        clear: what the upload says outright, needing no inference; else empty.
        baseline: of membership, in words, the level that the assumed networks reach without the upload; else empty.
    """

    attack: str
    target: str
    subject: str
    question: str
    kind: Kind
    compared: tuple[JudgedComparison, ...]
    reasons: tuple[Reason, ...]
    n_targets: int
    n_clients: int
    n_seeds: int
    n_compared: int
    converged: FiniteFloat | None
    specific: FiniteFloat | None = None
    clear: str = ""
    baseline: str = ""
    units: Units = "clients"

    @property
    def makes_images(self) -> bool:
        """True where the attack makes images; else it answers questions."""
        return self.converged is not None

    @property
    def claims(self) -> tuple[JudgedComparison, ...]:
        """The claims that the page may make."""
        return tuple(item for item in self.compared if item.stands)

    def silent_on(self, measures: Collection[str]) -> tuple[Reason, ...]:
        """Return the reasons why the absence of a claim by some measures says little."""
        return tuple(reason for reason in self.reasons if reason.measure is None or reason.measure in measures)

    def overall(self, measure: str) -> JudgedComparison | None:
        """Return the comparison over all targets by a measure, or None where it was not compared."""
        return next((item for item in self.compared if item.measure == measure and item.stratum == "all"), None)


# ---------------------------------------------------------------- reasons of one page


def record_of(result: Judged) -> Record:
    """Return the record of a result.

    Raises:
        UserError: when an attack was not scored.
    """
    return scored(result) if isinstance(result, AttackRecord) else result


def reasons_by_key(results: Mapping[K, Judged]) -> dict[K, tuple[Reason, ...]]:
    """Return the reasons that apply to each result of a page: all but one are its own."""
    records = {key: record_of(result) for key, result in results.items()}
    reached: dict[tuple[str, str, str], float] = {}
    for record in records.values():
        if record.training is not None:
            reached[_method(record)] = max(_gained(record.training), reached.get(_method(record), 0.0))
    return {
        key: (*_own(record), *_training(record.training, reached.get(_method(record), 0.0)))
        for key, record in records.items()
    }


def _own(record: Record) -> list[Reason]:
    results = []
    if record.premise is not None and record.premise.status == "differs":
        results.append(Reason(name="premise", value=record.premise.cosine, premise=record.premise))
    if record.n_clients < FEW_CLIENTS:
        results.append(Reason(name="few_clients", value=record.n_clients, beside=FEW_CLIENTS))
    if not record.comparisons:
        results.append(Reason(name="no_comparison"))
    if not isinstance(record, ReconstructionRecord):
        if record.shuffled is None:
            results.append(Reason(name="no_control"))
        if isinstance(record, MembershipRecord) and record.nonmembers == "others":
            results.append(Reason(name="no_held_out"))
        return results
    if record.control.shuffled is None:
        results.append(Reason(name="no_control"))
    converged, specific = record.converged_share, record.specific_share
    if converged < CONVERGED:
        results.append(Reason(name="not_converged", value=converged, beside=CONVERGED))
    if specific is not None and specific < SPECIFIC:
        results.append(Reason(name="not_specific", value=specific, beside=SPECIFIC))
    if record.caveat:
        results.append(Reason(name="caveat", text=record.caveat))
    return results


def _method(record: Record) -> tuple[str, str, str]:
    # Settings of a reach differ in how much they train, and that is what they are for.
    return record.method, record.dataset, record.reach_label


def _training(training: Training | None, elsewhere: float) -> list[Reason]:
    if training is None:
        return []
    if _gained(training) < AT_CHANCE:
        return [Reason(name="at_chance", value=training.accuracy, beside=training.guess)]
    if _gained(training) < FAR * elsewhere:
        likewise = training.guess + elsewhere * (1 - training.guess)
        return [Reason(name="undertrained", value=training.accuracy, beside=likewise)]
    return []


def _gained(training: Training) -> float:
    return (training.accuracy - training.guess) / max(1 - training.guess, 1e-9)
