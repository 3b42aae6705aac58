"""Results as the frontier takes them: each with its comparisons and the reasons against them."""

from pathlib import Path

from eval_cases import asked, federated, result
from fedpriv.eval.reasons import JudgedComparison, Reason, Verdict

from fedpriv.federation.run_directory import DefenseChoice
from fedpriv.reports.frontier import frontiers
from fedpriv.reports.labels import about_of, over_seeds


def judged(measure="images", mean=1.0, *, stands=False, p_value=0.5):
    return JudgedComparison(
        **{"measure": measure, "stratum": "all", "against": "noise", "n": 20, "n_clients": 10, "least": 0.5},
        **{"mean": mean, "ci95": (mean - 0.5, mean + 0.5), "p_value": p_value},
        **{"value": mean, "adjusted": p_value, "stands": stands},
    )


LOOSE = (Reason(name="not_converged", value=0.1, beside=0.5),)


def page(*told, known=None):
    """Frontiers of results, each with its comparisons and the reasons against them."""
    results = {Path(str(place)): one for place, (one, *_) in enumerate(told)}
    verdicts = {}
    for folders in over_seeds(results):
        one, compared, reasons = told[int(str(folders[0]))]
        verdicts[folders] = verdict(about_of(one), compared, reasons)
    return frontiers(results, verdicts, known)


KINDS = {
    "images": "leaks",
    "identified": "some",
    "vectors": "vectors",
    "membership": "membership",
    "property": "property",
}


def verdict(about, compared, reasons=()):
    standing = [KINDS[one.measure] for one in compared if one.stands]
    kind = next(iter(standing), "untested" if reasons else "none")
    own = {
        "attack": about.attack,
        "target": about.target,
        "subject": "class prototypes",
        "kind": kind,
        "reasons": reasons,
    }
    counts = {"n_targets": 20, "n_clients": 10, "n_compared": 9, "n_seeds": 1, "converged": 1.0, "question": ""}
    fields = {**own, **counts, "compared": tuple(compared)}
    return Verdict(**{name: value for name, value in fields.items() if name in Verdict.model_fields})


def image(gain=1.0, stands=False, reasons=(), method="fedgh", **changed):
    """A result whose images gain so much."""
    return result(method, gain, **changed), (judged(mean=gain, stands=stands),), reasons


def member(gain=0.2, stands=True, method="fedgh", seed=0, **changed):
    """A record of membership inference on the same upload."""
    own = federated(method, seed)
    record = asked(
        run=own["run"], method=method, dataset=own["run"].dataset, upload=result(method).about.upload, **changed
    )
    return record, (judged("membership", gain, stands=stands),), ()


QUANTISED = (DefenseChoice("quantise", {"bits": 4}),)
