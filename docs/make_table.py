"""Print tables of uploads and endpoints for ``README.md`` and ``docs/results.md``: ``python docs/make_table.py FOLDER...``.

Of results one row each, of a study one a method, with the accuracy gained over clients alone and what a client sends:

for upload in entangled prototype representation classifier; do fedpriv attack --target $upload; done
fedpriv audit docs/frontier.toml --out frontier
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedpriv.eval.answers import Answer, Result, about_of, page_answers
from fedpriv.eval.endpoints import ENDPOINTS
from fedpriv.eval.storage import load_attack, load_scores
from fedpriv.eval.words import SIGNS, is_decibels
from fedpriv.pipeline.result_folders import result_directories
from fedpriv.reports.frontier import Point, frontiers
from fedpriv.reports.page import quantity
from fedpriv.reports.run_records import baselines
from fedpriv.reports.study_report import read_results
from fedpriv.reports.summary import subjects


def short(answer: Answer | None) -> str:
    """Return clients whose classes are said, the AUC with the baseline's in brackets, or the advantage in dB."""
    if answer is None or answer.verdict == "not asked":
        return "–"
    if answer.named is not None:
        value = f"{answer.named.exact}/{answer.named.clients}"
    elif answer.advantage is None:
        value = ""
    elif is_decibels(answer):
        value = f"{answer.advantage:+.1f} dB"
    else:
        value = f"{answer.value or 0.0:.2f} ({answer.baseline or 0.0:.2f})"
    return f"{SIGNS[answer.verdict][1]} {value}".strip()


def show(cells: Iterable[str]) -> None:
    """Print one row."""
    print("| " + " | ".join(cells) + " |")


def of_results(folders: Iterable[Path]) -> None:
    """Print one row a folder: the most severe answer on each endpoint."""
    show(["upload (method)", *ENDPOINTS])
    show(["---"] * (1 + len(ENDPOINTS)))
    for folder in folders:
        places, _ = result_directories([folder])
        found: dict[Path, Result] = {place: load_attack(place) for place in places["attack"]}
        found |= {place: load_scores(place) for place in places["membership"]}
        for upload in subjects(found):
            name = f"{upload.about.target} ({upload.about.method})"
            show([name, *(short(upload.worst(endpoint)) for endpoint in ENDPOINTS)])


def of_study(folder: Path) -> None:
    """Print one row a method: the most severe answer on each endpoint, accuracy gained at both moments, and traffic."""
    study = read_results(folder)
    found: Mapping[Path, Result] = {**study.attacks, **study.scores}
    points = [point for one in frontiers(found, page_answers(found), baselines(study.runs)) for point in one.points]
    show(["method (upload)", *ENDPOINTS, "accuracy gained", "upload"])
    show(["---"] * (1 + len(ENDPOINTS)) + ["---:"] * 2)
    order = [about_of(result).method for result in found.values()]
    for point in sorted(points, key=lambda point: order.index(point.method)):
        cells = [f"{point.label} ({point.target})", *(short(point.answers.get(endpoint)) for endpoint in ENDPOINTS)]
        show([*cells, gains(point), quantity(point.bytes.mean, "B")])


def gains(point: Point) -> str:
    """Return points of accuracy after training and after the broadcast, with their intervals."""
    shown = []
    for gain in point.gains.values():
        if gain is None or gain.mean is None or gain.ci95 is None:
            shown.append("–")
        else:
            shown.append(f"{100 * gain.mean:+.1f} [{100 * gain.ci95[0]:+.1f}, {100 * gain.ci95[1]:+.1f}]")
    return "; ".join(shown)


if __name__ == "__main__":
    given = [Path(name) for name in sys.argv[1:]]
    for each in given:
        if (each / "study.json").is_file():
            of_study(each)
    if rest := [each for each in given if not (each / "study.json").is_file()]:
        of_results(rest)
