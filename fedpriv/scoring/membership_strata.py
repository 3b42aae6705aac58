"""Members told apart among candidates that are alike: of classes of some size at the client, or typical of their class.

Each stratum is compared with chance, shuffled uploads and the baseline like all candidates together are, and takes part in
the page's tests, so that no stratum is claimed by chance (:mod:`fedpriv.scoring.judgement`). A stratum in which fewer
clients have candidates than support a claim, or that is all there is, is shown and not tested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.scoring.intervals import Values
from fedpriv.scoring.reasons import FEW_CLIENTS
from fedpriv.scoring.records import Comparison
from fedpriv.scoring.records.inference import StratumArea
from fedpriv.scoring.roc import Ranked

SIZES: dict[str, tuple[float, float]] = {"1": (1, 1), "2-3": (2, 3), "4-10": (4, 10), ">10": (11, np.inf)}
"""Strata by how many images of the class the client holds: least and most."""

RARITIES: dict[str, tuple[float, float]] = {
    "typical": (0.0, 1 / 3),
    "middling": (1 / 3, 2 / 3),
    "unusual": (2 / 3, 2.0),
}
"""Strata by the place of an image among those of its class, nearest to the mean first: from, and below."""


@dataclass(frozen=True)
class Strata:
    """Strata of all candidates of all clients, in the order of their scores.

    Attributes:
        chosen: name -> ``(n,)`` bool.
    """

    chosen: dict[str, NDArray[np.bool_]]

    @classmethod
    def of(cls, n_c: NDArray[np.int64], rarity: Values) -> Strata:
        """Return the strata that hold members and others.

        Args:
            n_c: ``(n,)`` images of the candidate's class that the client holds.
            rarity: ``(n,)`` in [0, 1]; see :func:`rarities`.
        """
        results = {name: (n_c >= low) & (n_c <= high) for name, (low, high) in SIZES.items()}
        return cls(results | {name: (rarity >= low) & (rarity < high) for name, (low, high) in RARITIES.items()})

    def areas(self, ranked: Ranked, names: Sequence[str]) -> dict[str, StratumArea]:
        """Return the area of each stratum of ``names`` that has both answers."""
        results = {}
        for name in names:
            part = self._part(ranked, name)
            if part is not None:
                auc = part.area()
                units = len(np.unique(part.unit))
                results[name] = StratumArea(n=len(part.yes), auc=auc.value, ci95=auc.ci95, n_clients=units)
        return results

    def compared(self, ranked: Ranked, guesses: Mapping[str, Ranked | None]) -> tuple[Comparison, ...]:
        """Compare the area of each stratum of enough clients with chance, and with scores of the same candidates by name."""
        comparisons: list[Comparison] = []
        for name in self.chosen:
            part = self._part(ranked, name)
            if part is None or len(part.yes) == len(ranked.yes) or len(np.unique(part.unit)) < FEW_CLIENTS:
                continue
            beside = {guess: None if item is None else self._part(item, name) for guess, item in guesses.items()}
            comparisons += part.against(beside, {"membership": "auc"}, stratum=name)
        return tuple(comparisons)

    def _part(self, ranked: Ranked, name: str) -> Ranked | None:
        chosen = self.chosen[name]
        yes = ranked.yes[chosen]
        return Ranked(ranked.scores[chosen], yes, ranked.unit[chosen]) if yes.any() and not yes.all() else None


def rarities(images: Sequence[Tensor], labels: Sequence[Tensor]) -> list[Values]:
    """Return for each client how unusual each of its candidates is of its class ``(n,)``, in [0, 1].

    That is the share of the class's candidates, of all clients, that lie nearer to their mean image.

    Args:
        images: of each client ``(n, c, h, w)``.
        labels: of each client ``(n,)``.
    """
    flat, classes = torch.cat([image.flatten(1) for image in images]).cpu(), torch.cat([item.cpu() for item in labels])
    result = torch.empty(len(flat), dtype=torch.float64)
    for label in classes.unique():
        current = (classes == label).nonzero().squeeze(1)
        distances = (flat[current] - flat[current].mean(0)).square().sum(1)
        result[current] = (distances[:, None] > distances).double().mean(1)
    return [part.numpy() for part in result.split([len(entry) for entry in labels])]
