"""FedMRL: fuse the representations of a shared small model and of the private model; both heads learn from the fusion.

Source: Yi, Yu, Ren, Wang, Liu, Li: Federated Model Heterogeneous Matryoshka Representation Learning, NeurIPS 2024. With
the small model G of width d1, the private model F_k of width d2 >= d1 and the private projector phi_k, d1 + d2 -> d2:

    z = phi_k([G.represent(x), F_k.represent(x)])                                   (equations 2-4)
    loss = m_G CE(G.head(z[:d1]), y) + m_F CE(F_k.head(z), y)                       (equations 5-9)

Only G travels; the server's mean is weighted by sample counts. Prediction is F_k.head(z), ``mix_large``; appendix C.3
compares it (figure 7) with ``mix_small``, G.head(z[:d1]), and with either model alone, ``single_large``, ``single_small``.

G is the smallest private architecture, CNN-5, with d1 units in its penultimate linear layer (section 5.1, appendix C.1).
HtFLlib shares the four-layer CNN instead and pools its 512 numbers down to 128; tables 2 and 11 of FedRE were made so:
``narrowing = "htfllib"``. Unlike published code, the projector is kept between rounds, and every client uploads its own copy
of G (the official code's mean is the last client's).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import EVALUATION_BATCH, represent_by, train
from fedpriv.federation.method import ClientSetup, Plan
from fedpriv.federation.states import Outcome, State, parameters, put, take
from fedpriv.methods import fml, weights
from fedpriv.methods.fml import small_blueprint
from fedpriv.models import MODELS
from fedpriv.models.build import narrowing_models
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.uploads.payloads import Message, PublicLoss, SmallModel
from fedpriv.util.errors import UserError, shown
from fedpriv.util.seeds import derive_seed, global_seed

Mode = Literal["mix_large", "mix_small", "single_large", "single_small"]


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedMRL.

    Attributes:
        small_model: architecture of the shared small model; ``auto`` for cnn-5 (with HtFLlib's narrowing cnn4), or
            small-cnn for tiny images.
        small_width: d1, at most the shared width d2; 0 for a fifth of d2, the paper's least and best (with HtFLlib's
            narrowing a quarter).
        narrowing: the small model's last hidden ``layer`` has d1 units (the paper), or its representation is pooled
            (``htfllib``).
        small_weight: m_G, the weight of the small head's loss.
        private_weight: m_F, the weight of the private head's loss.
        inference: the way to predict: see the module.
    """

    small_model: str = fml.AUTO
    small_width: Annotated[int, Ge(0)] = 0
    narrowing: Literal["layer", "htfllib"] = "layer"
    small_weight: Annotated[float, Ge(0)] = 1.0
    private_weight: Annotated[float, Ge(0)] = 1.0
    inference: Mode = "mix_large"


