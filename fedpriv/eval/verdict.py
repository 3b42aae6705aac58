"""One plain sentence that the numbers of a record support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv.eval.floors import LABELS


def verdict(record: Mapping[str, Any]) -> str:
    """Return the verdict on an attack from its ``metrics.json`` record."""
    advantage = record["advantage_db"]
    mean, interval, share = advantage["mean"], advantage["ci95"], advantage["share_3db"]
    n_targets = record["n_targets"]
    floor = LABELS.get(advantage["best_floor"], advantage["best_floor"])
    side = "above" if mean >= 0 else "below"
    reached = record["metrics"]["psnr_db"]["mean"]
    facts = f"mean PSNR {reached:.1f} dB, {abs(mean):.1f} dB {side} the best blind guess ({floor}"
    if interval is None:
        return f"One target, so no interval: {facts})."
    low, high = interval
    facts += f"; 95 % interval of the difference {low:.1f} to {high:.1f} dB)"
    beaten = f"{100 * share:.0f} % of {n_targets} targets"
    if low > 0:
        return f"Leaks: {facts}; {beaten} beat it by 3 dB or more."
    if high < 0:
        tail = f", yet {beaten} beat it by 3 dB or more" if share > 0 else ""
        return f"Worse than a blind guess: {facts}{tail}; a failing attack, not proof of a safe upload."
    tail = f"; yet {beaten} beat it by 3 dB or more" if share > 0 else ""
    lead = "No leak beyond a blind guess" + (" on average" if share > 0 else "")
    return f"{lead}: {facts}{tail}."


def verdict_kind(record: Mapping[str, Any]) -> str:
    """Return "leaks", "none", "worse" or "single": which of the four cases :func:`verdict` states."""
    interval = record["advantage_db"]["ci95"]
    if interval is None:
        return "single"
    return "leaks" if interval[0] > 0 else "worse" if interval[1] < 0 else "none"
