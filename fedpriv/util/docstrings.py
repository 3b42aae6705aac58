"""Docstrings as readers of Markdown take them."""

from __future__ import annotations

_ROLES = (":class:", ":func:", ":meth:", ":data:", ":mod:", ":attr:")
_SECTIONS = ("Args:", "Attributes:", "Returns:", "Raises:")


def marked(told: str) -> str:
    """Return a text with reStructuredText's marks as Markdown's.

    >>> marked("see :func:`fedpriv.train`, ``seed``")
    'see `fedpriv.train`, `seed`'
    """
    for role in _ROLES:
        told = told.replace(role, "")
    return told.replace("``", "`").replace("::\n", ":\n")


def summary(told: str | None) -> str:
    r"""Return the first paragraph of a docstring as one line.

    >>> summary("Add noise,\nas ``s`` says.\n\nMore.")
    'Add noise, as `s` says.'
    """
    return marked(" ".join((told or "").strip().partition("\n\n")[0].split()))


def markdown(told: str) -> str:
    """Return a docstring as Markdown: entries of its sections as lists, examples as blocks.

    Args:
        told: as ``inspect.getdoc`` gives it.
    """
    lines: list[str] = []
    section = example = False
    for line in marked(told).splitlines():
        if line.startswith(">>> ") and not example:
            lines.append("```pycon")
        elif example and not line:
            lines.append("```")
        example = line.startswith(">>> ") or (example and bool(line))
        if line in _SECTIONS:
            lines += [line, ""]
            section = True
        elif section and line.startswith("    ") and not line.startswith("     "):
            lines.append(f"- {line.strip()}")
        elif section and line.startswith("     "):
            lines.append(f"  {line.strip()}")
        else:
            section = section and not line.strip()
            lines.append(line)
    return "\n".join(lines + ["```"] * example)
