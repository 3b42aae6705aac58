"""The parts of a record that are computed from scored guesses: comparisons, rows, strata and the control."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.attacks.observation import Reconstruction
from fedpriv.scoring.definitions import ScoredGuesses
from fedpriv.scoring.floors import LABELS, NEAREST, SHUFFLED
from fedpriv.scoring.intervals import ByDesign, Kind, Values, clustered, compare, finite_summary, summary
from fedpriv.scoring.records import Comparison, Estimate, FiniteSummary, Measure, Summary
from fedpriv.scoring.records.base import DECIBELS, IDENTIFIED
from fedpriv.scoring.records.reconstruction import ControlResult, Fit, Stratum, StratumAdvantage, Target
from fedpriv.sources.truth import STRATA, Truth, stratum

BEYOND = 3.0
"""An image so many dB beyond the strongest guess has come back."""


@dataclass(frozen=True)
class Means:
    """Means over this record's targets, with intervals over its clients.

    Attributes:
        units: ``T`` numbers of independent units (clients, or declared groups of them), the clusters of intervals.
    """

    units: tuple[int, ...]

    def summary(self, values: Sequence[float] | Values) -> Summary:
        """Return one value a target, summed up."""
        return summary(values, self.units)

    def finite(self, values: Sequence[float] | Values, kind: Kind = "mean") -> FiniteSummary:
        """Return the same of values that are all finite."""
        return finite_summary(values, self.units, kind)

    def of(self, values: Values, keep: Sequence[int], kind: Kind = "mean") -> Estimate:
        """Return mean, interval and n over the targets ``keep``."""
        if not len(keep):
            return Estimate(mean=None, ci95=None, n=0)
        result = clustered(values[list(keep)], [self.units[i] for i in keep], kind)
        return Estimate(mean=result.mean, ci95=result.interval(), n=len(keep))

    def keep(self, rows: Sequence[int]) -> Means:
        """Return the same over some of the targets."""
        return Means(tuple(self.units[row] for row in rows))

    def compare(
        self,
        gains: Mapping[str, Values],
        measure: Measure,
        least: float | Mapping[str, Values],
        strata: Sequence[str] = (),
        by_design: ByDesign | None = None,
    ) -> tuple[Comparison, ...]:
        """Compare with guesses over all targets, and over those of each stratum where there are several strata.

        Each time it is the strongest guess there that counts, the one of the smallest mean difference.

        Args:
            gains: by guess ``(T,)`` differences, positive where the attack is better; nothing is compared without one.
            measure: the quantity compared.
            least: the least effect that counts; or by guess one a target, whose mean counts.
            strata: the T targets' strata.
            by_design: the only guess, where its rate follows from how targets and decoys were drawn.
        """
        if not gains or not self.units:
            return ()
        apart = list(dict.fromkeys(strata))
        rows = {"all": list(range(len(self.units)))}
        if len(apart) > 1:
            rows |= {
                name: [row for row, current in enumerate(strata) if current == name] for name in STRATA if name in apart
            }
        made = []
        for name, chosen in rows.items():
            against = min(gains, key=lambda guess: float(gains[guess][chosen].mean()))
            values, rate = gains[against][chosen], None
            if by_design is not None:  # the same rate for all: what differs from it by decoys is no difference
                rates = by_design.rates[chosen]
                rate = float(rates.mean())
                values = values + rates - rate
            item = compare(
                values,
                [self.units[row] for row in chosen],
                measure=measure,
                against=against,
                least=least if isinstance(least, float) else float(least[against][chosen].mean()),
                stratum=name,
                guess=rate,
            )
            if by_design is not None and rate is not None and item.mean is not None and item.p_value is not None:
                shared = by_design.p_value(item.mean + rate, rate, item.least, item.n)
                item = item.model_copy(update={"p_value": max(item.p_value, shared)})
            made.append(item.model_copy(update={"by_design": rate}))
        return tuple(made)


def image_comparisons(
    attack: ScoredGuesses, floors: Mapping[str, ScoredGuesses], strata: Sequence[str], means: Means
) -> tuple[Comparison, ...]:
    """Compare images with floors: their PSNR, and how many lie 3 dB beyond the strongest floor.

    On some targets another guess lies 3 dB beyond the strongest by luck: the share is compared with that of the guess
    that does so most often.
    """
    best, psnr = best_floor(floors), {name: panel.psnr for name, panel in floors.items() if name != NEAREST}
    current = (attack.psnr - psnr[best] >= BEYOND).astype(np.float64)
    gains = {name: attack.psnr - theirs for name, theirs in psnr.items()}
    beyond = {name: current - (theirs - psnr[best] >= BEYOND) for name, theirs in psnr.items() if name != best}
    return means.compare(gains, "images", DECIBELS, strata) + means.compare(beyond, "beyond_3db", IDENTIFIED, strata)


def best_floor(floors: Mapping[str, ScoredGuesses]) -> str:
    """Return the baseline: the guess with the highest mean PSNR, a blind one or the control."""
    names = [name for name in floors if name != NEAREST]
    return max(names, key=lambda name: float(floors[name].psnr.mean()))


def target_rows(
    reconstruction: Reconstruction,
    truths: tuple[Truth, ...],
    attack: ScoredGuesses,
    floor: ScoredGuesses,
    diverged: Sequence[bool],
) -> tuple[Target, ...]:
    """Return ``targets``: one row a target."""
    chosen = reconstruction.objective.gather(1, reconstruction.chosen[:, None])[:, 0].tolist()
    rows = []
    for row, target in enumerate(reconstruction.targets):
        fit = None
        if reconstruction.fits is not None:
            own, shuffled, auxiliary = map(_finite, reconstruction.fits[row].tolist())
            fit = Fit(own=own, shuffled=shuffled, auxiliary=auxiliary)
        rows.append(
            Target(
                round=target.round,
                client=target.client,
                index=target.index,
                label=target.label,
                n_c=truths[row].n_c,
                stratum=stratum(truths[row].n_c),
                psnr_db=float(attack.psnr[row]),
                floor_psnr_db=float(floor.psnr[row]),
                advantage_db=float(attack.psnr[row] - floor.psnr[row]),
                objective=_finite(chosen[row]),
                converged=bool(reconstruction.converged[row]),
                fit=fit,
                specific=None if fit is None else fit.specific,
                diverged=bool(diverged[row]),
            )
        )
    return tuple(rows)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def strata_part(
    truths: tuple[Truth, ...], attack: ScoredGuesses, floor: ScoredGuesses, means: Means
) -> dict[str, Stratum]:
    """Return ``strata``: scores by how many images went into a target; empty strata are left out."""
    results = {}
    for name in STRATA:
        rows = [row for row, truth in enumerate(truths) if stratum(truth.n_c) == name]
        if rows:
            gain = attack.psnr - floor.psnr
            above = means.of(gain, rows)
            results[name] = Stratum(
                n=len(rows),
                share=len(rows) / len(truths),
                psnr_db=means.of(attack.psnr, rows),
                floor_psnr_db=float(floor.psnr[rows].mean()),
                advantage_db=StratumAdvantage(**dict(above), share_3db=float((gain[rows] >= BEYOND).mean())),
            )
    return results


def control_part(floors: Mapping[str, ScoredGuesses], best_blind: str, means: Means) -> ControlResult:
    """Return ``control``: whether the attack on other clients' uploads stays at the baseline."""
    if SHUFFLED not in floors:
        text = "Shuffled uploads (negative control): not run."
        return ControlResult(shuffled=None, floor=None, difference_db=None, passes=None, verdict=text)
    values = floors[SHUFFLED].psnr
    everything, gain = range(len(values)), values - floors[best_blind].psnr
    difference, mean = means.of(gain, everything), float(gain.mean())
    passes = None if difference.ci95 is None else difference.ci95[0] <= 0
    name = LABELS.get(best_blind, best_blind)
    size = f"{abs(mean):.1f} dB {'above' if mean >= 0 else 'below'} the baseline ({name})"
    text = {
        None: f"Shuffled uploads (negative control), one client: the attack scores {size}.",
        True: f"Shuffled uploads (negative control): the attack scores {size}: no leak, as it should be.",
        False: f"Shuffled uploads (negative control): the attack scores {size}: part of what it reaches comes from what "
        "uploads share or from its own prior, not from the target.",
    }[passes]
    shuffled = means.of(values, everything)
    return ControlResult(shuffled=shuffled, floor=best_blind, difference_db=difference, passes=passes, verdict=text)
