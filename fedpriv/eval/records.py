"""Records that are stored beside results, and their parts: frozen models, closed to unknown fields, of one version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Self

from pydantic import Field, FiniteFloat, JsonValue

from fedpriv.attacks.observation import Cost
from fedpriv.attacks.observation import ThreatModel as ThreatModel
from fedpriv.federation.run_directory import RunConfig
from fedpriv.federation.summary import Communication, DefenseFacts, ReachedAccuracy
from fedpriv.util.config import Record

RECORD_VERSION: Literal[5] = 5
"""Of the format of all records."""

SCORING_VERSION = 11
"""Of what the numbers in a record mean. It changes with a metric, a baseline, an interval or a verdict."""

Measure = Literal["images", "identified", "membership", "members_found", "property", "accuracy"]
"""Quantities compared with a baseline: PSNR of images, images re-identified among decoys, areas under the curve of
membership and of a property, members found at 1 % false positives; and of no attack, accuracy beside that without any
exchange."""

SHUFFLED = "shuffled"

LABELS = {
    "mean_colour": "mean colour",
    "mean_image": "mean image",
    "optimal_image": "PSNR-optimal image",
    "class_mean_image": "class mean image",
    "optimal_class_image": "PSNR-optimal image of the class",
    "noise": "uniform noise",
    "mid_grey": "mid-grey",
    SHUFFLED: "shuffled uploads",
    "assumed_extractor": "the assumed extractor alone",
    "assumed_model": "the assumed extractor and head alone",
    "broadcast_model": "the broadcast weights alone",
}
"""Guesses as a reader sees them: at images, the control, and scores of members."""

ESTIMANDS = ("1", "several")
"""Targets made of one image, and of two and more: what holds of the one need not hold of the other."""

Interval = tuple[FiniteFloat, FiniteFloat]
"""Lower and upper end of a 95 % interval."""

# Least effects: a difference smaller than these is no leak, however sure it is. Records carry theirs.
DECIBELS = 0.5
"""Of mean PSNR above the baseline."""
IDENTIFIED = 0.05
"""Of the rate of images re-identified, above what the baseline reaches."""
AUC = 0.55
"""Area under the ROC curve that membership and property inference must exceed."""
FOUND_AT_1_PERCENT = 0.03
"""True-positive rate at 1 % false positives that membership inference must exceed."""

ROUNDING = 1e-6
"""By which the objective of the very truth, at its least, may differ in float32: objectives are of the order of one."""

REACHED = 0.9
"""Share of targets for which an able attack's objective is no worse than the truth's own."""


# ---------------------------------------------------------------- estimates


class Estimate(Record):
    """A mean over ``n`` targets, None without a value, and its interval over clients, None for fewer than two clients."""

    mean: FiniteFloat | None
    ci95: Interval | None
    n: int


class Summary(Estimate):
    """One value a target, summed up."""

    median: FiniteFloat | None  # None where some value is not finite
    sd: FiniteFloat | None  # divides by n - 1; None for one value too
    per_target: tuple[FiniteFloat | None, ...] | None  # None for a value that is not finite, or for none at all
    guesses: Mapping[str, FiniteFloat | None] = Field(default_factory=dict)  # means of guesses, and of the control
    not_measured: str = ""  # why there are no values

    @classmethod
    def nothing(cls, reason: str, **others: object) -> Self:
        """Return a summary of what was not measured, and why; ``others`` are fields beside those of a summary."""
        missing = dict.fromkeys(("mean", "median", "sd", "ci95", "per_target"))
        return cls.model_validate(missing | {"n": 0, "not_measured": reason} | others)


class FiniteSummary(Summary):
    """A :class:`Summary` of values that are all finite."""

    mean: FiniteFloat
    median: FiniteFloat
    per_target: tuple[FiniteFloat, ...]


class Comparison(Estimate):
    """A paired difference, target by target, between an attack and the baseline; positive where the attack is better.

    Every claim that a page makes rests on one of these, so that a page knows how many it makes.
    """

    measure: Measure
    stratum: str  # targets by how many images went into each, or ``all``
    against: str  # the guess that is the baseline
    n_clients: int  # independent units over which the interval goes
    least: FiniteFloat  # effect that counts, in the unit of the mean
    p_value: FiniteFloat | None  # one-sided, of a difference no larger than that; None for fewer than two units
    degrees: FiniteFloat | None = None  # of freedom of the interval, by which seeds are combined; likewise
    beside: str = ""  # the guess that the p-value is of, where that is harder to beat


# ---------------------------------------------------------------- provenance


class Reach(Record):
    """One of the settings of a sweep over the local work behind the upload; an image used twice is counted twice."""

    setting: str  # ``1``, ``4``, ``8x1``, ``epoch``
    label: str  # the same in a few words
    steps: int  # of the client that took most
    images: int


class Labels(Record):
    """Labels that a study gives, empty for none."""

    method: str = ""
    defense: str = ""


Cause = Literal["", "rows", "means", "steps", "evaluation", "scale", "swapped", "optimiser"]
"""What a difference between uploads and what the true images give looks like. ``rows``, ``means``, ``steps``: it shows no
more than what the upload holds: outputs of a network, their means over classes, steps of SGD. ``evaluation``: there is none
with batch norm in evaluation mode. ``scale``: it is a factor. ``swapped``: there is none from the uploaded
weights to the broadcast ones. ``optimiser``: clients are said to have used another."""


class Premise(Record):
    """Agreement of uploads with what the clients' true images give by the computation that attacks assume."""

    status: Literal["agrees", "differs", "not checkable", "defense"]  # differs: most clients' do, or one's grossly
    cause: Cause = ""  # of a difference
    optimiser: str = ""  # that clients are said to have used, where that is the cause
    why: str = ""  # of the first client that could not be checked
    cosine: FiniteFloat | None = None  # median over clients that differ, or where none does over all
    relative_error: FiniteFloat | None = None  # likewise, over the larger norm
    worst: FiniteFloat | None = None  # error of a client
    allowed: FiniteFloat | None = None  # error that rounding, or an unknown order of images, explains
    factor: FiniteFloat | None = None  # by which the upload is larger, likewise a median
    n_clients: int = 0  # that were checked
    n_differ: int = 0


