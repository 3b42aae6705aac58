"""Answers in words: for a cell of a table, and as sentences. Every word is made of the answer alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedpriv.eval.answers import FEW_CLIENTS, Answer, Word
from fedpriv.eval.endpoints import Endpoint, Threat
from fedpriv.eval.records import LABELS, Able, Premise
from fedpriv.uploads.kinds import EXTRACTORS, NETWORKS

SIGNS: dict[Word, tuple[str, str]] = {
    "leak": ("●", "LEAK"),
    "no leak detected": ("○", "none"),
    "inconclusive": ("◐", "inconclusive"),
    "not asked": ("–", "–"),
}
"""Shape and short word of a verdict, so that it is read without its colour; the most severe first."""

TITLES: dict[Endpoint, str] = {
    "label disclosure": "which classes has the client?",
    "property": "which class has the client most of?",
    "membership": "was this image trained on?",
    "reconstruction": "how do the private images look?",
}


ROWS: dict[Endpoint, str] = {"property": "property (most common class)"}
"""Heads of lines of a table that say more than the endpoint's name."""


def threat_title(threat: Threat, kind: str) -> str:
    """Return a threat model in two or three words: papers on weights assume that the labels of batches are known."""
    if threat == "protocol":
        return "protocol only"
    if kind in EXTRACTORS:
        return "head and batch labels known"
    return "batch labels known" if kind in NETWORKS else "white-box extractor"


TOGETHER = (
    "Primaries are tested together (Holm, 5 %). Where nothing leaks, at most one such page in twenty claims a leak. "
    "Each bound holds with 95 % by itself; those that exclude a leak share the level by Holm's rule."
)
"""Said once on a page of answers."""

LEGEND = "LEAK: beats guessing without the upload. none: gains at most the bound. inconclusive: this run cannot tell."
"""Below a table in a terminal."""


# ---------------------------------------------------------------- figures


def is_decibels(answer: Answer) -> bool:
    """True where the advantage is in dB; else it is of an area under the ROC curve."""
    return answer.endpoint == "reconstruction"


def amount(answer: Answer, value: float) -> str:
    """Return a difference with its sign and unit: ``+0.3 dB``, ``+0.05``."""
    return f"{value:+.1f} dB" if is_decibels(answer) else f"{value:+.2f}"


def figures(answer: Answer) -> str:
    """Return the advantage with its interval, the level and the baseline's."""
    ends, baseline = answer.ci95, answer.baseline
    if answer.advantage is None or baseline is None:
        return ""
    if is_decibels(answer):
        interval = "" if ends is None else f" [{ends[0]:+.1f}, {ends[1]:+.1f}]"
        return f"{answer.advantage:+.1f} dB{interval}"
    interval = "" if ends is None else f" [{max(0.0, baseline + ends[0]):.2f}, {min(1.0, baseline + ends[1]):.2f}]"
    return f"AUC {answer.value:.2f}{interval}, baseline {baseline:.2f}"


def bound_words(answer: Answer) -> str:
    """Return the bound: the most that the data still allow; empty where nothing bounds it."""
    if answer.bound is None or answer.baseline is None:
        return ""
    if is_decibels(answer):
        return f"at most {answer.bound:+.1f} dB"
    return f"AUC at most {min(answer.bound, 1 - answer.baseline):+.2f} over baseline {answer.baseline:.2f}"


def cell(answer: Answer) -> str:
    """Return the cell of the first table of a page, without the verdict's own word."""
    if answer.verdict == "not asked":
        return answer.why if answer.why in ("as protocol", "not run") else f"not tested: {answer.why}"
    if answer.named is not None:
        named = answer.named
        counts = f", counts of {named.counts_exact}" if named.counts_exact else ""
        return f"classes of {named.exact}/{named.clients} clients{counts}, in clear"
    if answer.verdict == "leak":
        return figures(answer)
    if answer.verdict == "no leak detected":
        return bound_words(answer)
    counts = f" (counts from {amount(answer, answer.least)})" if answer.why == "wide interval" else ""
    return "; ".join(part for part in (figures(answer) + counts, short_why(answer)) if part)


