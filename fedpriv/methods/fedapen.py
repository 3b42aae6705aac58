"""FedAPEN: a private and a shared model teach each other, and a learned mixture of them predicts.

Qin, Deng, Zhao, Yan: FedAPEN: Personalized Cross-silo Federated Learning with Adaptability to Statistical
Heterogeneity, KDD 2023. With a weight w, where the model that a loss is not of is constant:

  loss_private = CE(P, y) + KL(p_S || p_P) + CE(w P + (1 - w) S, y)
  loss_shared  = CE(S, y) + KL(p_P || p_S) + CE(w P + (1 - w) S, y)

On receiving the mean, a client learns w in [0, 1] by gradient descent on the cross-entropy of the mixture over its
adaptability set, a fixed 5 % of the training images, in stored order; this w mixes during the next training and
predicts. Before a client's first training w is 0.5 and is not learned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import classify, train
from fedpriv.federation.method import ClientSetup
from fedpriv.federation.states import State, parameters, take
from fedpriv.methods import weights
from fedpriv.methods.fml import METHOD as FML
from fedpriv.methods.small_model import AUTO, divergence, init_both, load, receive_small, shared_small
from fedpriv.uploads.payloads import Message, PublicLoss, SmallModel

WEIGHT, SET, TRAINED = "ensemble.weight", "ensemble.set", "ensemble.trained"


@dataclass(frozen=True)
class FedApenOptions:
    """Hyperparameters of FedAPEN.

    Attributes:
        small_model: architecture of the shared model; ``auto`` for cnn4, or small-cnn for tiny images.
        set_share: share of the training images in the adaptability set.
        set_learning_rate: step size of w; 0 keeps w at 0.5 (FedEN, the paper's variant).
        set_epochs: passes over the adaptability set, in batches of the local batch size.
    """

    small_model: str = AUTO
    set_share: Annotated[float, Gt(0), Le(1)] = 0.05
    set_learning_rate: Annotated[float, Ge(0)] = 0.001
    set_epochs: Annotated[int, Ge(1)] = 10


def init_ensemble(setup: ClientSetup, rng: torch.Generator) -> State:
    """Return both initial models, w = 0.5 and the drawn adaptability set."""
    n_set = max(1, round(setup.options.set_share * len(setup.train)))
    small = shared_small(setup.blueprint, setup.options)
    return init_both(setup, small, weights.draw_seed(rng)) | {
        WEIGHT: torch.tensor([0.5]),
        SET: torch.randperm(len(setup.train), generator=rng)[:n_set].sort().values,
        TRAINED: torch.tensor([False]),
    }


def mix(private: Tensor, shared: Tensor, weight: Tensor) -> Tensor:
    """Return w P + (1 - w) S for logits ``(n, C)`` and w ``(1,)``."""
    return weight * private + (1 - weight) * shared


def learn_weight(
    weight: Tensor, private: Tensor, shared: Tensor, labels: Tensor, options: FedApenOptions, batch_size: int
) -> Tensor:
    """Return w ``(1,)`` after gradient descent on the mixture's mean cross-entropy over logits ``(n, C)``, kept in [0, 1].

    The slope is d CE / d w = mean_i (softmax(mixture_i) - onehot(y_i)) . (P_i - S_i).
    """
    targets = nn.functional.one_hot(labels, private.shape[1])
    for _ in range(options.set_epochs):
        for begin in range(0, len(labels), batch_size):
            rows = slice(begin, begin + batch_size)
            error = mix(private[rows], shared[rows], weight).softmax(1) - targets[rows]
            slope = (error * (private[rows] - shared[rows])).sum(1).mean()
            weight = (weight - options.set_learning_rate * slope).clamp(0, 1)
    return weight


def receive_and_weigh(setup: ClientSetup, state: State, broadcast: Message) -> State:
    """Replace the shared model by the mean, then learn how to mix it with the private one."""
    updated = receive_small(setup, state, broadcast)
    if not state[TRAINED]:
        return updated
    images, labels = setup.train.batch(state[SET])
    private, shared = (classify(model, images) for model in load(setup, updated))
    updated[WEIGHT] = learn_weight(state[WEIGHT], private, shared, labels, setup.options, setup.training.batch_size)
    return updated


def ensemble_loss(private: Tensor, shared: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Return the sum of both models' losses, of logits ``(b, C)`` and w ``(1,)``."""
    return (
        cross_entropy(private, labels)
        + divergence(private, shared.detach())
        + cross_entropy(mix(private, shared.detach(), weight), labels)
        + cross_entropy(shared, labels)
        + divergence(shared, private.detach())
        + cross_entropy(mix(private.detach(), shared, weight), labels)
    )


def ensemble_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train both models on the same batches; upload the shared one."""
    state = receive_and_weigh(setup, state, broadcast)
    model, small = load(setup, state)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return ensemble_loss(model(images), small(images), labels, state[WEIGHT])

    train(nn.ModuleList([model, small]), setup.train, setup.training, rng, loss, setup.trace)
    trained = {TRAINED: torch.ones_like(state[TRAINED])}
    return state | take(model, "model") | take(small, "small") | trained, (SmallModel(parameters(small)),)


def predict_mixed(setup: ClientSetup, state: State, images: Tensor) -> Tensor:
    """Return the mixed logits ``(n, C)``, w P + (1 - w) S."""
    private, shared = (classify(model, images) for model in load(setup, state))
    return mix(private, shared, state[WEIGHT])


METHOD = replace(
    FML,
    name="fedapen",
    about="FedAPEN: a private and a shared model learn from each other, and a learned weight mixes their logits.",
    source="Qin et al., KDD 2023",
    options=FedApenOptions,
    init=init_ensemble,
    apply_broadcast=receive_and_weigh,
    client_step=ensemble_step,
    predict=predict_mixed,
    extra_predictors={"private": weights.predict},
    non_sgd_computation=lambda options: "the mixing weight, learned on the adaptability set",
    public_loss=lambda options, round_: PublicLoss(through="logits"),
)
