"""Verdicts in words. Sentences are made of a verdict alone; the first gives the right idea to who reads no further."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedpriv.scoring.floors import DECOYS, LABELS
from fedpriv.scoring.left_open import RATES, within_reach
from fedpriv.scoring.reason_words import amount, premise_warning, why
from fedpriv.scoring.records import JudgedComparison, Kind, Verdict
from fedpriv.scoring.stratum_words import alike_words, made_of, number_words, percent, strata_words

BADGES: dict[Kind, str] = {
    "leaks": "images leak",
    "some": "some images come back",
    "vectors": "vectors recovered",
    "classes": "shows classes",
    "membership": "leaks membership",
    "property": "leaks a property",
    "untested": "not tested hard enough",
    "none": "no better than a guess",
}
"""Verdicts in a few words, the gravest first."""

TOGETHER = (
    "All comparisons shown here are tested together (Holm, 5 %): where attacks know nothing, at most one such page in "
    "twenty claims a leak. Intervals are of one comparison each, over clients or, where these are declared, groups of them."
)
"""Said once on a page of verdicts."""


def words(verdict: Verdict) -> str:
    """Return a verdict as one to a few sentences."""
    if not verdict.makes_images:
        return inferred(verdict)
    parts = [headline(verdict)]
    rest = [measure for measure in _CLAIMED if measure not in _OF_KIND.get(verdict.kind, ())]
    parts += [_CLAIMED[measure](current, verdict, "") for measure in rest if (current := _claims(verdict, measure))]
    if verdict.kind in ("vectors", "classes"):
        parts.append(f"Images are not shown to come back: on average {gain(verdict)}.")
    elif verdict.kind == "some":
        parts.append(f"On average the gain is {gain(verdict)}.")
    return " ".join(parts)


def headline(verdict: Verdict, by: str = "") -> str:
    """Return the one sentence on what an attack makes of images or vectors.

    Args:
        verdict: on an attack that makes images.
        by: whom to name as the attacker, or nobody.
    """
    if verdict.kind == "untested":
        return untested(verdict, by)
    if verdict.kind == "none":
        subject = f"{by} finds nothing" if by else "Nothing is found"
        return f"{subject} beyond a guess, though tested hard enough: {_none(verdict)}."
    measure = next(measure for measure in _OF_KIND[verdict.kind] if _claims(verdict, measure))
    return _CLAIMED[measure](_claims(verdict, measure), verdict, by) + premise_warning(verdict.reasons)


def inferred(verdict: Verdict) -> str:
    """Return the sentence on membership or a property, and on what the upload says outright."""
    requested = f"a property ({verdict.question})" if verdict.question else "membership"
    if verdict.question and verdict.clear:
        return f"Sent in clear: {verdict.clear}."
    none = verdict.kind == "none"
    figures = "; ".join(_score(item, limit=none) for item in verdict.compared if item.stratum == "all")
    if verdict.kind == "untested":
        text = f"Not tested hard enough to say whether {requested} leaks: {_whys(verdict)}." + (
            f" So far {figures}." if figures else ""
        )
    elif none:
        subject = requested[0].upper() + requested[1:]
        text = (
            f"{subject} is told no better than by a guess, though tested hard enough: {figures}{_each_seed(verdict)}."
        )
    else:
        text = f"Leaks {requested}{_of_whom(verdict.claims)}.{premise_warning(verdict.reasons)}"
    text += f" {verdict.baseline[0].upper()}{verdict.baseline[1:]}." if verdict.baseline else ""
    return f"{text} The upload names {verdict.clear}." if verdict.clear else text


def untested(verdict: Verdict, by: str = "") -> str:
    """Return why nothing can be said, and what came back of the attacked targets all the same."""
    result = verdict.overall("beyond_3db")
    if any(reason.name == "few_clients" for reason in verdict.reasons) and result is not None and result.value:
        number = round(result.value * verdict.n_targets)
        back = f"{number} of these {verdict.n_targets} images came back{_to(by)}, 3 dB or more beyond the best guess"
        return f"{back} ({_guess(result)}); nothing is claimed beyond them: {_whys(verdict)}."
    attack = f" of {by}" if by else ""
    return f"Not tested hard enough to say{attack}: {_whys(verdict)}. So far {gain(verdict)}{_beside(verdict)}."


def _whys(verdict: Verdict) -> str:
    return "; ".join(why(reason, verdict) for reason in verdict.reasons)


def briefly(verdict: Verdict, by: str) -> str:
    """Return in one sentence why nothing can be said, with the first reason and how many others there are."""
    first, *others = [why(reason, verdict) for reason in verdict.reasons]
    more = f", and {len(others)} more reason{'' if len(others) == 1 else 's'}" if others else ""
    return f"Not tested hard enough to say. {by} comes nearest, {gain(verdict)}; but {first}{more}."


# ---------------------------------------------------------------- what stands


def _images(claims: Sequence[JudgedComparison], verdict: Verdict, by: str) -> str:
    figures = _by_stratum(claims, lambda item: f"mean PSNR {_db(item.value)}, {_difference(item)}")
    if _everywhere(claims):
        return f"Images leak{_to(by)}: {figures}."
    return f"Images of targets {_of_strata(claims)} leak{_to(by)}: {figures}; over all targets {gain(verdict)}."


def _back(claims: Sequence[JudgedComparison], verdict: Verdict, by: str) -> str:
    claim = claims[0]
    which = "the images" if _everywhere(claims) else f"the images of targets {_of_strata(claims)}"
    return (
        f"{percent(claim.value)} of {which} come back{_to(by)}, 3 dB or more beyond the best guess ({_guess(claim)})."
    )


def _separated(claims: Sequence[JudgedComparison], verdict: Verdict, by: str) -> str:
    claim = claims[0]
    which = "the images" if _everywhere(claims) else f"the images of targets {_of_strata(claims)}"
    return f"{percent(claim.value)} of {which} are told from decoys{_by(by)} ({_guess(claim)})."


def _vectors(claims: Sequence[JudgedComparison], verdict: Verdict, by: str) -> str:
    figures = _by_stratum(claims, lambda item: f"relative error {percent(item.value)} ({_guess(item)})")
    return f"{_these(verdict, claims)} are recovered{_by(by)}: {figures}."


def _own(claims: Sequence[JudgedComparison], verdict: Verdict, by: str) -> str:
    figures = _by_stratum(claims, lambda item: f"{percent(item.value)} are nearest to their own ({_guess(item)})")
    return f"{_these(verdict, claims)} are told from the client's others{_by(by)}: {figures}."


def _classes(claims: Sequence[JudgedComparison], verdict: Verdict, by: str) -> str:
    claim = claims[0]
    made = f"images that {by} makes" if by else "the images"
    return (
        f"The class of {percent(claim.value)} of {made} is recognised by an independent classifier ({_guess(claim)})."
    )


_CLAIMED: dict[str, Callable[[Sequence[JudgedComparison], Verdict, str], str]] = {
    "images": _images,
    "beyond_3db": _back,
    "identified": _separated,
    "vectors": _vectors,
    "vectors_identified": _own,
    "classes": _classes,
}
"""The sentence on the claims of each measure."""

_OF_KIND: dict[Kind, tuple[str, ...]] = {
    "leaks": ("images",),
    "some": ("beyond_3db", "identified"),
    "vectors": ("vectors", "vectors_identified"),
    "classes": ("classes",),
}
"""Measures of which a kind of verdict is made."""


def _claims(verdict: Verdict, measure: str) -> list[JudgedComparison]:
    """Return the claims by a measure: over all targets where that stands, else of each stratum where it does."""
    results = [claim for claim in verdict.claims if claim.measure == measure]
    return [item for item in results if item.stratum == "all"] or results


def _everywhere(claims: Sequence[JudgedComparison]) -> bool:
    return claims[0].stratum == "all"


def _by_stratum(claims: Sequence[JudgedComparison], figures: Callable[[JudgedComparison], str]) -> str:
    if len(claims) == 1:
        return figures(claims[0])
    return "; ".join(f"{number_words(claim.stratum)}: {figures(claim)}" for claim in claims)


def _these(verdict: Verdict, claims: Sequence[JudgedComparison]) -> str:
    subject = verdict.subject.capitalize()
    if _everywhere(claims):
        return subject
    if verdict.subject == "class prototypes":
        return f"Prototypes of classes with {strata_words([claim.stratum for claim in claims])}"
    return f"{subject} {_of_strata(claims)}"


def _of_strata(claims: Sequence[JudgedComparison]) -> str:
    return made_of([claim.stratum for claim in claims])


# ---------------------------------------------------------------- figures


def gain(verdict: Verdict) -> str:
    """Return the mean gain of images over the best guess, and whether it can be told from none."""
    item = verdict.overall("images")
    if item is None or item.mean is None:
        return "no image was compared with a guess"
    text = _difference(item)
    if item.ci95 is None or item.stands or item.ci95[1] <= 0:
        return text
    if item.ci95[0] <= 0:
        return f"{text}, not distinguishable from 0 with {verdict.n_clients} {verdict.units}"
    if item.ci95[0] <= item.least:
        return f"{text}, not surely above {item.least:g} dB, the least that counts"
    return f"{text}, not sure enough among the {verdict.n_compared} comparisons shown here"


def _difference(item: JudgedComparison) -> str:
    """Return a difference in dB to the best guess with its interval."""
    interval = "" if item.ci95 is None else f"; 95 % interval {item.ci95[0]:+.1f} to {item.ci95[1]:+.1f}"
    return f"{item.mean or 0.0:+.1f} dB against the best guess ({_called(item)}{interval})"


def _guess(item: JudgedComparison) -> str:
    """Return the best guess's value by the same measure."""
    if item.against == DECOYS:
        return f"by chance: {percent(item.guess)}"
    rank = "next best guess" if item.measure == "beyond_3db" else "best guess"
    return f"{rank}, {_called(item)}: {percent(item.guess)}"


