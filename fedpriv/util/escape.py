"""Text from outside, as each kind of output takes it: terminal, Markdown, spreadsheet, picture, command line.

Names of classes, labels, paths and commands may hold anything. HTML is escaped by jinja (:mod:`fedpriv.reports.page`).
"""

from __future__ import annotations

import contextlib
import html
import re
import shlex
import unicodedata
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FORMULA = ("'", "=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Beginnings that make a spreadsheet compute a cell, and the apostrophe that keeps it from it."""


def visible(text: str) -> str:
    r"""Return a text whose control characters are spelled out; line ends and tabs stay.

    >>> print(visible("red\x1b[31m"))
    red\x1b[31m
    """
    text = text.replace("\r\n", "\n")
    return text if text.isprintable() else "".join(c if c in "\t\n" or not _unseen(c) else _spelled(c) for c in text)


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
    return "".join(c if c.isprintable() else _spelled(c) for c in text)


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> [duration(seconds) for seconds in (7.2, 200, 9000)]
    ['7 s', '3 min', '2.5 h']
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _unseen(c: str) -> bool:
    """True for what breaks lines, steers a terminal, turns the direction of writing, or cannot be written as UTF-8."""
    return not (c.isprintable() or c in "\u200c\u200d" or unicodedata.category(c) == "Zs")  # joiners are part of words


def _spelled(c: str) -> str:
    return c.encode("unicode_escape", "surrogatepass").decode("ascii")


class Markdown(str):
    """Text that is Markdown already."""

    __slots__ = ()


_SPECIAL = re.compile(
    r"(?P<interval>\[[0-9+\-–−., %]+\](?![(\[:]))"  # around numbers: no link where no address or name follows
    r"|[\\`*~#|$@\[\]<&]"
    r"|(?<![^\W_])_|_(?![^\W_])"  # within a word it is no emphasis
    r"|:(?=//)|(?<=[wW]{3})\."  # addresses become links by themselves
    r"|^>|^[-+=](?![^\W_])|^[0-9]+[.)](?=\s|$)"
)


def markdown(value: object) -> Markdown:
    r"""Return a value as Markdown that shows it as it is, in a line of its own, a table cell or a heading.

    No HTML, link, emphasis or formula comes of it. What is harmless is left alone, so that the source stays readable.

    >>> print(markdown("a_b <b> | *c* [x](http://y)"))
    a_b &lt;b> \| \*c\* \[x\](http\://y)
    """
    if isinstance(value, Markdown):
        return value
    text = one_line(str(value))
    words = any(c.isalpha() for c in text)

    def escaped(match: re.Match[str]) -> str:
        mark = match[0]
        if match["interval"]:  # at the end of a text with words, an address may follow
            return mark if match.end() < len(text) or not words else f"\\{mark[:-1]}\\]"
        return html.escape(mark) if mark in "<&" else f"{mark[:-1]}\\{mark[-1]}"

    return Markdown(_SPECIAL.sub(escaped, text))


def code_span(text: str) -> Markdown:
    """Return a text as Markdown's code within a line.

    >>> print(code_span("a`b"), code_span("c"))
    `` a`b `` `c`
    """
    line = one_line(text) or " "
    runs = {len(run) for run in re.findall("`+", line)}
    fence = "`" * next(length for length in range(1, len(line) + 2) if length not in runs)
    blank = " " if runs or line != line.strip() else ""
    return Markdown(f"{fence}{blank}{line}{blank}{fence}")


def code_block(text: str) -> Markdown:
    """Return a text as Markdown's indented code, a line each; a blank line goes before it."""
    return Markdown("\n".join(f"    {visible(line)}" for line in text.splitlines() or [""]))


def markup(text: str) -> str:
    """Return a text as part of XML or HTML that is written by hand, in an element or a quoted attribute."""
    return html.escape(one_line(text))


def picture_text(text: str, most: int = 100) -> str:
    """Return a text as matplotlib sets it letter by letter: no formulas, hidden legends, or lines as long as a page."""
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
    'a b' $'a\x0ab\x27s'
    """
    if not any(_unseen(c) for c in word):
        return shlex.quote(word)
    codes = ("surrogateescape" if "\udc80" <= c <= "\udcff" else "surrogatepass" for c in word)  # bytes of a path
    content = b"".join(c.encode("utf-8", code) for c, code in zip(word, codes, strict=True))
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b"\\'" else f"\\x{byte:02x}" for byte in content)
    return f"$'{''.join(plain)}'"


def command_line(*parts: str | Path) -> str:
    """Return a command that can be pasted into a shell.

    >>> command_line("report", "my runs")
    "fedpriv report 'my runs'"
    """
    return " ".join(["fedpriv", *(shell_word(str(part)) for part in parts)])


def call(verb: str, *given: Any, **named: Any) -> str:
    """Return a call of a verb, for records.

    >>> call("train", out="runs/a", resume=True)
    "fedpriv.train(out='runs/a', resume=True)"
    """
    return f"fedpriv.{verb}({', '.join([*map(repr, given), *(f'{name}={value!r}' for name, value in named.items())])})"


_SECTIONS = ("Args:", "Attributes:", "Returns:", "Raises:")


def marked(text: str) -> str:
    """Return a text with reStructuredText's marks as Markdown's.

    >>> marked("see :func:`fedpriv.train`, ``seed``")
    'see `fedpriv.train`, `seed`'
    """
    text = re.sub(":(class|func|meth|data|mod|attr):", "", text)
    return text.replace("``", "`").replace("::\n", ":\n")


def summary(text: str | None) -> str:
    """Return the first paragraph of a docstring as one line."""
    return marked(" ".join((text or "").strip().partition("\n\n")[0].split()))


def docstring_markdown(text: str) -> str:
    """Return a docstring, as ``inspect.getdoc`` gives it, as Markdown: entries of sections as lists, examples as blocks."""
    lines: list[str] = []
    section = example = False
    for line in [*marked(text).splitlines(), ""]:
        if line.startswith(">>> ") and not example:
            lines.append("```pycon")
        elif example and not line:
            lines.append("```")
        example = line.startswith(">>> ") or (example and bool(line))
        section = line in _SECTIONS or (section and (not line or line.startswith("    ")))
        if line in _SECTIONS:
            lines += [line, ""]
        elif section and line:
            lines.append(f"  {line.strip()}" if line.startswith("     ") else f"- {line.strip()}")
        else:
            lines.append(line)
    return "\n".join(lines).rstrip("\n")
