"""How much one client uploads in a round, from an attack's ``about.json``: in scalars, numbers of 32 bits, and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def scalars_per_client(about: Mapping[str, Any]) -> float:
    """Return how many scalars one client uploads in a round, everything counted."""
    return float(about["communication"]["full"]["upload_scalars_per_round"]) / _clients(about)


def words_per_client(about: Mapping[str, Any]) -> float:
    """Return what one client uploads in a round in numbers of 32 bits.

    What the field's habit counts is counted by its bits, so that rounding, signs and pruning gain what they save;
    labels, ids and counts are one number each. Without an encoder this is the number of scalars.
    """
    paper, full = about["communication"]["paper"], about["communication"]["full"]
    beside = full["upload_scalars_per_round"] - paper["upload_scalars_per_round"]
    return float(paper["upload_bytes_per_round"] / 4 + beside) / _clients(about)


def bytes_per_client(about: Mapping[str, Any]) -> float:
    """Return how many bytes one client uploads in a round, everything counted."""
    return float(about["communication"]["full"]["upload_bytes_per_round"]) / _clients(about)


def _clients(about: Mapping[str, Any]) -> int:
    """Return how many clients take part in a round."""
    run = about["run"]
    clients: int = max(1, round(run["clients"] * run.get("participation", 1.0)))
    return clients
