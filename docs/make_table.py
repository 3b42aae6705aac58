"""Print the table of uploads and endpoints of ``README.md`` from results. ``python docs/make_table.py results/*``.

for upload in entangled prototype representation classifier; do fedpriv attack --target $upload; done
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedpriv.eval.endpoints import ENDPOINTS
from fedpriv.eval.storage import load_attack, load_scores
from fedpriv.eval.words import SIGNS, cell, estimand_words
from fedpriv.pipeline.result_folders import result_directories
from fedpriv.reports.summary import subjects


def main(folders: list[Path]) -> None:
    """Print one row a folder: the most severe answer on each endpoint, and accuracy and traffic."""
    print("| upload (method) | " + " | ".join(ENDPOINTS) + " |")
    print("| --- " * (1 + len(ENDPOINTS)) + "|")
    for folder in folders:
        places, _ = result_directories([folder])
        found = {place: load_attack(place) for place in places["attack"]}
        found |= {place: load_scores(place) for place in places["membership"]}
        for upload in subjects(found):
            cells = [f"{upload.about.target} ({upload.about.method})"]
            for endpoint in ENDPOINTS:
                worst = upload.worst(endpoint)
                assert worst is not None
                sort = f" ({estimand_words(worst)})" if worst.estimand else ""
                cells.append(f"{SIGNS[worst.verdict][1]}{sort} {cell(worst)}".strip())
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
