"""Every comparison of an attack with its best guess, as the page judges it: by measure and by images behind a target."""

from __future__ import annotations

from dataclasses import dataclass

from fedpriv.scoring.floors import LABELS
from fedpriv.scoring.records import JudgedComparison, Verdict
from fedpriv.scoring.records.base import Measure

_CALLED: dict[Measure, str] = {
    "images": "PSNR",
    "beyond_3db": "images 3 dB beyond the best guess of all",
    "identified": "told from decoys",
    "vectors": "relative error of {subject}",
    "vectors_identified": "{subject} nearest to their own",
    "classes": "class recognised",
}


@dataclass(frozen=True)
class ComparisonRow:
    """One comparison in words and numbers as a reader sees them.

    Attributes:
        measure: what is compared.
        images: images behind a target, or ``all``.
        over: targets, and the independent units that they are of.
        attack: what the attack reaches.
        guess: what the best guess reaches, and its name.
        better: the difference, positive where the attack is better.
        interval: its 95 % interval.
        p_value: adjusted for all comparisons of the page.
        stands: whether the page claims it.
    """

    measure: str
    images: str
    over: str
    attack: str
    guess: str
    better: str
    interval: str
    p_value: str
    stands: bool


def comparison_rows(verdict: Verdict) -> tuple[ComparisonRow, ...]:
    """Return a row for each comparison of an attack that makes images."""
    return tuple(_row(item, verdict) for item in verdict.compared if item.measure in _CALLED)


def _row(item: JudgedComparison, verdict: Verdict) -> ComparisonRow:
    share = item.measure != "images"
    name = LABELS.get(item.against, item.against)
    return ComparisonRow(
        measure=_CALLED[item.measure].format(subject=verdict.subject),
        images=item.stratum,
        over=f"{item.n} / {item.n_clients}",
        attack=_value(item.value, share=share),
        guess=f"{_value(item.guess, share=share)} ({name})",
        better=_gain(item.mean, share=share),
        interval="–" if item.ci95 is None else " to ".join(_gain(end, share=share) for end in item.ci95),
        p_value="–" if item.adjusted is None else f"{item.adjusted:.2g}",
        stands=item.stands,
    )


def _value(value: float | None, *, share: bool) -> str:
    return "–" if value is None else f"{100 * value:.0f} %" if share else f"{value:.2f} dB"


def _gain(value: float | None, *, share: bool) -> str:
    if value is None:
        return "–"
    shown = round(100 * value) if share else round(value, 2)
    return f"{shown:+d}" if share else f"{shown + 0.0:+.2f}"
