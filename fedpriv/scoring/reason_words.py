"""Reasons why the absence of a leak says little, in words: each is a clause of "Not tested hard enough to say"."""

from __future__ import annotations

from fedpriv.scoring.left_open import RATES
from fedpriv.scoring.records import Reason, Verdict
from fedpriv.scoring.stratum_words import alike_words, made_of, percent

_FOUND: dict[str, tuple[str, str]] = {
    "images": ("its images lie at least {} above the best guess", "its images may lie up to {} above the best guess"),
    "beyond_3db": (
        "at least {} more of the images come back than by",
        "up to {} more of the images may come back than by",
    ),
    "identified": (
        "at least {} more of the images are told from decoys than by",
        "up to {} more of the images may be told from decoys than by",
    ),
    "classes": (
        "at least {} more of the images are of a class that is recognised than by",
        "up to {} more of the images may be of a class that is recognised than by",
    ),
    "vectors": (
        "its relative error lies at least {} below the best guess's",
        "its relative error may lie up to {} below the best guess's",
    ),
    "vectors_identified": (
        "at least {} more of the vectors are nearest to their own than by",
        "up to {} more of the vectors may be nearest to their own than by",
    ),
    "membership": (
        "its AUC lies at least {} above the best guess's",
        "its AUC may lie up to {} above the best guess's",
    ),
    "members_found": (
        "at least {} more of the members are found at 1 % false positives than by",
        "up to {} more of the members may be found at 1 % false positives than by",
    ),
    "property": ("its AUC lies at least {} above the best guess's", "its AUC may lie up to {} above the best guess's"),
}
"""Findings beyond the best guess: surely, by the comparison alone, and at most. Rates end in "by"."""


def why(reason: Reason, verdict: Verdict) -> str:
    """Return a reason with its figures, as a clause.

    Args:
        reason: one of the verdict's.
        verdict: says of what and of how many.
    """
    if reason.measure is not None:
        return _left_open(reason, verdict)
    value, beside, units = reason.value or 0.0, reason.beside or 0.0, verdict.units
    return {
        "few_clients": f"{value:.0f} {units.removesuffix('s') if value == 1 else units}, and {beside:.0f} are the least",
        "no_control": "the attack was not run on permuted uploads",
        "no_held_out": "non-members are others' images, which a client's own look tells apart; bring each client's "
        "held-out images (held_out), or attack the run of an older result again",
        "not_converged": f"its search converged for {percent(value)} of the targets",
        "caveat": reason.text.rstrip("."),
        "budget_rising": f"the last increase of its budget still gained {value:.1f} dB",
        "at_chance": f"the model is right for {percent(value)} of the test images, a constant guess for {percent(beside)}",
        "undertrained": f"the model reaches {percent(value)} accuracy, its method {percent(beside)} elsewhere here",
        "smaller_budget": "it was run with a larger budget too, which is judged",
        "no_comparison": "there is no guess to compare with",
    }[reason.name]


def _left_open(reason: Reason, verdict: Verdict) -> str:
    """Return the effect that one comparison leaves open."""
    measure, value, least = reason.measure or "images", reason.value or 0.0, reason.beside or 0.0
    among = "" if reason.stratum == "all" else f"among {_alike(reason.stratum, measure)}, "
    sure = reason.name == "not_sure"
    told = _FOUND[measure][0 if sure else 1].format(amount(measure, value))
    told = f"{among}{told}{' the best guess' if measure in RATES else ''}"
    if sure:
        return f"{told} by its own interval, but that is not sure among the {verdict.n_compared} comparisons shown here"
    return f"{told} by its 95 % interval, and {amount(measure, least)} would count"


def _alike(stratum: str, measure: str) -> str:
    return alike_words(stratum) if measure == "membership" else f"targets {made_of([stratum])}"


def amount(measure: str, value: float) -> str:
    """Return a difference in the unit in which sentences have it."""
    if measure == "images":
        return f"{value:.1f} dB"
    if measure in ("membership", "property"):
        return f"{value:.3f}"
    return f"{100 * value:.{0 if abs(value) >= 0.1 else 1}f} points"
