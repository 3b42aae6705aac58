"""Draw the rooms of the package and the imports between them, as the code has them now.

    python docs/draw_rooms.py             # writes docs/rooms.svg
    python docs/draw_rooms.py --check     # exit code 1 if docs/rooms.svg shows other rooms or arrows than the code has

A row holds rooms that do not import one another; every arrow points down. An arrow that follows from others (a room
imports what its own imports import) is thin. Numbers are lines of code, and imports.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "fedpriv"
OUT = ROOT / "docs" / "rooms.svg"
SIDES = ("methods", "defenses", "evidence", "federation", "attacks", "datasets", "algebra", "models")
"""From left to right, where a row holds several."""
WIDTH, ROW, BOX, GAP, TALL = 1080, 92, 190, 34, 44


def imports() -> tuple[dict[str, int], Counter[tuple[str, str]]]:
    """Return lines of code by room, and imports by (importing room, imported room)."""
    lines: dict[str, int] = {}
    arrows: Counter[tuple[str, str]] = Counter()
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        if len(parts) < 2:
            continue
        room, text = parts[0], path.read_text(encoding="utf-8")
        lines[room] = lines.get(room, 0) + text.count("\n")
        for node in ast.walk(ast.parse(text)):
            for name in _modules(node):
                target = name.split(".")[1]
                if target != room and (PACKAGE / target).is_dir():
                    arrows[room, target] += 1
    return lines, arrows


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom) and node.module:
        whole = [f"{node.module}.{one.name}" for one in node.names] if node.module == "fedpriv" else [node.module]
        return [name for name in whole if name.startswith("fedpriv.")]
    if isinstance(node, ast.Import):
        return [one.name for one in node.names if one.name.startswith("fedpriv.")]
    return []


def levels(rooms: list[str], arrows: Counter[tuple[str, str]]) -> dict[str, int]:
    """Return each room's row, 0 at the bottom: one above the highest that it imports.

    Raises:
        ValueError: when rooms import one another in a circle.
    """
    found: dict[str, int] = {}
    left = set(rooms)
    while left:
        ready = {room for room in left if all(b not in left for a, b in arrows if a == room)}
        if not ready:
            raise ValueError(f"a circle among {', '.join(sorted(left))}")
        for room in ready:
            found[room] = 1 + max((found[b] for a, b in arrows if a == room), default=-1)
        left -= ready
    return found


def implied(arrow: tuple[str, str], arrows: Counter[tuple[str, str]]) -> bool:
    """Whether a longer way leads to the same room."""
    start, end = arrow
    seen, todo = set(), [b for a, b in arrows if a == start and b != end]
    while todo:
        here = todo.pop()
        if here == end:
            return True
        if here not in seen:
            seen.add(here)
            todo += [b for a, b in arrows if a == here]
    return False


def described(arrows: Counter[tuple[str, str]]) -> str:
    """Return all arrows in words: for readers who do not see the picture, and to check it by."""
    return f"<desc>{'; '.join(f'{a} imports {b}' for a, b in sorted(arrows))}</desc>"


def draw() -> str:
    """Return the picture as SVG text; the same code gives the same text."""
    lines, arrows = imports()
    level = levels(sorted(lines), arrows)
    side = {room: number for number, room in enumerate(SIDES)}
    rows = [
        sorted((room for room in level if level[room] == row), key=lambda room: (side.get(room, len(side)), room))
        for row in range(max(level.values()), -1, -1)
    ]
    place: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        start = (WIDTH - len(row) * BOX - (len(row) - 1) * GAP) / 2
        # Every other row stands aside, so that arrows past it can be followed.
        start += 0 if len(row) > 1 else (-150, 90, -40, 150)[number % 4]
        for column, room in enumerate(row):
            place[room] = (start + column * (BOX + GAP), 30 + number * ROW)
    height = 30 + len(rows) * ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" role="img">',
        "<title>Rooms of fedpriv and the imports between them</title>",
        described(arrows),
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#345"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for arrow, count in sorted(arrows.items(), key=lambda item: (not implied(item[0], arrows), item[0])):
        (x, y), (u, v) = place[arrow[0]], place[arrow[1]]
        thin = implied(arrow, arrows)
        look = 'stroke="#c3ccd6" stroke-width="1"' if thin else 'stroke="#345" stroke-width="1.8" marker-end="url(#a)"'
        x, u = x + BOX / 2, u + BOX / 2
        parts.append(f'<path d="M{x:g} {y + TALL} C{x:g} {y + 80} {u:g} {v - 40} {u:g} {v}" fill="none" {look}/>')
        if not thin:
            parts.append(
                f'<text x="{(x + u) / 2 + 5:g}" y="{(y + TALL + v) / 2:g}" font-size="11" fill="#345" '
                f'stroke="#fff" stroke-width="3" paint-order="stroke">{count}</text>'
            )
    for room, (x, y) in place.items():
        parts += [
            f'<rect x="{x:g}" y="{y:g}" width="{BOX}" height="{TALL}" rx="7" fill="#eef3f8" stroke="#345"/>',
            f'<text x="{x + BOX / 2:g}" y="{y + 19:g}" text-anchor="middle" font-size="15" fill="#123">{room}</text>',
            f'<text x="{x + BOX / 2:g}" y="{y + 35:g}" text-anchor="middle" font-size="11" fill="#567">'
            f"{round(lines[room], -2):,} lines</text>",
        ]
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        shown = OUT.read_text(encoding="utf-8") if OUT.is_file() else ""
        sys.exit(0 if described(imports()[1]) in shown else f"{OUT.name} shows other rooms or arrows than the code has")
    OUT.write_text(draw(), encoding="utf-8")
    print(OUT)
