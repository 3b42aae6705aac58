"""FML: a private and a shared model teach each other.

Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu: Federated Mutual Learning, arXiv 2006.16765, 2020. The private
model predicts. alpha = beta = 0.5 are HtFLlib's tuned values; its command line's default of 1 switches mutual
learning off.

  loss_private = alpha CE(P, y) + (1 - alpha) KL(p_S || p_P)
  loss_shared  = beta  CE(S, y) + (1 - beta)  KL(p_P || p_S)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import train
from fedpriv.federation.method import ClientSetup
from fedpriv.federation.states import State, parameters, take
from fedpriv.methods.local import METHOD as LOCAL
from fedpriv.methods.small_model import (
    AUTO,
    average_small,
    buffers,
    check_small,
    divergence,
    init_both,
    load,
    receive_small,
    shared_small,
    start_small,
)
from fedpriv.methods.weights import draw_seed
from fedpriv.uploads.payloads import Message, PublicLoss, SmallModel


@dataclass(frozen=True)
class FmlOptions:
    """Hyperparameters of METHOD.

    Attributes:
        small_model: architecture of the shared small model; ``auto`` for cnn4, or small-cnn for tiny images.
        alpha: share of the labels in the private model's loss; 1 is local training.
        beta: share of the labels in the shared model's loss.
    """

    small_model: str = AUTO
    alpha: Annotated[float, Ge(0), Le(1)] = 0.5
    beta: Annotated[float, Ge(0), Le(1)] = 0.5


def fml_loss(private: Tensor, shared: Tensor, labels: Tensor, options: FmlOptions) -> Tensor:
    """Return the sum of both models' losses, of logits ``(b, C)``."""
    return (
        options.alpha * cross_entropy(private, labels)
        + (1 - options.alpha) * divergence(private, shared.detach())
        + options.beta * cross_entropy(shared, labels)
        + (1 - options.beta) * divergence(shared, private.detach())
    )


def fml_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train both models on the same batches; upload the shared one."""
    model, small = load(setup, receive_small(setup, state, broadcast))

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return fml_loss(model(images), small(images), labels, setup.options)

    train(nn.ModuleList([model, small]), setup.train, setup.training, rng, loss, setup.trace)
    return take(model, "model") | buffers(small), (SmallModel(parameters(small)),)


METHOD = replace(
    LOCAL,
    name="fml",
    about='METHOD: a private model and a shared "meme" model learn from the labels and from each other.',
    source="Shen et al., arXiv 2020",
    options=FmlOptions,
    uploads=("small-model",),
    broadcasts=("small-model",),
    start=partial(start_small, shared_small),
    init=lambda setup, rng: init_both(
        setup, shared_small(setup.blueprint, setup.options), draw_seed(rng), received=True
    ),
    # The broadcast is taken up at the start of training; the private model, which predicts, does not change.
    client_step=fml_step,
    server_step=average_small,
    check=partial(check_small, shared_small),
    shared=shared_small,
    linear_aggregation=True,
    # The private model teaches the shared one through its logits.
    public_loss=lambda options, round_: PublicLoss() if options.beta == 1 else PublicLoss(through="logits"),
)
