"""A small homogeneous model that travels while every client keeps a private model: FedMRL, FML, FedAPEN and FedKD.

The option ``small_model`` names its architecture; ``auto`` is the 4-layer CNN of HtFLlib and FedRE's tables, or
``small-cnn`` for images too small for that (FedMRL's is ``cnn-5``). Small models end in average pooling to their width.

Initial weights of the small model and of a client's own come from different seeds: two equal models would see the same
batches, stay equal, and teach each other nothing.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import nn

from fedpriv.federation.local_training import has_batch_norm
from fedpriv.federation.method import ClientSetup, Plan, ServerSetup, Uploads
from fedpriv.federation.states import State, outer, parameters, put, take, weighted_mean
from fedpriv.methods.shared.weights import draw_seed
from fedpriv.models.build import build_model, extractor_parameters
from fedpriv.models.cnn import LEAST_SIDE
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.util.errors import UserError, shown
from fedpriv.util.seeds import derive_seed
from fedpriv.wire.payloads import Message, SmallModel, get_payload

AUTO = "auto"


def small_blueprint(blueprint: Blueprint, name: str, width: int | None = None, usual: str = "cnn4") -> Blueprint:
    """Return the small model's architecture, from any client's.

    Args:
        blueprint: a client's own architecture.
        name: a model's, or ``auto``.
        width: of the representation; None takes the shared one.
        usual: the meaning of ``auto`` where images are large enough for it.
    """
    if name == AUTO:
        name = usual if min(blueprint.image_shape[1:]) >= LEAST_SIDE else "small-cnn"
    return dataclasses.replace(blueprint, name=name, width=width or blueprint.width, mapping="ap")


def shared_small(blueprint: Blueprint, options: Any) -> Blueprint:
    """Return the small model's architecture of the option ``small_model``, of the shared width."""
    return small_blueprint(blueprint, options.small_model)


def small_scratch(setup: ClientSetup, blueprint: Blueprint) -> SplitModel:
    """Return a scratch module of the small model that is another object than ``setup.model``."""
    module = setup.scratch(blueprint)
    return copy.deepcopy(module) if module is setup.model else module


def initial_small(blueprint: Blueprint, seed: int) -> SplitModel:
    """Return the initial small model, given the seed of the private models."""
    return build_model(blueprint, derive_seed(seed, "small model"))


def init_both(setup: ClientSetup, small: Blueprint, seed: int) -> State:
    """Return the initial private and small model."""
    return take(build_model(setup.blueprint, seed), "model") | take(initial_small(small, seed), "small")


def init_receiving(setup: ClientSetup, rng: torch.Generator) -> State:
    """Return the initial private model, and buffers for the small model, which arrives with every broadcast."""
    seed = draw_seed(rng)
    small = initial_small(shared_small(setup.blueprint, setup.options), seed)
    return take(build_model(setup.blueprint, seed), "model") | buffers(small)


def load(setup: ClientSetup, state: State) -> tuple[SplitModel, SplitModel]:
    """Return the private and the small model with the weights of a state."""
    small = small_scratch(setup, shared_small(setup.blueprint, setup.options))
    put(setup.model, state, "model")
    put(small, state, "small")
    return setup.model, small


def buffers(module: nn.Module) -> State:
    """Return copies of a small model's persistent buffers: all that a client keeps of a model that it gets every round."""
    learnable = {name for name, _ in module.named_parameters()}
    kept = {name: value for name, value in module.state_dict().items() if name not in learnable}
    return {f"small.{name}": value.detach().clone() for name, value in kept.items()}


def receive_small(setup: ClientSetup, state: State, broadcast: Message) -> State:
    """Replace the small model's parameters by the broadcast ones; its buffers stay."""
    weights = get_payload(broadcast, SmallModel).state
    return state | outer({name: value.clone() for name, value in weights.items()}, "small")


def start_small(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Build the initial small model and broadcast it."""
    return start_of(shared_small(setup.blueprint, setup.options), setup, rng)


def start_of(blueprint: Blueprint, setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Build the initial small model of an architecture and broadcast it."""
    weights = parameters(initial_small(blueprint, draw_seed(rng)).to(setup.device))
    return outer(weights, "small"), (SmallModel(weights),)


def average_small(uploads: Uploads, shares: list[int]) -> tuple[State, Message]:
    """Average a round's small models by shares; return the mean as state and as broadcast."""
    mean = weighted_mean([get_payload(upload, SmallModel).state for _, upload in uploads], shares)
    return outer(mean, "small"), (SmallModel(mean),)


def plain_mean(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Take the plain mean of a round's small models and broadcast it."""
    return average_small(uploads, [1] * len(uploads))


def check_shared(plan: Plan) -> None:
    """Refuse a small model that does not exist or does not fit the images."""
    check_small(plan, shared_small(plan.blueprints[0], plan.options))


def check_small(plan: Plan, blueprint: Blueprint) -> None:
    """Refuse a small model that does not exist, cannot take the images, or cannot train on a client's few images."""
    extractor_parameters(blueprint)
    if min(plan.train_sizes) < 2 and has_batch_norm(build_model(blueprint, 0)):
        raise UserError(
            f"client {plan.train_sizes.index(min(plan.train_sizes))} holds one training image, but the small model "
            f"{blueprint.name} has batch normalisation, which needs two; pass "
            f"option={shown({'small_model': 'small-cnn'})}, fewer clients or more data"
        )
