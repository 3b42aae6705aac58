"""FedMRL: fuse the representations of a shared small model and of the private model; both heads learn from the fusion.

Source: Yi, Yu, Ren, Wang, Liu, Li: Federated Model Heterogeneous Matryoshka Representation Learning, NeurIPS 2024. With
the small model G of width d1, the private model F_k of width d2 >= d1 and the private projector phi_k, d1 + d2 -> d2:

    z = phi_k([G.represent(x), F_k.represent(x)])                                   (equations 2-4)
    loss = m_G CE(G.head(z[:d1]), y) + m_F CE(F_k.head(z), y)                       (equations 5-9)

One backward pass updates all three with the same step size (equation 10). Only G travels; the server's mean is weighted
by sample counts. Prediction is F_k.head(z): the small model's head is dropped, its extractor is still needed.

Where published code departs from the paper, this follows the paper: the projector is kept between rounds (HtFLlib
restarts it at random every round, and evaluates it so), every client uploads its own copy of G (the official code
stores one network for all, so its mean is the last client's), and no optimiser state passes between clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpriv.datasets.types import as_unit
from fedpriv.federation.local_training import EVALUATION_BATCH, train
from fedpriv.federation.method import ClientSetup, Method, Plan, ServerSetup, State, Uploads
from fedpriv.federation.states import parameters, put, take, weighted_mean
from fedpriv.methods.fedavg import sample_count
from fedpriv.methods.shared.personal_model import draw_seed
from fedpriv.methods.shared.small_model import (
    AUTO,
    broadcast_small,
    check_small,
    initial_small,
    receive_small,
    small_blueprint,
    small_scratch,
    start_small,
    uploaded,
)
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, global_seed
from fedpriv.wire.payloads import Message, SampleCount, SmallModel, get_payload
from fedpriv.wire.public_loss import PublicLoss
from fedpriv.wire.sizes import FederationSizes, Scalars


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedMRL.

    Attributes:
        small_model: architecture of the shared small model; ``auto`` for cnn4, or small-cnn for tiny images.
        small_width: d1, at most the shared width d2; 0 for a quarter of d2, which is HtFLlib's 128 of 512.
        small_weight: m_G, the weight of the small head's loss.
        private_weight: m_F, the weight of the private head's loss.
        averaging: of small models: by sample ``counts`` (the paper, counts are uploaded) or ``uniform`` (HtFLlib).
    """

    small_model: str = AUTO
    small_width: Annotated[int, Ge(0)] = 0
    small_weight: Annotated[float, Ge(0)] = 1.0
    private_weight: Annotated[float, Ge(0)] = 1.0
    averaging: Literal["counts", "uniform"] = "counts"


def _small(own: Blueprint, options: Options) -> Blueprint:
    return small_blueprint(own, options.small_model, _small_width(own.width, options))


