"""One page over one or more runs, as HTML, Markdown, CSV and pictures. A function of the saved records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpriv.federation.evaluate import unsampled_words
from fedpriv.pages import curves
from fedpriv.pages.columns import table_files
from fedpriv.pages.curves import image_source
from fedpriv.pages.left_out import LeftOut
from fedpriv.pages.page import environment, percent, quantity
from fedpriv.pages.run_records import (
    COUNTS,
    FIGURES,
    MOMENTS,
    TEST_IMAGES,
    Reached,
    RunRecord,
    load_runs,
    settings,
    shared_settings,
)
from fedpriv.util.errors import UserError, shown
from fedpriv.util.files import write_text

PAGE = "runs.html"
TARGET_ACCURACY = 0.7
_MOMENT_NAMES = {"after_training": "after training", "after_broadcast": "after broadcast"}
_SETTINGS = ("dataset", "models", "clients", "rounds", "seed")


@dataclass(frozen=True)
class Picture:
    """A picture of the page.

    Attributes:
        file: its name beside the page.
        svg: its text.
        alt: what it shows, in words.
        caption: how to read it.
    """

    file: str
    svg: str
    alt: str
    caption: str

    @property
    def source(self) -> str:
        """The picture as a data URI, so that the page needs no other file."""
        return image_source(self.svg)


@dataclass(frozen=True)
class Row:
    """One line of the tables: a run, by one way to predict.

    Attributes:
        name: run, and the way to predict where it is not the method's own.
        run: the run.
        predictor: ``""`` for the method's own.
        reached: by moment, what reaching the target accuracy took, or None.
    """

    name: str
    run: RunRecord
    predictor: str
    reached: Mapping[str, Reached | None]


@dataclass(frozen=True)
class Section:
    """The part of the page on one run alone.

    Attributes:
        anchor: link within the page.
        run: the run.
        own: settings in which it differs from others, (name, value).
        clients: per-client accuracy of the last round.
    """

    anchor: str
    run: RunRecord
    own: tuple[tuple[str, str], ...]
    clients: Picture


def write_runs_report(
    directories: Sequence[Path],
    out: Path,
    *,
    target_accuracy: float = TARGET_ACCURACY,
    target_of: str = "pooled",
    attacks: str | None = None,
    left_out: Sequence[LeftOut] = (),
) -> None:
    """Write ``runs.html``, ``runs.md``, ``runs.csv`` and the pictures into the folder ``out``.

    Args:
        directories: finished runs.
        out: folder to write to; it is made where it is missing.
        target_accuracy: for the cost of reaching it, in (0, 1].
        target_of: which accuracy that is: ``pooled`` or ``mean`` (over clients).
        attacks: file name of the page about attacks beside this one, or None.
        left_out: results that could not be read, which the page names.

    Raises:
        UserError: when there are no runs, one is damaged or unfinished, or the target is out of range.
    """
    if not directories:
        raise UserError("report: no run directories; give at least one")
    check_target(target_accuracy, target_of)
    runs = load_runs(directories)
    rows = tuple(_row(run, predictor, target_accuracy, target_of) for run in runs for predictor in run.predictors)
    shared, differing = shared_settings(runs)
    sections = tuple(_section(number, run, differing) for number, run in enumerate(runs, start=1))
    by_round, by_scalars = _by_round(runs), _by_scalars(runs)
    pictures = [*by_round, *by_scalars, *(section.clients for section in sections)]
    values = {
        "rows": rows,
        "sections": sections,
        "by_round": by_round,
        "by_scalars": by_scalars,
        "shared": shared,
        "unlike": [name for name in TEST_IMAGES if name in differing],
        "target": target_accuracy,
        "accuracy_name": FIGURES[target_of],
        "attacks": attacks,
        "left_out": left_out,
        "moments": _MOMENT_NAMES,
        "unsampled": _unsampled(runs),
        "anchors": {section.run.label: section.anchor for section in sections},
    }
    lines = [_csv_row(row, target_accuracy, target_of) for row in rows]
    files = {picture.file: picture.svg for picture in pictures} | table_files("runs.csv", lines) | _pages(values)
    for file, text in files.items():  # only once all of them could be made
        write_text(out / file, text)


def _pages(values: Mapping[str, object]) -> dict[str, str]:
    files = {}
    for file, escaped in ((PAGE, True), ("runs.md", False)):
        home = environment(autoescape=escaped)
        home.filters["sizes"] = sizes
        files[file] = home.get_template(f"{file}.j2").render(values)
    return files


def _unsampled(runs: Sequence[RunRecord]) -> list[str]:
    results = [(run, run.summary.unsampled) for run in runs]
    return [
        f"{run.label}: {unsampled_words(absent, run.config.clients)}." for run, absent in results if absent is not None
    ]


def check_target(target_accuracy: float, target_of: str = "pooled") -> None:
    """Check a target accuracy and which accuracy it is of.

    Raises:
        UserError: unless it lies above 0 and at most at 1, and is ``pooled`` or ``mean``.
    """
    if target_of not in FIGURES:
        raise UserError(f"target_of={shown(target_of)}: expected {' or '.join(FIGURES)}")
    if not 0 < target_accuracy <= 1:
        raise UserError(f"target_accuracy={shown(target_accuracy)}: expected above 0 and at most 1")


def _row(run: RunRecord, predictor: str, target: float, figure: str) -> Row:
    reached = {moment: run.reach(target, moment, predictor, figure) for moment in MOMENTS}
    return Row(f"{run.label}, {predictor}" if predictor else run.label, run, predictor, reached)


# ---------------------------------------------------------------- pictures


def _by_round(runs: Sequence[RunRecord]) -> list[Picture]:
    pictures = []
    for moment in MOMENTS:
        results = [(run, run.at(moment)) for run in runs]
        lines = [curves.Line(run.label, run.rounds, item.mean, item.spread, item.pooled) for run, item in results]
        text = "; ".join(
            f"{r.label} from {percent(entry.mean[0])} to {percent(entry.mean[-1])}" for r, entry in results
        )
        name = _MOMENT_NAMES[moment]
        pictures.append(
            Picture(
                f"accuracy-{name.replace(' ', '-')}.svg",
                curves.accuracy_by_round(lines, f"Accuracy {name}"),
                f"Line chart of accuracy {name} by round, mean over clients, first to last round: {text}",
                "Line: mean over clients. Band: one standard deviation over clients. Dashed: all test images pooled.",
            )
        )
    return pictures


def _by_scalars(runs: Sequence[RunRecord]) -> list[Picture]:
    pictures = []
    for count in COUNTS:
        each = [(run, run.cumulative(count, "scalars"), run.at("after_training")) for run in runs]
        lines = [curves.Line(run.label, sent, item.mean, item.spread, item.pooled) for run, sent, item in each]
        text = "; ".join(
            f"{run.label} {percent(entry.pooled[-1])} after {int(sent[-1]):,}" for run, sent, entry in each
        )
        silent = [run.label for run, sent, _ in each if not sent[-1]]
        caption = "Pooled accuracy after training; up and down of all clients, summed over rounds. "
        caption += {"paper": "Labels, class ids and counts are left out.", "full": "Everything sent is counted."}[count]
        caption += f" Nothing was sent by {', '.join(silent)}." if silent else ""
        pictures.append(
            Picture(
                f"accuracy-by-scalars-{count}.svg",
                curves.accuracy_by_scalars(lines, f"Accuracy by communication, {count} count"),
                f"Line chart of pooled accuracy after training by scalars sent so far, {count} count, at the end: {text}",
                caption,
            )
        )
    return pictures


def _section(number: int, run: RunRecord, differing: Sequence[str]) -> Section:
    trained, received = (run.at(moment).per_client[-1] for moment in MOMENTS)
    images = run.at("after_training").total[-1]
    current = settings(run.config, run.summary.images)
    clients = Picture(
        f"clients-{number}-{run.config.method}.svg",
        curves.client_bars(trained, received, f"{run.config.method}: clients in round {run.rounds[-1]}"),
        f"Bar chart of {run.label}: accuracy of {len(trained)} clients in round {run.rounds[-1]}, after training from "
        f"{percent(trained.min())} to {percent(trained.max())}, after broadcast from {percent(received.min())} to "
        f"{percent(received.max())}",
        f"Each client on its own test images ({images.min()} to {images.max()} of them).",
    )
    return Section(
        anchor=f"run-{number}",
        run=run,
        own=tuple((name, current[name]) for name in differing if name in current),
        clients=clients,
    )


# ---------------------------------------------------------------- spreadsheet


def _csv_row(row: Row, target: float, figure: str) -> dict[str, object]:
    """Return one line of ``runs.csv``."""
    run = row.run
    values: dict[str, object] = {
        "run": run.label,
        "directory": run.directory.path.name,
        "method": run.config.method,
        "predictor": row.predictor or "own",
        **{name: getattr(run.config, name) for name in _SETTINGS},
        "partition": settings(run.config)["partition"],
    }
    for moment in MOMENTS:
        item = run.at(moment, row.predictor)
        best, best_mean = int(item.pooled.argmax()), int(item.mean.argmax())
        values |= {
            f"{moment}_final": float(item.pooled[-1]),
            f"{moment}_best": float(item.pooled[best]),
            f"{moment}_best_round": int(run.rounds[best]),
            f"{moment}_mean_over_clients": float(item.mean[-1]),
            f"{moment}_sd_over_clients": float(item.spread[-1]),
            f"{moment}_best_mean_over_clients": float(item.mean[best_mean]),
            f"{moment}_best_mean_round": int(run.rounds[best_mean]),
        }
    for count in COUNTS:
        for unit in ("scalars", "bytes"):
            values[f"{count}_{unit}_per_round"] = float(run.traffic[count, unit].sum() / run.config.rounds)
    values["target_accuracy"] = target
    values["target_of"] = figure
    for moment in MOMENTS:
        reached = row.reached[moment]
        values[f"{moment}_rounds_to_target"] = reached.round if reached else None
        for count in COUNTS:
            values[f"{moment}_{count}_scalars_to_target"] = reached.scalars[count] if reached else None
            values[f"{moment}_{count}_bytes_to_target"] = reached.bytes[count] if reached else None
    values["seconds"] = run.summary.seconds
    return values


def sizes(reached: Reached | None, count: str) -> str:
    """Return scalars and bytes by one way of counting as a table shows them."""
    return "–" if reached is None else f"{quantity(reached.scalars[count])} ({quantity(reached.bytes[count], 'B')})"