class Planted(Estimate):
    """Positive control: the advantage of the same attack on simulated uploads of auxiliary images whose hiding is least.

    One image a mean and no defense; ``least`` is the least effect that counts.
    """

    n_clients: int
    least: FiniteFloat

    @property
    def is_found(self) -> bool:
        """True where the interval of the advantage lies above the least effect."""
        return self.ci95 is not None and self.ci95[0] > self.least


class Able(Record):
    """Evidence that an attack finds what is there."""

    planted: Planted | None = None  # its positive control; None where its kind of upload has none, or it was not run
    reached: FiniteFloat | None = None  # share of targets whose objective, if any, is no worse than the truth's own

    @property
    def passes(self) -> bool:
        """True where each kind of evidence that there is speaks for the attack."""
        return (self.planted is None or self.planted.is_found) and (self.reached is None or self.reached >= REACHED)


Units = Literal["clients", "groups", "images"]
"""Independent units: clients, the groups of clients that were declared to be one each, or of a single client its images."""


class Provenance(Record):
    """Provenance of a result."""

    version: Literal[5] = RECORD_VERSION
    target: str  # kind of upload
    attack: str  # registry name
    attack_version: int = 1  # of what it does
    method: str
    dataset: str  # a folder of images goes by its own name
    knowledge: ThreatModel
    seed: int  # of the attack and its scoring
    reach: Reach | None = None
    groups: Mapping[int, int] = Field(default_factory=dict)  # client -> its independent unit, where several are one
    per_image: bool = False  # of one client: each image, or question, is a unit, and claims are about these alone
    premise: Premise | None = None  # of uploads that were made elsewhere; runs of fedpriv compute what attacks assume
    options: Mapping[str, JsonValue] = Field(default_factory=dict)  # of the attack
    run: RunConfig | None = None  # that was attacked; None for uploads that were made elsewhere
    images: str = ""  # what was done to how many images of the data set so that all have one shape, in words
    defenses: tuple[DefenseFacts, ...] = ()  # of the run, in the order in which they are applied
    command: str = ""  # that does the same again
    labels: Labels | None = None  # what the study that holds the result calls it
    planted: Planted | None = None  # the positive control
    accuracy: FiniteFloat | None = None  # over all test images after local training in the attacked round, where known

    @property
    def units(self) -> Units:
        """The independent units in a word."""
        return "images" if self.per_image else "groups" if self.groups else "clients"

    def unit_of(self, client: int) -> int:
        """Return the independent unit that a client belongs to: itself unless groups were declared."""
        return self.groups.get(client, client)

    def units_of(self, clients: Sequence[int]) -> tuple[int, ...]:
        """Return the units of targets by their clients: those of the clients, or each target its own."""
        return tuple(range(len(clients))) if self.per_image else tuple(map(self.unit_of, clients))

    @property
    def reach_label(self) -> str:
        """The setting of local work that was attacked, of several, in a few words; else nothing."""
        return "" if self.reach is None else self.reach.label

    @property
    def title(self) -> str:
        """The name of the attack in tables: ``dip``, ``dlg, 4 images``."""
        return ", ".join(part for part in (self.attack, self.reach_label) if part)

    @property
    def defense(self) -> str:
        """The name of the defenses together: ``none``, or their labels."""
        return " + ".join(item.label for item in self.defenses) or "none"

    @property
    def run_seed(self) -> int:
        """Seed of the run; of the attack where the run is not known."""
        return self.seed if self.run is None else self.run.seed


