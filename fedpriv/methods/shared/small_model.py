"""A small homogeneous model that travels while every client keeps a private model of any architecture.

Shared by FedMRL, FML, FedAPEN and FedKD. The option ``small_model`` names its architecture. Left at ``auto`` it is the
4-layer CNN, which HtFLlib and the tables of FedRE share, or ``small-cnn`` for images too small for that: a client knows
the image shape but not its neighbours' models. (FedMRL's own is ``cnn-5``, which the papers of FedMRL and FedRAL let FML
and FedKD share too.) Small models end in average pooling to their width, which has no parameters, whatever the private
models use.

Initial weights of the small model and of a client's own model come from different seeds: started equal, two models of
one architecture would see the same batches, stay equal, and teach each other nothing.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.federation.local_training import has_batch_norm
from fedpriv.federation.method import ClientSetup, Plan, ServerSetup, State, Uploads
from fedpriv.federation.states import outer, parameters, weighted_mean
from fedpriv.methods.shared.personal_model import draw_seed
from fedpriv.models.build import build_model, extractor_parameters
from fedpriv.models.cnn import LEAST_SIDE
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed
from fedpriv.wire.payloads import Message, SmallModel, get_payload

AUTO = "auto"


def small_blueprint(own: Blueprint, name: str, width: int | None = None, usual: str = "cnn4") -> Blueprint:
    """Return the small model's architecture, from any client's.

    Args:
        own: a client's own architecture.
        name: a model's, or ``auto``.
        width: of the representation; None takes the shared one.
        usual: what ``auto`` stands for where images are large enough for it.
    """
    if name == AUTO:
        name = usual if min(own.image_shape[1:]) >= LEAST_SIDE else "small-cnn"
    return dataclasses.replace(own, name=name, width=width or own.width, mapping="ap")


def shared_small(own: Blueprint, options: Any) -> Blueprint:
    """Return the small model's architecture from options that name it and leave its width to the shared one."""
    return small_blueprint(own, options.small_model)


def small_scratch(setup: ClientSetup, blueprint: Blueprint) -> SplitModel:
    """Return a scratch module of the small model that is another object than ``setup.model``."""
    module = setup.scratch(blueprint)
    return copy.deepcopy(module) if module is setup.model else module


def initial_small(blueprint: Blueprint, seed: int) -> SplitModel:
    """Return the small model that everybody starts from, given the seed that the private models are built with."""
    return build_model(blueprint, derive_seed(seed, "small model"))


def start_small(setup: ServerSetup, blueprint: Blueprint, seed: int) -> tuple[State, Message]:
    """Build the initial small model and broadcast it."""
    weights = parameters(initial_small(blueprint, seed).to(setup.device))
    return outer(weights, "small"), (SmallModel(weights),)


def buffers(module: nn.Module, prefix: str) -> State:
    """Return copies of a module's persistent buffers: all that a client keeps of a model that it gets every round."""
    learnable = {name for name, _ in module.named_parameters()}
    kept = {name: value for name, value in module.state_dict().items() if name not in learnable}
    return {f"{prefix}.{name}": value.detach().clone() for name, value in kept.items()}


def received(state: State, weights: Mapping[str, Tensor]) -> State:
    """Return the state with the small model's parameters replaced by broadcast ones; its buffers stay."""
    return state | outer({name: value.clone() for name, value in weights.items()}, "small")


def receive_small(setup: ClientSetup, state: State, broadcast: Message) -> State:
    """Replace the small model's parameters by the broadcast ones."""
    return received(state, get_payload(broadcast, SmallModel).state)


def uploaded(uploads: Uploads) -> list[Mapping[str, Tensor]]:
    """Return the small models of a round."""
    return [get_payload(upload, SmallModel).state for _, upload in uploads]


def broadcast_small(weights: State) -> tuple[State, Message]:
    """Return the server's state and its broadcast."""
    return outer(weights, "small"), (SmallModel(weights),)


def start_shared(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Build the initial small model of the option ``small_model`` and broadcast it."""
    return start_small(setup, shared_small(setup.blueprint, setup.options), draw_seed(rng))


def plain_mean(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Take the plain mean of a round's small models and broadcast it."""
    return broadcast_small(weighted_mean(uploaded(uploads), [1] * len(uploads)))


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
            f"{argument('option', {'small_model': 'small-cnn'})}, fewer clients or more data"
        )
