"""The parts of a record that are computed from panels: rows, strata, definitions and the control."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpriv.attacks.observation import Reconstruction
from fedpriv.evidence.truth import STRATA, Truth, stratum
from fedpriv.scoring.definitions import TEXTS, Comparison
from fedpriv.scoring.floors import PERMUTED, floor_words
from fedpriv.scoring.intervals import Values, bootstrap_mean, summary
from fedpriv.scoring.panel import Panel
from fedpriv.util.seeds import derive_seed

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Means:
    """Means over this record's targets, with intervals over its clients.

    Attributes:
        clients: ``T`` client numbers, the clusters of the bootstrap.
        seed: the record's seed.
    """

    clients: tuple[int, ...]
    seed: int

    def summary(self, values: Sequence[float] | Values, *purpose: str) -> Record:
        """Return the whole summary of one value a target; ``purpose`` names the draw of its resamples."""
        return summary(values, self.clients, self._rng(*purpose))

    def of(self, values: Values, keep: Sequence[int], *purpose: str) -> Record:
        """Return mean, interval and n over the targets ``keep``."""
        chosen = values[list(keep)]
        interval = bootstrap_mean(chosen, [self.clients[i] for i in keep], self._rng(*purpose))
        return {
            "mean": float(chosen.mean()) if len(chosen) else None,
            "ci95": None if interval is None else list(interval),
            "n": len(chosen),
        }

    def _rng(self, *purpose: str) -> np.random.Generator:
        return np.random.default_rng(derive_seed(self.seed, "bootstrap", *purpose))


def best_floor(floors: Mapping[str, Panel], definition: str) -> str:
    """Return the floor with the highest mean under a definition."""
    return max(floors, key=lambda name: float(floors[name].definition(definition).mean()))


def chosen_objective(reconstruction: Reconstruction) -> list[float | None]:
    """Return the attack's own objective of each target's chosen restart; None where it is not finite."""
    picked = reconstruction.objective.gather(1, reconstruction.chosen[:, None])[:, 0].tolist()
    return [value if math.isfinite(value) else None for value in picked]


def target_rows(
    reconstruction: Reconstruction, truths: tuple[Truth, ...], attack: Panel, floor: Panel, diverged: Sequence[bool]
) -> list[Record]:
    """Return ``targets``: one row a target."""
    objective = chosen_objective(reconstruction)
    return [
        {
            "round": target.round,
            "client": target.client,
            "index": target.index,
            "label": target.label,
            "n_c": truths[row].n_c,
            "stratum": stratum(truths[row].n_c),
            "psnr_db": float(attack.psnr[row]),
            "floor_psnr_db": float(floor.psnr[row]),
            "advantage_db": float(attack.psnr[row] - floor.psnr[row]),
            "objective": objective[row],
            "converged": bool(reconstruction.converged[row]),
            "diverged": bool(diverged[row]),
        }
        for row, target in enumerate(reconstruction.targets)
    ]


def strata_part(truths: tuple[Truth, ...], attack: Panel, floor: Panel, means: Means) -> dict[str, Record]:
    """Return ``strata``: scores by how many images went into a target; empty strata are left out."""
    found = {}
    for name in STRATA:
        rows = [row for row, truth in enumerate(truths) if stratum(truth.n_c) == name]
        if rows:
            gain = (attack.psnr - floor.psnr)[rows]
            found[name] = {
                "n": len(rows),
                "share": len(rows) / len(truths),
                "psnr_db": means.of(attack.psnr, rows, "stratum", name, "psnr"),
                "floor_psnr_db": float(floor.psnr[rows].mean()),
                "advantage_db": {
                    **means.of(attack.psnr - floor.psnr, rows, "stratum", name, "advantage"),
                    "share_3db": float((gain >= 3).mean()),
                },
            }
    return found


def definitions_part(
    attack: Panel, floors: Mapping[str, Panel], beside: Sequence[Comparison], means: Means
) -> dict[str, Record]:
    """Return ``definitions``: every way of counting a hit, each with floors under the same rule."""
    several = max(len(shots) for shots in attack.guesses) > 1
    found: dict[str, Record] = {}
    for name in ("T1", "T2", "T3", "T5") if several else ("T1", "T2", "T3"):
        values, best = attack.definition(name), best_floor(floors, name)
        found[name] = {
            "text": TEXTS[name],
            **means.summary(values, name),
            "floors": {floor: float(panel.definition(name).mean()) for floor, panel in floors.items()},
            "best_floor": best,
            "advantage_db": means.summary(values - floors[best].definition(name), name, "advantage"),
        }
    rows = [row for row, one in enumerate(attack.scores) if one.t2_nonmembers is not None]
    other = np.array([math.nan if one.t2_nonmembers is None else one.t2_nonmembers for one in attack.scores])
    found["T2"]["nonmembers"] = {
        **means.of(other, rows, "T2", "nonmembers"),
        "labels": dict(Counter(one.labels for one in beside)),
    }
    found["T2"]["own_minus_nonmembers_db"] = means.of(attack.definition("T2") - other, rows, "T2", "difference")
    return found


def control_part(floors: Mapping[str, Panel], best_blind: str, means: Means) -> Record:
    """Return ``control``: whether the attack on other clients' uploads stays at the best blind floor."""
    if PERMUTED not in floors:
        return {"permuted": None, "passes": None, "verdict": "Permuted uploads (negative control): not run."}
    values = floors[PERMUTED].psnr
    everything = range(len(values))
    difference = means.of(values - floors[best_blind].psnr, everything, "control", "difference")
    interval = difference["ci95"]
    passes = None if interval is None else interval[0] <= 0
    side = "above" if difference["mean"] >= 0 else "below"
    size = f"{abs(difference['mean']):.1f} dB {side} {floor_words(best_blind)}"
    if passes is None:
        text = f"Permuted uploads (negative control), one target: the attack scores {size}."
    elif passes:
        text = (
            f"Permuted uploads (negative control): the attack scores {size}: nothing beyond a guess, as it should be."
        )
    else:
        text = (
            f"Permuted uploads (negative control): the attack scores {size}: part of what it reaches comes from what "
            "uploads share or from its own prior, not from the target."
        )
    return {
        "permuted": means.of(values, everything, "control", "permuted"),
        "floor": best_blind,
        "difference_db": difference,
        "passes": passes,
        "verdict": text,
    }