def estimand_words(answer: Answer) -> str:
    """Return the targets of an answer: ``means of one image``, ``means of several``; empty where there is one sort."""
    return {"": "", "one image": "means of one image", "several images": "means of several"}[answer.estimand]


# ---------------------------------------------------------------- reasons and advice


def units_of(answer: Answer) -> str:
    """Return the independent units in a word; of a single client they are its images, or questions about them."""
    return "questions" if answer.units == "images" and not is_decibels(answer) else answer.units


def _few_targets(answer: Answer) -> bool:
    """True where there are fewer targets than clients would be needed, however many clients there are."""
    return answer.units != "images" and 0 < answer.n < FEW_CLIENTS


def short_why(answer: Answer) -> str:
    """Return in a few words why an answer is inconclusive."""
    more = f"would need ~{answer.needed} {units_of(answer)} (had {answer.n_clients})"
    return {
        "premise": "true images do not give these uploads",
        "few clients": f"fewer than {FEW_CLIENTS} {'targets' if _few_targets(answer) else units_of(answer)}",
        "no held-out images": "no held-out images",
        "no control": "no shuffled control",
        "under-powered attack": "attack too weak to tell",
        "control not run": "ability not measured",
        "wide interval": more if answer.needed else "more will not settle it",
    }.get(answer.why, answer.why)


def advice(answer: Answer) -> str:
    """Return the advice on an inconclusive answer, as a sentence."""
    if answer.why == "wide interval":
        if answer.units == "images":  # there are no more
            return ""
        if answer.needed is None:
            least = amount(answer, answer.least)
            return f"The estimate lies at the least effect that counts ({least}): more will not settle it."
        return (
            f"About {answer.needed} {units_of(answer)} would decide (now {answer.n_clients}; power 80 %, same spread)."
        )
    if answer.why == "premise" and answer.premise is not None:
        return f"The premise fails: {_premise_fails(answer.premise)}."
    few = f", and so many targets (now {answer.n})" if _few_targets(answer) else ""
    return {
        "few clients": f"At least {FEW_CLIENTS} {units_of(answer)} are needed{few}.",
        "no held-out images": "Bring images that each client holds and did not train on (held_out).",
        "no control": "Run it with its shuffled control.",
        "under-powered attack": able_words(answer.able),
        "control not run": "No positive control is known for this attack here.",
    }.get(answer.why, "")


def able_words(able: Able | None) -> str:
    """Return the evidence of an attack's ability."""
    if able is None:
        return "Whether the attack is able was not measured."
    parts = []
    if able.planted is not None and able.planted.mean is not None:
        ends = able.planted.ci95
        interval = "" if ends is None else f" [{ends[0]:+.2f}, {ends[1]:+.2f}]"
        verb = "finds" if able.planted.is_found else "does not find"
        parts.append(
            f"The attack {verb} planted images (one image a mean, no defense): {able.planted.mean:+.2f}{interval}."
        )
    if able.reached is not None:
        parts.append(f"Its objective is no worse than the truth's own for {percent(able.reached)} of the targets.")
    return " ".join(parts)


def sentence(answer: Answer, *, named: bool = True) -> str:
    """Return an answer as one to three sentences, which begin with the endpoint where it is to be ``named``."""
    parts = (answer.endpoint if named else "", estimand_words(answer), threat_title(answer.threat, answer.target))
    about = ", ".join(filter(None, parts))
    subject = about[0].upper() + about[1:]
    if answer.verdict == "not asked":
        return f"{subject}: not asked ({answer.why})."
    if answer.named is not None:
        return f"{subject}: leak: {cell(answer)}."
    by = f" ({answer.attack}; {against(answer)})"
    if answer.verdict == "leak":
        premise = answer.premise
        warning = f" Warning: {_premise_fails(premise)}." if premise and premise.status == "differs" else ""
        return f"{subject}: leak: {figures(answer)}{by}.{warning}"
    if answer.verdict == "no leak detected":
        spread = "" if answer.units == "images" else " Leaks of few clients were not tested."
        return f"{subject}: no leak detected: {bound_words(answer)}{by}. {able_words(answer.able)}{spread}"
    known = ", ".join(filter(None, (f"{figures(answer)}{by}", bound_words(answer))))
    so_far = "" if answer.advantage is None else f" So far {known}."
    short = answer.why == "few clients" and (answer.units == "images" or _few_targets(answer))
    why = short_why(answer) if short else answer.why
    return f"{subject}: inconclusive ({why}).{so_far} {advice(answer)}".rstrip()


