"""Making pages from templates, and writing numbers in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def environment(*, autoescape: bool) -> Environment:
    """Return the home of the templates in ``fedpriv/pages/templates``.

    Args:
        autoescape: for HTML. Markdown has its own filter, ``cell``.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    home = Environment(
        loader=PackageLoader("fedpriv.pages"),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    home.filters |= {"cell": markdown_cell, "percent": percent, "quantity": quantity}
    return home


def markdown_cell(value: object) -> str:
    """Return text that neither breaks a Markdown table nor is read as HTML."""
    text = " ".join(str(value).split())
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("`", "'")


def percent(share: float) -> str:
    """Return a share in [0, 1] as a table shows it.

    >>> percent(0.9691)
    '96.9 %'
    """
    return f"{100 * share:.1f} %"


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
