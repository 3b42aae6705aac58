"""The parts of a record that are computed from panels: rows, strata, definitions and the control."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from fedpriv.attacks.observation import Reconstruction
from fedpriv.scoring import effects
from fedpriv.scoring.chance import ByDesign
from fedpriv.scoring.convergence import is_specific
from fedpriv.scoring.definitions import TEXTS, ComparisonSet
from fedpriv.scoring.floors import NEAREST, SHUFFLED, floor_words
from fedpriv.scoring.intervals import Kind, Values, clustered, compare, finite_summary, summary
from fedpriv.scoring.panel import ScoredGuesses
from fedpriv.scoring.records import Comparison, Estimate, FiniteSummary, Measure, Summary
from fedpriv.scoring.records.reconstruction import (
    ControlResult,
    Definition,
    Fit,
    NonMembers,
    Stratum,
    StratumAdvantage,
    Target,
)
from fedpriv.sources.truth import STRATA, Truth, stratum

BEYOND = 3.0
"""An image so many dB beyond the strongest guess has come back."""


@dataclasses.dataclass(frozen=True)
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
            if (
                by_design is not None
            ):  # the same rate for all, their mean: what differs from it by decoys is no difference
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
    best, psnr = best_floor(floors, "T1"), {name: panel.psnr for name, panel in floors.items() if name != NEAREST}
    current = (attack.psnr - psnr[best] >= BEYOND).astype(np.float64)
    return means.compare(
        {name: attack.psnr - theirs for name, theirs in psnr.items()}, "images", effects.DECIBELS, strata
    ) + means.compare(
        {name: current - (theirs - psnr[best] >= BEYOND) for name, theirs in psnr.items() if name != best},
        *("beyond_3db", effects.IDENTIFIED, strata),
    )


def best_floor(floors: Mapping[str, ScoredGuesses], definition: str) -> str:
    """Return the floor with the highest mean under a definition: a blind guess, or the control."""
    names = [name for name in floors if name != NEAREST]
    return max(names, key=lambda name: float(floors[name].definition(definition).mean()))


def chosen_objective(reconstruction: Reconstruction) -> list[float | None]:
    """Return the attack's own objective of each target's chosen restart; None where it is not finite."""
    picked = reconstruction.objective.gather(1, reconstruction.chosen[:, None])[:, 0].tolist()
    return [value if math.isfinite(value) else None for value in picked]


def _fits(reconstruction: Reconstruction) -> list[Fit | None]:
    if reconstruction.fits is None:
        return [None] * len(reconstruction.targets)
    rows = [[value if math.isfinite(value) else None for value in row] for row in reconstruction.fits.tolist()]
    return [Fit(own=current, shuffled=shuffled, auxiliary=auxiliary) for current, shuffled, auxiliary in rows]


def target_rows(
    reconstruction: Reconstruction,
    truths: tuple[Truth, ...],
    attack: ScoredGuesses,
    floor: ScoredGuesses,
    diverged: Sequence[bool],
) -> tuple[Target, ...]:
    """Return ``targets``: one row a target."""
    objective = chosen_objective(reconstruction)
    fits = _fits(reconstruction)
    return tuple(
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
            objective=objective[row],
            converged=bool(reconstruction.converged[row]),
            fit=fits[row],
            specific=is_specific(fits[row]),
            diverged=bool(diverged[row]),
        )
        for row, target in enumerate(reconstruction.targets)
    )


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


def definitions_part(
    attack: ScoredGuesses, floors: Mapping[str, ScoredGuesses], beside: Sequence[ComparisonSet], means: Means
) -> dict[str, Definition]:
    """Return ``definitions``: every way of counting a hit, each with floors under the same rule."""
    several = max(len(shots) for shots in attack.guesses) > 1
    definitions: dict[str, Definition] = {}
    for name in ("T1", "T2", "T3", "T5") if several else ("T1", "T2", "T3"):
        values, best = attack.definition(name), best_floor(floors, name)
        definitions[name] = Definition(
            **dict(means.finite(values)),
            text=TEXTS[name],
            floors={floor: float(panel.definition(name).mean()) for floor, panel in floors.items()},
            best_floor=best,
            advantage_db=means.finite(values - floors[best].definition(name)),
        )
    rows = [row for row, entry in enumerate(attack.scores) if entry.t2_nonmembers is not None]
    other = np.array([math.nan if score.t2_nonmembers is None else score.t2_nonmembers for score in attack.scores])
    labels = Counter[str](item.labels for item in beside)
    against = {
        "nonmembers": NonMembers(**dict(means.of(other, rows)), labels=labels),
        "own_minus_nonmembers_db": means.of(attack.definition("T2") - other, rows),
    }
    return definitions | {"T2": definitions["T2"].model_copy(update=against)}


def control_part(floors: Mapping[str, ScoredGuesses], best_blind: str, means: Means) -> ControlResult:
    """Return ``control``: whether the attack on other clients' uploads stays at the best blind floor."""
    if SHUFFLED not in floors:
        text = "Shuffled uploads (negative control): not run."
        return ControlResult(shuffled=None, floor=None, difference_db=None, passes=None, verdict=text)
    values = floors[SHUFFLED].psnr
    everything = range(len(values))
    gain = values - floors[best_blind].psnr
    difference = means.of(gain, everything)
    passes = None if difference.ci95 is None else difference.ci95[0] <= 0
    mean = float(gain.mean())
    size = f"{abs(mean):.1f} dB {'above' if mean >= 0 else 'below'} {floor_words(best_blind)}"
    if passes is None:
        text = f"Shuffled uploads (negative control), one client: the attack scores {size}."
    elif passes:
        text = (
            f"Shuffled uploads (negative control): the attack scores {size}: nothing beyond a guess, as it should be."
        )
    else:
        text = (
            f"Shuffled uploads (negative control): the attack scores {size}: part of what it reaches comes from what "
            "uploads share or from its own prior, not from the target."
        )
    shuffled = means.of(values, everything)
    return ControlResult(shuffled=shuffled, floor=best_blind, difference_db=difference, passes=passes, verdict=text)
