"""Columns of the tables that are written as CSV: type, unit and meaning of each.

Beside every table lies a Table Schema (https://specs.frictionlessdata.io/table-schema/) of the same name, whose fields
have a ``unit`` too: ``results.csv`` is told by ``results.schema.json``. ``python -m fedpriv.pages.columns FILE`` writes
all of them as a page.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedpriv.pages.frontier import MEASURES, MOMENTS
from fedpriv.util.escape import csv_cell
from fedpriv.util.files import write_text

Kind = Literal["string", "integer", "number", "boolean"]

SHARE = "share in [0, 1]"
SCALARS = "numbers of 32 bits"
BYTES = "B"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: in the header.
        type: of its values, a word of the Table Schema.
        unit: of its values; empty for what has none.
        description: one line.
    """

    name: str
    type: Kind
    unit: str
    description: str


Columns = tuple[Column, ...]


def _texts(**about: str) -> Columns:
    return tuple(Column(name, "string", "", text) for name, text in about.items())


def _numbers(unit: str, **about: str) -> Columns:
    return tuple(Column(name, "number", unit, text) for name, text in about.items())


def _counts(unit: str, **about: str) -> Columns:
    return tuple(Column(name, "integer", unit, text) for name, text in about.items())


def _flags(**about: str) -> Columns:
    return tuple(Column(name, "boolean", "", text) for name, text in about.items())


_WORTH = (
    *_numbers(
        SHARE,
        accuracy_after_training="of all test images classified correctly after local training of the last round",
        accuracy_after_broadcast="the same after the broadcast that follows",
    ),
    *_numbers(
        "difference of shares",
        **{
            f"gain_over_local_{moment}{end}": words
            for moment in MOMENTS
            for end, words in (
                ("", f"accuracy_{moment} less that of the same clients and seed without any exchange"),
                ("_low", "lower end of its 95 % interval over clients and seeds"),
                ("_high", "upper end"),
            )
        },
    ),
    *_numbers(SCALARS, upload_scalars_per_client_round="uploaded by a client in a round"),
    *_numbers(BYTES, upload_bytes_per_client_round="the same as it is encoded, everything counted"),
)

RESULTS: Columns = (
    *_texts(
        directory="folder of the attack",
        target="kind of upload",
        attack="registry name",
        stage="of training, by name",
        reach="local work behind the upload, where several settings of it were attacked",
    ),
    *_counts("rounds", round="last attacked round, from 1"),
    *_counts("of the attack's budget option", budget="of several budgets, the one given here"),
    *_texts(
        method="registry name",
        defense="labels of the defenses, or none",
        method_label="as the study calls the method",
        defense_label="as the study calls the defenses",
        dataset="name; that of its folder for a folder of images",
        knowledge="the card: KEY=VALUE, separated by semicolons",
    ),
    *_counts("targets", n_targets="attacked"),
    *_counts("clients", n_clients="independent units over which intervals go: clients, or declared groups of them"),
    *_numbers(
        "dB",
        psnr_db="mean over targets of the peak signal-to-noise ratio, pixels in [0, 1], at most 100",
        psnr_db_low="lower end of its 95 % interval over clients",
        psnr_db_high="upper end",
        psnr_db_median="median over targets",
        psnr_of_mean_mse_db="ratio of the mean squared error",
    ),
    *_numbers("squared grey levels of 255", mse_255="mean squared error"),
    *_numbers("-1 to 1", ssim="structural similarity, mean over targets"),
    *_numbers("distance, from 0", lpips="learned perceptual distance, mean over targets"),
    *_numbers(
        SHARE,
        identification_top1="of targets told from decoys of their class",
        identification_chance="the same of the best blind guess",
        class_accuracy="of class images that a classifier takes for their class",
    ),
    *_texts(best_floor="the best of the guesses without the upload, by name"),
    *_numbers(
        "dB",
        best_floor_psnr_db="mean PSNR of that guess",
        advantage_db="mean over targets of PSNR less that of the guess",
        advantage_db_low="lower end of its 95 % interval over clients",
        advantage_db_high="upper end",
    ),
    *_numbers(SHARE, share_3db="of targets that are 3 dB or more beyond the guess"),
    *_numbers("dB", shuffled_psnr_db="mean PSNR of the same attack on other clients' uploads"),
    *_flags(control_passes="whether that is no better than a guess"),
    *_numbers(
        SHARE,
        converged_share="of targets whose search converged",
        specific_share="of targets of a single image that fit their upload much better than other images do",
    ),
    *_numbers("of the attack's own objective", objective_median="median over targets"),
    *_counts("targets", n_diverged="whose search left the finite numbers"),
    *_numbers("s", seconds="wall-clock time of the attack"),
    *_counts("iterations", iterations="of the search, a row"),
    *_counts(
        "evaluations", evaluations="of the gradient, of all rows of a target; no target took more; 0 where not counted"
    ),
    *_counts("rows", rows="targets times restarts"),
    *_texts(device="where it computed"),
    *_counts("", seed="of the attack and its scoring", run_seed="of the attacked run"),
    *_WORTH,
    *_texts(
        verdict_kind="the finding in a word",
        verdict_reasons="why it was not tested hard enough, separated by semicolons",
        verdict="the finding as a sentence",
    ),
)
"""``results.csv``: one line an attack that returns images."""

