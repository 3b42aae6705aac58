"""FML: a private model and a shared "meme" model learn from the labels and from each other.

Source: Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu: Federated Mutual Learning, arXiv 2006.16765, 2020. With p_l
and p_s the predictions of the private and of the shared small model:

    loss_private = alpha CE(p_l, y) + (1 - alpha) KL(p_s || p_l)
    loss_shared  = beta  CE(p_s, y) + (1 - beta)  KL(p_l || p_s)

The teacher of each loss is held constant and KL is the mean over the batch. alpha = beta = 0.5 are HtFLlib's tuned values;
its command line's default of 1 switches mutual learning off. The server takes the plain mean of the shared models. The
private model predicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import train
from fedpriv.federation.method import ClientSetup, Method
from fedpriv.federation.states import State, parameters, take
from fedpriv.methods.shared import small_model, weights
from fedpriv.methods.shared.mutual import divergence
from fedpriv.wire.payloads import Message, PublicLoss, SmallModel


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FML.

    Attributes:
        small_model: architecture of the shared small model; ``auto`` for cnn4, or small-cnn for tiny images.
        alpha: share of the labels in the private model's loss; 1 is local training.
        beta: share of the labels in the shared model's loss.
    """

    small_model: str = small_model.AUTO
    alpha: Annotated[float, Ge(0), Le(1)] = 0.5
    beta: Annotated[float, Ge(0), Le(1)] = 0.5


def mutual_loss(private: Tensor, shared: Tensor, labels: Tensor, options: Options) -> Tensor:
    """Return the sum of both models' losses, of logits ``(b, C)``."""
    return (
        options.alpha * cross_entropy(private, labels)
        + (1 - options.alpha) * divergence(private, shared.detach())
        + options.beta * cross_entropy(shared, labels)
        + (1 - options.beta) * divergence(shared, private.detach())
    )


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train both models on the same batches; upload the shared one."""
    model, small = small_model.load(setup, small_model.receive_small(setup, state, broadcast))

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return mutual_loss(model(images), small(images), labels, setup.options)

    train(nn.ModuleList([model, small]), setup.train, setup.training, rng, loss, setup.trace)
    return take(model, "model") | small_model.buffers(small), (SmallModel(parameters(small)),)


METHOD = Method(
    name="fml",
    source="Shen et al., arXiv 2020",
    options=Options,
    uploads=("small-model",),
    broadcasts=("small-model",),
    start=small_model.start_small,
    init=small_model.init_receiving,
    # The broadcast is taken up at the start of training; the private model, which predicts, does not change.
    apply_broadcast=weights.receive_nothing,
    client_step=client_step,
    server_step=small_model.plain_mean,
    predict=weights.predict,
    check=small_model.check_shared,
    shared=small_model.shared_small,
    linear_aggregation=True,
    # The private model teaches the shared one through its logits.
    public_loss=lambda options, round_: PublicLoss() if options.beta == 1 else PublicLoss(through="logits"),
)
