"""``metrics.json``: how good the images of an attack are, beside blind guesses and its control."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, FiniteFloat

from fedpriv.attacks.observation import Cost
from fedpriv.scoring.records.base import SCORING_VERSION, Comparison, Estimate, FiniteSummary, Summary
from fedpriv.scoring.records.made import Budget, Identity
from fedpriv.util.record import Record


class Control(Record):
    """Scores of the same attack on shuffled uploads.

    Attributes:
        mean, median: over targets; the median is None where some value is not finite.
        difference: attack less control, target by target; None where some value is not finite.
    """

    mean: FiniteFloat | None
    median: FiniteFloat | None
    difference: Estimate | None = None


class FeatureMeasure(Summary):
    """A measure of recovered representations, and the same on shuffled uploads, or None where those were not attacked."""

    shuffled: Control | None = None


class FeatureIdentification(FiniteSummary):
    """Rate at which a recovered vector is nearest to its own true one among the client's.

    Attributes:
        chance: what the strongest guess reaches by the same rule.
        chance_of: which that is; ``vectors`` for one over the number of the client's vectors, where there was no guess.
        shuffled: the control, or None.
        blind: rates of all guesses by name.
    """

    chance: FiniteFloat
    chance_of: str
    shuffled: Control | None = None
    blind: Mapping[str, FiniteFloat] = Field(default_factory=dict)


class Identification(Summary):
    """Share of images told first among decoys of their class; one value a target, None where it had fewer than ten.

    Attributes:
        chance: what the strongest guess reaches on the very targets and decoys; None where no target had enough.
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
        chance: on the strongest guess.
        chance_of: which that is.
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


class OtherMeasure(Summary):
    """A measure of another package, with what a table needs to know of it.

    Attributes:
        unit: empty for none.
        higher_is_better: whether a higher value means more leakage.
        description: one line.
        shuffled: of vectors: the control, or None where it was not run.
    """

    unit: str
    higher_is_better: bool
    description: str
    shuffled: Control | None = None


class ImageMeasures(Record):
    """Likeness of images; ``ssim`` and ``lpips`` may not be measured. ``others`` are other packages' measures by name."""

    psnr_db: FiniteSummary
    psnr_of_mean_mse_db: Summary
    mse_255: FiniteSummary
    ssim: Summary
    others: Mapping[str, OtherMeasure] = Field(default_factory=dict)


class FloorMeasures(ImageMeasures):
    """Of a blind guess or the control; ``lpips`` of the strongest alone."""

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
    lpips: Perceptual | None = None

    @property
    def measured(self) -> dict[str, Summary]:
        """Measures that apply, by name."""
        return {name: value for name, value in self if isinstance(value, Summary)} | dict(self.others)


class VectorMeans(Record):
    """Of guesses at recovered vectors; None where none were recovered, or nothing was guessed at them.

    Attributes:
        relative_error: mean distance from the true vector over its norm.
        feature_identification: share nearest to their own among the client's.
        direction_identification: the same by direction from the mean of the client's.
    """

    relative_error: FiniteFloat | None = None
    feature_identification: FiniteFloat | None = None
    direction_identification: FiniteFloat | None = None


class FloorMeans(VectorMeans):
    """Means of :class:`FloorMeasures`."""

    psnr_db: FiniteFloat
    psnr_of_mean_mse_db: FiniteFloat
    mse_255: FiniteFloat
    ssim: FiniteFloat | None
    lpips: FiniteFloat | None = None


class Advantage(FiniteSummary):
    """PSNR above the strongest floor, dB.

    Attributes:
        best_floor: which that is.
        share_3db: share of targets that beat it by 3 dB or more, in [0, 1].
    """

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


class Target(Record):
    """One target.

    Attributes:
        round, client, index, label: which it is; the label is -1 where none was said.
        n_c, stratum: how many images went into it.
        psnr_db, floor_psnr_db, advantage_db: of the attack, of the strongest floor, and their difference.
        objective: of the chosen restart; None where it is not finite.
        converged: by the attack's own rule.
        fit: how well the images explain the upload, beside images found without it; None without a control, and where
            nothing leads from images to uploads.
        specific: whether they do so better than those, as ``convergence.is_specific`` has it; None with ``fit``.
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


class NonMembers(Estimate):
    """The best PSNR over images that the upload had nothing to do with; ``labels``: targets by how those were chosen."""

    labels: Mapping[str, int]


class Definition(FiniteSummary):
    """One way of counting a hit, in dB, with floors under the same rule.

    Attributes:
        text: the rule.
        floors: means of the floors by name.
        best_floor: the strongest.
        advantage_db: above that.
        nonmembers, own_minus_nonmembers_db: of T2 alone: the same maximum over non-members, and the difference to it.
    """

    text: str
    floors: Mapping[str, FiniteFloat]
    best_floor: str
    advantage_db: FiniteSummary
    nonmembers: NonMembers | None = None
    own_minus_nonmembers_db: Estimate | None = None


class ControlResult(Record):
    """Judgement on whether the attack on shuffled uploads stays at the best blind floor.

    Attributes:
        shuffled: its PSNR; None where it was not run, as are the following.
        floor: the best blind guess.
        difference_db: control less floor.
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
        floor_details: all of it, of those that are images.
        advantage_db: above the strongest of them.
        comparisons: with the strongest guess, by measure and stratum; what verdicts rest on.
        targets: one a target.
        strata: by how many images went into a target; empty ones are left out.
        definitions: every way of counting a hit: T1, T2, T3, and T5 where there are several guesses.
        control: whether the attack on shuffled uploads stays at a blind guess.
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
    floor_details: Mapping[str, FloorMeasures]
    advantage_db: Advantage
    comparisons: tuple[Comparison, ...]
    targets: tuple[Target, ...]
    strata: Mapping[str, Stratum]
    definitions: Mapping[str, Definition]
    control: ControlResult
    cost: Cost
    budget: Budget | None
    caveat: str
    versions: Mapping[str, str]

    @property
    def image_floors(self) -> dict[str, FloorMeans]:
        """Guesses at images by name."""
        return {name: means for name, means in self.floors.items() if isinstance(means, FloorMeans)}
