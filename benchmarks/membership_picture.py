"""How well members are told apart, by how many images of the class their client holds: trains, attacks, draws.

OMP_NUM_THREADS=1 python benchmarks/membership_picture.py --picture FILE.png
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedpriv.cli.main import run
from fedpriv.scoring.judgement import judge
from fedpriv.scoring.storage import load_scores
from fedpriv.scoring.verdict import inferred

TARGETS = ("representation", "prototype", "entangled", "logits", "kernel")
STRATA = ("1", "2-3", "4-10", ">10")
COLOURS = ("#0b6e4f", "#2f6fde", "#b4532a", "#7a4fb5", "#6a7482")


def main() -> None:
    """Attack every kind of upload with the default flags and draw the areas."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    records: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as home:
        for target in TARGETS:
            out = Path(home) / target
            flags = ["--attack", "membership", "--seed", str(options.seed), "--out", str(out), "--quiet"]
            if run(["attack", "--target", target, *flags]):
                raise SystemExit(1)
            records[target] = json.loads((out / "membership" / "membership.json").read_text())
            print(f"{target}: {inferred(judge(load_scores(out / 'membership')))}", flush=True)
    _draw(records, options.picture)


def _draw(records: dict[str, dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(7.5, 3.4), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for (target, record), colour in zip(records.items(), COLOURS, strict=True):
        there = [name for name in STRATA if name in record["strata"]]
        areas = [record["strata"][name]["auc"] for name in there]
        axes.plot([STRATA.index(name) for name in there], areas, "o-", color=colour, label=target)
    axes.axhline(0.5, color="#c3cad3", zorder=0)
    axes.text(0.1, 0.51, "chance", color="#6a7482", fontsize=8)
    axes.set_xticks(range(len(STRATA)), STRATA)
    axes.set_xlabel("images of the class that the client holds")
    axes.set_ylabel("area under the ROC curve")
    axes.set_ylim(0.2, 1.03)
    axes.legend(frameon=False, fontsize=8, ncols=2)
    figure.savefig(path, metadata={"Software": None})


if __name__ == "__main__":
    main()
