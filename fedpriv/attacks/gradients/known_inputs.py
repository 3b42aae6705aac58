"""Distances of candidates from what is known to have gone into a fully connected layer, an image each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.gradients.layer_inputs import LayerInputs
from fedpriv.attacks.optim.objectives import relative_feature_distance, squared_length


@dataclass(frozen=True)
class Known:
    """Inputs of a layer that are known of the images of one step.

    Attributes:
        view: images to the layer's inputs.
        inputs: ``(n, k)``, one row an image.
        sure: ``(n,)`` whether an image's own inputs are known; the others are not asked for.
    """

    @classmethod
    def of_all(cls, view: LayerInputs, inputs: Tensor) -> Known:
        """Return the inputs of images of which all are sure."""
        return cls(view, inputs, torch.ones(len(inputs), dtype=torch.bool))

    view: LayerInputs
    inputs: Tensor
    sure: Tensor


class KnownInputs:
    """Distances of N rows' candidates; rows of which nothing is known have none.

    Which rows are asked for is looked at only where it is another tensor than the last time, or was written to.
    """

    def __init__(self, known: Sequence[Known | None]) -> None:
        self._known = known
        self._asked: tuple[Tensor, int, list[_Share]] | None = None

    def distance(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the relative squared distance ``(R,)``, mean over each row's own images of ``(R, M, c, h, w)``."""
        found = images.new_zeros(len(images))
        for share in self._shares(rows, images.device):
            inputs = share.view(images[share.places, : share.count].flatten(0, 1))
            apart = relative_feature_distance(inputs, share.wanted, share.square).view(-1, share.count)
            found = found.index_copy(0, share.places, (apart * share.sure).mean(1))
        return found

    def _shares(self, rows: Tensor, device: torch.device) -> list[_Share]:
        if self._asked is None or self._asked[0] is not rows or self._asked[1] != rows._version:
            self._asked = rows, rows._version, self._grouped(rows.tolist(), device)
        return self._asked[2]

    def _grouped(self, rows: list[int], device: torch.device) -> list[_Share]:
        """Return the asked rows by their layer's weights and number of images."""
        places: dict[tuple[int, int], list[int]] = {}
        for place, row in enumerate(rows):
            one = self._known[row]
            if one is not None:
                places.setdefault((id(one.view), len(one.inputs)), []).append(place)
        return [self._share([rows[place] for place in own], own, device) for own in places.values()]

    def _share(self, rows: list[int], places: list[int], device: torch.device) -> _Share:
        known = [one for one in (self._known[row] for row in rows) if one is not None]
        wanted = torch.cat([one.inputs for one in known]).to(device)
        sure = torch.stack([one.sure for one in known]).to(wanted)
        number = len(known[0].inputs)
        there = torch.tensor(places, device=device)
        return _Share(known[0].view, number, wanted, squared_length(wanted), sure, there)


@dataclass(frozen=True)
class _Share:
    """Asked rows, at ``places``, of one layer and number of images, with what is known of them.

    ``wanted`` is what went in ``(R * n, k)``, ``square`` its squares, ``sure`` whether it is known ``(R, n)``.
    """

    view: LayerInputs
    count: int
    wanted: Tensor
    square: Tensor
    sure: Tensor
    places: Tensor
