"""Uploads as the frontier takes them: a result of each with its answers."""

from pathlib import Path

from eval_cases import result

from fedpriv.eval.answers import Answer, about_of, upload_key
from fedpriv.federation.run_directory import DefenseChoice
from fedpriv.reports.frontier import frontiers

NONE, OPEN, LEAK = "no leak detected", "inconclusive", "leak"
QUANTISED = (DefenseChoice("quantise", {"bits": 4}),)


def answer(verdict=LEAK, advantage=1.0, endpoint="reconstruction", **changes):
    known = {"upload": "", "target": "prototype", "endpoint": endpoint, "threat": "white-box", "verdict": verdict}
    known |= {"attack": "dip", "advantage": advantage, "ci95": (advantage - 0.5, advantage + 0.5), "least": 0.5}
    return Answer(**(known | {"why": "wide interval" if verdict == OPEN else ""} | changes))


def upload(*answers, method="fedgh", **changed):
    """A result on an upload, and the answers on that upload."""
    one = result(method, **changed)
    where = upload_key(about_of(one))
    return one, [a.model_copy(update={"upload": where, "target": about_of(one).target}) for a in answers]


def page(*told, known=None):
    """Frontiers of uploads."""
    results = {Path(str(place)): one for place, (one, _) in enumerate(told)}
    return frontiers(results, [a for _, answers in told for a in answers], known)
