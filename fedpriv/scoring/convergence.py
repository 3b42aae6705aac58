"""Progress of an attack by its own measure: whether its search converged, and whether its fit is specific to the upload."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from fedpriv.scoring.records import ReconstructionRecord
from fedpriv.scoring.records.reconstruction import Fit

SPECIFIC = 0.1
"""Share of the objective of auxiliary images that images found from an upload must stay below to be specific.

One step from the same start already leads below the objective of other images, so that below alone would say nothing.
"""


def is_specific(fit: Fit | None) -> bool | None:
    """Return, target by target, whether images explain their own upload better than images that were found without it.

    Far better (:data:`SPECIFIC`) than auxiliary images; better than images found from shuffled uploads, which may be good
    guesses where an attack starts from what it knows of the class. A network that tells no images apart lets any image
    explain any upload. Then a search converges at once, and neither its success nor its failure says anything.

    The rule is one for targets of a single image. A mean does not determine its images, and guesses at the class fit it
    too, so that over means of two and more images it says nothing: :func:`convergence` leaves these out.

    Args:
        fit: of a target; None where it was not measured, and then so is the answer.
    """
    if fit is None:
        return None
    if fit.own is None:
        return False
    shuffled = fit.shuffled is None or fit.own < fit.shuffled
    return shuffled and (fit.auxiliary is None or fit.own < SPECIFIC * fit.auxiliary)


@dataclass(frozen=True)
class Convergence:
    """The readings of an attack's own objective.

    Attributes:
        converged: share of targets that met the attack's own convergence rule, in [0, 1].
        specific: share of targets of a single image whose fit is specific to their upload, see :func:`is_specific`; None
            where that was measured of no such target.
        objective: median over targets of the final objective of the chosen restart; None where none is finite.
    """

    converged: float
    specific: float | None
    objective: float | None


def convergence(record: ReconstructionRecord) -> Convergence:
    """Return the convergence of an attack from its ``metrics.json`` record."""
    rows = record.targets
    specific = [row.specific for row in rows if row.n_c == 1 and row.specific is not None]
    finite = [row.objective for row in rows if row.objective is not None]
    return Convergence(
        sum(row.converged for row in rows) / len(rows),
        sum(specific) / len(specific) if specific else None,
        statistics.median(finite) if finite else None,
    )


def objective(value: float | None) -> str:
    """Return an objective as a table shows it.

    >>> objective(0.00019213), objective(0.25), objective(1234.5), objective(None)
    ('1.9e-04', '0.25', '1.2e+03', '–')
    """
    if value is None:
        return "–"
    return f"{value:.2g}" if value == 0 or 1e-3 <= abs(value) < 100 else f"{value:.1e}"
