"""A section of a report on an attack that returns scores, not images: a verdict and a table row for each record."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, str]]
Records = Sequence[Mapping[str, Any]]


def with_interval(value: Mapping[str, Any], digits: int, factor: float) -> str:
    """Return a value and its interval, both times ``factor``: ``0.53 [0.50, 0.57]``."""
    text = f"{factor * value['value']:.{digits}f}"
    if value["ci95"] is None:
        return text
    low, high = value["ci95"]
    return f"{text} [{factor * low:.{digits}f}, {factor * high:.{digits}f}]"


def html_table(title: str, introduction: str, rows: Rows, records: Records) -> str:
    """Return an HTML section, empty without records; its anchor is the title in lower case."""
    if not records:
        return ""
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in rows[0])
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line.values()) + "</tr>" for line in rows
    )
    verdicts = "\n".join(
        f"<p><strong>{html.escape(record['method'])}, {html.escape(record['target'])}, seed {record['seed']}:</strong> "
        f"{html.escape(str(record['verdict']))}</p>"
        for record in records
    )
    commands = "\n".join(html.escape(str(record.get("command", ""))) for record in records)
    return (
        f'<section id="{title.lower()}">\n<h2>{title}</h2>\n<p class="soft">{introduction}</p>\n{verdicts}\n'
        f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n'
        f'<pre tabindex="0">{commands}</pre>\n</section>\n'
    )


def markdown_table(title: str, introduction: str, rows: Rows, records: Records) -> str:
    """Return a Markdown section, empty without records."""
    if not records:
        return ""
    lines = [f"\n## {title}\n", introduction, ""]
    lines += ["| " + " | ".join(rows[0]) + " |", "| " + " | ".join("---" for _ in rows[0]) + " |"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in line.values()) + " |" for line in rows]
    for record in records:
        lines += ["", f"**{record['target']}, {record['method']}: {record['verdict']}**"]
        lines += ["", f"Reproduce: `{record.get('command', 'no command was recorded')}` (seed {record['seed']})"]
    return "\n".join(lines) + "\n"
