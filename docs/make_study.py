"""Write ``docs/study.md`` from the claim cards under ``docs/study``: ``python docs/make_study.py [RESULT...]``.

RESULT is a folder that ``fedpriv reproduce`` made: its card is taken over first, with its grids, without the paths of the
machine that made it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from fedpriv.pages.claim_card import COUNTED, headline, never
from fedpriv.pages.claims import Claim, claims
from fedpriv.scoring.records import ClaimCard, ClaimCell, ClaimedOrder, ClaimStatement
from fedpriv.util.durations import duration

PAGE = Path(__file__).with_name("study.md")
CARDS = Path(__file__).with_name("study")

HEAD = """# The study

Every claim of `fedpriv list claims`, put to the test at scale `cpu` on a machine with two cores and no GPU, on three sets of
real images: 1,200 of each class of CIFAR-10 stored as JPEG (`cifar10-jpeg`), 100 of the 200 classes of TinyImageNet
with 120 images each, and the first 2,000 of Fashion-MNIST. CIFAR-100 was not at hand, so its columns are left out. How
verdicts come about: [reproducing.md](reproducing.md). At this scale federations are smaller and shorter than the papers', so
that *orders* are tested and values are not; what differs is listed in every card. Claims about traffic and operations
follow from sizes alone and are exact. This page is made by `python docs/make_study.py` from the cards in `docs/study`.

    fedpriv reproduce CLAIM --scale cpu --data-dir DIR --images CIFAR-10=DIR/cifar10-jpeg
"""

GPU = """## What only a GPU can answer

