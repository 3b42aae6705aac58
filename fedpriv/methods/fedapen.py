"""FedAPEN: a private and a shared model learn from each other, and a learned weight mixes their logits.

Source: Qin, Deng, Zhao, Yan: FedAPEN: Personalized Cross-silo Federated Learning with Adaptability to Statistical
Heterogeneity, KDD 2023, with the details of its official code. With logits P (private), S (shared) and a weight w:

    loss_private = CE(P, y) + KL(p_S || p_P) + CE(w P + (1 - w) S, y)        S held constant
    loss_shared  = CE(S, y) + KL(p_P || p_S) + CE(w P + (1 - w) S, y)        P held constant

The server takes the plain mean of the shared models. On receiving it, a client learns w by gradient descent on the
cross-entropy of the mixture over its adaptability set, with both models fixed in evaluation mode and w kept in [0, 1];
this w mixes during the next training and predicts, with the mean as shared model. The set is a fixed 5 % of the
training images, at least one, drawn once; they are trained on as well.

Learning w is part of receiving because it needs the mean and nothing that is sent later. It is deterministic (batches
in stored order) and cheap: each model sees the set once, the descent then runs on their logits. Before a client's first
training w is 0.5 and is not learned. Accuracy after broadcast is the paper's; after training the mixture uses the
client's own copy of the shared model and the w of the last broadcast.

Only learnable parameters travel; the official code also averages batch-norm statistics. Its decay of the
step size is left out: the optimisers that it belongs to are rebuilt without it every round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import classify, train
from fedpriv.federation.method import ClientSetup, Method, State
from fedpriv.federation.states import parameters, put, take
from fedpriv.methods.shared import personal_model
from fedpriv.methods.shared.mutual import divergence
from fedpriv.methods.shared.small_model import (
    AUTO,
    check_shared,
    initial_small,
    plain_mean,
    receive_small,
    shared_small,
    small_blueprint,
    small_scratch,
    start_shared,
)
from fedpriv.models.build import build_model
from fedpriv.models.split import SplitModel
from fedpriv.wire.payloads import Message, PublicLoss, SmallModel

_LEARNED = "the mixing weight, learned on the adaptability set"
WEIGHT, SET, TRAINED = "ensemble.weight", "ensemble.set", "ensemble.trained"


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedAPEN.

    Attributes:
        small_model: architecture of the shared model; ``auto`` for cnn4, or small-cnn for tiny images.
        mixture: ``learned`` weights, or ``equal`` ones, w = 0.5 throughout (FedEN, the paper's variant).
        set_share: share of the training images in the adaptability set.
        set_learning_rate: step size of w.
        set_epochs: passes over the adaptability set, in batches of the local batch size.
    """

    small_model: str = AUTO
    mixture: Literal["learned", "equal"] = "learned"
    set_share: Annotated[float, Gt(0), Le(1)] = 0.05
    set_learning_rate: Annotated[float, Gt(0)] = 0.001
    set_epochs: Annotated[int, Ge(1)] = 10


def init(setup: ClientSetup, rng: torch.Generator) -> State:
    """Return both initial models, w = 0.5 and the drawn adaptability set."""
    options: Options = setup.options
    seed = personal_model.draw_seed(rng)
    small = initial_small(small_blueprint(setup.blueprint, options.small_model), seed)
    n_set = max(1, round(options.set_share * len(setup.train)))
    return (
        take(build_model(setup.blueprint, seed), "model")
        | take(small, "small")
        | {
            WEIGHT: torch.tensor([0.5]),
            SET: torch.randperm(len(setup.train), generator=rng)[:n_set].sort().values,
            TRAINED: torch.tensor([False]),
        }
    )


def load(setup: ClientSetup, state: State) -> tuple[SplitModel, SplitModel]:
    """Return the private and the shared model with the weights of a state."""
    model, small = setup.model, small_scratch(setup, small_blueprint(setup.blueprint, setup.options.small_model))
    put(model, state, "model")
    put(small, state, "small")
    return model, small


def mix(private: Tensor, shared: Tensor, weight: Tensor) -> Tensor:
    """Return w P + (1 - w) S for logits ``(n, C)`` and w ``(1,)``."""
    return weight * private + (1 - weight) * shared


def learn_weight(
    weight: Tensor, private: Tensor, shared: Tensor, labels: Tensor, options: Options, batch_size: int
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


def apply_broadcast(setup: ClientSetup, state: State, broadcast: Message) -> State:
    """Replace the shared model by the mean, then learn how to mix it with the private one."""
    options: Options = setup.options
    updated = receive_small(setup, state, broadcast)
    if options.mixture == "equal" or not state[TRAINED]:
        return updated
    images, labels = setup.train.batch(state[SET])
    private, shared = (classify(model, images) for model in load(setup, updated))
    updated[WEIGHT] = learn_weight(state[WEIGHT], private, shared, labels, options, setup.training.batch_size)
    return updated


def mutual_loss(private: Tensor, shared: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Return the sum of both models' losses, of logits ``(b, C)`` and w ``(1,)``."""
    return (
        cross_entropy(private, labels)
        + divergence(private, shared.detach())
        + cross_entropy(mix(private, shared.detach(), weight), labels)
        + cross_entropy(shared, labels)
        + divergence(shared, private.detach())
        + cross_entropy(mix(private.detach(), shared, weight), labels)
    )


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train both models on the same batches; upload the shared one."""
    state = apply_broadcast(setup, state, broadcast)
    model, small = load(setup, state)
    weight = state[WEIGHT]

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return mutual_loss(model(images), small(images), labels, weight)

    train(nn.ModuleList([model, small]), setup.train, setup.training, rng, loss, setup.trace)
    trained = {TRAINED: torch.ones_like(state[TRAINED])}
    return state | take(model, "model") | take(small, "small") | trained, (SmallModel(parameters(small)),)


def predict(setup: ClientSetup, state: State, images: Tensor) -> Tensor:
    """Return the mixed logits ``(n, C)``, w P + (1 - w) S."""
    private, shared = (classify(model, images) for model in load(setup, state))
    return mix(private, shared, state[WEIGHT])


METHOD = Method(
    name="fedapen",
    source="Qin et al., KDD 2023",
    options=Options,
    uploads=("small-model",),
    broadcasts=("small-model",),
    start=start_shared,
    init=init,
    apply_broadcast=apply_broadcast,
    client_step=client_step,
    server_step=plain_mean,
    predict=predict,
    check=check_shared,
    shared=shared_small,
    extra_predictors={"private": personal_model.predict},
    linear_aggregation=True,
    non_sgd_computation=lambda options: _LEARNED if options.mixture == "learned" else "",
    # The private model teaches the shared one through its logits.
    public_loss=lambda options, round_: PublicLoss(through="logits"),
)
