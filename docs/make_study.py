"""Write ``docs/study.md`` from the claim cards under ``docs/study``: ``python docs/make_study.py [RESULT...]``.

RESULT is a folder that ``fedpriv reproduce`` made: its card is taken over first, with its grids, without the paths of the
machine that made it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedpriv.claims import claims
from fedpriv.eval.claims import ClaimCard
from fedpriv.reports.claim_card import estimate

PAGE = Path(__file__).with_name("study.md")
CARDS = Path(__file__).with_name("study")

HEAD = """# The study

The claims of `fedpriv list claims`, put to the test at scale `cpu` (two cores, no GPU) on 1,200 JPEG images of each class
of CIFAR-10, 120 of each of 100 classes of TinyImageNet, and the first 2,000 of Fashion-MNIST. CIFAR-100 was not at hand:
those of TinyImageNet at 32 pixels stand in. Runs are smaller than the papers': orders are tested, values are not,
and nothing "does not hold". Traffic is counted exactly. Each name links to its card. How verdicts come about:
[reproducing](reproducing.md). Made by `python docs/make_study.py` from the cards.

    fedpriv reproduce CLAIM --scale cpu --data-dir DIR --images CIFAR-10=DIR/cifar10-jpeg

The papers' own settings (`--scale paper --download --device cuda`) were not run.
"""


def main(results: Sequence[str]) -> None:
    """Take cards over and write the page."""
    for result in results:
        take_over(Path(result))
    PAGE.write_text(page(), encoding="utf-8")


def take_over(result: Path) -> None:
    """Keep the card of a result and its grids."""
    card = json.loads((result / "claim.json").read_text(encoding="utf-8"))
    if card["scale"] != "cpu" and card["quantity"] != "communication":
        raise SystemExit(f"{result}: scale {card['scale']}; the study is of scale cpu")
    folder = CARDS / card["name"]
    folder.mkdir(parents=True, exist_ok=True)
    kept = []
    for number, grid in enumerate(card["grids"], start=1):
        kept.append(f"grid-{number}.png")
        _smaller(result / grid, folder / kept[-1])
    images = "".join(f" --images {name}=DIR/{folder}" for name, folder in re.findall(IMAGES, card["command"]))
    data = "" if card["quantity"] == "communication" else f" --scale cpu --data-dir DIR{images}"
    card |= {
        "grids": kept,
        "command": f"fedpriv reproduce {card['name']}{data}",
        "left_out": [re.sub(r"(/[\w.-]+)+", "DIR", line) for line in card["left_out"]],
    }
    (folder / "claim.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


IMAGES = r"--images '?([\w-]+)=\S*?([\w.-]+)'?(?= |$)"
"""A data set and the last part of the folder of images in its place, in a command."""


def _smaller(source: Path, target: Path, width: int = 900) -> None:
    from PIL import Image

    with Image.open(source) as picture:
        picture.thumbnail((width, 10 * width))
        picture.convert("RGB").quantize(128).save(target, optimize=True)


def page() -> str:
    """Return the page as Markdown."""
    known = {name: card for name in claims() if (card := card_of(name)) is not None}
    decided = {name: card for name, card in known.items() if card.verdict != "not decided"}
    undecided = [f"{_link(name)} {_count(card)}" for name, card in known.items() if name not in decided]
    missing = ", ".join(f"`{name}`" for name in claims() if name not in known)
    parts = [
        HEAD,
        _table(
            ("claim", "verdict", "statements that hold", "values that hold"),
            ((_link(name), card.verdict, _count(card), _values(card)) for name, card in decided.items()),
        ),
        "Where a count does not hold, the paper's own sizes give another; the card's remarks say which.\n",
        "Not decided (every difference of a statement must stand out over the seeds), with the statements that hold: "
        f"{', '.join(undecided)}.\n",
        "Orders that come out the other way in this smaller setting:\n",
        *_reversed(known),
        "\n## Inversion\n\nEvery row stands beside its own baseline. Orders go by advantage.\n",
        *(_inversion(name, card) for name, card in known.items() if card.quantity == "inversion"),
        "## Accuracy that needs no training\n",
        "Printed values below naming each client's commonest class, if clients are divided and tested as here: "
        f"{', '.join(_below(known))}.\n",
        "## Failed runs\n\nNothing is decided from the other seeds alone.\n",
        *_failed(known),
        f"\nNot run, for want of CIFAR-100: {missing}.\n" if missing else "",
    ]
    return "\n".join(part for part in parts if part)


def card_of(name: str) -> ClaimCard | None:
    """Return the card of a claim; None where it was not put to the test."""
    file = CARDS / name / "claim.json"
    return ClaimCard.model_validate_json(file.read_text(encoding="utf-8")) if file.is_file() else None


def _link(name: str) -> str:
    return f"[{name}](study/{name}/claim.json)"


def _count(card: ClaimCard) -> str:
    words = [statement.verdict for statement in card.statements]
    return f"{words.count('holds')}/{len(words)}" if words else "–"


def _values(card: ClaimCard) -> str:
    words = [cell.verdict for cell in card.cells if cell.verdict and cell.same_setting and cell.measured]
    return f"{words.count('holds')}/{len(words)}" if words else "–"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _inversion(name: str, card: ClaimCard) -> str:
    """Return a table of the reconstructions of a claim, each row with its own baseline and advantage, and the grids."""
    rows = [
        (cell.row, f"{cell.claimed}", estimate(cell.measured, 1), f"{estimate(cell.baseline, 1)} ({cell.baseline_name})",
         estimate(cell.advantage, 1, sign="+"))
        for cell in card.cells
        if cell.unit == "dB"
    ]  # fmt: skip
    grids = [f"![{name}: reconstructions](study/{name}/{grid})\n" for grid in card.grids]
    table = _table((f"{_link(name)}, dB", "printed", "here", "its own baseline", "advantage"), rows)
    return "\n".join([" ".join(card.guesses[1:]) + "\n", table, *grids[:SHOWN]])


SHOWN = 2
"""Grids of a claim on the page."""


def _below(known: dict[str, ClaimCard]) -> list[str]:
    """Return by how many of their values claims lie below the commonest class."""
    found = (
        (name, re.match(r"(\d+) of (\d+) printed values", line))
        for name, card in known.items()
        for line in card.guesses
    )
    return [f"{_link(name)} {match[1]}/{match[2]}" for name, match in found if match]


def _reversed(known: dict[str, ClaimCard]) -> list[str]:
    """Return the statements that another setting than the paper's would refute."""
    start = "not the paper's setting; in this one "
    whys = [(name, statement.why) for name, card in known.items() for statement in card.statements]
    return [f"- {name}: {why.removeprefix(start).partition(';')[0]}" for name, why in whys if why.startswith(start)]


def _failed(known: dict[str, ClaimCard]) -> list[str]:
    cells = [(card, cell) for card in known.values() for cell in card.cells if cell.failed]
    return [
        f"- {card.name}, {cell.row}, {cell.column}: {len(cell.failed)} of {len(card.seeds)} seeds "
        f"({cell.failed[0].split(': ', 1)[1].partition(';')[0]})"
        for card, cell in cells
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