class About(Provenance):
    """``about.json``: how a reconstruction was made."""

    kind: Literal["about"] = "about"
    run_accuracy: Mapping[str, ReachedAccuracy] = Field(default_factory=dict)  # by moment, with the name of a predictor
    communication: Communication | None = None
    redacted: Literal["none", "blur", "omit"] = "none"  # the rule by which images were kept out of these


# ---------------------------------------------------------------- reconstructions


class Identification(Summary):
    """Share of images re-identified among decoys of their class.

    There is one value a target, None where an image had fewer than ten decoys.
    """

    chance: FiniteFloat | None = None  # what the baseline reaches on the very targets
    chance_of: str | None = None  # which that is
    decoys: tuple[int, ...] = ()  # how many images had
    n_left_out: int = 0  # targets without enough decoys


class ImageMeasures(Record):
    """Likeness of images; ``ssim`` and ``lpips`` may not be measured."""

    psnr_db: FiniteSummary
    mse_255: FiniteSummary
    ssim: Summary
    lpips: Summary | None = None


class Metrics(ImageMeasures):
    """Of an attack. None where a measure does not apply: no vectors or labels were recovered."""

    identification_top1: Identification
    relative_error: Summary | None = None
    cosine: Summary | None = None
    label_accuracy: FiniteSummary | None = None

    @property
    def measured(self) -> dict[str, Summary]:
        """Measures that apply, by name."""
        return {name: value for name, value in self if isinstance(value, Summary)}


class Advantage(FiniteSummary):
    """PSNR above the baseline, dB; which that is, and the share of targets that beat it by 3 dB or more, in [0, 1]."""

    best_floor: str
    share_3db: FiniteFloat


class Fit(Record):
    """The attack's objective against an upload: of its images, and of the true ones; None where not finite or known."""

    attack: FiniteFloat | None
    truth: FiniteFloat | None


class Target(Record):
    """One target."""

    round: int
    client: int
    index: int
    label: int  # -1 where none was said
    n_c: int  # images that went into it
    psnr_db: FiniteFloat
    floor_psnr_db: FiniteFloat  # of the baseline
    converged: bool  # by the attack's own rule
    fit: Fit | None = None  # how well images explain the upload; None where nothing leads from images to uploads

    @property
    def reached(self) -> bool:
        """True where the objective is known to be no worse than that of the true images."""
        fit = self.fit
        if fit is None or fit.attack is None or fit.truth is None:
            return False
        return fit.attack <= fit.truth + ROUNDING


class ControlResult(Record):
    """PSNR of the attack on shuffled uploads, less that of the baseline, and whether it stays there; None for not run.

    ``passes`` where the interval of the difference reaches zero; None for one client too.
    """

    difference_db: Estimate | None
    passes: bool | None
    verdict: str


class ReconstructionRecord(Provenance):
    """``metrics.json``."""

    kind: Literal["reconstruction"] = "reconstruction"
    scoring_version: int = SCORING_VERSION
    n_targets: int
    n_clients: int  # independent units, over which intervals go
    n_diverged: int  # targets with images that are not finite
    headline: str  # the rule behind ``psnr_db``
    metrics: Metrics
    floors: Mapping[str, ImageMeasures]  # blind guesses and the control; LPIPS of the baseline alone
    advantage_db: Advantage  # above the strongest of them
    comparisons: tuple[Comparison, ...]  # with the baseline, by measure and stratum; what verdicts rest on
    targets: tuple[Target, ...]
    control: ControlResult
    cost: Cost  # without the control
    versions: Mapping[str, str]  # of the packages that scored, and the network behind LPIPS

    def of(self, stratum: str) -> list[Target]:
        """Return the targets of a stratum of comparisons, or ``all``."""
        return [row for row in self.targets if stratum in ("all", ESTIMANDS[row.n_c > 1])]

    def able_on(self, stratum: str) -> Able | None:
        """Return the evidence that the attack finds what is there, over targets of a stratum.

        That a search converged by its own rule counts beside a positive control only: a rule may hold before it has begun.
        """
        rows = self.of(stratum)
        measured = any(row.fit is not None for row in rows)
        by_rule = self.planted is not None
        reached = sum(row.reached or (by_rule and row.converged) for row in rows) / len(rows) if measured else None
        return None if reached is None and self.planted is None else Able(planted=self.planted, reached=reached)


