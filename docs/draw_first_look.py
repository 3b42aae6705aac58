"""Draw ``docs/first-look.png``: the same images from representations, from entangled ones, and guessed.

    fedpriv attack --target entangled --out entangled
    fedpriv attack --target representation --attack decoder --targets 1000 --out representation
    python docs/draw_first_look.py representation/decoder entangled/unmix docs/first-look.png

Both federations divide the same images by the same seed. Shown are the first eight classes of which a client holds one
image, and which both attacks met: there a prototype, too, is that of one image. Nothing is chosen by its score.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from fedpriv.eval.floors import guess
from fedpriv.eval.metrics import psnr
from fedpriv.eval.records import LABELS
from fedpriv.eval.storage import AttackRecord, load_attack, scored

SHOWN = 8


def single(attack: AttackRecord) -> dict[int, Tensor]:
    """Return the true images ``(c, h, w)`` of targets that are one image, by their place among the targets."""
    if attack.truths is None:
        raise SystemExit(f"{attack.directory}: holds no true images")
    return {place: truth.members[0] for place, truth in enumerate(attack.truths) if truth.n_c == 1}


def pairs(first: AttackRecord, second: AttackRecord) -> list[tuple[int, int]]:
    """Return places of targets that are the same single image in both, in the order of the second."""
    ours, theirs = single(first), single(second)
    return [(i, j) for j, image in theirs.items() for i, other in ours.items() if torch.equal(image, other)]


def main(first: Path, second: Path, out: Path) -> None:
    """Write the picture."""
    leaking, other = load_attack(first), load_attack(second)
    found = pairs(leaking, other)[:SHOWN]
    best = scored(leaking).advantage_db.best_floor
    assert leaking.truths is not None
    rows: list[tuple[str, list[Tensor]]] = [("private image", [single(leaking)[i] for i, _ in found])]
    for attack, side, name in ((leaking, 0, "raw representations"), (other, 1, "entangled ones")):
        images = attack.reconstruction.to_cpu().images
        rows.append((f"from {name},\nby {attack.about.attack}", [images[pair[side], 0].clamp(0, 1) for pair in found]))
    blind = [
        guess(best, leaking.truths[i], leaking.reconstruction.targets[i], 1, scored(leaking).seed) for i, _ in found
    ]
    rows.append((f"guessed without an upload:\n{LABELS[best]}", [image[0] for image in blind]))
    draw(rows, out)


def draw(rows: list[tuple[str, list[Tensor]]], out: Path) -> None:
    """Draw rows of images ``(c, h, w)``, the first of them the truth, with the PSNR under each of the others."""
    truth, cell, left, under = rows[0][1], 0.92, 2.3, 0.17
    width, height = left + len(truth) * (cell + 0.06), len(rows) * (cell + under) + 0.04
    figure = Figure(figsize=(width, height), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)
    for row, (name, images) in enumerate(rows):
        top = 0.04 + row * (cell + under)
        figure.text((left - 0.1) / width, 1 - (top + cell / 2) / height, name, ha="right", va="center", fontsize=8.5)
        for column, image in enumerate(images):
            x = left + column * (cell + 0.06)
            axes = figure.add_axes((x / width, 1 - (top + cell) / height, cell / width, cell / height))
            axes.imshow(image.movedim(0, 2).squeeze(-1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_axis_off()
            if row:
                value = float(psnr(image[None], truth[column][None])[0])
                y = 1 - (top + cell + 0.02) / height
                figure.text(
                    (x + cell / 2) / width, y, f"{value:.1f} dB", ha="center", va="top", fontsize=7, color="#5b6572"
                )
    figure.savefig(out, metadata={"Software": None})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
