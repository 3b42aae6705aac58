"""Which of several points no other betters in all objectives, and the volume that they dominate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


def nondominated(objectives: Values) -> NDArray[np.bool_]:
    """Return which of n points no other betters: none is at most as large in every objective and smaller in one.

    Args:
        objectives: ``(n, k)``, all to be minimised. Equal points do not dominate one another.
    """
    points = np.asarray(objectives, dtype=np.float64)
    no_worse = (points[:, None] <= points[None]).all(axis=2)
    better = (points[:, None] < points[None]).any(axis=2)
    return np.asarray(~(no_worse & better).any(axis=0))


def hypervolume(objectives: Values, reference: Sequence[float]) -> float:
    """Return the exact volume that points dominate below a reference point.

    Source: Zitzler and Thiele 1998. Two objectives by a sweep, three by slicing along the last.

    Args:
        objectives: ``(n, 2)`` or ``(n, 3)``, all to be minimised; points beyond the reference add nothing.
        reference: the worst corner.

    Raises:
        ValueError: for another number of objectives.
    """
    points, corner = np.asarray(objectives, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] not in (2, 3) or corner.shape != points.shape[1:]:
        raise ValueError(f"expected (n, 2) or (n, 3) objectives and as long a reference, got {points.shape}")
    points = points[(points < corner).all(axis=1)]
    if points.shape[1] == 2:
        return _area(points, corner)
    points = points[np.argsort(points[:, 2], kind="stable")]
    ends = np.append(points[1:, 2], corner[2])
    return float(
        sum(_area(points[: i + 1, :2], corner[:2]) * (end - points[i, 2]) for i, end in enumerate(ends[: len(points)]))
    )


def _area(points: Values, corner: Values) -> float:
    total, height = 0.0, float(corner[1])
    for x, y in points[np.lexsort((points[:, 1], points[:, 0]))].tolist():
        if y < height:
            total += (float(corner[0]) - x) * (height - y)
            height = y
    return total
