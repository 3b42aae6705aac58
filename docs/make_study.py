"""Write ``docs/study.md`` from the claim cards under ``docs/study``: ``python docs/make_study.py [RESULT...]``.

RESULT is a folder that ``fedpriv reproduce`` made: its card is taken over first, with its grids, without the paths of the
machine that made it.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedpriv.claims import Claim, claims
from fedpriv.eval.claims import ClaimCard

PAGE = Path(__file__).with_name("study.md")
CARDS = Path(__file__).with_name("study")

HEAD = """# The study

The claims of `fedpriv list claims`, put to the test at scale `cpu` (two cores, no GPU) on 1,200 JPEG images of each class
of CIFAR-10, 120 of each of 100 classes of TinyImageNet, and the first 2,000 of Fashion-MNIST. CIFAR-100 was not at hand.
Federations are smaller and shorter than the papers', so that *orders* are tested and values are not; claims about traffic
are exact. Each row links to its card, which has every value, interval and difference from the paper's
setting; how verdicts come about: [reproducing](reproducing.md). Made by `python docs/make_study.py` from the cards in
`docs/study`.

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
    images = " --images CIFAR-10=DIR/cifar10-jpeg" if "--images" in card["command"] else ""
    data = "" if card["quantity"] == "communication" else f" --scale cpu --data-dir DIR{images}"
    card |= {
        "grids": kept,
        "command": f"fedpriv reproduce {card['name']}{data}",
        "left_out": [re.sub(r"(/[\w.-]+)+", "DIR", line) for line in card["left_out"]],
    }
    (folder / "claim.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


def _smaller(source: Path, target: Path, width: int = 900) -> None:
    from PIL import Image

    with Image.open(source) as picture:
        picture.thumbnail((width, 10 * width))
        picture.convert("RGB").quantize(128).save(target, optimize=True)


AT_HAND = ("CIFAR-10", "TinyImageNet", "Fashion-MNIST")
"""Data sets of the papers whose images the study was run on."""


def page() -> str:
    """Return the page as Markdown."""
    known = {name: card for name in claims() if (card := card_of(name)) is not None}
    grids = [
        f"![{name}: truth, reconstruction and the strongest baseline](study/{name}/{grid})\n"
        for name, card in known.items()
        for grid in card.grids
    ]
    left = [f"- {name}: {_missing(claims()[name])}" for name in claims() if name not in known]
    return "\n".join([HEAD, _table(known), _summary(known), *grids, *(["## Not run yet\n", *left, ""] if left else [])])


def card_of(name: str) -> ClaimCard | None:
    """Return the card of a claim; None where it was not put to the test."""
    file = CARDS / name / "claim.json"
    return ClaimCard.model_validate_json(file.read_text(encoding="utf-8")) if file.is_file() else None


def _missing(claim: Claim) -> str:
    """Return a claim's title, and the data sets that it needs where none of them was at hand."""
    data = {str(column.data) for column in claim.columns}
    why = "" if data & set(AT_HAND) else f" (on {' and '.join(sorted(data))} alone, of which no images were at hand)"
    return _title(claim) + why


def _title(claim: Claim) -> str:
    short = re.sub(r":.*| \(preprint.*", "", claim.paper) + (" (preprint)" if "preprint of" in claim.paper else "")
    return f"{short}, {claim.where}: {claim.title}"


def _table(known: dict[str, ClaimCard]) -> str:
    lines = ["| claim | | verdict | statements that hold |", "| --- | --- | --- | --- |"]
    for name, card in known.items():
        holding = sum(statement.verdict == "holds" for statement in card.statements)
        statements = f"{holding} of {len(card.statements)}" if card.statements else "–"
        cells = (f"[{name}](study/{name}/claim.json)", claims()[name].title, card.verdict, statements)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _summary(known: dict[str, ClaimCard]) -> str:
    trained = [card for card in known.values() if card.quantity != "communication"]
    verdicts = Counter(statement.verdict for card in trained for statement in card.statements)
    counts = ", ".join(f"{number} {verdict}" for verdict, number in sorted(verdicts.items()))
    return f"Statements about trained or attacked results: {counts}.\n"


if __name__ == "__main__":
    main(sys.argv[1:])
