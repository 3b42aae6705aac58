"""Chance alone as a guess: the rate at which it finds images among decoys, which targets may share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpriv.scoring.intervals import Values

_POINTS = 400


@dataclass(frozen=True)
class ByDesign:
    """A guess whose rate needs no measuring.

    Attributes:
        name: of the guess.
        rates: ``(T,)`` how often it finds each target.
        decoys: of a target, at the least.
    """

    name: str
    rates: Values
    decoys: int

    def p_value(self, mean: float, rate: float, least: float, number: int) -> float:
        """Return the p-value of a rate over ``number`` targets, had they all the same decoys and the same guess.

        Whether an image lies nearer to a guess than all of D decoys hangs on where the nearest of these lies: given that,
        all images of the class are found with one chance U, which is Beta(1, D) over the drawing of decoys. Nothing in the
        clients' values shows it. So the upper tail is that of a binomial share, mean over U; fewer targets that share
        decoys vary less. ``least`` of the images, and what the guess finds beyond chance, are found besides.

        Args:
            mean: share found.
            rate: of the guess, over the same targets.
            least: the least effect that counts.
            number: of targets.
        """
        from scipy.special import betainc  # type: ignore[import-untyped]  # takes half a second to import

        chance = 1 / (1 + self.decoys)
        hits = mean * number
        if hits <= 0:
            return 1.0
        besides = min(1.0, least + max(0.0, rate - chance))
        # Quantiles of Beta(1, D), close to one another where U is large: there the tail is made.
        tail = np.concatenate([[0.0], np.logspace(-14, 0, _POINTS)])
        least_of = 1 - tail ** (1 / self.decoys)  # U at which so much lies above it
        result = betainc(hits, number - hits + 1, np.clip(besides + (1 - besides) * least_of, 0, 1))
        larger = np.maximum(result[1:], result[:-1])
        return float(min(1.0, larger @ np.diff(tail)))
