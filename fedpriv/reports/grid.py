"""The picture of an attack: targets at fixed quantiles of the score; truth, reconstruction, baseline and control."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fedpriv.eval.floors import FLOORS, guess
from fedpriv.eval.metrics import TargetScore, own_guesses, score_guesses, settle, squared_errors
from fedpriv.eval.records import LABELS, ReconstructionRecord
from fedpriv.eval.redaction import BLUR, NONE, OMIT, RULES, blurred
from fedpriv.eval.storage import AttackRecord, scored
from fedpriv.util.errors import UserError
from fedpriv.util.escape import any_letters, one_line, picture_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW = 10  # with so many targets or fewer all are shown
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)  # holds the 10, 50 and 90 % that the rules ask for
_SOFT, _GOOD = "#6a7482", "#0b6e4f"


@dataclass(frozen=True)
class Column:
    """One column of the picture."""

    heading: str  # its quantile
    note: str  # whose target it is
    cells: tuple[tuple[Tensor, str], ...]  # per row the image ``(c, h, w)`` with its caption
    above_floor: bool = False  # the reconstruction scores higher than the baseline's image beside it


def at_quantiles(values: Sequence[float], quantiles: Sequence[float]) -> list[int]:
    """Return the positions whose values are the given quantiles (nearest rank, ties by position)."""
    order = np.argsort(np.asarray(values), kind="stable")
    return [int(order[round(q * (len(order) - 1))]) for q in quantiles]


def grid_columns(attack: AttackRecord) -> tuple[list[str], list[Column]]:
    """Return the names of the rows and the columns of the picture of a scored attack; redacted as its record says."""
    rule = attack.about.redacted
    if rule == OMIT:
        raise UserError(f"{attack.directory}: no picture of it is to be made: it is redacted ({rule})")
    images, targets = settle(attack.reconstruction.to_cpu().images), attack.reconstruction.targets
    record, truths = scored(attack), attack.truths
    if truths is None:
        if rule != BLUR:
            raise UserError(f"{attack.directory}: no picture without the private truth")
        values, single = record.metrics.psnr_db.per_target, images.shape[1] == 1
        return ["reconstruction"], [
            Column(heading, _note(record, row), ((blurred(images[row, 0]), f"{values[row]:.1f} dB" if single else ""),))
            for row, heading in _picked(values)
        ]
    current = own_guesses(images, truths)
    several = max(len(shots) for shots in current) > 1
    score = [score_guesses(shots, truth) for shots, truth in zip(current, truths, strict=True)]
    # With several guesses a column is a pair of one private image and the guess assigned to it.
    units = [(row, member) for row, truth in enumerate(truths) for member in range(truth.n_c if several else 1)]
    values = tuple(_pair_score(score[row], member, several) for row, member in units)
    blind = max((name for name in FLOORS if name in record.floors), key=lambda name: record.floors[name].psnr_db.mean)
    mixed = not several and any(truth.n_c > 1 for truth in truths)
    names = ["mean of the\ntrue images", "nearest true\nimage"] if mixed else ["truth"]
    true = len(names)
    names += ["reconstruction", "baseline:\n" + textwrap.fill(LABELS[blind], 18)]
    rivals = [current]
    if attack.shuffled is not None:
        names.append("shuffled uploads\n(negative control)")
        rivals.append(own_guesses(settle(attack.shuffled.to_cpu().images), truths))
    columns = []
    for position, heading in _picked(values):
        row, member = units[position]
        truth = truths[row]
        cells = [(truth.members[member], "")]
        if mixed:
            nearest = truth.members[int(squared_errors(current[row], truth.members).min(dim=0).values.argmin())]
            cells = [(truth.mean_image().float(), ""), (nearest, "")]
        shown = [guesses[row] for guesses in rivals]
        shown.insert(1, guess(blind, truth, targets[row], len(current[row]), record.seed))
        reached = []
        for shots in shown:
            item = score_guesses(shots, truth)
            reached.append(_pair_score(item, member, several))
            cells.append((shots[item.assigned[member]], f"{reached[-1]:.1f} dB"))
        if rule != NONE:
            cells = [(blurred(image), caption) for image, caption in cells[true:]]
        columns.append(Column(heading, _note(record, row), tuple(cells), reached[0] > reached[1]))
    return (names if rule == NONE else names[true:]), columns


def _picked(values: Sequence[float]) -> list[tuple[int, str]]:
    if len(values) <= FEW:
        return [(position, "") for position in range(len(values))]
    return list(zip(at_quantiles(values, QUANTILES), [f"{100 * q:.0f} % quantile" for q in QUANTILES], strict=True))


def _note(record: ReconstructionRecord, row: int) -> str:
    target = record.targets[row]
    what = f"average of {target.n_c} images" if target.n_c > 1 else "one image"
    return f"client {target.client} · round {target.round} · {what}"


def _pair_score(score: TargetScore, member: int, several: bool) -> float:
    return float(score.each[member]) if several else score.psnr


def grid_png(attack: AttackRecord) -> bytes:
    """Return the picture as PNG bytes."""
    figure = grid_figure(attack)
    buffer = io.BytesIO()
    with any_letters():
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def grid_figure(attack: AttackRecord) -> Figure:
    """Return the picture as a figure of matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names, columns = grid_columns(attack)
    record, rule = scored(attack), attack.about.redacted
    gain = record.advantage_db
    spread = "" if gain.ci95 is None else f" [{gain.ci95[0]:+.1f}, {gain.ci95[1]:+.1f}]"
    which = "at fixed quantiles of the score" if columns and columns[0].heading else "all targets"
    lines = [
        one_line(f"{record.title} on {record.target} uploads of {record.method}, {record.dataset}"),
        f"PSNR {record.metrics.psnr_db.mean:.1f} dB, {gain.mean:+.1f} dB{spread} beside the baseline; {which}",
        *([] if rule == NONE else [f"Redacted: {RULES[rule]}."]),
    ]
    cell, gap, left, below = 1.15, 0.14, 1.35, 0.3  # inches
    width = max(left + len(columns) * (cell + gap), 5.0)
    title = [picture_text(part) for line in lines for part in textwrap.wrap(line, int(13 * width))]
    head = 0.65 + 0.14 * len(title)
    height = head + len(names) * (cell + below)
    figure = Figure(figsize=(width, height), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle("\n".join(title), fontsize=8, y=1 - 0.08 / height)
    across, down = len(columns) * (cell + gap) - gap, len(names) * (cell + below) - below
    place = {"left": left / width, "right": (left + across) / width, "top": 1 - head / height}
    place |= {"bottom": 1 - (head + down) / height, "wspace": gap / cell, "hspace": below / cell}
    axes = figure.subplots(len(names), len(columns), squeeze=False, gridspec_kw=place)
    for column, of_column in zip(columns, axes.T, strict=True):
        notes = [column.heading, *column.note.split(" · ")]
        of_column[0].set_title("\n".join(filter(None, map(picture_text, notes))), fontsize=6, color=_SOFT)
        for name, axis, (image, caption) in zip(names, of_column, column.cells, strict=True):
            axis.imshow(image.clamp(0, 1).movedim(0, 2).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            good = name == "reconstruction" and column.above_floor
            axis.set_xlabel(picture_text(caption), fontsize=7, color=_GOOD if good else _SOFT)
    for name, axis in zip(names, axes[:, 0], strict=True):
        axis.set_ylabel(name, fontsize=7, rotation="horizontal", ha="right", va="center")
    return figure
