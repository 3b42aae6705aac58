"""``membership.json`` and ``property.json``: how well members, and properties of clients, are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import FiniteFloat

from fedpriv.scoring.records.base import SCORING_VERSION, Comparison, Interval
from fedpriv.scoring.records.made import Provenance
from fedpriv.util.config import Record


class Rate(Record):
    """A measure over all questions, and its interval; None with one client."""

    value: FiniteFloat
    ci95: Interval | None


class Rates(Record):
    """Area under the ROC curve, and true-positive rates at 1 % and 0.1 % false positives, in [0, 1]."""

    auc: Rate
    tpr_at_1_percent: Rate
    tpr_at_0_1_percent: Rate


class Seconds(Record):
    """Wall seconds."""

    seconds: FiniteFloat


class InferenceRecord(Provenance, Rates):
    """The common part of records of inference.

    Attributes:
        round: that was attacked.
        n_clients: independent units of whom something was asked: clients, or declared groups.
        shuffled: the same from other clients' uploads; None where that was not run.
        comparisons: with the strongest of chance, shuffled uploads and what needs no upload; what verdicts rest on.
        cost: of the inference without its control.
    """

    scoring_version: int = SCORING_VERSION
    round: int
    n_clients: int
    shuffled: Rates | None
    comparisons: tuple[Comparison, ...] = ()
    cost: Seconds


class StratumArea(Record):
    """Area under the curve over ``n`` candidates that are alike.

    Attributes:
        n: candidates, members and others.
        auc: the area.
        ci95: its interval over clients; None with one client, and in records of older versions.
        n_clients: independent units whose candidates these are; 0 in records of older versions.
    """

    n: int
    auc: FiniteFloat
    ci95: Interval | None = None
    n_clients: int = 0


class NamedClasses(Record):
    """For how many of ``clients`` uploads say exactly which classes they hold, count images, and count them exactly."""

    clients: int
    exact: int
    counted: int
    counts_exact: int


class Baseline(Record):
    """Scores without the upload, through the networks that the attacker is assumed to know.

    Attributes:
        name: which score (:data:`fedpriv.scoring.membership_baseline.BASELINES`).
        auc: area under the curve over the same candidates.
    """

    name: str
    auc: Rate


class MembershipRecord(InferenceRecord):
    """``membership.json``.

    Attributes:
        n_candidates, n_nonmembers: over all clients.
        n_left_out: members without a non-member of their class, who are no candidates.
        nonmembers: ``held_out``, each client's own held-out images; or ``others``, images of others, as in records of older
            versions: then no leak is claimed, for a client may be told by how its images look.
        baseline: what is reached without the upload; None where no network is assumed to be known.
        strata: by how many images of the class the client holds.
        rarity: by how far an image lies from the mean of its class, in thirds of the candidates of the class.
        classes: None where uploads name no classes.
    """

    kind: Literal["membership"] = "membership"
    n_candidates: int
    n_nonmembers: int
    n_left_out: int = 0
    nonmembers: Literal["held_out", "others"] = "others"
    baseline: Baseline | None = None
    strata: Mapping[str, StratumArea]
    rarity: Mapping[str, StratumArea] = {}
    classes: NamedClasses | None

    def alike(self) -> dict[str, StratumArea]:
        """Return all strata by name."""
        return {**self.strata, **self.rarity}


class ShareDistances(Record):
    """Distances of estimated class shares from true ones, mean over clients: total variation, in [0, 1].

    Attributes:
        estimated: from the clients' own uploads.
        guesses: by name, made without a client's own upload: equal shares, the mean of the other clients' estimates, and
            another client's.
    """

    estimated: Rate
    guesses: Mapping[str, Rate]


class PropertyRecord(InferenceRecord):
    """``property.json``.

    Attributes:
        question: what was asked.
        learned_from: where answers were read off, or who was learned from.
        n_pairs, n_yes: pairs of client and class, and those of which the answer is yes.
        classes_alone: what the number of classes tells without a look at anything else.
        shares: how near estimated class shares are; None where none were estimated.
    """

    kind: Literal["property"] = "property"
    question: str
    learned_from: str
    n_pairs: int
    n_yes: int
    classes_alone: Rates
    shares: ShareDistances | None = None
