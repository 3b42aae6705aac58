"""FML: a private model and a shared "meme" model learn from the labels and from each other.

Source: Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu: Federated Mutual Learning, arXiv 2006.16765, 2020. With p_l
and p_s the predictions of the private and of the shared small model:

    loss_private = alpha CE(p_l, y) + (1 - alpha) KL(p_s || p_l)
    loss_shared  = beta  CE(p_s, y) + (1 - beta)  KL(p_l || p_s)

The teacher of each loss is held constant and KL is the mean over the batch. With ``parity`` the losses are HtFLlib's:
KL also divided by the number of classes, no teacher held constant (each model then descends the sum of both losses),
and each model's gradient clipped to norm 10. alpha = beta = 0.5 are HtFLlib's tuned values; its command line's default
of 1 switches mutual learning off. The server takes the plain mean of the shared models. The private model predicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import train
from fedpriv.federation.method import ClientSetup, Method, State
from fedpriv.federation.states import parameters, put, take
from fedpriv.methods.shared import personal_model
from fedpriv.methods.shared.mutual import clip_each, divergence
from fedpriv.methods.shared.small_model import (
    AUTO,
    buffers,
    check_shared,
    initial_small,
    plain_mean,
    received,
    shared_small,
    small_blueprint,
    small_scratch,
    start_shared,
)
from fedpriv.models.build import build_model
from fedpriv.wire.payloads import Message, PublicLoss, SmallModel, get_payload

PARITY_CLIP = 10.0


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FML.

    Attributes:
        small_model: architecture of the shared small model; ``auto`` for cnn4, or small-cnn for tiny images.
        alpha: share of the labels in the private model's loss; 1 is local training.
        beta: share of the labels in the shared model's loss.
        parity: train as HtFLlib does.
    """

    small_model: str = AUTO
    alpha: Annotated[float, Ge(0), Le(1)] = 0.5
    beta: Annotated[float, Ge(0), Le(1)] = 0.5
    parity: bool = False


def init(setup: ClientSetup, rng: torch.Generator) -> State:
    """Return the initial private model, and buffers for the small model, which arrives with every broadcast."""
    seed = personal_model.draw_seed(rng)
    small = initial_small(small_blueprint(setup.blueprint, setup.options.small_model), seed)
    return take(build_model(setup.blueprint, seed), "model") | buffers(small, "small")


def mutual_loss(private: Tensor, shared: Tensor, labels: Tensor, options: Options) -> Tensor:
    """Return the sum of both models' losses, of logits ``(b, C)``."""
    if options.parity:
        taught_private, taught_shared = divergence(private, shared, "mean"), divergence(shared, private, "mean")
    else:
        taught_private, taught_shared = divergence(private, shared.detach()), divergence(shared, private.detach())
    return (
        options.alpha * cross_entropy(private, labels)
        + (1 - options.alpha) * taught_private
        + options.beta * cross_entropy(shared, labels)
        + (1 - options.beta) * taught_shared
    )


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train both models on the same batches; upload the shared one."""
    options: Options = setup.options
    model, small = setup.model, small_scratch(setup, small_blueprint(setup.blueprint, options.small_model))
    put(model, state, "model")
    put(small, received(state, get_payload(broadcast, SmallModel).state), "small")

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        value = mutual_loss(model(images), small(images), labels, options)
        return clip_each(value, (model, small), PARITY_CLIP) if options.parity else value

    train(nn.ModuleList([model, small]), setup.train, setup.training, rng, loss, setup.trace)
    return take(model, "model") | buffers(small, "small"), (SmallModel(parameters(small)),)


def public_loss(options: Options, round_: int) -> PublicLoss:
    """The private model teaches the shared one through its logits."""
    return PublicLoss() if options.beta == 1 and not options.parity else PublicLoss(through="logits")


METHOD = Method(
    name="fml",
    source="Shen et al., arXiv 2020",
    options=Options,
    uploads=("small-model",),
    broadcasts=("small-model",),
    start=start_shared,
    init=init,
    # The broadcast is taken up at the start of training; the private model, which predicts, does not change.
    apply_broadcast=personal_model.receive_nothing,
    client_step=client_step,
    server_step=plain_mean,
    predict=personal_model.predict,
    check=check_shared,
    shared=shared_small,
    linear_aggregation=True,
    public_loss=public_loss,
)
