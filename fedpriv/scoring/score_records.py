"""Folders of attacks that return scores: membership and property inference, told apart by the file that they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpriv.pages import membership_report, property_report
from fedpriv.scoring import membership, property
from fedpriv.scoring.membership import load_membership
from fedpriv.scoring.property import load_property


def holds_scores(folder: Path) -> bool:
    """Whether a folder holds the record of an attack that returns scores."""
    return any((folder / name).is_file() for name in (membership.FILE, property.FILE))


def load_scores(folder: Path) -> dict[str, Any]:
    """Return the record of such a folder.

    Raises:
        UserError: when it is missing or of another schema.
    """
    return load_property(folder) if (folder / property.FILE).is_file() else load_membership(folder)


def score_sections(records: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the sections of a report on such records, as HTML and as Markdown; empty without records."""
    answers = [record for record in records if "question" in record]
    members = [record for record in records if "question" not in record]
    return (
        membership_report.html_section(members) + property_report.html_section(answers),
        membership_report.markdown_section(members) + property_report.markdown_section(answers),
    )
