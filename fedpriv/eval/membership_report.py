"""The section of a report on who was a member: HTML, Markdown and table rows from ``membership.json`` alone."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

TITLE = "Membership"
INTRODUCTION = (
    "Candidates: as many training images as others of the same classes, client by client. AUC 0.5 is chance. Intervals: "
    "95 % bootstrap, resampling clients and candidates."
)


def row(record: Mapping[str, Any]) -> dict[str, str]:
    """Return one line of a table."""
    control, classes = record["permuted"], record["classes"]
    strata = record["strata"]
    return {
        "upload": str(record["target"]),
        "method": str(record["method"]),
        "candidates": f"{record['n_candidates']} of {record['n_clients']} clients",
        "AUC [95 %]": _with_interval(record["auc"], 3, 1),
        "found at 1 % false": _with_interval(record["tpr_at_1_percent"], 1, 100) + " %",
        "found at 0.1 % false": _with_interval(record["tpr_at_0.1_percent"], 1, 100)
        + (" %" if record["n_nonmembers"] >= 1000 else " % (fewer than 1,000 non-members)"),
        "AUC, permuted": "not run" if control is None else _with_interval(control["auc"], 3, 1),
        "AUC by images of the class": ", ".join(f"{name}: {part['auc']:.2f}" for name, part in strata.items()),
        "class sets exact": "none uploaded" if classes is None else f"{classes['exact']}/{classes['clients']}",
    }


def _with_interval(value: Mapping[str, Any], digits: int, factor: float) -> str:
    text = f"{factor * value['value']:.{digits}f}"
    if value["ci95"] is None:
        return text
    low, high = value["ci95"]
    return f"{text} [{factor * low:.{digits}f}, {factor * high:.{digits}f}]"


def html_section(records: Sequence[Mapping[str, Any]]) -> str:
    """Return an HTML section, empty without records."""
    if not records:
        return ""
    rows = [row(record) for record in records]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line.values()) + "</tr>" for line in rows
    )
    verdicts = "\n".join(f"<p>{html.escape(str(record['verdict']))}</p>" for record in records)
    commands = "\n".join(html.escape(str(record.get("command", ""))) for record in records)
    return (
        f'<section id="membership">\n<h2>{TITLE}</h2>\n<p class="soft">{INTRODUCTION}</p>\n{verdicts}\n'
        f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n'
        f"<pre>{commands}</pre>\n</section>\n"
    )


def markdown_section(records: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown section, empty without records."""
    if not records:
        return ""
    rows = [row(record) for record in records]
    lines = [f"\n## {TITLE}\n", INTRODUCTION, ""]
    lines += ["| " + " | ".join(rows[0]) + " |", "| " + " | ".join("---" for _ in rows[0]) + " |"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in line.values()) + " |" for line in rows]
    for record in records:
        lines += ["", f"**{record['target']}, {record['method']}: {record['verdict']}**"]
        lines += ["", f"Reproduce: `{record.get('command', 'no command was recorded')}` (seed {record['seed']})"]
    return "\n".join(lines) + "\n"
