"""Operations of a planned federation: its method's client steps on images of noise, of sizes that somebody states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fedpriv.datasets.types import Samples
from fedpriv.federation.method import ClientSetup, LocalTraining, Method, ServerSetup
from fedpriv.federation.operations import client_operations, random_images
from fedpriv.federation.plans import check_plan
from fedpriv.federation.prepared import ModelCache
from fedpriv.models.split import Blueprint
from fedpriv.util.config import parse
from fedpriv.util.errors import UserError


@dataclass(frozen=True)
class PlannedClients:
    """The clients of a federation that is not trained.

    Attributes:
        blueprints: the architecture of each.
        train_sizes: training images of each.
        training: how they train.
        public: public images of the server, 0 for none.
    """

    blueprints: tuple[Blueprint, ...]
    train_sizes: tuple[int, ...]
    training: LocalTraining
    public: int = 0


def planned_operations(method: Method, clients: PlannedClients, options: Mapping[str, Any]) -> dict[str, float]:
    """Return operations of a client in a settled round, mean over clients, as ``summary.json`` counts them.

    Args:
        method: whose client steps.
        clients: who takes part.
        options: of the method.

    Returns:
        ``per_client_round``, ``local_training_per_client_round`` (training the private model by cross-entropy alone),
        their ``ratio_to_local``, and ``prediction_per_image``. A multiplication with its addition counts as two.

    Raises:
        UserError: where the method cannot run on these clients, or its client step cannot be counted.
    """
    parsed: Any = parse(method.options, options, f"options of {method.name}")
    device = torch.device("cpu")
    cache = ModelCache(device)
    pixel = torch.zeros(())
    public = random_images(clients.public, clients.blueprints[0], device) if clients.public else None
    handed = public if method.needs_public else None
    setups = tuple(
        ClientSetup(
            client=k,
            blueprint=own,
            model=cache(own),
            train=Samples(
                pixel.expand(size, *own.image_shape), torch.zeros(size, dtype=torch.int64)
            ),  # never looked at
            training=clients.training,
            options=parsed,
            scratch=cache,
            public=None if handed is None else handed.images,
            public_labels=None if handed is None else handed.labels,
        )
        for k, (own, size) in enumerate(zip(clients.blueprints, clients.train_sizes, strict=True))
    )
    check_plan(method, setups, parsed, has_public=clients.public > 0)
    server = ServerSetup(
        n_clients=len(setups),
        blueprint=setups[0].blueprint,
        options=parsed,
        scratch=cache,
        device=device,
        public=None if public is None else public.images,
        blueprints=clients.blueprints,
    )
    found = client_operations(method, setups, server)
    if found.mean_per_client_round is None or found.ratio_to_local is None:
        raise UserError(
            f"operations of method {method.name!r} cannot be counted: {found.not_counted or 'nobody trains'}"
        )
    return {
        "per_client_round": found.mean_per_client_round,
        "local_training_per_client_round": found.mean_local_training_per_client_round,
        "ratio_to_local": found.ratio_to_local,
        "prediction_per_image": sum(found.prediction_per_image) / len(found.prediction_per_image),
    }
