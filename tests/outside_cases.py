"""Another package with members for fedpriv, and how to make one for a single test."""

from pathlib import Path

OUTSIDE = Path(__file__).parent / "outside"
"""A folder with an installed distribution, ``outsider``: one member of each sort."""


def distribution(folder, name, points, modules):
    """Write an installed distribution into a folder: its entry points by group and name, and its modules' text."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        line for group, own in points.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in own.items()), "")
    ]
    (about / "entry_points.txt").write_text("\n".join(lines))
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text + "\n")