_EFFECT_UNITS = {
    "images": "dB",
    "representations": "difference of relative errors",
    "membership": "difference of areas under the curve",
    "property": "difference of areas under the curve",
}


def _effect(name: str) -> Columns:
    attack, text = f"{name}_attack", f"{name}_found"
    return (
        *_numbers(
            _EFFECT_UNITS[name],
            **{
                name: "reached beyond the best guess by the gravest attack",
                f"{name}_low": "lower end of its 95 % interval",
                f"{name}_high": "upper end",
            },
        ),
        *_texts(**{attack: "that attack", text: "its finding in a word"}),
    )


FRONTIER: Columns = (
    *_counts("", frontier="number of the chart; different ones never compare"),
    *_texts(
        knowledge="the card: KEY=VALUE, separated by semicolons",
        upload="as the chart calls it",
        method="registry name",
        target="kind of upload",
        defense="labels of the defenses, or none",
        seeds="of the attacked runs, separated by semicolons",
        verdict_kind="of all attacks the gravest finding, in a word",
    ),
    *_flags(dominated="whether another is as good in all and better in one"),
    *(column for name in MEASURES for column in _effect(name)),
    *_WORTH,
    *_texts(
        adapted_attack_not_run="what adapted to its defenses was not run on it",
        under_other_cards="what it gives away under other cards, where that is worse",
    ),
)
"""``frontier.csv``: one line a point of the frontiers."""


REACH: Columns = (
    *_texts(upload="as the chart calls it", reach="setting of local work"),
    *_counts("steps", local_steps="local steps of the client that took most"),
    *_counts("images", local_images="images behind that client's upload"),
    *_texts(attack="registry name", verdict_kind="the finding on it in a word"),
    *_flags(
        last_that_leaks="whether this is the last setting at which a leak stands",
        first_beyond="whether it is the first beyond that, or the first of all where none stands",
    ),
    *_numbers(
        "dB",
        psnr_db="mean PSNR over targets",
        psnr_db_low="lower end of its 95 % interval over clients",
        psnr_db_high="upper end",
    ),
    *_texts(best_floor="the best of the guesses without the upload"),
    *_numbers(
        "dB",
        best_floor_psnr_db="mean PSNR of that guess",
        shuffled_psnr_db="mean PSNR of the same attack on other clients' uploads",
        advantage_db="mean over targets of PSNR less that of the guess, or of the control where that is better",
        advantage_db_low="lower end of its 95 % interval over clients",
        advantage_db_high="upper end",
    ),
    *_numbers(
        SHARE,
        converged_share="of targets whose search converged",
        specific_share="of targets of a single image that fit their upload much better than other images do",
    ),
    *_counts("targets", n_targets="attacked uploads, or classes of clients"),
    *_counts("iterations", iterations="of the search, a row"),
)
"""``reach.csv``: one line an attack at one setting of local work."""


def _moment(moment: str, words: str) -> Columns:
    return (
        *_numbers(
            SHARE,
            **{
                f"{moment}_final": f"of all test images classified correctly {words} of the last round",
                f"{moment}_best": "the same at its best",
            },
        ),
        *_counts("rounds", **{f"{moment}_best_round": "when that was, from 1"}),
        *_numbers(
            SHARE,
            **{
                f"{moment}_mean_over_clients": f"mean over clients of accuracy {words} of the last round",
                f"{moment}_sd_over_clients": "its standard deviation over clients",
                f"{moment}_best_mean_over_clients": "the mean over clients at its best",
            },
        ),
        *_counts("rounds", **{f"{moment}_best_mean_round": "when that was, from 1"}),
    )


