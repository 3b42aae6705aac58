"""A picture of targets chosen by fixed quantiles of the score: truth, reconstruction, baseline, shuffled uploads."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.pages.labels import card_words
from fedpriv.scoring.definitions import TargetScore, own_guesses, score_guesses, settle, squared_errors
from fedpriv.scoring.floors import FLOORS, LABELS, blind_floors, guess
from fedpriv.scoring.leakage import psnr, psnr_of_mse
from fedpriv.scoring.ranking import title
from fedpriv.scoring.records import ReconstructionRecord
from fedpriv.scoring.redaction import BLUR, NONE, OMIT, RULES, blurred
from fedpriv.scoring.storage import AttackRecord, scored
from fedpriv.sources.truth import Truth
from fedpriv.util.errors import UserError
from fedpriv.util.escape import any_letters, one_line, picture_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure
FEW = 10  # with so many targets or fewer all are shown
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)  # holds the 10, 50 and 90 % that the rules ask for
_PER_BAND = 10
_SET = 0.94  # letters set pixel by pixel are up to some percent wider than by their outlines
_LETTERS = 600  # of a paragraph; longer ones are made by whoever names things to do harm
_INK, _SOFT, _GOOD = "#1c2430", "#6a7482", "#0b6e4f"


@dataclass(frozen=True)
class Column:
    """One column of the picture.

    Attributes:
        heading: which quantile, or nothing.
        note: client, round, class.
        cells: per row, the image ``(c, h, w)`` and the caption under it.
        above_floor: whether the reconstruction scores higher than the baseline's image beside it.
    """

    heading: str
    note: str
    cells: tuple[tuple[Tensor, str], ...]
    above_floor: bool = False


def at_quantiles(values: Sequence[float], quantiles: Sequence[float]) -> list[int]:
    """Return the positions whose values are the given quantiles (nearest rank, ties by position).

    >>> at_quantiles([3.0, 1.0, 2.0], (0.0, 0.5, 1.0))
    [1, 2, 0]
    """
    order = np.argsort(np.asarray(values), kind="stable")
    return [int(order[round(q * (len(order) - 1))]) for q in quantiles]


def grid_png(attack: AttackRecord, *, every_target: bool | None = None) -> bytes:
    """Return the picture as PNG bytes; arguments as :func:`grid_figure` has them."""
    figure = grid_figure(attack, every_target=every_target)
    buffer = io.BytesIO()
    with any_letters():
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def grid_figure(
    attack: AttackRecord, *, every_target: bool | None = None, quantiles: Sequence[float] = QUANTILES
) -> Figure:
    """Return the picture as a figure of matplotlib.

    Args:
        attack: a scored attack with its truths. Title, baseline and seed are of its record; without a control there is no
            row for it.
        every_target: show all targets; None means all where there are ten or fewer, else quantiles of the score.
        quantiles: which quantiles to show otherwise, each strictly between 0 and 1: the best one cannot be picked.

    Raises:
        UserError: for a quantile outside (0, 1), an attack that was not scored, or one without its truths.
    """
    if not quantiles or not all(0 < q < 1 for q in quantiles):
        raise UserError(f"grid: quantiles {tuple(quantiles)} should lie strictly between 0 and 1")
    names, columns = grid_columns(attack, every_target, quantiles)
    record = scored(attack)
    redacted = "" if attack.about.redacted == NONE else f"\nRedacted: {RULES[attack.about.redacted]}."
    heading = one_line(f"{title(record)} on {record.target} uploads of {record.method}, {record.dataset}")
    return draw_columns(names, columns, heading, _subtitle(record, columns) + redacted)


def grid_columns(
    attack: AttackRecord, every_target: bool | None = None, quantiles: Sequence[float] = QUANTILES
) -> tuple[list[str], list[Column]]:
    """Return the names of the rows and the columns of the picture; arguments as :func:`grid_figure` has them.

    Of a redacted attack the rows of true images are left out, and all other pictures are blurred; of one that was stored
    so, the first guess of each target is left, with its score.
    """
    rule = attack.about.redacted
    if rule == OMIT:
        raise UserError(f"{attack.directory}: no picture of it is to be made: it is redacted ({rule})")
    images, targets = settle(attack.reconstruction.to_cpu().images)[0], attack.reconstruction.targets
    if attack.truths is None:
        if rule != BLUR:
            raise UserError(f"{attack.directory}: no picture without the private truth")
        scores = scored(attack).metrics.psnr_db.per_target
        single = scores is not None and len(scores) == len(images) and images.shape[1] == 1
        values = [float(value) for value in scores or ()] if single else [0.0] * len(images)
        return ["reconstruction"], [
            Column(
                heading,
                _note(targets[row].client, targets[row].round, targets[row].label),
                ((blurred(images[row, 0]), f"{values[row]:.1f} dB" if single else ""),),
            )
            for row, heading in _picked(values, every_target, quantiles)
        ]
    record, truths = scored(attack), attack.truths
    current = own_guesses(images, truths)
    several = max(len(shots) for shots in current) > 1
    score = [score_guesses(shots, truth) for shots, truth in zip(current, truths, strict=True)]
    # With several guesses a column is a pair of one private image and the guess assigned to it.
    units = [(row, member) for row, truth in enumerate(truths) for member in range(truth.n_c if several else 1)]
    values = [_pair_score(current[row], truths[row], score[row], member, several) for row, member in units]
    floors, best = record.image_floors, record.advantage_db.best_floor
    blind = best if best in FLOORS else max(blind_floors(floors), key=lambda name: floors[name].psnr_db)
    mixed = not several and any(truth.n_c > 1 for truth in truths)
    names = ["mean of the\ntrue images", "nearest true\nimage"] if mixed else ["truth"]
    names += ["reconstruction", "baseline:\n" + textwrap.fill(LABELS[blind], 18)]
    rivals = [current]
    if attack.shuffled is not None:
        names.append("shuffled uploads\n(negative control)")
        rivals.append(own_guesses(settle(attack.shuffled.to_cpu().images)[0], truths))
    columns = []
    for position, heading in _picked(values, every_target, quantiles):
        row, member = units[position]
        truth = truths[row]
        cells = [(truth.members[member], "")]
        if mixed:
            errors = squared_errors(current[row], truth.members)
            count = f"mean of {truth.n_c}" if truth.n_c > 1 else "1 image"
            cells = [
                (truth.mean_image().float(), count),
                (
                    truth.members[int(errors.min(dim=0).values.argmin())],
                    f"best {float(psnr_of_mse(errors.min())):.1f} dB",
                ),
            ]
        shown = [guesses[row] for guesses in rivals]
        shown.insert(1, guess(blind, truth, targets[row], len(current[row]), record.seed))
        reached = []
        for shots in shown:
            item = score_guesses(shots, truth)
            reached.append(_pair_score(shots, truth, item, member, several))
            cells.append((shots[item.assigned[member]], f"{reached[-1]:.1f} dB"))
        columns.append(
            Column(
                heading,
                _note(targets[row].client, targets[row].round, targets[row].label),
                tuple(cells),
                reached[0] > reached[1],
            )
        )
    if rule == NONE:
        return names, columns
    true = 2 if mixed else 1
    return names[true:], [
        replace(column, cells=tuple((blurred(image), caption) for image, caption in column.cells[true:]))
        for column in columns
    ]


def _picked(values: Sequence[float], every: bool | None, quantiles: Sequence[float]) -> list[tuple[int, str]]:
    if len(values) <= FEW if every is None else every:
        return [(position, "") for position in range(len(values))]
    return list(zip(at_quantiles(values, quantiles), [f"{100 * q:.0f} % quantile" for q in quantiles], strict=True))


def _note(client: int, round_: int, label: int) -> str:
    return f"client {client} · round {round_}" + ("" if label < 0 else f" · class {label}")


def _pair_score(shots: Tensor, truth: Truth, score: TargetScore, member: int, several: bool) -> float:
    if not several:
        return score.psnr
    return float(psnr(shots[score.assigned[member]][None], truth.members[member][None])[0])


def _subtitle(record: ReconstructionRecord, columns: Sequence[Column]) -> str:
    gain = record.advantage_db
    spread = "" if gain.ci95 is None else f" (95 % interval {gain.ci95[0]:.1f} to {gain.ci95[1]:.1f})"
    which = "chosen by fixed quantiles of the score" if columns and columns[0].heading else "all targets shown"
    words = card_words(record.knowledge)
    card = " · ".join(f"{key.replace('_', ' ')}: {value.replace('_', ' ')}" for key, value in words.items())
    return (
        f"mean PSNR {record.metrics.psnr_db.mean:.1f} dB, advantage over the baseline "
        f"{gain.mean:+.1f} dB{spread}, {record.n_targets} targets of {record.n_clients} {record.units}, "
        f"{which}\n{one_line(card)}"
    )


def _wrapped(text: str, size: float, width: float, *, bold: bool = False) -> str:
    """Return a text in lines that are at most so many inches wide in letters of so many points, broken between words.

    A word that is wider by itself is broken anywhere.
    """
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(weight="bold" if bold else "normal", size=size)

    def fits(line: str) -> bool:
        with any_letters():
            return bool(text_to_path.get_text_width_height_descent(line, font, False)[0] <= _SET * 72 * width)

    lines: list[str] = []
    for given in (line[:_LETTERS] for line in text.split("\n")):
        line = ""
        for word in given.split(" "):
            longer = f"{line} {word}" if line else word
            if not fits(longer) and line:
                lines.append(line)
                longer = word
            while not fits(longer):
                most = next(end for end in range(len(longer) - 1, 0, -1) if end == 1 or fits(longer[:end]))
                lines.append(longer[:most])
                longer = longer[most:]
            line = longer
        lines.append(line)
    return "\n".join(lines)


def _high(text: str, size: float, spacing: float = 1.2) -> float:
    return (text.count("\n") + 1) * size * spacing / 72


def draw_columns(names: Sequence[str], columns: Sequence[Column], title: str, subtitle: str) -> Figure:
    """Return the picture of columns under a title and a subtitle, which are broken into lines that fit."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    bands = [columns[start : start + _PER_BAND] for start in range(0, len(columns), _PER_BAND)]
    widest = max(len(band) for band in bands)
    cell, caption, head, gap, left = 1.15, 0.24, 0.42, 0.14, 1.35  # inches
    band_height = head + len(names) * (cell + caption)
    width = max(left + widest * (cell + gap) + 0.15, 8.6)
    title, subtitle = _wrapped(title, 11.5, width - 0.3, bold=True), _wrapped(subtitle, 7.5, width - 0.3)
    second = 0.14 + _high(title, 11.5)
    top = second + _high(subtitle, 7.5, 1.5) + 0.1
    height = top + len(bands) * (band_height + 0.1)
    figure = Figure(figsize=(width, height), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)

    def words(x: float, y: float, text: str, size: float, **how: Any) -> None:
        shown = "\n".join(picture_text(line, _LETTERS + 1) for line in text.split("\n"))
        figure.text(x / width, 1 - y / height, shown, fontsize=size, **{"color": _INK, "va": "top", **how})

    words(0.15, 0.12, title, 11.5, weight="bold")
    words(0.15, second, subtitle, 7.5, color=_SOFT, linespacing=1.5)
    for number, band in enumerate(bands):
        start = top + number * (band_height + 0.1)
        for row, name in enumerate(names):
            middle = start + head + row * (cell + caption) + cell / 2
            words(left - 0.12, middle, name, 7.5, ha="right", va="center")
        for position, column in enumerate(band):
            x = left + position * (cell + gap)
            words(x + cell / 2, start + 0.02, column.heading, 7.5, ha="center", weight="bold")
            words(x + cell / 2, start + 0.2, column.note, 6.0, ha="center", color=_SOFT)
            for row, (image, text) in enumerate(column.cells):
                y = start + head + row * (cell + caption)
                axes = figure.add_axes((x / width, 1 - (y + cell) / height, cell / width, cell / height))
                axes.imshow(_pixels(image), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
                axes.set_xticks([])
                axes.set_yticks([])
                for spine in axes.spines.values():
                    spine.set_edgecolor("#c3cad3")
                    spine.set_linewidth(0.6)
                strong = names[row] == "reconstruction"
                words(
                    x + cell / 2,
                    y + cell + 0.04,
                    text,
                    7,
                    ha="center",
                    color=_SOFT if not strong else _GOOD if column.above_floor else _INK,
                    weight="bold" if strong else "normal",
                )
    return figure


def _pixels(image: Tensor) -> np.ndarray:
    pixels = image.detach().clamp(0, 1)
    return np.asarray(pixels[0] if pixels.shape[0] == 1 else torch.movedim(pixels, 0, 2))
