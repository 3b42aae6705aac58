"""Making pages from templates, and writing numbers in them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from fedpriv.scoring.reason_words import premise_words
from fedpriv.util.escape import Markdown, code_block, code_span, markdown, visible

if TYPE_CHECKING:
    from jinja2 import Environment


def environment(*, autoescape: bool) -> Environment:
    """Return the home of the templates in ``fedpriv/pages/templates``.

    Every text that a template shows is escaped, without the template's doing: in HTML by jinja, in Markdown by
    :func:`fedpriv.util.escape.markdown`. Filters of Markdown: ``code`` and ``block`` for code in a line and in lines of
    its own, ``cells`` for a row of a table.

    Args:
        autoescape: for HTML; otherwise templates are Markdown.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    home = Environment(
        loader=PackageLoader("fedpriv.pages"),
        autoescape=autoescape,
        undefined=StrictUndefined,
        finalize=_shown if autoescape else _escaped,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    home.filters |= {"percent": percent, "whole_percent": whole_percent, "quantity": quantity, "premise": premise_words}
    if not autoescape:
        home.filters |= {"code": code_span, "block": code_block, "cells": markdown_cells}
    return home


SCROLL = '<div class="scroll" tabindex="0" role="group" aria-label="Table, scrolls sideways">'
"""A box that tables scroll in, for who has no mouse."""


def with_scripts(page: str, *names: str, values: Mapping[str, Any], filters: Mapping[str, Any] | None = None) -> str:
    """Return a page as HTML, from a template that takes its ``script``, and the ``script_hash`` that its policy allows.

    Args:
        page: name of the template.
        names: of the scripts, which run one after the other.
        values: of the template.
        filters: of it, beside those of every page.
    """
    from markupsafe import Markup

    home = resources.files("fedpriv.pages") / "templates"
    script = "\n".join((home / name).read_text("utf-8").strip() for name in names)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    group = {"script": Markup(script), "script_hash": f"sha256-{digest}"}
    templates = environment(autoescape=True)
    templates.filters |= filters or {}
    html = templates.get_template(page).render({**values, **group})
    return html.replace('<div class="scroll">', SCROLL)


def _shown(value: Any) -> Any:
    """Return a value as HTML may show it, before jinja escapes it; what is HTML already stays."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _escaped(value: Any) -> Any:
    return markdown(value) if isinstance(value, str) else value


def markdown_cells(values: Iterable[object]) -> Markdown:
    r"""Return the cells of a row of a Markdown table.

    >>> print(markdown_cells(["a|b", "[1, 2]"]))
    a\|b | [1, 2]
    """
    return Markdown(" | ".join(map(markdown, values)))


def percent(share: float) -> str:
    """Return a share in [0, 1] as a table shows it.

    >>> percent(0.9691)
    '96.9 %'
    """
    return f"{100 * share:.1f} %"


def whole_percent(share: float | None) -> str:
    """Return a share in [0, 1] without decimals; "–" for None.

    >>> whole_percent(0.275), whole_percent(None)
    ('28 %', '–')
    """
    return "–" if share is None else f"{100 * share:.0f} %"


def quantity(value: float | None, unit: str = "") -> str:
    """Return a count with at most six digits, larger ones with a decimal prefix; "–" for None.

    >>> quantity(18148), quantity(2_500_000), quantity(72_592, "B"), quantity(None)
    ('18,148', '2.50 M', '72.6 kB', '–')
    """
    if value is None:
        return "–"
    scales = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), *(((1e3, "k"),) if unit else ()))
    for size, prefix in scales:
        if abs(value) >= size:
            return f"{three_digits(value / size)} {prefix}{unit}"
    shown = f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:,.1f}"
    return f"{shown} {unit}".rstrip()


def three_digits(value: float) -> str:
    """Return a number of 1 or more with three significant digits."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}"
