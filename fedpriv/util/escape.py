"""Text from outside, as each kind of output takes it: terminal, Markdown, spreadsheet, picture, command line.

Names of classes, labels of a study, paths and commands may hold anything. Whatever shows them passes them through one of
these functions, and nothing else does it by hand. HTML is escaped by jinja, which :mod:`fedpriv.pages.page` sets up.
"""

from __future__ import annotations

import contextlib
import html
import shlex
import unicodedata
import warnings
from collections.abc import Iterator

_JOINERS = "\u200c\u200d"
"""Without a shape of their own, and part of words in several scripts."""

FORMULA = ("'", "=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Beginnings that make a spreadsheet compute a cell, and the apostrophe that keeps it from it."""

_NUMERIC = frozenset("0123456789+-–−., %")

_PUNCTUATION = frozenset("\\`*~#|$@[]")
"""Characters that mean something in Markdown wherever they stand."""


def visible(text: str) -> str:
    r"""Return a text whose control characters are spelled out; line ends and tabs stay.

    >>> print(visible("red\x1b[31m"))
    red\x1b[31m
    """
    return "\n".join(map(_visible_line, text.replace("\r\n", "\n").split("\n")))


def _visible_line(text: str) -> str:
    if text.isprintable():  # all but always
        return text
    return "".join(c if c == "\t" or not _unseen(c) else _spelled(c) for c in text)


def one_line(text: str) -> str:
    r"""Return a text as one line: white space becomes a blank, control characters are spelled out.

    >>> one_line("a\n  b\u2028c")
    'a b c'
    """
    return visible(" ".join(text.split()))


def terminal_line(text: str) -> str:
    r"""Return a text as one line of a terminal, with everything spelled out that is no letter, sign or blank.

    >>> print(terminal_line("  a\\nb"))
      a\nb
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else _spelled(c) for c in text)


def _unseen(c: str) -> bool:
    """True for what breaks lines, steers a terminal, turns the direction of writing, or cannot be written as UTF-8."""
    return not (c.isprintable() or c in _JOINERS or unicodedata.category(c) == "Zs")


def _spelled(c: str) -> str:
    return c.encode("unicode_escape", "surrogatepass").decode("ascii")


# ---------------------------------------------------------------- Markdown


class Markdown(str):
    """Text that is Markdown already."""

    __slots__ = ()


def markdown(value: object) -> Markdown:
    r"""Return a value as Markdown that shows it as it is, in a line of its own, a table cell or a heading.

    No HTML, link, emphasis or formula comes of it. What is harmless is left alone, so that the source stays readable.

    >>> print(markdown("a_b <b> | *c* [x](http://y)"))
    a_b &lt;b> \| \*c\* \[x\](http\://y)
    """
    if isinstance(value, Markdown):
        return value
    text = one_line(str(value))
    numbers = _intervals(text)
    return Markdown("".join(c if place in numbers else _escaped(text, place) for place, c in enumerate(text)))


def _intervals(text: str) -> set[int]:
    """Return the places of brackets around numbers, which are no link where no address or name follows."""
    found: set[int] = set()
    alone = not any(c.isalpha() for c in text)
    for place in (place for place, c in enumerate(text) if c == "["):
        end = text.find("]", place)
        if end > place + 1 and all(c in _NUMERIC for c in text[place + 1 : end]):
            after = text[end + 1 : end + 2]
            if after not in ("(", "[", ":") and (after or alone):
                found |= {place, end}
    return found


def _escaped(text: str, place: int) -> str:
    """Return one character of a line of Markdown, escaped where it would mean something."""
    c, before, after = text[place], text[:place], text[place + 1 :]
    if c in "<&":
        return html.escape(c)
    special = (
        c in _PUNCTUATION
        or (c == "_" and not (before[-1:].isalnum() and after[:1].isalnum()))  # within a word it is no emphasis
        or (c == ":" and after.startswith("//"))  # addresses become links by themselves
        or (c == "." and before[-3:].lower() == "www")
        or (c == ">" and not before)
        or (c in "-+=" and not before and not after[:1].isalnum())
        or (c in ".)" and before.isascii() and before.isdigit() and after[:1] in ("", " "))
    )
    return "\\" + c if special else c


def code_span(text: str) -> Markdown:
    """Return a text as Markdown's code within a line.

    >>> print(code_span("a`b"), code_span("c"))
    `` a`b `` `c`
    """
    line = one_line(text) or " "
    runs = {len(run) for run in "".join(c if c == "`" else " " for c in line).split()}
    fence = "`" * next(length for length in range(1, len(line) + 2) if length not in runs)
    blank = " " if runs or line != line.strip() else ""
    return Markdown(f"{fence}{blank}{line}{blank}{fence}")


def code_block(text: str) -> Markdown:
    """Return a text as Markdown's indented code, a line each; a blank line goes before it."""
    return Markdown("\n".join(f"    {visible(line)}" for line in text.splitlines() or [""]))


# ---------------------------------------------------------------- pictures, tables, shells


def markup(text: str) -> str:
    """Return a text as part of XML or HTML that is written by hand, in an element or a quoted attribute."""
    return html.escape(one_line(text))


def picture_text(text: str, most: int = 100) -> str:
    r"""Return a text as matplotlib sets it letter by letter: without formulas, hidden legends, and lines as long as a page.

    >>> print(picture_text("$5 and $6"), picture_text("_hidden"))
    \$5 and \$6  _hidden
    """
    line = one_line(text)
    line = line if len(line) <= most else line[: most - 1] + "…"
    return (" " if line.startswith("_") else "") + line.replace("$", "\\$")


@contextlib.contextmanager
def any_letters() -> Iterator[None]:
    """Draw letters that no font here has as boxes, without a warning for each."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield


def csv_cell(value: object) -> object:
    """Return a value as a cell of a table: text is one line, and has an apostrophe before what begins a formula.

    Numbers stay numbers, negative ones too.

    >>> csv_cell("=1+1"), csv_cell(-1.5), csv_cell("dip")
    ("'=1+1", -1.5, 'dip')
    """
    if not isinstance(value, str):
        return value
    line = one_line(value)
    return f"'{line}" if value.startswith(FORMULA) or line.startswith(FORMULA) else line


def shell_word(word: str) -> str:
    r"""Return a word as a shell takes it, on one line; bash and zsh know the spelling of control characters.

    >>> print(shell_word("a b"), shell_word("a\nb's"))
    'a b' $'a\nb\'s'
    """
    if not any(_unseen(c) for c in word):
        return shlex.quote(word)
    return "$'" + "".join(_in_shell(c) for c in word) + "'"


def _in_shell(c: str) -> str:
    if c in "\\'":
        return "\\" + c
    if 0xDC80 <= ord(c) <= 0xDCFF:  # a byte of a path that is no UTF-8
        return f"\\x{ord(c) - 0xDC00:02x}"
    if 0x80 <= ord(c) <= 0xFF:
        return f"\\u{ord(c):04x}" if _unseen(c) else c
    return _spelled(c) if _unseen(c) else c
