"""``metrics.json``: how good the images of an attack are, beside baselines and its control."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, FiniteFloat

from fedpriv.attacks.observation import Cost
from fedpriv.scoring.records.base import SCORING_VERSION, Comparison, Estimate, FiniteSummary, Summary
from fedpriv.scoring.records.made import Budget, Identity
from fedpriv.util.config import Record

SPECIFIC = 0.1
"""Share of the objective of auxiliary images that images found from an upload must stay below to be specific.

One step from the same start already leads below the objective of other images, so that below alone would say nothing.
"""


class Control(Record):
    """Scores of the same attack on shuffled uploads; median and difference are None where some value is not finite."""

    mean: FiniteFloat | None
    median: FiniteFloat | None
    difference: Estimate | None = None


class FeatureMeasure(Summary):
    """A measure of recovered representations, and the same on shuffled uploads, or None where those were not attacked."""

    shuffled: Control | None = None


class FeatureIdentification(FiniteSummary):
    """Rate at which a recovered vector is nearest to its own true one among the client's.

    Attributes:
        chance: what the baseline reaches by the same rule.
        chance_of: which that is; ``vectors`` for one over the number of the client's vectors, where there was no guess.
        shuffled: the control, or None.
        blind: rates of all guesses by name.
    """

    chance: FiniteFloat
    chance_of: str
    shuffled: Control | None = None
    blind: Mapping[str, FiniteFloat] = Field(default_factory=dict)


class Identification(Summary):
    """Share of images re-identified among decoys of their class; one value a target, None where it had fewer than ten.

    Attributes:
        chance: what the baseline reaches on the very targets and decoys; None where no target had enough.
        chance_of: which that is.
        mean_rank: mean rank of the true image; 1 is first.
        decoys: how many there were, of all targets.
        n_left_out: targets without enough decoys.
        shuffled: the control, or None.
        blind: rates of all guesses by name, of the control too.
    """

    chance: FiniteFloat | None
    chance_of: str | None
    mean_rank: FiniteFloat | None
    decoys: tuple[int, ...]
    n_left_out: int
    shuffled: Control | None = None
    blind: Mapping[str, FiniteFloat] = Field(default_factory=dict)


class ClassAccuracy(FiniteSummary):
    """Share of images whose class an independent classifier recognises.

    Attributes:
        real: on the true images.
        chance, chance_of: on the baseline, and which that is.
        floors: on all guesses and shuffled uploads, by name.
        trained_on: images that each classifier was trained on.
    """

    real: FiniteFloat
    chance: FiniteFloat
    chance_of: str
    floors: Mapping[str, FiniteFloat]
    trained_on: tuple[int, ...]


class Perceptual(Summary):
    """Learned perceptual distance, and the network that measured it; None where it was not measured."""

    backbone: str | None = None


class ImageMeasures(Record):
    """Likeness of images; ``ssim`` and ``lpips`` may not be measured."""

    psnr_db: FiniteSummary
    psnr_of_mean_mse_db: Summary
    mse_255: FiniteSummary
    ssim: Summary
    lpips: Perceptual | None = None


class Metrics(ImageMeasures):
    """Of an attack. None where a measure does not apply: no vectors or labels were recovered, no class images made.

    Attributes:
        expected_error: the relative error that the attack itself expects, of its own uncertainty; None where it says none.
        feature_identification: by Euclidean distance.
        direction_identification: by the direction in which a vector differs from the mean of the client's: estimates that
            shrink look like that mean, and are nearest to the wrong one though they point the right way.
    """

    identification_top1: Identification
    relative_error: FeatureMeasure | None = None
    expected_error: Summary | None = None
    cosine: FeatureMeasure | None = None
    feature_identification: FeatureIdentification | None = None
    direction_identification: FeatureIdentification | None = None
    label_accuracy: FiniteSummary | None = None
    class_accuracy: ClassAccuracy | None = None

    @property
    def measured(self) -> dict[str, Summary]:
        """Measures that apply, by name."""
        return {name: value for name, value in self if isinstance(value, Summary)}


class VectorMeans(Record):
    """Of guesses at recovered vectors, as in :class:`Metrics`; None where none were recovered or guessed at."""

    relative_error: FiniteFloat | None = None
    feature_identification: FiniteFloat | None = None
    direction_identification: FiniteFloat | None = None


class FloorMeans(VectorMeans):
    """Means of :class:`ImageMeasures` of a guess or the control."""

    psnr_db: FiniteFloat
    psnr_of_mean_mse_db: FiniteFloat
    mse_255: FiniteFloat
    ssim: FiniteFloat | None
    lpips: FiniteFloat | None = None


class Advantage(FiniteSummary):
    """PSNR above the baseline, dB; which that is, and the share of targets that beat it by 3 dB or more, in [0, 1]."""

    best_floor: str
    share_3db: FiniteFloat


class Fit(Record):
    """The attack's objective against a target's own upload; None where it is not finite.

    Attributes:
        own: of the images found from that upload.
        shuffled: of those found from another client's upload in its place.
        auxiliary: the lowest of a few auxiliary images, of the same classes where these are told.
    """

    own: FiniteFloat | None
    shuffled: FiniteFloat | None
    auxiliary: FiniteFloat | None

    @property
    def specific(self) -> bool:
        """True where the images explain their own upload better than images that were found without it.

        Far better (:data:`SPECIFIC`) than auxiliary images; better than images found from shuffled uploads, which may be
        good guesses where an attack starts from what it knows of the class. A network that maps all images alike lets any
        image explain any upload; then a search converges at once, and neither its success nor its failure says anything.
        """
        if self.own is None:
            return False
        shuffled = self.shuffled is None or self.own < self.shuffled
        return shuffled and (self.auxiliary is None or self.own < SPECIFIC * self.auxiliary)


class Target(Record):
    """One target.

    Attributes:
        round, client, index, label: which it is; the label is -1 where none was said.
        n_c, stratum: how many images went into it.
        psnr_db, floor_psnr_db, advantage_db: of the attack, of the baseline, and their difference.
        objective: of the chosen restart; None where it is not finite.
        converged: by the attack's own rule.
        fit: how well the images explain the upload, beside images found without it; None without a control, and where
            nothing leads from images to uploads.
        specific: whether they do so better than those (:attr:`Fit.specific`); None with ``fit``.
        diverged: it was not finite, and counts as black.
    """

    round: int
    client: int
    index: int
    label: int
    n_c: int
    stratum: str
    psnr_db: FiniteFloat
    floor_psnr_db: FiniteFloat
    advantage_db: FiniteFloat
    objective: FiniteFloat | None
    converged: bool
    fit: Fit | None = None
    specific: bool | None = None
    diverged: bool


class StratumAdvantage(Estimate):
    """Advantage over targets of one stratum, and the share of 3 dB or more."""

    share_3db: FiniteFloat


class Stratum(Record):
    """Scores of the targets of about as many images; ``share`` is of all targets."""

    n: int
    share: FiniteFloat
    psnr_db: Estimate
    floor_psnr_db: FiniteFloat
    advantage_db: StratumAdvantage


class ControlResult(Record):
    """Judgement on whether the attack on shuffled uploads stays at the baseline.

    Attributes:
        shuffled: its PSNR; None where it was not run, as are the following.
        floor: the baseline.
        difference_db: control less that guess.
        passes: whether the interval of the difference reaches zero; None for one target.
        verdict: in words.
    """

    shuffled: Estimate | None
    floor: str | None
    difference_db: Estimate | None
    passes: bool | None
    verdict: str


class ReconstructionRecord(Identity):
    """``metrics.json``.

    Attributes:
        n_targets, n_clients: how many targets and independent units (clients, or declared groups); intervals go over units.
        n_guesses: at most, at a target.
        n_diverged: targets with images that are not finite.
        headline: the rule behind ``psnr_db``.
        metrics: of the attack.
        floors: means of guesses by name: blind ones, what the upload picks among these, the control; and guesses at
            recovered vectors.
        floor_details: all of it, of those that are images; ``lpips`` of the baseline alone.
        advantage_db: above the strongest of them.
        comparisons: with the baseline, by measure and stratum; what verdicts rest on.
        targets: one a target.
        strata: by how many images went into a target; empty ones are left out.
        control: whether the attack on shuffled uploads stays at a baseline.
        cost: of the attack without its control.
        budget, caveat: as in ``about.json``.
        versions: of the packages that scored.
    """

    kind: Literal["reconstruction"] = "reconstruction"
    scoring_version: int = SCORING_VERSION
    n_targets: int
    n_clients: int
    n_guesses: int
    n_diverged: int
    headline: str
    metrics: Metrics
    floors: Mapping[str, FloorMeans | VectorMeans]
    floor_details: Mapping[str, ImageMeasures]
    advantage_db: Advantage
    comparisons: tuple[Comparison, ...]
    targets: tuple[Target, ...]
    strata: Mapping[str, Stratum]
    control: ControlResult
    cost: Cost
    budget: Budget | None
    caveat: str
    versions: Mapping[str, str]

    @property
    def image_floors(self) -> dict[str, FloorMeans]:
        """Guesses at images by name."""
        return {name: means for name, means in self.floors.items() if isinstance(means, FloorMeans)}

    @property
    def converged_share(self) -> float:
        """Share of targets that met the attack's own convergence rule, in [0, 1]."""
        return sum(row.converged for row in self.targets) / len(self.targets)

    @property
    def specific_share(self) -> float | None:
        """Share of targets of a single image whose fit is specific to their upload; None where it was measured of none.

        A mean does not determine its images, and guesses at the class fit it too, so means of two and more are left out.
        """
        known = [row.specific for row in self.targets if row.n_c == 1 and row.specific is not None]
        return sum(known) / len(known) if known else None

    @property
    def objective_median(self) -> float | None:
        """Median over targets of the final objective of the chosen restart; None where none is finite."""
        finite = [row.objective for row in self.targets if row.objective is not None]
        return statistics.median(finite) if finite else None
