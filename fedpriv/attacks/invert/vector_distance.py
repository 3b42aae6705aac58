"""Distances of images from the vectors that were uploaded, each by its own client's extractor."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.inputs.extractors import OwnExtractors, require_extractors
from fedpriv.attacks.inputs.targets import target_feature
from fedpriv.attacks.optim.objectives import DISTANCES, Match, squared_length
from fedpriv.util.last import Last
from fedpriv.wire.kinds import VECTORS, Kinds


def vector_distance(
    problem: AttackProblem, match: Match = "vector", kinds: Kinds = VECTORS
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the distance of the mean representation of a row's images from its target's uploaded vector.

    (images ``(n, M, c, h, w)``, places ``(n,)`` int64 of their targets, on the CPU) -> ``(n,)``. Each upload holds one
    payload of the kinds.

    Raises:
        UserError: when an extractor is missing, or a target is not there.
    """
    knowledge, targets = problem.knowledge, problem.targets
    require_extractors(knowledge, targets)
    wanted = torch.stack([target_feature(problem.observations, one, kinds).to(problem.device) for one in targets])
    owners, extracted = torch.tensor([target.client for target in targets]), OwnExtractors(knowledge)

    @Last
    def own(places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        aims = wanted[places.to(wanted.device)]
        return owners[places], aims, squared_length(aims)

    repeated: dict[int, Last[Tensor, Tensor]] = {}

    def distance(images: Tensor, places: Tensor) -> Tensor:
        number = images.shape[1]
        whose, aims, squares = own(places)
        if number > 1:
            each = repeated.setdefault(number, Last(lambda owners: owners.repeat_interleave(number)))
            features = extracted(images.flatten(0, 1), each(whose)).unflatten(0, (-1, number)).mean(1)
        else:
            features = extracted(images.flatten(0, 1), whose)
        return DISTANCES[match](features, aims, squares)

    return distance
