"""A federation before it runs, as its method and its defenses are told of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpriv.federation.defense import ProtectionPlan
from fedpriv.federation.local_training import has_batch_norm, steps
from fedpriv.federation.method import ClientSetup, Method, Plan
from fedpriv.federation.run_directory import RunConfig
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError


def protection_plan(config: RunConfig, method: Method, setups: Sequence[ClientSetup]) -> ProtectionPlan:
    """Return a federation as defenses are told of it."""
    options, blueprints = setups[0].options, tuple(setup.blueprint for setup in setups)
    local_phases = method.local_phases(options, config.training)
    return ProtectionPlan(
        method=method.name,
        uploads=method.uploads,
        accepted_substitutes=method.accepted_substitutes,
        blueprints=blueprints,
        n_clients=config.clients,
        rounds=config.rounds,
        train_sizes=tuple(len(setup.train) for setup in setups),
        batch_size=config.training.batch_size,
        epochs=config.training.epochs,
        max_steps=config.training.max_steps,
        broadcasts=method.broadcasts,
        options=options,
        linear_aggregation=method.linear_aggregation,
        trained=tuple(dict.fromkeys((*blueprints, *(method.shared(own, options) for own in blueprints)))),
        steps=tuple(sum(steps(len(setup.train), training) for training in local_phases) for setup in setups),
        non_sgd_computation=method.non_sgd_computation(options),
    )


def check_plan(method: Method, setups: Sequence[ClientSetup], options: Any, *, has_public: bool) -> None:
    """Check that a method can run on these clients."""
    names = sorted({setup.blueprint.name for setup in setups})
    if method.homogeneous and len(names) > 1:
        raise UserError(
            f"method {method.name!r} needs one architecture for all clients, but {argument('models')} gives "
            f"{', '.join(names)}; pass one model, for example {argument('models', names[0])}"
        )
    if method.needs_public and not has_public:
        raise UserError(f"method {method.name!r} needs public images; set some aside with {argument('public')} N")
    for setup in setups:
        if len(setup.train) < 2 and has_batch_norm(setup.model):
            raise UserError(
                f"client {setup.client} holds one training image, but {setup.blueprint.name} has batch normalisation, "
                f"which needs two; use fewer clients, more data, another model or a larger {argument('least_per_client')}"
            )
    method.check(
        Plan(
            blueprints=tuple(setup.blueprint for setup in setups),
            options=options,
            has_public=has_public,
            train_sizes=tuple(len(setup.train) for setup in setups),
            training=setups[0].training,
        )
    )
