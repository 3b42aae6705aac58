"""Representations that were computed once, for as long as images and weights stand.

A client is scored on the same images several times: after training and after the broadcast, by one way to predict and by
another. Mostly its extractor has not changed in between: prototypes or a head came, or nothing did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class _Kept:
    images: Tensor
    weights: Mapping[str, Tensor]
    features: Tensor


@dataclass(frozen=True)
class Seen:
    """The newest representations of images by each of a client's models.

    Images and weights are known again as the very tensors that they were: a state is never changed in place.
    """

    _kept: dict[str, _Kept] = field(default_factory=dict)

    def features(
        self, prefix: str, state: Mapping[str, Tensor], images: Tensor, compute: Callable[[], Tensor]
    ) -> Tensor:
        """Return representations ``(n, d)`` of images ``(n, c, h, w)`` by one model of a state, computed only where needed.

        Args:
            prefix: of the model in the state.
            state: holds its weights; the head's have no part in a representation.
            images: what is represented.
            compute: represents them.
        """
        of_head = f"{prefix}.head."
        weights = {n: one for n, one in state.items() if n.startswith(f"{prefix}.") and not n.startswith(of_head)}
        kept = self._kept.get(prefix)
        if kept is None or kept.images is not images or not _same(kept.weights, weights):
            kept = self._kept[prefix] = _Kept(images, weights, compute())
        return kept.features


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(other[name] is value for name, value in one.items())
