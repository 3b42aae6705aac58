"""Print the table of uploads and endpoints of ``README.md`` from results. ``python docs/make_table.py results/*``.

for upload in entangled prototype representation classifier; do fedpriv attack --target $upload; done
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedpriv.eval.answers import Answer, Result
from fedpriv.eval.endpoints import ENDPOINTS
from fedpriv.eval.storage import load_attack, load_scores
from fedpriv.eval.words import SIGNS, is_decibels
from fedpriv.pipeline.result_folders import result_directories
from fedpriv.reports.summary import subjects


def short(answer: Answer) -> str:
    """Return clients whose classes are said, the AUC with the baseline's in brackets, or the advantage in dB."""
    if answer.named is not None:
        return f"{answer.named.exact}/{answer.named.clients}"
    if answer.advantage is None:
        return ""
    if is_decibels(answer):
        return f"{answer.advantage:+.1f} dB"
    return f"{answer.value or 0.0:.2f} ({answer.baseline or 0.0:.2f})"


def main(folders: list[Path]) -> None:
    """Print one row a folder: the most severe answer on each endpoint, and accuracy and traffic."""
    print("| upload (method) | " + " | ".join(ENDPOINTS) + " |")
    print("| --- " * (1 + len(ENDPOINTS)) + "|")
    for folder in folders:
        places, _ = result_directories([folder])
        found: dict[Path, Result] = {place: load_attack(place) for place in places["attack"]}
        found |= {place: load_scores(place) for place in places["membership"]}
        for upload in subjects(found):
            cells = [f"{upload.about.target} ({upload.about.method})"]
            for endpoint in ENDPOINTS:
                worst = upload.worst(endpoint)
                assert worst is not None
                cells.append(f"{SIGNS[worst.verdict][1]} {short(worst)}".strip())
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