def _called(item: JudgedComparison) -> str:
    return LABELS.get(item.against, item.against.replace("_", " "))


def _score(item: JudgedComparison, *, limit: bool = False) -> str:
    """Return an area under the curve, or a share found at 1 % false positives, beside what the best guess reaches."""
    guess = f"best guess, {_called(item)}"
    if item.measure == "members_found":
        text = f"{percent(item.value, 1)} of members found at 1 % false positives"
        return f"{text} ({guess}: {percent(item.guess, 1)}{_limit(item) if limit else ''})"
    value, beside = (0.0 if part is None else part for part in (item.value, item.guess))
    interval = (
        "" if item.ci95 is None else f"; 95 % interval of the difference {item.ci95[0]:+.3f} to {item.ci95[1]:+.3f}"
    )
    return f"AUC {value:.3f} ({guess}: {beside:.3f}{interval})"


def _of_whom(claims: Sequence[JudgedComparison]) -> str:
    """Return the figures that stand: over all that was asked and where it is told best; else of what is alike alone."""
    text = "; ".join(_score(entry) for entry in claims if entry.stratum == "all")
    strata = [claim for claim in claims if claim.stratum != "all"]
    if text and strata:
        best = max(strata, key=lambda item: item.value or 0.0)
        return f": {text}. Told best of {alike_words(best.stratum)}: {_score(best)}"
    parts = "; ".join(f"{alike_words(items.stratum)}: {_score(items)}" for items in strata)
    return f": {text}" if text else f" of some images: {parts}"