Whether the papers' *values* hold: that takes their own setting (a hundred rounds and more, up to a hundred clients, ten
large architectures, full data, several seeds), which two cores do not reach in days. None of it has been run. The commands:
"""


def main(results: Sequence[str]) -> None:
    """Take cards over and write the page."""
    for result in results:
        take_over(Path(result))
    PAGE.write_text(page(), encoding="utf-8")


def take_over(result: Path) -> None:
    """Keep the card of a result and its grids."""
    card = json.loads((result / "claim.json").read_text(encoding="utf-8"))
    if card["scale"] != "cpu" and card["quantity"] not in _COUNTED:
        raise SystemExit(f"{result}: scale {card['scale']}; the study is of scale cpu")
    folder = CARDS / card["name"]
    folder.mkdir(parents=True, exist_ok=True)
    kept = []
    for number, grid in enumerate(card["grids"], start=1):
        kept.append(f"grid-{number}.png")
        _smaller(result / grid, folder / kept[-1])
    images = " --images CIFAR-10=DIR/cifar10-jpeg" if "--images" in card["command"] else ""
    data = "" if card["quantity"] in _COUNTED else f" --scale cpu --data-dir DIR{images}"
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
    parts = [HEAD, _table(known), _found(known)]
    parts += [
        f"## {name}\n\n*{_title(claim)}*\n\n{_card(name, known[name])}"
        for name, claim in claims().items()
        if name in known
    ]
    left = [name for name, claim in claims().items() if name not in known]
    if left:
        parts.append("## Not run yet\n\n" + "\n".join(f"- {name}: {_missing(claims()[name])}" for name in left) + "\n")
    trained = [name for name, claim in claims().items() if not claim.counted]
    commands = "\n".join(
        f"    fedpriv reproduce {name} --scale paper --data-dir DIR --download --device cuda" for name in trained
    )
    parts.append(f"{GPU}\n{commands}\n")
    return "\n".join(parts)


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
    lines = ["| claim | verdict | statements that hold | values | time |", "| --- | --- | --- | --- | ---: |"]
    for name, card in known.items():
        held = sum(one.verdict == "holds" for one in card.statements)
        counted = [cell for cell in card.cells if cell.measured is not None and cell.verdict is not None]
        right = sum(cell.verdict == "holds" for cell in counted)
        values = f"{right} of {len(counted)} exact" if card.quantity in _COUNTED else f"{len(counted)} measured"
        statements = f"{held} of {len(card.statements)}" if card.statements else "–"
        time = duration(card.seconds) if card.seconds else "–"
        lines.append(f"| [{name}](#{name}) | {card.verdict} | {statements} | {values} | {time} |")
    return "\n".join(lines) + "\n"


_COUNTED = ("communication", "computation")


def _found(known: dict[str, ClaimCard]) -> str:
    told = [(name, one) for name, card in known.items() if card.quantity not in _COUNTED for one in card.statements]
    words = ("holds", "does not hold", "below the floor", "cannot be told")
    plural = {"holds": "hold", "does not hold": "do not hold"}
    numbers = {word: sum(one.verdict == word for _, one in told) for word in words}
    counts = [f"{n} {word if n == 1 else plural.get(word, word)}" for word, n in numbers.items()]
    return (
        f"Of {len(told)} statements about trained or attacked results: {', '.join(counts)}.\n"
        "Time is of training and attacks on one core, beside other work.\n"
    )


def _card(name: str, card: ClaimCard) -> str:
    scale = COUNTED if card.quantity in _COUNTED else f"Seeds {', '.join(map(str, card.seeds))}."
    parts = [f"**{card.verdict}**: {headline(card)}. {scale} {card.reading}".rstrip() + "\n"]
    parts += [_statement(one) for one in card.statements]
    measured = [cell for cell in card.cells if cell.measured is not None]
    wrong = [cell for cell in measured if cell.verdict == "does not hold"]
    if card.quantity in _COUNTED:
        parts += [f"- {cell.row}, {cell.column}: {cell.remark or cell.why}\n" for cell in wrong]
    else:
        parts.append(_values(card))
    parts += [f"![truth, reconstruction and the strongest guess](study/{name}/{grid})\n" for grid in card.grids]
    if card.changed:
        differs = [f"{key} {ours} (the paper's: {theirs})" for key, (theirs, ours) in card.changed.items()]
        parts.append(f"Not as in the paper: {'; '.join(differs)}.\n")
    data = sorted({line.split(": ", 1)[0].split(" | ")[1] for line in card.left_out if " | " in line.split(": ", 1)[0]})
    if data:
        parts.append(f"Left out: {'; '.join(data)}.\n")
    parts.append(f"    {card.command}\n")
    return "\n".join(parts)


def _statement(one: ClaimStatement) -> str:
    orders = "; ".join(_order(own) for own in one.orders)
    why = f" ({one.why})" if one.why else ""
    return f"- **{one.verdict}**: {one.text}{why}{f' {orders}.' if orders else ''}\n"


def _order(own: ClaimedOrder) -> str:
    within = f", {own.within}" if own.within else ""
    if own.difference is None:
        return f"{own.better} beside {own.than}{within}: not measured"
    ends = "" if own.ci95 is None else f" [{own.ci95[0]:+,.2f}, {own.ci95[1]:+,.2f}]"
    claimed = "" if own.claimed is None else f" (paper {own.claimed:+,.2f})"
    return f"{own.better} beside {own.than}{within}: {own.difference:+,.2f}{ends}{claimed}"


def _values(card: ClaimCard) -> str:
    columns = list(dict.fromkeys(cell.column for cell in card.cells if cell.measured is not None))
    cells = {(cell.row, cell.column): cell for cell in card.cells}
    lines = [f"| {card.cells[0].unit} | {' | '.join(columns)} |", f"| --- |{' ---: |' * len(columns)}"]
    for row in dict.fromkeys(cell.row for cell in card.cells if cell.measured is not None):
        told = [_value(cells.get((row, column)), len(card.seeds)) for column in columns]
        lines.append(f"| {row} | {' | '.join(told)} |")
    floors = {(cell.column, cell.floor_name): cell.floor for cell in card.cells if cell.floor is not None}
    for floor_name in dict.fromkeys(name for _, name in floors):
        means = [floors.get((column, floor_name)) for column in columns]
        told = ["–" if one is None or one.mean is None else f"{one.mean:,.2f}" for one in means]
        lines.append(f"| *{'clients alone' if floor_name == 'local' else floor_name}* | {' | '.join(told)} |")
    return "Here (the paper's in brackets):\n\n" + "\n".join(lines) + "\n"


def _value(cell: ClaimCell | None, seeds: int) -> str:
    if cell is None or cell.measured is None or cell.measured.mean is None:
        return "–"
    claimed = "–" if cell.claimed is None else f"{cell.claimed:,.{cell.digits}f}"
    return f"{cell.measured.mean:,.{cell.digits}f} ({claimed}){never(cell, seeds)}"


if __name__ == "__main__":
    main(sys.argv[1:])
