"""Guarantees of differential privacy as a page tells them: the figure, and every condition under which it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NAMES = {
    "unit": "unit",
    "neighbours": "neighbours",
    "given": "given",
    "sampling": "sampling",
    "sample_rate": "sampling rate at most",
    "noise_multiplier": "noise multiplier",
    "clip": "clipping bound",
    "bound": "clipping bound",
    "norm": "norm",
    "sensitivity": "sensitivity",
    "model_changes": "models were changed",
    "not_protected": "not protected",
    "accountant": "accountant",
}
"""Fields of a record in the order in which they are told; others come behind under their own names, so none is lost."""

_FIGURE = ("defense", "epsilon", "epsilon_of_weights", "delta", "releases")


@dataclass(frozen=True)
class Guarantee:
    """A guarantee accounted over a whole run.

    Attributes:
        told: of which upload, by which defense, epsilon and delta over how many releases.
        conditions: (name, value) of everything it rests on, as the defense states it.
    """

    told: str
    conditions: tuple[tuple[str, str], ...]


def guarantee(name: str, record: Mapping[str, Any]) -> Guarantee:
    """Return a guarantee as a page tells it.

    Args:
        name: of the upload.
        record: an entry of ``privacy`` of a run's ``summary.json``.
    """
    spent, of_weights = record.get("epsilon"), record.get("epsilon_of_weights")
    if spent is not None:
        text = f"epsilon {spent:.4g}"
    elif of_weights is not None:
        text = f"epsilon {of_weights:.4g} of the trained weights, none of uploads"
    else:
        text = "no guarantee"
    delta = f", delta {record['delta']:g}" if record.get("delta") else ""
    keys = [*_NAMES, *(key for key in record if key not in _NAMES and key not in _FIGURE)]
    return Guarantee(
        f"{name}, {record['defense']}: {text}{delta} over {record.get('releases', '?')} releases",
        tuple(
            (_NAMES.get(key, key.replace("_", " ")), _written(record[key]))
            for key in keys
            if record.get(key) not in (None, "", [])
        ),
    )


def _written(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(_written(item) for item in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