# ---------------------------------------------------------------- inferences


class Rate(Record):
    """A measure over all questions, and its interval; None with one client."""

    value: FiniteFloat
    ci95: Interval | None


class Rates(Record):
    """Area under the ROC curve, and true-positive rate at 1 % false positives, in [0, 1]."""

    auc: Rate
    tpr_at_1_percent: Rate


class Seconds(Record):
    """Wall seconds."""

    seconds: FiniteFloat


class InferenceRecord(Provenance, Rates):
    """The common part of records of inference; ``shuffled`` is the same from other clients' uploads, None where not run.

    ``comparisons`` are with the strongest of chance, shuffled uploads and what needs no upload; verdicts rest on them.
    """

    scoring_version: int = SCORING_VERSION
    round: int
    n_clients: int
    shuffled: Rates | None
    comparisons: tuple[Comparison, ...] = ()
    cost: Seconds

    def able_on(self, stratum: str = "all") -> Able | None:
        """Return the evidence that the attack finds what is there; None where nothing was measured."""
        return None if self.planted is None else Able(planted=self.planted, reached=None)


class NamedClasses(Record):
    """For how many of ``clients`` uploads say exactly which classes they hold, and count their images exactly.

    ``alike``: how many hold the commonest set of classes, so that one guess at all clients would be right as often.
    """

    clients: int
    exact: int
    counts_exact: int
    alike: int = 0

    @property
    def tells(self) -> bool:
        """True where more is said than one guess at all clients has right: counts, or sets of classes that differ."""
        return self.counts_exact > 0 or (self.exact - self.alike) >= IDENTIFIED * self.clients


class Baseline(Record):
    """Score without the upload, through the networks that the attacker is assumed to know: which, and its area."""

    name: str
    auc: Rate


class MembershipRecord(InferenceRecord):
    """``membership.json``.

    Non-members are each client's own ``held_out`` images; or those of ``others``: then no leak is claimed, for a client may
    be told by how its images look.
    """

    kind: Literal["membership"] = "membership"
    n_candidates: int  # over all clients
    n_nonmembers: int
    nonmembers: Literal["held_out", "others"] = "others"
    baseline: Baseline | None = None  # what is reached without the upload; None where no network is assumed to be known
    classes: NamedClasses | None  # None where uploads name none


class PropertyRecord(InferenceRecord):
    """``property.json``: ``n_yes`` of ``n_pairs`` of client and class have the answer yes."""

    kind: Literal["property"] = "property"
    question: str
    learned_from: str
    n_pairs: int
    n_yes: int
    classes: NamedClasses | None = None


InferenceResult = MembershipRecord | PropertyRecord
"""Records of attacks that return scores, not images."""


# ---------------------------------------------------------------- audits of epsilon


AuditWord = Literal["contradicted", "not contradicted", "untested", "no claim"]
"""``untested``: too few canaries, or too faint ones, to contradict even a tenth of the noise."""


class ClaimedPrivacy(Record):
    """A guarantee as it is claimed, of so many uploads of one client together.

    ``implied`` is the epsilon that follows from clip and noise for the same releases; None where nothing follows.
    """

    epsilon: FiniteFloat
    delta: FiniteFloat
    unit: Literal["client", "image"]
    releases: int
    neighbours: str
    implied: FiniteFloat | None


class EpsilonBound(Record):
    """A lower bound on epsilon, None for more than any number, and what it holds under."""

    name: Literal["one run", "Gaussian"]
    epsilon: FiniteFloat | None
    given: str = ""


class PrivacyAuditRecord(Record):
    """``audit-dp.json``.

    ``claimant`` is the defense whose claim it is, or ``stated``; ``included`` of the ``canaries`` were in. ``attainable`` is
    the largest bound, had every canary been recognised; ``control`` had the canaries stood out from the noise ten times as
    far; None for more than any number, and where nothing was varied. ``confidence`` is that all bounds hold together.
    """

    kind: Literal["privacy_audit"] = "privacy_audit"
    version: Literal[5] = RECORD_VERSION
    method: str
    dataset: str
    defense: str
    claimant: str
    seed: int
    command: str = ""
    claim: ClaimedPrivacy | None
    way: Literal["uploads", "training"]  # canaries are uploads that pass a defense, or gradients within local training
    canaries: int
    included: int
    confidence: FiniteFloat
    delta: FiniteFloat = Field(ge=0, lt=1)
    bounds: tuple[EpsilonBound, ...]
    attainable: FiniteFloat | None
    control: FiniteFloat | None
    verdict: AuditWord
    sentence: str
    notices: tuple[str, ...] = ()