def _none(verdict: Verdict) -> str:
    """Return the figures of an attack that makes nothing of images."""
    return f"{gain(verdict)}{_beside(verdict, limits=True)}{_each_seed(verdict)}"


def _each_seed(verdict: Verdict) -> str:
    """Return that seeds exclude by themselves what the interval over them does not, where that is so."""
    wide = any(
        item.ci95 is not None and item.ci95[1] > item.least and item.stratum == "all" for item in _means(verdict)
    )
    return f"; each of the {verdict.n_seeds} seeds by itself excludes an effect that counts" if wide else ""


def _means(verdict: Verdict) -> list[JudgedComparison]:
    return [item for item in verdict.compared if item.measure not in RATES] if verdict.n_seeds > 1 else []


def _limit(item: JudgedComparison) -> str:
    """Return the most that a rate may lie above the best guess's: where nothing was seen there may still be something."""
    if item.measure not in RATES or item.ci95 is None or item.ci95[1] <= 0:
        return ""
    return f"; by its interval at most {amount(item.measure, within_reach(item, item.ci95[1]))} more"


def _beside(verdict: Verdict, *, limits: bool = False) -> str:
    """Return the other rates that an attack without a claim reaches, each beside the best guess's."""
    lines = {
        "beyond_3db": "of images lie 3 dB beyond it",
        "identified": "are told from decoys",
        "vectors": f"relative error of {verdict.subject}",
        "vectors_identified": f"of {verdict.subject} are nearest to their own",
        "classes": "are of a class that is recognised",
    }
    results = [(text, item) for measure, text in lines.items() if (item := verdict.overall(measure)) is not None]
    return "".join(
        f"; {percent(entry.value)} {text} ({_guess(entry)}{_limit(entry) if limits else ''})" for text, entry in results
    )


def _to(by: str) -> str:
    return f" to {by}" if by else ""


def _by(by: str) -> str:
    return f" by {by}" if by else ""


def _db(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} dB"
