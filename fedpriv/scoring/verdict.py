"""One plain sentence that the numbers of a record support."""

from __future__ import annotations

from typing import Literal

from fedpriv.scoring.convergence import convergence
from fedpriv.scoring.floors import LABELS, PERMUTED, floor_words
from fedpriv.scoring.records import ReconstructionRecord
from fedpriv.scoring.records.reconstruction import FeatureIdentification, Identification

SOME = 0.1
"""Share of targets beyond 3 dB from which an attack that fails on average is still said to leak for some."""

ABOVE_CHANCE = 0.05
"""How far above chance the lower end of an identification interval must lie to count."""

FEW_CLIENTS = 8
"""With fewer clients than this a bootstrap over clients is too narrow, and the verdict says so."""

Kind = Literal["leaks", "some", "features", "classes", "none", "worse", "single"]


def verdict_kind(record: ReconstructionRecord) -> Kind:
    """Return which case :func:`verdict` states.

    ``leaks``: the mean advantage lies above zero. ``some``: it does not, but a tenth of the targets beat the best blind
    guess by 3 dB, or targets are identified among decoys beyond chance. ``features``: no image does so, but the recovered
    representations are told apart beyond chance. ``classes``: neither, but an independent classifier recognises the class
    of the images. ``none``, ``worse``: the interval holds zero, lies below it. ``single``:
    one target, so there is no interval.
    """
    interval = record.advantage_db.ci95
    if interval is None:
        return "single"
    if interval[0] > 0:
        return "leaks"
    if record.advantage_db.share_3db >= SOME or beyond_chance(record.metrics.identification_top1):
        return "some"
    if beyond_chance(record.metrics.feature_identification):
        return "features"
    if _recognised(record):
        return "classes"
    return "worse" if interval[1] < 0 else "none"


def verdict(record: ReconstructionRecord) -> str:
    """Return the verdict on an attack from its ``metrics.json`` record."""
    kind = verdict_kind(record)
    advantage = record.advantage_db
    mean = advantage.mean
    floor = floor_words(advantage.best_floor)
    side = "above" if mean >= 0 else "below"
    facts = f"mean PSNR {record.metrics.psnr_db.mean:.1f} dB, {abs(mean):.1f} dB {side} {floor}"
    if advantage.ci95 is None:
        return f"One target, so no interval: {facts}.{_classes(record)}{_features(record)}{_search(record)}"
    low, high = advantage.ci95
    few = f" Only {record.n_clients} clients: the interval is too narrow." if record.n_clients < FEW_CLIENTS else ""
    facts += f", 95 % interval of the difference {low:.1f} to {high:.1f} dB"
    beaten = f"{100 * advantage.share_3db:.0f} % of {record.n_targets} targets beat it by 3 dB or more"
    told = _identified(record)
    if kind == "leaks":
        text = f"Leaks: {facts}; {beaten}{told}."
    elif kind == "some":
        text = f"Leaks, though its images do not beat the floor on average: {facts}; {beaten}{told}."
    elif kind == "features":
        text = f"Leaks representations, but no image beyond the floor: {facts}."
    elif kind == "classes":
        text = f"Shows what classes look like to the client's model, but no image beyond the floor: {facts}."
    elif kind == "worse":
        text = f"The attack fails, which is no proof of a safe upload: {facts}."
    else:
        text = f"No leak beyond the floor found: {facts}."
    search = "" if kind == "leaks" else _search(record)
    return text + _classes(record) + _features(record) + search + few


def _search(record: ReconstructionRecord) -> str:
    why = record.caveat  # then neither success nor failure of the search says what it otherwise would
    failed = not why and verdict_kind(record) in ("none", "worse")
    return " " + convergence(record).sentence(record.n_targets, failed=failed) + (f" {why}" if why else "")


def beyond_chance(found: Identification | FeatureIdentification | None) -> bool:
    """Whether a share lies above what the strongest guess reaches, and the same attack on permuted uploads.

    The lower end of its interval must lie well above chance; where permuted uploads were attacked, so must the interval of
    the paired difference above zero.
    """
    if found is None or found.ci95 is None or found.chance is None:
        return False
    beyond = found.ci95[0] > found.chance + ABOVE_CHANCE
    if found.permuted is None:
        return beyond
    if found.permuted.difference is None:  # not all values are finite
        return beyond and found.permuted.mean is not None and found.ci95[0] > found.permuted.mean + ABOVE_CHANCE
    interval = found.permuted.difference.ci95
    return beyond and interval is not None and interval[0] > 0


def _recognised(record: ReconstructionRecord) -> bool:
    found = record.metrics.class_accuracy
    if found is None or found.ci95 is None:
        return False
    return found.ci95[0] > max(found.chance, found.floors.get(PERMUTED, 0.0)) + ABOVE_CHANCE


def _classes(record: ReconstructionRecord) -> str:
    found = record.metrics.class_accuracy
    if found is None:
        return ""
    permuted = found.floors.get(PERMUTED)
    control = "" if permuted is None else f", of the control's {100 * permuted:.0f} %"
    return (
        f" An independent classifier recognises the class of {100 * found.mean:.0f} % of the reconstructions "
        f"(of true images {100 * found.real:.0f} %{control}, {LABELS[found.chance_of]} {100 * found.chance:.0f} %)."
    )


def _identified(record: ReconstructionRecord) -> str:
    if not beyond_chance(record.metrics.identification_top1):
        return ""
    found = record.metrics.identification_top1
    return f", and {percent(found.mean)} are identified among decoys ({_chance_words(found)})"


def _chance_words(found: Identification) -> str:
    """Return what the strongest guess reaches on the same targets and decoys, and which that is."""
    return f"{LABELS.get(str(found.chance_of), found.chance_of)}: {percent(found.chance)}"


def _features(record: ReconstructionRecord) -> str:
    found, error = record.metrics.feature_identification, record.metrics.relative_error
    if found is None or error is None:
        return ""
    beside = f"{LABELS.get(found.chance_of, 'chance')} {percent(found.chance)}"
    if found.permuted is not None and error.permuted is not None:
        beside += f"; on permuted uploads {percent(found.permuted.mean)}, error {percent(error.permuted.median, 1)}"
    return (
        f" Recovered representations: median relative error {percent(error.median, 1)}, "
        f"{percent(found.mean)} nearest to their own ({beside})."
    )


def percent(share: float | None, digits: int = 0) -> str:
    """Return a share in per cent; a mean or median over values that are not all finite has no number.

    >>> percent(0.056, 1), percent(None)
    ('5.6 %', 'not finite')
    """
    return "not finite" if share is None else f"{100 * share:.{digits}f} %"
