"""Reasons why the absence of a leak says little, in words: each is a clause of "Not tested hard enough to say"."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.scoring.left_open import RATES
from fedpriv.scoring.records import Reason, Verdict
from fedpriv.scoring.records.made import Premise
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


_CAUSES: dict[str, str] = {
    "rows": "usual causes are normalisation in the loader, dropout or batch norm in training mode, weights of another "
    "round",
    "means": "usual causes are normalisation in the loader, dropout or batch norm in training mode, weights of another "
    "round, missing images, means taken while training",
    "steps": "usual causes are normalisation in the loader, another optimiser than SGD, another loss, dropout, weights of "
    "another round, other batches",
    "evaluation": "they do with batch norm in evaluation mode, and attacks assume training mode",
    "scale": "they do but for a factor of {:.3g}; usual causes are another learning rate, a sum in the place of a mean",
}
"""What makes true images give other uploads, by what the difference looks like."""


def premise_fails(premise: Premise) -> str:
    """Return the clause that the assumed computation does not give the uploads, and why it may not."""
    if premise.cause == "optimiser":
        return f"clients trained by {premise.optimiser}, and attacks take uploads for steps of SGD"
    of = "this upload" if premise.n_clients == 1 else "these uploads"
    if premise.n_differ < premise.n_clients:
        of = f"the uploads of {premise.n_differ} of {premise.n_clients} clients"
    cause = _CAUSES[premise.cause].format(premise.factor)
    return f"your images, labels and model do not give {of} (cosine {premise.cosine:.2f}): {cause}"


def premise_warning(reasons: Sequence[Reason]) -> str:
    """Return the sentence beside a leak whose premise fails; empty where it does not."""
    failed = [reason.premise for reason in reasons if reason.premise is not None]
    return f" Warning: {premise_fails(failed[0])}. The leak stands, and more may leak." if failed else ""


def premise_words(premise: Premise | None) -> str:
    """Return the line of a page on the premise; empty where it was not asked."""
    if premise is None:
        return ""
    if premise.status == "differs" and not premise.n_clients:
        return f"Premise: {premise_fails(premise)}."
    over = f"{premise.n_clients} client{'' if premise.n_clients == 1 else 's'}"
    error = f"relative error {premise.relative_error or 0.0:.1e}, at most {premise.worst or 0.0:.1e}"
    return {
        "agrees": f"Premise: true images give the uploads ({over}, {error}).",
        "differs": f"Premise: fails for {premise.n_differ} of {over} ({error}; {premise.allowed or 0.0:.1e} is explained).",
        "not checkable": f"Premise: not checkable: {premise.why}.",
        "defense": "Premise: not checked, as a defense changes the uploads.",
    }[premise.status]


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
        "premise": "" if reason.premise is None else premise_fails(reason.premise),
        "few_clients": f"{value:.0f} {units.removesuffix('s') if value == 1 else units}, and {beside:.0f} are the least",
        "no_control": "the attack was not run on shuffled uploads",
        "no_held_out": "non-members are others' images, which a client's own look tells apart; bring each client's "
        "held-out images (held_out), or attack the run of an older result again",
        "not_converged": f"its search converged for {percent(value)} of the targets",
        "not_specific": (
            f"its images fit their upload much better than other images do for {percent(value)} of the targets of a single "
            "image"
        ),
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
    text = _FOUND[measure][0 if sure else 1].format(amount(measure, value))
    text = f"{among}{text}{' the best guess' if measure in RATES else ''}"
    if sure:
        return f"{text} by its own interval, but that is not sure among the {verdict.n_compared} comparisons shown here"
    return f"{text} by its 95 % interval, and {amount(measure, least)} would count"


def _alike(stratum: str, measure: str) -> str:
    return alike_words(stratum) if measure == "membership" else f"targets {made_of([stratum])}"


def amount(measure: str, value: float) -> str:
    """Return a difference in the unit in which sentences have it."""
    if measure == "images":
        return f"{value:.1f} dB"
    if measure in ("membership", "property"):
        return f"{value:.3f}"
    return f"{100 * value:.{0 if abs(value) >= 0.1 else 1}f} points"