def against(answer: Answer) -> str:
    """Return the baseline of an answer in words."""
    named = f"baseline: {LABELS.get(answer.against, answer.against)}"
    many = f"{answer.n} {'targets' if is_decibels(answer) else 'questions'}, {answer.n_clients} {answer.units}"
    if answer.units == "images":
        many = f"{answer.n_clients} {units_of(answer)}"
    return f"{named}; {many}{f', {answer.n_seeds} seeds' if answer.n_seeds > 1 else ''}"


def most_severe(answers: Sequence[Answer]) -> Answer | None:
    """Return the most severe of some answers: a leak before what is inconclusive, before none.

    Of leaks what is sent in clear comes first, then the advantage in least effects, which dB and areas share.
    """
    order: list[Word] = ["leak", "inconclusive", "no leak detected", "not asked"]

    def size(one: Answer) -> float:
        return math.inf if one.named is not None else (one.advantage or 0.0) / (one.least or 1.0)

    return min(answers, key=lambda one: (order.index(one.verdict), -size(one)), default=None)


def percent(share: float) -> str:
    """Return a share as per cent: whole, but with a digit near its ends."""
    value = 100 * share
    return f"{value:.1f} %" if 0 < value < 1 or 99 < value < 100 else f"{value:.0f} %"


# ---------------------------------------------------------------- premise
_NOISE, _NEAR = "noise that a defense adds (say which: defense), ", 0.9  # as a cause where the cosine is no less
_USUAL = "usual causes are {noise}normalisation in the loader, "
_NETWORK = f"{_USUAL}dropout or batch norm in training mode, weights of another round"
_CAUSES: dict[str, str] = {
    "rows": _NETWORK,
    "means": f"{_NETWORK}, missing images, means taken while training",
    "steps": f"{_USUAL}another optimiser than SGD, another loss, dropout, weights of another round, other batches",
    "evaluation": "they do with batch norm in evaluation mode, and attacks assume training mode",
    "scale": "they do but for a factor of {factor:.3g}; usual causes are another learning rate, a sum in place of a mean",
    "swapped": "before and after look swapped",
}
"""What makes true images give other uploads, by what the difference looks like."""


def _premise_fails(premise: Premise) -> str:
    """Return the clause that the assumed computation does not give the uploads, and why it may not."""
    if premise.cause == "optimiser":
        return f"clients trained by {premise.optimiser}, and attacks take uploads for steps of SGD"
    of = "this upload" if premise.n_clients == 1 else "these uploads"
    if premise.n_differ < premise.n_clients:
        of = f"the uploads of {premise.n_differ} of {premise.n_clients} clients"
    cosine = premise.cosine or 0.0
    cause = _CAUSES[premise.cause].format(factor=premise.factor, noise=_NOISE * (cosine >= _NEAR))
    # As many digits as tell it from 1.
    shown = next((text for digits in range(2, 8) if float(text := f"{cosine:.{digits}f}") < 1), "1.00")
    return f"your images, labels and model do not give {of} (cosine {shown}): {cause}"


def premise_words(premise: Premise | None) -> str:
    """Return the line of a page on the premise; empty where it was not asked."""
    if premise is None:
        return ""
    over = f"{premise.n_clients} client{'' if premise.n_clients == 1 else 's'}"
    error = f"relative error {premise.relative_error or 0.0:.1e}, at most {premise.worst or 0.0:.1e}"
    if premise.status == "differs":
        figures = f" ({error}; {premise.allowed or 0.0:.1e} is explained)" * bool(premise.n_clients)
        return f"Premise: {_premise_fails(premise)}{figures}."
    return {
        "agrees": f"Premise: true images give the uploads ({over}, {error}).",
        "not checkable": f"Premise: not checkable: {premise.why}.",
        "defense": "Premise: not checked, as a defense changes the uploads.",
    }[premise.status]
