"""What a federation would put on the wire: from sizes that somebody states, or from a division of real data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from fedpriv.datasets.holdings import class_counts
from fedpriv.datasets.types import FederatedData
from fedpriv.federation.method import Method
from fedpriv.models import family
from fedpriv.models.build import build_model, count_parameters, extractor_parameters
from fedpriv.models.split import Blueprint
from fedpriv.util.arguments import argument
from fedpriv.util.config import parse
from fedpriv.util.errors import UserError
from fedpriv.wire.sizes import FederationSizes, total


def model_parameters(blueprint: Blueprint) -> int:
    """Return the number of learnable parameters of a whole model.

    Raises:
        UserError: for an architecture that cannot be built.
    """
    if blueprint.mapping == "fc":  # the one mapping with parameters of its own
        return count_parameters(build_model(blueprint, 0))
    return extractor_parameters(blueprint) + blueprint.width * blueprint.n_classes + blueprint.n_classes


def with_models(
    facts: FederationSizes, models: str, image_shape: tuple[int, int, int], mapping: str = "ap"
) -> FederationSizes:
    """Return facts with the architectures of a family; client k takes the k-th, as in a run.

    Raises:
        UserError: for unknown models and images they cannot take.
    """
    names = family(models)
    blueprints = [
        Blueprint(names[k % len(names)], image_shape, facts.classes, facts.width, mapping) for k in range(facts.clients)
    ]
    sizes = {blueprint: model_parameters(blueprint) for blueprint in set(blueprints)}
    return replace(
        facts,
        blueprint=blueprints[0],
        model_scalars=sizes[blueprints[0]],
        all_model_scalars=sum(sizes[blueprint] for blueprint in blueprints),
    )


def held(federated: FederatedData) -> dict[str, int]:
    """Return ``classes``, ``pairs``, ``known_classes`` and ``samples`` of a division's training splits."""
    counts = class_counts(federated)
    return {
        "classes": federated.dataset.n_classes,
        "pairs": int(np.count_nonzero(counts)),
        "known_classes": int(np.count_nonzero(counts.sum(0))),
        "samples": int(counts.sum()),
    }


def communication(
    method: Method, facts: FederationSizes, options: Mapping[str, Any], *, mixed: bool = False
) -> dict[str, Any]:
    """Return a settled round's communication over all clients, under the names that a run's summary has.

    Args:
        method: that is planned.
        facts: sizes; its ``options`` are ignored.
        options: the method's own options, as a user gives them.
        mixed: whether clients have different architectures.

    Raises:
        UserError: when an option is wrong, or a size that it depends on is not known.
    """
    if mixed and method.homogeneous:
        raise UserError(
            f"method {method.name!r} needs one architecture for all clients: pass one in {argument('models')}"
        )
    parsed: Any = parse(method.options, options, f"options of {method.name}")
    counts = total(method.message_sizes(replace(facts, options=parsed)))
    return {kind: {f"{key}_per_round": value for key, value in asdict(own).items()} for kind, own in counts.items()}
