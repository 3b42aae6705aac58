"""A section of a report on an attack that returns scores, not images: a verdict and a table row for each record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpriv.pages.labels import defense_label, method_label, upload_title
from fedpriv.pages.page import environment
from fedpriv.scoring.ranking import stage_name
from fedpriv.scoring.reason_words import premise_words
from fedpriv.scoring.records import InferenceResult, Rate
from fedpriv.util.escape import Markdown

if TYPE_CHECKING:
    from markupsafe import Markup

Rows = Sequence[Mapping[str, str]]
Records = Sequence[InferenceResult]


def with_interval(value: Rate, digits: int, factor: float) -> str:
    """Return a value and its interval, both times ``factor``: ``0.53 [0.50, 0.57]``."""
    text = f"{factor * value.value:.{digits}f}"
    if value.ci95 is None:
        return text
    low, high = value.ci95
    return f"{text} [{factor * low:.{digits}f}, {factor * high:.{digits}f}]"


WORDS = ("attack", "upload", "method", "defense", "data set", "question", "learned from")
"""Columns that hold words, which stand to the left."""

ONLY_WHERE_THEY_DIFFER = ("attack", "data set", "seed")


def upload_columns(record: InferenceResult) -> dict[str, str]:
    """Return the columns that say which upload a record is about."""
    return {
        "upload": ", ".join(part for part in (record.target, stage_name(record)) if part),
        "method": method_label(record),
        "defense": defense_label(record),
        "data set": record.dataset,
        "seed": str(record.run_seed),
    }


def upload_words(record: InferenceResult) -> str:
    """Return which upload a record is about, in one line: ``fedproto + noise scale=0.3, prototype, digits, seed 0``."""
    columns = upload_columns(record)
    return f"{upload_title(record)}, {columns['upload']}, {columns['data set']}, seed {columns['seed']}"


def over_units(records: Records) -> str:
    """Return the independent units of some records, over which their intervals go, in words."""
    return " or ".join(dict.fromkeys(record.units for record in records))


def varying(rows: Rows) -> list[dict[str, str]]:
    """Return rows of one set of columns, an empty cell where a row has nothing to say.

    Columns that say the same in all rows are left out, of those that matter only where they differ.
    """
    same = [name for name in ONLY_WHERE_THEY_DIFFER if len({row.get(name) for row in rows}) < 2]
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in same]
    return [{name: row.get(name, "") for name in names} for row in rows]


@dataclass(frozen=True)
class ScoreSection:
    """The part of a page on one kind of inference.

    Attributes:
        title: of the section; in lower case its anchor.
        introduction: how to read the table.
        rows: of the table, by column.
        told: the upload, the verdict, the command and the seed of each record.
    """

    title: str
    introduction: str
    rows: Rows
    told: tuple[tuple[str, str, str, int], ...]

    @property
    def commands(self) -> str:
        """The commands that made the records, each once, a line each."""
        return "\n".join(dict.fromkeys(command for _, _, command, _ in self.told))


def section(
    title: str, introduction: str, rows: Rows, records: Records, verdicts: Sequence[str]
) -> tuple[ScoreSection, ...]:
    """Return the section on some records, none without records."""
    if not records:
        return ()
    several = len({record.attack for record in records}) > 1
    lines = tuple(
        (
            upload_words(record) + (f", {record.attack}" if several else ""),
            f"{said} {premise_words(record.premise)}".rstrip(),
            record.command,
            record.seed,
        )
        for record, said in zip(records, verdicts, strict=True)
    )
    return (ScoreSection(title, introduction, varying(rows), lines),)


def html_sections(sections: Sequence[ScoreSection]) -> Markup:
    """Return sections as HTML."""
    from markupsafe import Markup

    home = environment(autoescape=True)
    return Markup(home.get_template("scores.html.j2").render(sections=sections, words=WORDS))


def markdown_sections(sections: Sequence[ScoreSection]) -> Markdown:
    """Return sections as Markdown."""
    return Markdown(environment(autoescape=False).get_template("scores.md.j2").render(sections=sections))
