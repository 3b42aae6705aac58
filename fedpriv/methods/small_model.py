"""A small homogeneous model travels while every client keeps a private model (FedMRL, FedKD, FML, FedAPEN).

Private and shared model learn from the labels and from each other, on the same batches, the teacher of each loss
constant; the server takes the plain mean of the shared models. P are the private model's logits, S the shared model's.

The option ``small_model`` names the shared architecture; ``auto`` is the 4-layer CNN of HtFLlib and FedRE's tables, or
``small-cnn`` for images too small for that (FedMRL's is ``cnn-5``). Initial weights of the small model and of a
client's own come from different seeds: two equal models would see the same batches, stay equal, and teach each other
nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div

from fedpriv.federation.local_training import has_batch_norm
from fedpriv.federation.method import ClientSetup, Plan, ServerSetup, Uploads
from fedpriv.federation.states import State, outer, parameters, put, take, weighted_mean
from fedpriv.methods import weights
from fedpriv.methods.weights import draw_seed
from fedpriv.models.build import build_model, extractor_parameters
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.models.zoo import LEAST_SIDE
from fedpriv.uploads.payloads import Message, SampleCount, SmallModel, find_payload, get_payload
from fedpriv.util.errors import UserError, shown
from fedpriv.util.seeds import derive_seed

AUTO = "auto"


Architecture = Callable[[Blueprint, Any], Blueprint]
"""(a client's architecture, the method's options) -> that of the small model."""


def small_blueprint(blueprint: Blueprint, name: str, width: int | None = None, usual: str = "cnn4") -> Blueprint:
    """Return the small model's architecture, from any client's; ``usual`` is what ``auto`` means for large images."""
    if name == AUTO:
        name = usual if min(blueprint.image_shape[1:]) >= LEAST_SIDE else "small-cnn"
    return replace(blueprint, name=name, width=width or blueprint.width, mapping="ap")


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


def init_both(setup: ClientSetup, small: Blueprint, seed: int, *, received: bool = False) -> State:
    """Return the initial private and small model; of one that is ``received`` with every broadcast the buffers alone."""
    made = initial_small(small, seed)
    return take(build_model(setup.blueprint, seed), "model") | (buffers(made) if received else take(made, "small"))


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
    received = get_payload(broadcast, SmallModel).state
    return state | outer({name: value.clone() for name, value in received.items()}, "small")


def start_small(shared: Architecture, setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Build the initial small model and broadcast it."""
    made = parameters(initial_small(shared(setup.blueprint, setup.options), draw_seed(rng)).to(setup.device))
    return outer(made, "small"), (SmallModel(made),)


def average_small(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Average a round's small models, by numbers of samples where these are uploaded, and broadcast the mean."""
    counted = find_payload(uploads[0][1], SampleCount) is not None
    shares = weights.counts(uploads) if counted else [1] * len(uploads)
    mean = weighted_mean([get_payload(upload, SmallModel).state for _, upload in uploads], shares)
    return outer(mean, "small"), (SmallModel(mean),)


def check_small(shared: Architecture, plan: Plan) -> None:
    """Refuse a small model that does not exist, cannot take the images, or cannot train on a client's few images."""
    blueprint = shared(plan.blueprints[0], plan.options)
    extractor_parameters(blueprint)
    if min(plan.train_sizes) < 2 and has_batch_norm(build_model(blueprint, 0)):
        raise UserError(
            f"client {plan.train_sizes.index(min(plan.train_sizes))} holds one training image, but the small model "
            f"{blueprint.name} has batch normalisation, which needs two; pass "
            f"option={shown({'small_model': 'small-cnn'})}, fewer clients or more data"
        )


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Return KL(teacher || student) of logits ``(b, C)``, mean over the batch."""
    total = kl_div(student.log_softmax(1), teacher.log_softmax(1), reduction="sum", log_target=True)
    return total / len(student)