def _small_width(width: int, options: Options) -> int:
    return options.small_width or max(1, width // 4)


def _projector(setup: ClientSetup, seed: int) -> nn.Linear:
    with global_seed(seed):
        return nn.Linear(_small(setup.blueprint, setup.options).width + setup.width, setup.width)


def init(setup: ClientSetup, rng: torch.Generator) -> State:
    """Return the initial private model, small model and projector."""
    seed = draw_seed(rng)
    small = initial_small(_small(setup.blueprint, setup.options), seed)
    projector = _projector(setup, derive_seed(seed, "projector"))
    return take(build_model(setup.blueprint, seed), "model") | take(small, "small") | take(projector, "projector")


PARTS = ("model", "small", "projector")


class Fusion(nn.Module):
    """The small model, the private model and the projector between them."""

    def __init__(self, small: SplitModel, model: SplitModel, projector: nn.Linear) -> None:
        super().__init__()
        self.small = small
        self.model = model
        self.projector = projector

    def forward(self, images: Tensor) -> Tensor:
        """Return fused representations ``(n, d2)`` of images ``(n, c, h, w)`` in [0, 1]."""
        fused: Tensor = self.projector(torch.cat([self.small.represent(images), self.model.represent(images)], 1))
        return fused


def load(setup: ClientSetup, state: State) -> Fusion:
    """Return the client's three modules with the weights of a state."""
    small = small_scratch(setup, _small(setup.blueprint, setup.options))
    fusion = Fusion(small, setup.model, _projector(setup, 0).to(setup.train.labels.device))
    for part_name in PARTS:
        put(getattr(fusion, part_name), state, part_name)
    return fusion


def keep(fusion: Fusion) -> State:
    """Return the client's state, as :func:`load` takes it."""
    return {name: value for part_name in PARTS for name, value in take(getattr(fusion, part_name), part_name).items()}


def nested_loss(fusion: Fusion, images: Tensor, classes: Tensor, options: Options) -> Tensor:
    """Return m_G CE of the small head on the first d1 entries + m_F CE of the private head on all d2."""
    fused = fusion(images)
    coarse = fusion.small.head(fused[:, : fusion.small.head.in_features])
    return options.small_weight * cross_entropy(coarse, classes) + options.private_weight * cross_entropy(
        fusion.model.head(fused), classes
    )


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train small model, private model and projector together; upload the small model."""
    options: Options = setup.options
    fusion = load(setup, receive_small(setup, state, broadcast))

    def loss(images: Tensor, classes: Tensor) -> Tensor:
        return nested_loss(fusion, images, classes, options)

    train(fusion, setup.train, setup.training, rng, loss, setup.trace)
    upload: Message = (SmallModel(parameters(fusion.small)),)
    if options.averaging == "counts":
        upload += (sample_count(setup),)
    return keep(fusion), upload


def start(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Build the initial small model and broadcast it."""
    return start_small(setup, _small(setup.blueprint, setup.options), draw_seed(rng))


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Average the small models, weighted by numbers of samples or uniformly."""
    if setup.options.averaging == "counts":
        weights = [int(get_payload(upload, SampleCount).count) for _, upload in uploads]
    else:
        weights = [1] * len(uploads)
    return broadcast_small(weighted_mean(uploaded(uploads), weights))


@torch.no_grad()
def predict(setup: ClientSetup, state: State, images: Tensor) -> Tensor:
    """Return the private head's logits ``(n, C)`` of the fused representations."""
    fusion = load(setup, state).eval()
    return torch.cat([fusion.model.head(fusion(as_unit(chunk))) for chunk in images.split(EVALUATION_BATCH)])


def check(plan: Plan) -> None:
    """Refuse a small model that is wider than the private ones, does not exist or does not fit the images."""
    width = plan.blueprints[0].width
    if plan.options.small_width > width:
        fitting = argument("option", {"small_width": width})
        raise UserError(
            f"method 'fedmrl': small_width is {plan.options.small_width}, but the first entries of a representation of "
            f"width {width} go to the small head; pass {fitting} or less, or a larger {argument('width')}"
        )
    check_small(plan, plan.options.small_model, _small_width(width, plan.options))


def sizes(facts: FederationSizes) -> Scalars:
    """Count numbers of samples where the mean needs them."""
    return {("upload", "sample-count.count"): facts.clients if facts.options.averaging == "counts" else 0}


METHOD = Method(
    name="fedmrl",
    source="Yi et al., NeurIPS 2024",
    options=Options,
    uploads=("small-model", "sample-count"),
    broadcasts=("small-model",),
    start=start,
    init=init,
    apply_broadcast=receive_small,
    client_step=client_step,
    server_step=server_step,
    predict=predict,
    check=check,
    sizes=sizes,
    shared=_small,
    linear_aggregation=True,
    # The projector stands between the small extractor and its head.
    public_loss=lambda options, round_: PublicLoss(through="representation", head_apart=True),
)
