"""The search on whole updates that an attack hands the update to, once it has made one of what was uploaded."""

from __future__ import annotations

from fedpriv.attacks.contract import Attack
from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.gradients.inverting_gradients import GradientDip, InvertingGradients
from fedpriv.attacks.gradients.linear_layer import LinearLayer

_CALLS = 20
"""Steps in a call of L-BFGS."""


def inner_search(name: str, iterations: int, restarts: int) -> Attack:
    """Return ``dlg``, ``gradient-dip``, ``linear-layer`` or ``inverting-gradients`` with its budget.

    Args:
        name: of the attack.
        iterations: of the search; ``dlg`` makes a call of L-BFGS of every twenty.
        restarts: rows a target.
    """
    if name == "dlg":
        return DeepLeakage(outer_steps=-(-iterations // _CALLS), restarts=restarts)
    if name == "gradient-dip":
        return GradientDip(iterations=iterations, restarts=restarts)
    if name == "linear-layer":
        return LinearLayer(iterations=iterations, restarts=restarts)
    return InvertingGradients(iterations=iterations, restarts=restarts)
