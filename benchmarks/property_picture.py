"""What uploads tell of a client as a whole, beside permuted uploads: trains, attacks, draws.

OMP_NUM_THREADS=1 python benchmarks/property_picture.py --picture FILE.png
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedpriv.cli.main import run
from fedpriv.scoring.judgement import judge
from fedpriv.scoring.storage import load_scores
from fedpriv.scoring.verdict import inferred

MANY = ("--alpha", "0.3", "--clients", "30")
KEPT = ("--rounds", "15", "--capture", "all", "--keep", "all")
EPOCHS = (
    *(
        *MANY,
        "--rounds",
        "5",
        "--epochs",
        "1",
        "--batch-size",
        "10",
        "--lr",
        "0.05",
        "--capture",
        "all",
        "--keep",
        "all",
    ),
    *("--attack-option", "question=majority"),
)
MODELS = (*EPOCHS, "--models", "small-cnn")
CASES: tuple[tuple[str, str, Sequence[str]], ...] = (
    ("prototypes: majority, members counted", "prototype", MANY),
    ("mixtures of 15 rounds: majority, members counted", "entangled", (*MANY, *KEPT)),
    ("class outputs: majority, members counted", "logits", MANY),
    ("models of 5 epochs: majority, by gradients", "model", MODELS),
    ("the same models: majority, nothing granted", "model", (*MODELS, "--knowledge", "attacker_data=none")),
    ("heads of 5 epochs: majority, by gradients", "classifier", EPOCHS),
    ("kernels of ten clients: holds, nothing learned", "kernel", ()),
)


def main() -> None:
    """Ask every question and draw the areas with their intervals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    records: list[tuple[str, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as home:
        for number, (name, target, flags) in enumerate(CASES):
            out = Path(home) / str(number)
            fixed = ["--attack", "property", "--seed", str(options.seed), "--out", str(out), "--quiet"]
            if run(["attack", "--target", target, *flags, *fixed]):
                raise SystemExit(1)
            records.append((name, json.loads((out / "property" / "property.json").read_text())))
            print(f"{name}: {inferred(judge(load_scores(out / 'property')))}", flush=True)
    _draw(records, options.picture)


def _draw(records: Sequence[tuple[str, dict[str, Any]]], path: Path) -> None:
    figure = Figure(figsize=(7.5, 3.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    places = range(len(records))
    for place, (_, record) in zip(places, records, strict=True):
        axes.plot(record["auc"]["ci95"], [place, place], color="#0b6e4f", linewidth=2)
    axes.plot([r["auc"]["value"] for _, r in records], places, "o", color="#0b6e4f", label="uploads")
    permuted = [r["permuted"]["auc"]["value"] for _, r in records]
    axes.plot(permuted, places, "|", color="#b4532a", markersize=12, label="permuted uploads")
    axes.axvline(0.5, color="#c3cad3", zorder=0)
    axes.set_yticks(places, [name for name, _ in records])
    axes.invert_yaxis()
    axes.set_xlim(0.2, 1.02)
    axes.set_xlabel("area under the ROC curve (0.5 is chance), 95 % interval")
    axes.legend(frameon=False, fontsize=7, loc="center left")
    figure.savefig(path, metadata={"Software": None})


if __name__ == "__main__":
    main()
