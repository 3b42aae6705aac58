"""One page over one or more runs, as HTML, CSV and pictures. A function of the saved records alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedpriv.federation.summary import unsampled_words
from fedpriv.reports.charts import Line, accuracy_chart
from fedpriv.reports.page import LeftOut, environment, image_source, percent, table_text
from fedpriv.reports.run_records import COUNTS, MOMENTS, TEST_IMAGES, UNITS, RunRecord, load_runs, settings
from fedpriv.util.files import write_text

PAGE = "runs.html"


class Picture(NamedTuple):
    """A picture of the page: its file beside the page, its text, what it shows in words, and how to read it."""

    file: str
    svg: str
    alt: str
    caption: str


class Row(NamedTuple):
    """One line of the tables: a run by one way to predict (``""``: the method's own)."""

    name: str
    run: RunRecord
    predictor: str


def write_runs_report(
    directories: Sequence[Path], out: Path, *, attacks: str | None = None, left_out: Sequence[LeftOut] = ()
) -> None:
    """Write ``runs.html``, ``runs.csv`` and the pictures on finished runs into the folder ``out``."""
    runs = load_runs(directories)
    rows = [Row(", ".join(filter(None, (run.label, name))), run, name) for run in runs for name in run.predictors]
    each = [settings(run.config, run.summary.images) for run in runs]
    names = list(dict.fromkeys(name for item in each for name in item))
    shared = {name: each[0][name] for name in names if all(entry.get(name) == each[0].get(name) for entry in each)}
    pictures = any(len(run.rounds) > 1 for run in runs)  # one point is no line
    by_round, by_scalars = (_by_round(runs), [_by_scalars(runs)]) if pictures else ([], [])
    values: dict[str, Any] = {
        "rows": rows,
        "sections": [
            (f"run-{number}", run, {name: own[name] for name in names if name in own and name not in shared})
            for number, (run, own) in enumerate(zip(runs, each, strict=True), start=1)
        ],
        "by_round": by_round,
        "by_scalars": by_scalars,
        "some": [run.label for run in runs if len(run.rounds) < run.config.rounds],
        "shared": shared,
        "unlike": [name for name in TEST_IMAGES if name in names and name not in shared],
        "attacks": attacks,
        "left_out": left_out,
        "moments": MOMENTS,
        "unsampled": [
            f"{run.label}: {unsampled_words(run.summary.unsampled, run.config.clients)}."
            for run in runs
            if run.summary.unsampled
        ],
        "anchors": {run.label: f"run-{number}" for number, run in enumerate(runs, start=1)},
    }
    files = {picture.file: picture.svg for picture in (*by_round, *by_scalars)}
    files["runs.csv"] = table_text("runs.csv", map(_item, rows))
    pages = environment(autoescape=True, filters={"source": lambda svg: image_source(svg.encode())})
    files[PAGE] = pages.get_template(f"{PAGE}.j2").render(values)
    for file, text in files.items():  # only once all of them could be made
        write_text(out / file, text)


def _by_round(runs: Sequence[RunRecord]) -> list[Picture]:
    pictures = []
    for moment, name in MOMENTS.items():
        results = [(run, run.at(moment)) for run in runs]
        lines = [Line(run.label, run.rounds, item.mean, item.spread, item.pooled) for run, item in results]
        text = "; ".join(f"{r.label} from {percent(a.mean[0])} to {percent(a.mean[-1])}" for r, a in results)
        pictures.append(
            Picture(
                f"accuracy-{name.replace(' ', '-')}.svg",
                accuracy_chart(lines, f"Accuracy {name}", "round"),
                f"Line chart of accuracy {name} by round, mean over clients, first to last round: {text}",
                "Line: mean over clients. Band: one standard deviation over clients. Dashed: all test images pooled.",
            )
        )
    return pictures


def _by_scalars(runs: Sequence[RunRecord]) -> Picture:
    each = [(run, run.cumulative("full", "scalars"), run.at("after_training").pooled) for run in runs]
    text = "; ".join(f"{run.label} {percent(pooled[-1])} after {int(sent[-1]):,}" for run, sent, pooled in each)
    silent = [run.label for run, sent, _ in each if not sent[-1]]
    lines = [Line(run.label, sent, pooled) for run, sent, pooled in each]
    return Picture(
        "accuracy-by-scalars.svg",
        accuracy_chart(lines, "Accuracy by communication", "scalars on the wire, all clients, up and down"),
        f"Line chart of pooled accuracy after training by scalars sent so far, at the end: {text}",
        "Pooled accuracy after training; everything sent up and down by all clients, summed over rounds."
        + (f" Nothing was sent by {', '.join(silent)}." if silent else ""),
    )


def _item(row: Row) -> dict[str, Any]:
    """Return the sources of a row of ``runs.csv``."""
    run, kinds = row.run, [(count, unit) for count in COUNTS for unit in UNITS]
    item: dict[str, Any] = {"run": run, "directory": run.directory.path.name, "predictor": row.predictor or "own"}
    item |= {"partition": settings(run.config)["partition"]}
    item["per_round"] = {" ".join(kind): float(run.traffic[kind].sum() / run.config.rounds) for kind in kinds}
    for moment in MOMENTS:
        reached = run.at(moment, row.predictor)
        best = int(reached.pooled.argmax())
        item[moment] = {
            "final": float(reached.pooled[-1]),
            "best": float(reached.pooled[best]),
            "best_round": int(run.rounds[best]),
            "mean": float(reached.mean[-1]),
            "sd": float(reached.spread[-1]),
        }
    return item
