"""Cells of a claim that follow from sizes alone: communication and computation, without training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv.experiment.reproduction.settings import Place, measure_of, sizes_of
from fedpriv.experiment.verbs.counting import MethodTraffic, cost
from fedpriv.pages.claims import Claim, Measure
from fedpriv.util.errors import UserError

_OPERATIONS = {
    "round": "per_client_round",
    "local training": "local_training_per_client_round",
    "ratio": "ratio_to_local",
    "prediction": "prediction_per_image",
}


def counted(claim: Claim, place: Place) -> tuple[float | None, str]:
    """Return the value of a cell in its unit, or None with the size that is not known."""
    measure, sizes = measure_of(claim, place), sizes_of(claim, place)
    sizes |= {"operations": True} if measure.what == "operations" else {}
    try:
        found = cost(str(place.method), **sizes)
    except UserError as error:
        return None, str(error)
    return _value(found.methods[0], measure, int(sizes.get("clients", 10))) / measure.every, ""


def _value(found: MethodTraffic, measure: Measure, clients: int) -> float:
    if measure.what == "operations":
        own = found["operations"][_OPERATIONS[measure.operations]]
        return own * (
            clients if measure.per == "all clients" and measure.operations in ("round", "local training") else 1
        )
    counts: Mapping[str, Any] = found["communication"][measure.count]
    ways = ("upload", "broadcast") if measure.what == "both" else (measure.what,)
    total = sum(counts[f"{way}_{'bytes' if measure.bytes else 'scalars'}_per_round"] for way in ways)
    return float(total) / (clients if measure.per == "client" else 1)
