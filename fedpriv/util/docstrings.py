"""Docstrings as readers of Markdown take them."""

from __future__ import annotations

_ROLES = (":class:", ":func:", ":meth:", ":data:", ":mod:", ":attr:")
_SECTIONS = ("Args:", "Attributes:", "Returns:", "Raises:")


def marked(text: str) -> str:
    """Return a text with reStructuredText's marks as Markdown's.

    >>> marked("see :func:`fedpriv.train`, ``seed``")
    'see `fedpriv.train`, `seed`'
    """
    for role in _ROLES:
        text = text.replace(role, "")
    return text.replace("``", "`").replace("::\n", ":\n")


def summary(text: str | None) -> str:
    """Return the first paragraph of a docstring as one line."""
    return marked(" ".join((text or "").strip().partition("\n\n")[0].split()))


def markdown(text: str) -> str:
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