def _cost(moment: str) -> Columns:
    return (
        *_counts("rounds", **{f"{moment}_rounds_to_target": "until target_accuracy was first reached; empty: never"}),
        *(
            column
            for count, words in _COUNTED.items()
            for column in (
                *_counts("numbers", **{f"{moment}_{count}_scalars_to_target": f"sent until then, {words}"}),
                *_counts(BYTES, **{f"{moment}_{count}_bytes_to_target": f"sent until then, {words}"}),
            )
        ),
    )


_COUNTED = {"paper": "labels, class ids and counts left out", "full": "everything counted"}
_MOMENTS = {"after_training": "after local training", "after_broadcast": "after the broadcast"}

RUNS: Columns = (
    *_texts(
        run="as the page calls it",
        directory="its folder",
        method="registry name",
        predictor="way to predict: own, or its name",
        dataset="name",
        models="a family, or a list of models",
    ),
    *_counts("clients", clients="of the federation"),
    *_counts("rounds", rounds="trained"),
    *_counts("", seed="of the run"),
    *_texts(partition="who holds what"),
    *(column for moment, words in _MOMENTS.items() for column in _moment(moment, words)),
    *(
        column
        for count, words in _COUNTED.items()
        for column in (
            *_numbers("numbers", **{f"{count}_scalars_per_round": f"of all clients, up and down, {words}"}),
            *_numbers(BYTES, **{f"{count}_bytes_per_round": f"of all clients, up and down, {words}"}),
        )
    ),
    *_numbers(SHARE, target_accuracy="whose cost the following columns give"),
    *_texts(target_of="which accuracy that is: pooled, or the mean over clients"),
    *(column for moment in _MOMENTS for column in _cost(moment)),
    *_numbers("s", seconds="wall-clock time of all rounds"),
)
"""``runs.csv``: one line a run and way to predict."""

TEXTS = (
    "text is one line, its control characters spelled out; one that begins with = + - @ or an apostrophe has an "
    "apostrophe before it"
)
"""Rule of texts in tables."""

TABLES: dict[str, Columns] = {"results.csv": RESULTS, "frontier.csv": FRONTIER, "reach.csv": REACH, "runs.csv": RUNS}


def table_files(name: str, rows: Sequence[Mapping[str, object]]) -> dict[str, str]:
    """Return a table and its schema as text by file name.

    Args:
        name: a key of :data:`TABLES`.
        rows: by column; what is missing or None is left empty.

    Raises:
        ValueError: for a row with a column that the table does not have.
    """
    buffer = io.StringIO()
    table = csv.DictWriter(buffer, [column.name for column in TABLES[name]], lineterminator="\n")
    table.writeheader()
    table.writerows({column: csv_cell(value) for column, value in row.items()} for row in rows)
    return {name: buffer.getvalue(), f"{Path(name).stem}.schema.json": schema_text(TABLES[name])}


def schema_text(columns: Columns) -> str:
    """Return the Table Schema of columns as JSON; every field has a ``unit``, empty where there is none."""
    fields = [vars(column) for column in columns]
    return json.dumps({"fields": fields, "missingValues": [""], "description": TEXTS}, indent=2) + "\n"


_HEAD = """# Columns of the tables

Tables are UTF-8 with a header line; an empty cell was not measured or does not apply. A text is one line, its control
characters spelled out; one that begins with `=`, `+`, `-`, `@` or an apostrophe has an apostrophe before it, so that no
spreadsheet computes it (numbers, negative ones too, stay as they are). Beside each lies its schema, for
`results.csv` the file `results.schema.json`: a [Table Schema](https://specs.frictionlessdata.io/table-schema/) whose fields
have a `unit` too. Units as a second header line in pandas:

```
table = pandas.read_csv(folder / "results.csv")
fields = json.loads((folder / "results.schema.json").read_text())["fields"]
table.columns = pandas.MultiIndex.from_tuples([(field["name"], field["unit"]) for field in fields])
```

Made by `python -m fedpriv.pages.columns docs/columns.md`.
"""


def page() -> str:
    """Return the columns of all tables as Markdown."""
    lines = [_HEAD]
    for name, columns in TABLES.items():
        rows = [f"| `{column.name}` | {column.type} | {column.unit} | {column.description} |" for column in columns]
        lines += [f"## {name}\n", "| column | type | unit | meaning |", "| --- | --- | --- | --- |", *rows, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), page())
