"""Verdicts in words. Sentences are made of a verdict alone; the first gives the right idea to who reads no further."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.eval.floors import DECOYS, LABELS
from fedpriv.eval.judgement import RATES, within_reach
from fedpriv.eval.reasons import JudgedComparison, Kind, Reason, Verdict
from fedpriv.eval.records import Premise
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

_CLAIMED = {
    "images": "Images{of} leak{to}: {figures}",
    "beyond_3db": "Images{of} come back{to}, 3 dB or more above the baseline: {figures}",
    "identified": "Images{of} are re-identified among decoys{by}: {figures}",
    "vectors": "{subject}{of} are recovered{by}: relative error {figures}",
    "vectors_identified": "{subject}{of} are matched among the client's{by}: {figures}",
    "classes": "Classes of images{of} are recognised by an independent classifier{by}: {figures}",
}
"""The sentence on the claims of each measure."""

_MEASURES = {
    "images": "PSNR",
    "beyond_3db": "share of images 3 dB above it",
    "identified": "share of images re-identified among decoys",
    "vectors": "relative error of {subject}",
    "vectors_identified": "share of {subject} nearest to their own",
    "classes": "share of classes recognised",
    "membership": "AUC",
    "members_found": "TPR at 1 % FPR",
    "property": "AUC",
}

_OF_KIND: dict[Kind, tuple[str, ...]] = {
    "leaks": ("images",),
    "some": ("beyond_3db", "identified"),
    "vectors": ("vectors", "vectors_identified"),
    "classes": ("classes",),
}
"""Measures of which a kind of verdict is made."""


def words(verdict: Verdict) -> str:
    """Return a verdict as one to a few sentences."""
    if not verdict.makes_images:
        return inferred(verdict)
    shown = _OF_KIND.get(verdict.kind, ())
    parts = [headline(verdict), *(_claimed(verdict, measure, "") for measure in _CLAIMED if measure not in shown)]
    if verdict.kind in ("vectors", "classes"):
        parts.append(f"Images are not shown to come back: on average {gain(verdict)}.")
    elif verdict.kind == "some":
        parts.append(f"On average the gain is {gain(verdict)}.")
    return " ".join(filter(None, parts))


def headline(verdict: Verdict, by: str = "") -> str:
    """Return the one sentence on what an attack makes of images or vectors; ``by`` is whom to name as the attacker."""
    if verdict.kind == "untested":
        return untested(verdict, by)
    if verdict.kind == "none":
        attacker = f" by {by}" if by else ""
        return f"No leak detected{attacker}: {gain(verdict)}{_beside(verdict, limits=True)}{_each_seed(verdict)}."
    sentences = [text for measure in _OF_KIND[verdict.kind] if (text := _claimed(verdict, measure, by))]
    return sentences[0] + premise_warning(verdict.reasons)


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
        claims = verdict.claims
        parts = [_score(claim) for claim in claims if claim.stratum == "all"]
        parts += [
            f"{_number(claim.stratum)} of the class: {_score(claim)}" for claim in claims if claim.stratum != "all"
        ]
        some = "" if any(claim.stratum == "all" for claim in claims) else " of some images"
        text = f"Leaks {subject}{some}: {'; '.join(parts)}.{premise_warning(verdict.reasons)}"
    text += f" {verdict.baseline[0].upper()}{verdict.baseline[1:]}." if verdict.baseline else ""
    return f"{text} The upload names {verdict.clear}." if verdict.clear else text


def untested(verdict: Verdict, by: str = "") -> str:
    """Return why a verdict is inconclusive, and what came back of the attacked targets all the same."""
    result = verdict.overall("beyond_3db")
    if any(reason.name == "few_clients" for reason in verdict.reasons) and result is not None and result.value:
        number = round(result.value * verdict.n_targets)
        attacker = f" to {by}" if by else ""
        back = f"{number} of these {verdict.n_targets} images came back{attacker}, 3 dB or more above the baseline"
        return f"{back} ({_guess(result)}); nothing is claimed beyond them: {_whys(verdict)}."
    attack = f", {by}" if by else ""
    return f"Inconclusive{attack}: {_whys(verdict)}. So far {gain(verdict)}{_beside(verdict)}."


def briefly(verdict: Verdict, by: str) -> str:
    """Return in one sentence why a verdict is inconclusive, with the first reason and how many others there are."""
    first, *others = [why(reason, verdict) for reason in verdict.reasons]
    more = f", and {len(others)} more reason{'' if len(others) == 1 else 's'}" if others else ""
    return f"Inconclusive: {by} comes nearest, {gain(verdict)}; but {first}{more}."


# ---------------------------------------------------------------- figures


def _claimed(verdict: Verdict, measure: str, by: str) -> str:
    """Return the sentence on what an attack claims by a measure, over all targets, else by stratum; empty for nothing."""
    claims = [claim for claim in verdict.claims if claim.measure == measure]
    claims = [claim for claim in claims if claim.stratum == "all"] or claims
    if not claims:
        return ""
    whole = claims[0].stratum == "all"
    figures = "; ".join(("" if whole else f"{_number(item.stratum)}: ") + _figure(item) for item in claims)
    text = _CLAIMED[measure].format(
        of="" if whole else f" of targets made of {' or '.join(_number(item.stratum) for item in claims)}",
        to=f" to {by}" if by else "",
        by=f" by {by}" if by else "",
        subject=verdict.subject.capitalize(),
        figures=figures,
    )
    return f"{text}{'' if whole or measure != 'images' else f'; over all targets {gain(verdict)}'}."


def _figure(item: JudgedComparison) -> str:
    if item.measure == "images":
        return f"mean PSNR {'unknown' if item.value is None else f'{item.value:.1f} dB'}, {_difference(item)}"
    return f"{percent(item.value)} ({_guess(item)})"


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


def _each_seed(verdict: Verdict) -> str:
    means = [item for item in verdict.compared if item.measure not in RATES and item.stratum == "all"]
    wide = verdict.n_seeds > 1 and any(item.ci95 is not None and item.ci95[1] > item.least for item in means)
    return f"; each of the {verdict.n_seeds} seeds by itself excludes an effect that counts" if wide else ""


def _limit(item: JudgedComparison) -> str:
    if item.measure not in RATES or item.ci95 is None or item.ci95[1] <= 0:
        return ""
    return f"; by its interval at most {_amount(item.measure, within_reach(item, item.ci95[1]))} more"


def _beside(verdict: Verdict, *, limits: bool = False) -> str:
    parts = [(measure, verdict.overall(measure)) for measure in _CLAIMED if measure != "images"]
    return "".join(
        f"; {_MEASURES[measure].format(subject=verdict.subject)} {percent(item.value)} "
        f"({_guess(item)}{_limit(item) if limits else ''})"
        for measure, item in parts
        if item is not None
    )


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


def _number(stratum: str) -> str:
    """Return the number of images behind the targets of a stratum."""
    if stratum == STRATA[0]:
        return "1 image"
    return f"more than {stratum[1:]} images" if stratum[0] == ">" else f"{stratum} images"


# ---------------------------------------------------------------- reasons


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


def _whys(verdict: Verdict) -> str:
    return "; ".join(why(reason, verdict) for reason in verdict.reasons)


def why(reason: Reason, verdict: Verdict) -> str:
    """Return a reason of a verdict with its figures, as a clause."""
    value, beside, units = reason.value or 0.0, reason.beside or 0.0, verdict.units
    if reason.measure is not None:
        side = "below" if reason.measure == "vectors" else "above"
        among = "" if reason.stratum == "all" else f"among targets made of {_number(reason.stratum)}, "
        text = f"{among}its {_MEASURES[reason.measure].format(subject=verdict.subject)}"
        amount = f"{_amount(reason.measure, value)} {side} the baseline's"
        if reason.name == "not_sure":
            return (
                f"{text} lies at least {amount} by its own interval, but that is not sure among the "
                f"{verdict.n_compared} comparisons shown here"
            )
        return f"{text} may lie up to {amount} by its 95 % interval, and {_amount(reason.measure, beside)} would count"
    return {
        "premise": "" if reason.premise is None else _premise_fails(reason.premise),
        "few_clients": f"{value:.0f} {units.removesuffix('s') if value == 1 else units}, and {beside:.0f} are the least",
        "no_control": "the attack was not run on shuffled uploads",
        "no_held_out": "non-members are others' images, which a client's own look tells apart; bring each client's "
        "held-out images (held_out), or attack the run of an older result again",
        "not_converged": f"its search converged for {percent(value)} of the targets",
        "not_specific": f"its images fit their upload much better than other images do for {percent(value)} of the "
        "targets of a single image",
        "caveat": reason.text.rstrip("."),
        "at_chance": f"the model is right for {percent(value)} of the test images, a constant guess for {percent(beside)}",
        "undertrained": f"the model reaches {percent(value)} accuracy, its method {percent(beside)} elsewhere here",
        "no_comparison": "there is no baseline to compare with",
    }[reason.name]


def _premise_fails(premise: Premise) -> str:
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
    return f" Warning: {_premise_fails(failed[0])}. The leak stands, and more may leak." if failed else ""


def premise_words(premise: Premise | None) -> str:
    """Return the line of a page on the premise; empty where it was not asked."""
    if premise is None:
        return ""
    if premise.status == "differs" and not premise.n_clients:
        return f"Premise: {_premise_fails(premise)}."
    over = f"{premise.n_clients} client{'' if premise.n_clients == 1 else 's'}"
    error = f"relative error {premise.relative_error or 0.0:.1e}, at most {premise.worst or 0.0:.1e}"
    return {
        "agrees": f"Premise: true images give the uploads ({over}, {error}).",
        "differs": f"Premise: fails for {premise.n_differ} of {over} ({error}; {premise.allowed or 0.0:.1e} is explained).",
        "not checkable": f"Premise: not checkable: {premise.why}.",
        "defense": "Premise: not checked, as a defense changes the uploads.",
    }[premise.status]
