"""Curves of the constants of a convergence proof, as runs estimated them round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.federation.summary import ConvergenceLine
from fedpriv.pages import curves


@dataclass(frozen=True)
class Quantity:
    """An estimated quantity.

    Attributes:
        field: of a client's estimates.
        title: over its picture.
        words: the caption.
        end: ``largest``, ``smallest`` or ``mean``: which figure over the clients of a round the line is.
    """

    field: str
    title: str
    words: str
    end: str = "largest"

    def over(self, values: Sequence[float]) -> float:
        """Return the figure over clients that the line shows."""
        if self.end == "mean":
            return sum(values) / len(values)
        return max(values) if self.end == "largest" else min(values)


QUANTITIES = (
    Quantity(
        "smoothness",
        "Smoothness, lower bound of L1",
        "Change of a client's full gradient over a round for each unit that its weights moved: a lower bound of the "
        "Lipschitz constant of assumption 1.",
    ),
    Quantity(
        "variance",
        "Variance of mini-batch gradients",
        "Mean squared distance of mini-batch gradients to the full one where the round begins: a plug-in for sigma squared "
        "of assumption 2.",
    ),
    Quantity(
        "trained_divergence",
        "Trained less broadcast classifier, squared",
        "A lower bound of epsilon squared of assumption 3.",
    ),
    Quantity(
        "aggregated_divergence",
        "Trained less next global classifier, squared",
        "A lower bound of delta squared of assumption 3.",
    ),
    Quantity(
        "gradient",
        "Squared norm of the full gradient",
        "Of a client's cross-entropy over all its training images where the round begins.",
        "mean",
    ),
    Quantity(
        "rate_bound",
        "Learning rate allowed by theorem 1",
        "In the first step, by a client's own estimates. These are too small, so the true rate is lower.",
        "smallest",
    ),
)


def charts(runs: Sequence[tuple[str, Sequence[ConvergenceLine]]]) -> list[tuple[str, str, str, str]]:
    """Return (file, SVG, words instead of it, caption) of every quantity that a run has estimates of.

    Args:
        runs: label, and estimates by round, which may be none.
    """
    found = []
    for quantity in QUANTITIES:
        bands = [band for label, lines in runs if (band := _band(quantity, label, lines)) is not None]
        if bands:
            told = "; ".join(f"{one.label} from {one.line[0]:.3g} to {one.line[-1]:.3g}" for one in bands)
            found.append(
                (
                    f"convergence-{quantity.field.replace('_', '-')}.svg",
                    curves.positive_by_round(bands, quantity.title),
                    f"Line chart of {quantity.title} by round, {quantity.end} over clients, first to last measured: {told}",
                    f"Line: {quantity.end} over the clients of a round; band: from the smallest to the largest. "
                    + quantity.words,
                )
            )
    return found


def _band(quantity: Quantity, label: str, lines: Sequence[ConvergenceLine]) -> curves.Band | None:
    rows = [
        (line.round, values)
        for line in lines
        if (values := [value for one in line.clients if (value := getattr(one, quantity.field)) is not None])
    ]
    if not rows:
        return None
    return curves.Band(
        label,
        np.array([round_ for round_, _ in rows]),
        np.array([quantity.over(values) for _, values in rows]),
        np.array([min(values) for _, values in rows]),
        np.array([max(values) for _, values in rows]),
    )
