"""FedMRL: fuse the representations of a shared small model and of the private model; both heads learn from the fusion.

Source: Yi, Yu, Ren, Wang, Liu, Li: Federated Model Heterogeneous Matryoshka Representation Learning, NeurIPS 2024. With
the small model G of width d1, the private model F_k of width d2 >= d1 and the private projector phi_k, d1 + d2 -> d2:

    z = phi_k([G.represent(x), F_k.represent(x)])                                   (equations 2-4)
    loss = m_G CE(G.head(z[:d1]), y) + m_F CE(F_k.head(z), y)                       (equations 5-9)

One backward pass updates all three, each with a step size of its own (equation 10), which the paper sets equal. Only G
travels; the server's mean is weighted by sample counts. Prediction is F_k.head(z): the small model's head is dropped,
its extractor is still needed. Appendix C.3 compares this ``mix_large`` with three others (figure 7):

    mix_small      G.head(z[:d1]), the private head dropped
    single_large   F_k alone, which was never trained to predict from its own representation
    single_small   G alone, likewise

G is the smallest private architecture, CNN-5, with d1 units in its penultimate linear layer (section 5.1, appendix C.1;
d1 from 100 to 500 in steps of 50, where d2 is 500; CNN-1 where all clients have that, ``small_model = "cnn-1"``). So a
smaller d1 makes G smaller, as section 5.3.3 says. HtFLlib shares the four-layer CNN instead and pools its 512 numbers
down to 128, which saves parameters in the head alone; tables 2 and 11 of FedRE were made so: ``narrowing = "htfllib"``.

Where published code departs from the paper, this follows the paper: the projector is kept between rounds (HtFLlib
restarts it at random every round, and evaluates it so), every client uploads its own copy of G (the official code
stores one network for all, so its mean is the last client's), and no optimiser state passes between clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal, get_args

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import EVALUATION_BATCH, Part, represent_by, train
from fedpriv.federation.method import (
    ClientSetup,
    LocalTraining,
    Method,
    Plan,
    Predictor,
    ServerSetup,
    State,
    Uploads,
)
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
from fedpriv.models.build import build_model, narrowing_models, narrows
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, global_seed
from fedpriv.wire.ledger import FederationSizes, Scalars
from fedpriv.wire.payloads import Message, PublicLoss, SampleCount, SmallModel, get_payload

Mode = Literal["mix_large", "mix_small", "single_large", "single_small"]


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedMRL.

    Attributes:
        small_model: architecture of the shared small model; ``auto`` for cnn-5 (with HtFLlib's narrowing cnn4), or
            small-cnn for tiny images.
        small_width: d1, at most the shared width d2; 0 for a fifth of d2, which is the paper's least and best, 100 of 500
            (with HtFLlib's narrowing a quarter, 128 of 512).
        narrowing: where the small model gets d1 from: its last hidden ``layer`` has so many units (the paper), or its own
            representation is pooled (``htfllib``).
        small_weight: m_G, the weight of the small head's loss.
        private_weight: m_F, the weight of the private head's loss.
        averaging: of small models: by sample ``counts`` (the paper, counts are uploaded) or ``uniform`` (HtFLlib).
        inference: what predicts, and so whose accuracy is reported: see the module.
        all_modes: record the accuracy of the other three modes as well, by name.
        small_rate: learning rate of the small model; None for the clients'.
        private_rate: learning rate of the private model; None for the clients'.
        projector_rate: learning rate of the projector; None for the clients'.
    """

    small_model: str = AUTO
    small_width: Annotated[int, Ge(0)] = 0
    narrowing: Literal["layer", "htfllib"] = "layer"
    small_weight: Annotated[float, Ge(0)] = 1.0
    private_weight: Annotated[float, Ge(0)] = 1.0
    averaging: Literal["counts", "uniform"] = "counts"
    inference: Mode = "mix_large"
    all_modes: bool = False
    small_rate: Annotated[float, Gt(0)] | None = None
    private_rate: Annotated[float, Gt(0)] | None = None
    projector_rate: Annotated[float, Gt(0)] | None = None


