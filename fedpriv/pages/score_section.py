"""A section of a report on an attack that returns scores, not images: a verdict and a table row for each record."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from fedpriv.pages.labels import defense_label, method_label, upload_title
from fedpriv.pages.page import markdown_cell
from fedpriv.scoring.ranking import stage_name
from fedpriv.scoring.records import InferenceResult, Rate

Rows = Sequence[Mapping[str, str]]
Records = Sequence[InferenceResult]


def with_interval(value: Rate, digits: int, factor: float) -> str:
    """Return a value and its interval, both times ``factor``: ``0.53 [0.50, 0.57]``."""
    text = f"{factor * value.value:.{digits}f}"
    if value.ci95 is None:
        return text
    low, high = value.ci95
    return f"{text} [{factor * low:.{digits}f}, {factor * high:.{digits}f}]"


WORDS = ("upload", "method", "defense", "data set", "question", "learned from")
"""Columns that hold words, which stand to the left."""

ONLY_WHERE_THEY_DIFFER = ("data set", "seed")


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
    """Return rows without the columns that say the same in all of them, of those that matter only where they differ."""
    same = [name for name in ONLY_WHERE_THEY_DIFFER if len({row.get(name) for row in rows}) < 2]
    return [{name: cell for name, cell in row.items() if name not in same} for row in rows]


def _words(column: str) -> str:
    return ' class="text"' if column in WORDS else ""


def html_table(title: str, introduction: str, rows: Rows, records: Records, verdicts: Sequence[str]) -> str:
    """Return an HTML section, empty without records; its anchor is the title in lower case."""
    if not records:
        return ""
    rows = varying(rows)
    head = "".join(f'<th scope="col"{_words(name)}>{html.escape(name)}</th>' for name in rows[0])
    body = "\n".join(
        "<tr>" + "".join(f"<td{_words(name)}>{html.escape(cell)}</td>" for name, cell in line.items()) + "</tr>"
        for line in rows
    )
    verdicts = "\n".join(
        f"<p><strong>{html.escape(upload_words(record))}:</strong> {html.escape(told)}</p>"
        for record, told in zip(records, verdicts, strict=True)
    )
    commands = "\n".join(dict.fromkeys(html.escape(record.command) for record in records))
    return (
        f'<section id="{title.lower()}">\n<h2>{title}</h2>\n<p class="soft">{introduction}</p>\n{verdicts}\n'
        f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n'
        f'<pre tabindex="0">{commands}</pre>\n</section>\n'
    )


def markdown_table(title: str, introduction: str, rows: Rows, records: Records, verdicts: Sequence[str]) -> str:
    """Return a Markdown section, empty without records."""
    if not records:
        return ""
    rows = varying(rows)
    lines = [f"\n## {title}\n", introduction, ""]
    lines += ["| " + " | ".join(rows[0]) + " |", "| " + " | ".join("---" for _ in rows[0]) + " |"]
    lines += ["| " + " | ".join(markdown_cell(cell) for cell in line.values()) + " |" for line in rows]
    for record, told in zip(records, verdicts, strict=True):
        lines += ["", f"**{markdown_cell(upload_words(record))}: {markdown_cell(told)}**"]
        lines += ["", f"Reproduce: `{record.command or 'no command was recorded'}` (seed {record.seed})"]
    return "\n".join(lines) + "\n"
