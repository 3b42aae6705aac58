"""Making pages from templates, writing numbers in them, tables as CSV, and leaving out what cannot be read."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fedpriv.util.errors import UserError
from fedpriv.util.escape import Markdown, code_block, code_span, csv_cell, markdown, visible

if TYPE_CHECKING:
    from jinja2 import Environment

T = TypeVar("T")

SCROLL = '<div class="scroll" tabindex="0" role="group" aria-label="Table, scrolls sideways">'
"""A box that tables scroll in, for who has no mouse."""


def environment(*, autoescape: bool, filters: Mapping[str, Any] | None = None) -> Environment:
    """Return the home of the templates, of HTML with ``autoescape``, else of Markdown; every text they show is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    home = Environment(
        loader=PackageLoader("fedpriv.reports"),
        autoescape=autoescape,
        undefined=StrictUndefined,
        finalize=_shown if autoescape else _escaped,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    home.filters |= {"percent": percent, "quantity": quantity, **(filters or {})}
    if not autoescape:
        home.filters |= {"code": code_span, "block": code_block, "cells": markdown_cells}
    return home


def with_script(page: str, script: str, values: Mapping[str, Any], filters: Mapping[str, Any]) -> str:
    """Return a page as HTML, from a template that takes its ``script``, and the ``script_hash`` that its policy allows."""
    from markupsafe import Markup

    text = (resources.files("fedpriv.reports") / "templates" / script).read_text("utf-8").strip()
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    group = {"script": Markup(text), "script_hash": f"sha256-{digest}"}
    html = environment(autoescape=True, filters=filters).get_template(page).render({**values, **group})
    return html.replace('<div class="scroll">', SCROLL)


def image_source(content: bytes, kind: str = "svg+xml") -> str:
    """Return a picture as the source of an image in a page."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _shown(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _escaped(value: Any) -> Any:
    return markdown(value) if isinstance(value, str) else value


def markdown_cells(values: Iterable[object]) -> Markdown:
    """Return the cells of a row of a Markdown table."""
    return Markdown(" | ".join(map(markdown, values)))


@cache
def attack_pages() -> dict[str, str]:
    """Return the Markdown of each attack's page of the documentation, by the attack's name; one may be about several.

    Headings begin with the names: ``# property and labels: ...``. Of two pages about one attack its own is taken.
    """
    shared: dict[str, str] = {}
    texts: dict[str, str] = {}
    for file in sorted(resources.files("fedpriv.reports").joinpath("manual").iterdir(), key=lambda item: item.name):
        if not file.name.endswith(".md") or file.name == "README.md":
            continue
        text = file.read_text(encoding="utf-8")
        heading = text.partition("\n")[0].removeprefix("# ").partition(":")[0]
        shared |= dict.fromkeys(heading.replace(", ", " and ").split(" and "), text)
        texts[file.name.removesuffix(".md")] = text
    return {name: texts.get(name, text) for name, text in shared.items()}


@cache
def _columns() -> dict[str, dict[str, str]]:
    """Return where each column of each table comes from, by its file; ``columns.csv`` has types, units and meanings too."""
    tables: dict[str, dict[str, str]] = {}
    for row in csv.DictReader(io.StringIO((resources.files("fedpriv.reports") / "columns.csv").read_text("utf-8"))):
        tables.setdefault(row["table"], {})[row["name"]] = row["source"]
    return tables


def table_rows(name: str, items: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a table, each from objects by name, of which columns name a part: ``record.metrics.ssim.mean``."""
    return [{column: _part(item, source) for column, source in _columns()[name].items()} for item in items]


def _part(item: Any, source: str) -> Any:
    """Return the part of an object that attributes, keys and places lead to; None where something on the way is."""
    for name in source.split("."):
        if item is not None:
            known = isinstance(item, Mapping)
            item = item.get(name) if known else item[int(name)] if name.isdecimal() else getattr(item, name)
    return item


def table_text(name: str, items: Iterable[Mapping[str, Any]]) -> str:
    """Return a table as CSV; what is missing is left empty."""
    buffer = io.StringIO()
    table = csv.DictWriter(buffer, _columns()[name], lineterminator="\n")
    table.writeheader()
    table.writerows({column: csv_cell(value) for column, value in row.items()} for row in table_rows(name, items))
    return buffer.getvalue()


def percent(share: float) -> str:
    """Return a share in [0, 1] as a table shows it: ``96.9 %``."""
    return f"{100 * share:.1f} %"


def quantity(value: float | None, unit: str = "") -> str:
    """Return a count with at most six digits, larger ones with a decimal prefix; "–" for None.

    >>> quantity(18148), quantity(2_500_000), quantity(72_592, "B"), quantity(None)
    ('18,148', '2.50 M', '72.6 kB', '–')
    """
    if value is None:
        return "–"
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), *(((1e3, "k"),) if unit else ())):
        if abs(value) >= size:
            scaled = abs(value) / size
            digits = 2 if scaled < 10 else 1 if scaled < 100 else 0
            return f"{value / size:.{digits}f} {prefix}{unit}"
    shown = f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:,.1f}"
    return f"{shown} {unit}".rstrip()


def number(value: float | None) -> str:
    """Return a number as a table shows it: three digits or so; "–" for None."""
    if value is None:
        return "–"
    size = abs(value)
    return f"{value:.{0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3}f}"


def span(interval: Sequence[float] | None) -> str:
    """Return an interval as a table shows it; "–" for None."""
    return "–" if interval is None else f"{number(interval[0])} to {number(interval[1])}"


class LeftOut(NamedTuple):
    """A folder that was to be reported on and is not, and why: the file in it, and what is wrong there, in one line."""

    folder: str
    why: str

    def __str__(self) -> str:
        return f"{self.folder}: {self.why}"


def readable(folders: Iterable[Path], read: Callable[[Path], T]) -> tuple[dict[Path, T], list[LeftOut]]:
    """Read folders, each in full; return what those hold that can be read, and the others with the reason."""
    values: dict[Path, T] = {}
    damaged: list[LeftOut] = []
    for folder in folders:
        try:
            values[folder] = read(folder)
        except UserError as error:
            line = str(error).removeprefix(f"{folder}/").removeprefix(f"{folder}: ")
            damaged.append(LeftOut(str(folder), line))
    return values, damaged
