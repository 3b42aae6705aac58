"""Folders of attacks that return scores: membership and property inference, told apart by the file that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpriv.eval import membership, membership_report, property, property_report
from fedpriv.eval.membership import load_membership
from fedpriv.eval.property import load_property


def holds_scores(folder: Path) -> bool:
    """Whether a folder holds the record of an attack that returns scores."""
    return any((folder / name).is_file() for name in (membership.FILE, property.FILE))


def load_scores(folder: Path) -> dict[str, Any]:
    """Return the record of such a folder.

    Raises:
        UserError: when it is missing or of another schema.
    """
    return load_property(folder) if (folder / property.FILE).is_file() else load_membership(folder)


def score_sections(folders: Sequence[Path]) -> tuple[str, str]:
    """Return the sections of a report on such folders, as HTML and as Markdown; empty without folders.

    Raises:
        UserError: when a record is missing or of another schema.
    """
    about_properties = [folder for folder in folders if (folder / property.FILE).is_file()]
    members = [load_membership(folder) for folder in folders if folder not in about_properties]
    answers = [load_property(folder) for folder in about_properties]
    return (
        membership_report.html_section(members) + property_report.html_section(answers),
        membership_report.markdown_section(members) + property_report.markdown_section(answers),
    )