def _small(own: Blueprint, options: Options) -> Blueprint:
    width = _small_width(own.width, options)
    if options.narrowing == "htfllib":
        return small_blueprint(own, options.small_model, width)
    return replace(small_blueprint(own, options.small_model, width, usual="cnn-5"), last_hidden=width)


def _small_width(width: int, options: Options) -> int:
    return options.small_width or max(1, width // (5 if options.narrowing == "layer" else 4))


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
        return self.fused(self.small.represent(images), self.model.represent(images))

    def fused(self, small: Tensor, own: Tensor) -> Tensor:
        """Return fused representations of those ``(n, d1)`` of the small model and ``(n, d2)`` of the private one."""
        fused: Tensor = self.projector(torch.cat([small, own], 1))
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


def parts(fusion: Fusion, options: Options) -> tuple[Part, ...]:
    """Return the three modules' parameters with the learning rate of each."""
    rates = (options.small_rate, options.private_rate, options.projector_rate)
    modules = (fusion.small, fusion.model, fusion.projector)
    return tuple(Part(tuple(module.parameters()), rate) for module, rate in zip(modules, rates, strict=True))


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train small model, private model and projector together; upload the small model."""
    options: Options = setup.options
    fusion = load(setup, receive_small(setup, state, broadcast))

    def loss(images: Tensor, classes: Tensor) -> Tensor:
        return nested_loss(fusion, images, classes, options)

    train(fusion, setup.train, setup.training, rng, loss, setup.trace, parts(fusion, options))
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
def predict_as(setup: ClientSetup, state: State, images: Tensor, mode: Mode) -> Tensor:
    """Return the logits ``(n, C)`` of images (bytes or floats), in evaluation mode, in one of the four modes."""
    fusion = load(setup, state).eval()
    own = "model" if mode.endswith("large") else "small"
    head = getattr(fusion, own).head
    parts = (own,) if mode.startswith("single") else ("small", "model")
    seen = [represent_by(setup, state, images, getattr(fusion, part), part).split(EVALUATION_BATCH) for part in parts]
    rows = seen[0] if mode.startswith("single") else map(fusion.fused, *seen)
    return torch.cat([head(chunk[:, : head.in_features]) for chunk in rows])


def predict(setup: ClientSetup, state: State, images: Tensor) -> Tensor:
    """Return the logits ``(n, C)`` of the mode that the options choose."""
    return predict_as(setup, state, images, setup.options.inference)


def other_modes(options: Options) -> Mapping[str, Predictor]:
    """Return the modes that are recorded beside the chosen one."""
    names = get_args(Mode) if options.all_modes else ()
    return {mode: partial(predict_as, mode=mode) for mode in names if mode != options.inference}


def small_rate(options: Options, training: LocalTraining) -> float:
    """Return the step size of the small model, which is what is uploaded."""
    return options.small_rate or training.learning_rate


def check(plan: Plan) -> None:
    """Refuse a small model that is wider than the private ones, cannot be narrowed, does not exist or does not fit."""
    width = plan.blueprints[0].width
    small = _small(plan.blueprints[0], plan.options)
    if plan.options.small_width > width:
        fitting = argument("option", {"small_width": width})
        raise UserError(
            f"method 'fedmrl': small_width is {plan.options.small_width}, but the first entries of a representation of "
            f"width {width} go to the small head; pass {fitting} or less, or a larger {argument('width')}"
        )
    if plan.options.narrowing == "layer" and not narrows(small.name):
        raise UserError(
            f"method 'fedmrl': small_model {small.name} has no last linear layer that could have {small.width} units; pass "
            f"one of {', '.join(narrowing_models())}, or {argument('option', {'narrowing': 'htfllib'})} to pool its "
            "representation"
        )
    check_small(plan, small)


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
    further_predictors=other_modes,
    uploaded_rate=small_rate,
    linear_aggregation=True,
    # The projector stands between the small extractor and its head.
    public_loss=lambda options, round_: PublicLoss(through="representation", head_apart=True),
)