def _small(blueprint: Blueprint, options: Options) -> Blueprint:
    width = options.small_width or max(1, blueprint.width // (5 if options.narrowing == "layer" else 4))
    if options.narrowing == "htfllib":
        return small_blueprint(blueprint, options.small_model, width)
    return replace(small_blueprint(blueprint, options.small_model, width, usual="cnn-5"), last_hidden=width)


def _projector(setup: ClientSetup, seed: int) -> nn.Linear:
    with global_seed(seed):
        return nn.Linear(_small(setup.blueprint, setup.options).width + setup.width, setup.width)


def init(setup: ClientSetup, rng: torch.Generator) -> State:
    """Return the initial private model, small model and projector."""
    seed = weights.draw_seed(rng)
    projector = _projector(setup, derive_seed(seed, "projector"))
    both = fml.init_both(setup, _small(setup.blueprint, setup.options), seed)
    return both | take(projector, "projector")


PARTS = ("model", "small", "projector")


class Fusion(nn.Module):
    """The small model, the private model and the projector between them."""

    def __init__(self, small: SplitModel, model: SplitModel, projector: nn.Linear) -> None:
        super().__init__()
        self.small = small
        self.model = model
        self.projector = projector

    def fused(self, small: Tensor, values: Tensor) -> Tensor:
        """Return fused representations of those ``(n, d1)`` of the small model and ``(n, d2)`` of the private one."""
        fused: Tensor = self.projector(torch.cat([small, values], 1))
        return fused


def load(setup: ClientSetup, state: State) -> Fusion:
    """Return the client's three modules with the weights of a state."""
    small = fml.small_scratch(setup, _small(setup.blueprint, setup.options))
    fusion = Fusion(small, setup.model, _projector(setup, 0).to(setup.train.labels.device))
    for name in PARTS:
        put(getattr(fusion, name), state, name)
    return fusion


def nested_loss(fusion: Fusion, images: Tensor, classes: Tensor, options: Options) -> Tensor:
    """Return m_G CE of the small head on the first d1 entries + m_F CE of the private head on all d2."""
    fused = fusion.fused(fusion.small.represent(images), fusion.model.represent(images))
    coarse = fusion.small.head(fused[:, : fusion.small.head.in_features])
    return options.small_weight * cross_entropy(coarse, classes) + options.private_weight * cross_entropy(
        fusion.model.head(fused), classes
    )


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train small model, private model and projector together; upload the small model with the number of samples."""
    fusion = load(setup, fml.receive_small(setup, state, broadcast))

    def loss(images: Tensor, classes: Tensor) -> Tensor:
        return nested_loss(fusion, images, classes, setup.options)

    train(fusion, setup.train, setup.training, rng, loss, setup.trace)
    trained = {name: value for part in PARTS for name, value in take(getattr(fusion, part), part).items()}
    return trained, (SmallModel(parameters(fusion.small)), weights.sample_count(setup))


@torch.no_grad()
def predict(setup: ClientSetup, state: State, images: Tensor) -> Tensor:
    """Return the logits ``(n, C)`` of images (bytes or floats), in evaluation mode, in the mode of the options."""
    mode: Mode = setup.options.inference
    fusion = load(setup, state).eval()
    current = "model" if mode.endswith("large") else "small"
    head = getattr(fusion, current).head
    parts = (current,) if mode.startswith("single") else ("small", "model")
    seen = [represent_by(setup, state, images, getattr(fusion, part), part).split(EVALUATION_BATCH) for part in parts]
    rows = seen[0] if mode.startswith("single") else map(fusion.fused, *seen)
    return torch.cat([head(chunk[:, : head.in_features]) for chunk in rows])


def check(plan: Plan) -> None:
    """Refuse a small model that is wider than the private ones, cannot be narrowed, does not exist or does not fit."""
    width = plan.blueprints[0].width
    small = _small(plan.blueprints[0], plan.options)
    if plan.options.small_width > width:
        raise UserError(
            f"method 'fedmrl': small_width is {plan.options.small_width}, but the first entries of a representation of "
            f"width {width} go to the small head; pass option={shown({'small_width': width})} or less, or a larger width"
        )
    MODELS.load(small.name)
    if plan.options.narrowing == "layer" and small.name not in narrowing_models():
        raise UserError(
            f"method 'fedmrl': small_model {small.name} has no last linear layer that could have {small.width} units; pass "
            f"one of {', '.join(narrowing_models())}, or option={shown({'narrowing': 'htfllib'})} to pool its "
            "representation"
        )
    fml.check_small(_small, plan)


METHOD = replace(
    weights.LOCAL,
    name="fedmrl",
    source="Yi et al., NeurIPS 2024",
    options=Options,
    uploads=("small-model", "sample-count"),
    broadcasts=("small-model",),
    start=partial(fml.start_small, _small),
    init=init,
    apply_broadcast=fml.receive_small,
    client_step=client_step,
    server_step=fml.average_small,
    predict=predict,
    check=check,
    shared=_small,
    linear_aggregation=True,
    # The projector stands between the small extractor and its head.
    public_loss=lambda options, round_: PublicLoss(through="representation", head_apart=True),
)
