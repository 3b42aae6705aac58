"""Verdicts in words. Sentences are made of a verdict alone; the first gives the right idea to who reads no further."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedpriv.scoring.floors import DECOYS, LABELS
from fedpriv.scoring.judgement import RATES, within_reach
from fedpriv.scoring.records import JudgedComparison, Kind, Reason, Verdict
from fedpriv.scoring.records.made import Premise
from fedpriv.sources.truth import STRATA

BADGES: dict[Kind, str] = {
    "leaks": "images leak",
    "some": "some images come back",
    "vectors": "vectors recovered",
    "classes": "shows classes",
    "membership": "leaks membership",
    "property": "leaks a property",
    "untested": "inconclusive",
    "none": "no leak detected",
}
"""Verdicts in a few words, the most severe first."""

TOGETHER = (
    "All comparisons shown here are tested together (Holm, 5 %): where attacks know nothing, at most one such page in "
    "twenty claims a leak. Intervals are of one comparison each, over clients or, where these are declared, groups of them."
)
"""Said once on a page of verdicts."""

Claims = Sequence[JudgedComparison]


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
    """Return the one sentence on what an attack makes of images or vectors; ``by`` is whom to name as the attacker."""
    if verdict.kind == "untested":
        return untested(verdict, by)
    if verdict.kind == "none":
        return f"No leak detected{_by(by)}: {gain(verdict)}{_beside(verdict, limits=True)}{_each_seed(verdict)}."
    measure = next(measure for measure in _OF_KIND[verdict.kind] if _claims(verdict, measure))
    return _CLAIMED[measure](_claims(verdict, measure), verdict, by) + premise_warning(verdict.reasons)


def inferred(verdict: Verdict) -> str:
    """Return the sentence on membership or a property, and on what the upload says outright."""
    subject = f"a property ({verdict.question})" if verdict.question else "membership"
    if verdict.question and verdict.clear:
        return f"Sent in clear: {verdict.clear}."
    none = verdict.kind == "none"
    figures = "; ".join(_score(item, limit=none) for item in verdict.compared if item.stratum == "all")
    if verdict.kind == "untested":
        text = f"Inconclusive on {subject}: {_whys(verdict)}." + (f" So far {figures}." if figures else "")
    elif none:
        text = f"No leak of {subject} detected: {figures}{_each_seed(verdict)}."
    else:
        text = f"Leaks {subject}{_of_whom(verdict.claims)}.{premise_warning(verdict.reasons)}"
    text += f" {verdict.baseline[0].upper()}{verdict.baseline[1:]}." if verdict.baseline else ""
    return f"{text} The upload names {verdict.clear}." if verdict.clear else text


def untested(verdict: Verdict, by: str = "") -> str:
    """Return why a verdict is inconclusive, and what came back of the attacked targets all the same."""
    result = verdict.overall("beyond_3db")
    if any(reason.name == "few_clients" for reason in verdict.reasons) and result is not None and result.value:
        number = round(result.value * verdict.n_targets)
        back = f"{number} of these {verdict.n_targets} images came back{_to(by)}, 3 dB or more above the baseline"
        return f"{back} ({_guess(result)}); nothing is claimed beyond them: {_whys(verdict)}."
    attack = f", {by}" if by else ""
    return f"Inconclusive{attack}: {_whys(verdict)}. So far {gain(verdict)}{_beside(verdict)}."


def briefly(verdict: Verdict, by: str) -> str:
    """Return in one sentence why a verdict is inconclusive, with the first reason and how many others there are."""
    first, *others = [why(reason, verdict) for reason in verdict.reasons]
    more = f", and {len(others)} more reason{'' if len(others) == 1 else 's'}" if others else ""
    return f"Inconclusive: {by} comes nearest, {gain(verdict)}; but {first}{more}."


def _whys(verdict: Verdict) -> str:
    return "; ".join(why(reason, verdict) for reason in verdict.reasons)


# ---------------------------------------------------------------- what stands


def _images(claims: Claims, verdict: Verdict, by: str) -> str:
    figures = _by_stratum(claims, lambda item: f"mean PSNR {_db(item.value)}, {_difference(item)}")
    if claims[0].stratum == "all":
        return f"Images leak{_to(by)}: {figures}."
    return f"Images of targets {_made_of(claims)} leak{_to(by)}: {figures}; over all targets {gain(verdict)}."


def _back(claims: Claims, verdict: Verdict, by: str) -> str:
    share = f"{percent(claims[0].value)} of {_the_images(claims)}"
    return f"{share} come back{_to(by)}, 3 dB or more above the baseline ({_guess(claims[0])})."


def _identified(claims: Claims, verdict: Verdict, by: str) -> str:
    share = f"{percent(claims[0].value)} of {_the_images(claims)}"
    return f"{share} are re-identified among decoys{_by(by)} ({_guess(claims[0])})."


def _vectors(claims: Claims, verdict: Verdict, by: str) -> str:
    figures = _by_stratum(claims, lambda item: f"relative error {percent(item.value)} ({_guess(item)})")
    return f"{_these(verdict, claims)} are recovered{_by(by)}: {figures}."


def _own(claims: Claims, verdict: Verdict, by: str) -> str:
    figures = _by_stratum(claims, lambda item: f"{percent(item.value)} are nearest to their own ({_guess(item)})")
    return f"{_these(verdict, claims)} are matched among the client's{_by(by)}: {figures}."


def _classes(claims: Claims, verdict: Verdict, by: str) -> str:
    made = f"{percent(claims[0].value)} of {f'images that {by} makes' if by else 'the images'}"
    return f"The class of {made} is recognised by an independent classifier ({_guess(claims[0])})."


_CLAIMED: dict[str, Callable[[Claims, Verdict, str], str]] = {
    "images": _images,
    "beyond_3db": _back,
    "identified": _identified,
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
    results = [claim for claim in verdict.claims if claim.measure == measure]
    return [item for item in results if item.stratum == "all"] or results


def _the_images(claims: Claims) -> str:
    return "the images" if claims[0].stratum == "all" else f"the images of targets {_made_of(claims)}"


def _by_stratum(claims: Claims, figures: Callable[[JudgedComparison], str]) -> str:
    if len(claims) == 1:
        return figures(claims[0])
    return "; ".join(f"{_number_words(claim.stratum)}: {figures(claim)}" for claim in claims)


def _these(verdict: Verdict, claims: Claims) -> str:
    subject = verdict.subject.capitalize()
    if claims[0].stratum == "all":
        return subject
    if verdict.subject == "class prototypes":
        return f"Prototypes of classes with {strata_words([claim.stratum for claim in claims])}"
    return f"{subject} {_made_of(claims)}"


def _made_of(claims: Claims) -> str:
    return f"made of {strata_words([claim.stratum for claim in claims])}"


# ---------------------------------------------------------------- figures


def gain(verdict: Verdict) -> str:
    """Return the mean gain of images over the baseline, and whether it is distinguishable from none."""
    item = verdict.overall("images")
    if item is None or item.mean is None:
        return "no image was compared with a baseline"
    text = _difference(item)
    if item.ci95 is None or item.stands or item.ci95[1] <= 0:
        return text
    if item.ci95[0] <= 0:
        return f"{text}, not distinguishable from 0 with {verdict.n_clients} {verdict.units}"
    if item.ci95[0] <= item.least:
        return f"{text}, not surely above {item.least:g} dB, the least that counts"
    return f"{text}, not sure enough among the {verdict.n_compared} comparisons shown here"


def _difference(item: JudgedComparison) -> str:
    interval = "" if item.ci95 is None else f"; 95 % interval {item.ci95[0]:+.1f} to {item.ci95[1]:+.1f}"
    return f"{item.mean or 0.0:+.1f} dB against the baseline ({_called(item)}{interval})"


def _guess(item: JudgedComparison) -> str:
    if item.against == DECOYS:
        return f"by chance: {percent(item.guess)}"
    rank = "next baseline" if item.measure == "beyond_3db" else "baseline"
    return f"{rank}, {_called(item)}: {percent(item.guess)}"


def _called(item: JudgedComparison) -> str:
    return LABELS.get(item.against, item.against.replace("_", " "))


def _score(item: JudgedComparison, *, limit: bool = False) -> str:
    guess = f"baseline, {_called(item)}"
    if item.measure == "members_found":
        text = f"TPR {percent(item.value, 1)} at 1 % FPR"
        return f"{text} ({guess}: {percent(item.guess, 1)}{_limit(item) if limit else ''})"
    interval = (
        "" if item.ci95 is None else f"; 95 % interval of the difference {item.ci95[0]:+.3f} to {item.ci95[1]:+.3f}"
    )
    return f"AUC {item.value or 0.0:.3f} ({guess}: {item.guess or 0.0:.3f}{interval})"


def _of_whom(claims: Claims) -> str:
    text = "; ".join(_score(entry) for entry in claims if entry.stratum == "all")
    strata = [claim for claim in claims if claim.stratum != "all"]
    if text and strata:
        best = max(strata, key=lambda item: item.value or 0.0)
        return f": {text}. Most of {_alike(best.stratum)}: {_score(best)}"
    parts = "; ".join(f"{_alike(items.stratum)}: {_score(items)}" for items in strata)
    return f": {text}" if text else f" of some images: {parts}"


def _each_seed(verdict: Verdict) -> str:
    means = [item for item in verdict.compared if item.measure not in RATES and item.stratum == "all"]
    wide = verdict.n_seeds > 1 and any(item.ci95 is not None and item.ci95[1] > item.least for item in means)
    return f"; each of the {verdict.n_seeds} seeds by itself excludes an effect that counts" if wide else ""


def _limit(item: JudgedComparison) -> str:
    if item.measure not in RATES or item.ci95 is None or item.ci95[1] <= 0:
        return ""
    return f"; by its interval at most {_amount(item.measure, within_reach(item, item.ci95[1]))} more"


def _beside(verdict: Verdict, *, limits: bool = False) -> str:
    lines = {
        "beyond_3db": "of images lie 3 dB above it",
        "identified": "are re-identified among decoys",
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


def percent(share: float | None, digits: int = 0) -> str:
    """Return a share in per cent; a mean or median over values that are not all finite has no number.

    >>> percent(0.056, 1), percent(-1e-9), percent(None)
    ('5.6 %', '0 %', 'not finite')
    """
    return "not finite" if share is None else f"{round(100 * share, digits) + 0.0:.{digits}f} %"


def objective_words(value: float | None) -> str:
    """Return an objective as a table shows it.

    >>> objective_words(0.00019213), objective_words(0.25), objective_words(1234.5), objective_words(None)
    ('1.9e-04', '0.25', '1.2e+03', '–')
    """
    if value is None:
        return "–"
    return f"{value:.2g}" if value == 0 or 1e-3 <= abs(value) < 100 else f"{value:.1e}"


def _amount(measure: str, value: float) -> str:
    if measure == "images":
        return f"{value:.1f} dB"
    if measure in ("membership", "property"):
        return f"{value:.3f}"
    return f"{100 * value:.{0 if abs(value) >= 0.1 else 1}f} points"


# ---------------------------------------------------------------- strata


def strata_words(strata: Sequence[str]) -> str:
    """Return the numbers of images behind the targets of some strata; neighbours are named as one.

    >>> strata_words(["1"]), strata_words(["1", "2-3"]), strata_words(["2-3", ">10"])
    ('1 image', '1-3 images', '2-3 images or more than 10 images')
    """
    runs: list[list[str]] = []
    for index, name in enumerate(STRATA):
        if name in strata:
            if runs and STRATA[index - 1] == runs[-1][-1]:
                runs[-1].append(name)
            else:
                runs.append([name])
    return " or ".join(_run(run[0], run[-1]) for run in runs)


def _run(first: str, last: str) -> str:
    if first == last:
        return _number_words(first)
    least = first.partition("-")[0]
    if last == ">10":
        return "any number of images" if first == "1" else f"{least} images or more"
    return f"{least}-{last.rpartition('-')[2]} images"


def _number_words(stratum: str) -> str:
    if stratum == "1":
        return "1 image"
    return f"more than {stratum[1:]} images" if stratum[0] == ">" else f"{stratum} images"


def _alike(stratum: str) -> str:
    if stratum in STRATA:
        return "the client's only image of a class" if stratum == "1" else f"classes with {_number_words(stratum)}"
    return f"images that are {stratum} of their class"


# ---------------------------------------------------------------- reasons


_ABOVE: dict[str, tuple[str, str]] = {
    "images": ("its images lie at least {} above", "its images may lie up to {} above"),
    "beyond_3db": (
        "at least {} more of the images come back than by",
        "up to {} more of the images may come back than by",
    ),
    "identified": (
        "at least {} more of the images are re-identified among decoys than by",
        "up to {} more of the images may be re-identified among decoys than by",
    ),
    "classes": (
        "at least {} more of the images are of a class that is recognised than by",
        "up to {} more of the images may be of a class that is recognised than by",
    ),
    "vectors": (
        "its relative error lies at least {} below that of",
        "its relative error may lie up to {} below that of",
    ),
    "vectors_identified": (
        "at least {} more of the vectors are nearest to their own than by",
        "up to {} more of the vectors may be nearest to their own than by",
    ),
    "membership": ("its AUC lies at least {} above that of", "its AUC may lie up to {} above that of"),
    "members_found": (
        "its TPR at 1 % FPR lies at least {} above that of",
        "its TPR at 1 % FPR may lie up to {} above that of",
    ),
    "property": ("its AUC lies at least {} above that of", "its AUC may lie up to {} above that of"),
}
"""Findings above the baseline: surely, by the comparison alone, and at most."""

_USUAL = "usual causes are normalisation in the loader, "
_NETWORK = f"{_USUAL}dropout or batch norm in training mode, weights of another round"
_CAUSES: dict[str, str] = {
    "rows": _NETWORK,
    "means": f"{_NETWORK}, missing images, means taken while training",
    "steps": f"{_USUAL}another optimiser than SGD, another loss, dropout, weights of another round, other batches",
    "evaluation": "they do with batch norm in evaluation mode, and attacks assume training mode",
    "scale": "they do but for a factor of {:.3g}; usual causes are another learning rate, a sum in the place of a mean",
}
"""What makes true images give other uploads, by what the difference looks like."""


def why(reason: Reason, verdict: Verdict) -> str:
    """Return a reason of a verdict with its figures, as a clause."""
    value, beside, units = reason.value or 0.0, reason.beside or 0.0, verdict.units
    if reason.measure is not None:
        return _left_open(reason, verdict)
    return {
        "premise": "" if reason.premise is None else premise_fails(reason.premise),
        "few_clients": f"{value:.0f} {units.removesuffix('s') if value == 1 else units}, and {beside:.0f} are the least",
        "no_control": "the attack was not run on shuffled uploads",
        "no_held_out": "non-members are others' images, which a client's own look tells apart; bring each client's "
        "held-out images (held_out), or attack the run of an older result again",
        "not_converged": f"its search converged for {percent(value)} of the targets",
        "not_specific": f"its images fit their upload much better than other images do for {percent(value)} of the "
        "targets of a single image",
        "caveat": reason.text.rstrip("."),
        "budget_rising": f"the last increase of its budget still gained {value:.1f} dB",
        "at_chance": f"the model is right for {percent(value)} of the test images, a constant guess for {percent(beside)}",
        "undertrained": f"the model reaches {percent(value)} accuracy, its method {percent(beside)} elsewhere here",
        "smaller_budget": "it was run with a larger budget too, which is judged",
        "no_comparison": "there is no baseline to compare with",
    }[reason.name]


def _left_open(reason: Reason, verdict: Verdict) -> str:
    measure, value, sure = reason.measure or "images", reason.value or 0.0, reason.name == "not_sure"
    stratum, among = reason.stratum, ""
    if stratum != "all":
        among = _alike(stratum) if measure == "membership" else f"targets made of {strata_words([stratum])}"
        among = f"among {among}, "
    text = f"{among}{_ABOVE[measure][0 if sure else 1].format(_amount(measure, value))} the baseline"
    if sure:
        return f"{text} by its own interval, but that is not sure among the {verdict.n_compared} comparisons shown here"
    return f"{text} by its 95 % interval, and {_amount(measure, reason.beside or 0.0)} would count"


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
