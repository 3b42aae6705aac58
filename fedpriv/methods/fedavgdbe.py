"""FedAvgDBE: FedAvg with each client's bias taken out of its representations.

Source: Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan: Eliminating Domain Bias for Federated Learning in Representation
Space, NeurIPS 2023, algorithm 1. Two things are added to FedAvg:

- a private vector c_k ``(d,)``, at first 0 and trained with the model: logits = head(r + c_k);
- the loss gains kappa * mean over features of (m - g)^2 / 2, where m <- (1 - momentum) m + momentum * (batch mean
  of r) starts from 0 every round and passes gradients through the current batch only, and g = sum_k n_k m_k / sum_k n_k.

The paper finds g in a pass over all clients before the federation. Here that pass is each client's first round: its first
upload carries its m (the mean of its representations where its images fill no batch), and the server broadcasts g from the
second round on; c_k is trained, and the loss has the second term, from a client's second round on. PFLlib's kappa defaults
to 0; the paper tunes it for each data set, to about 50 on some, the default here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import represent, represent_by, train
from fedpriv.federation.method import ClientSetup, ServerSetup, Uploads
from fedpriv.federation.states import Outcome, State, put, take
from fedpriv.methods import fedavg, weights
from fedpriv.uploads.payloads import FeatureMean, Message, Model, PublicLoss, SampleCount, find_payload, get_payload

TRANSLATION, GLOBAL_MEAN, REPORTED = "dbe.translation", "dbe.global_mean", "dbe.reported"
MEAN_SUM, MEAN_COUNT = "mean.sum", "mean.count"


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedAvgDBE.

    Attributes:
        kappa: weight of the pull of the running mean towards the global mean.
        momentum: of the running mean, in (0, 1]; 1 is the batch mean itself.
        translation: whether c_k is trained; without it and with kappa 0 this is FedAvg.
    """

    kappa: Annotated[float, Ge(0)] = 50.0
    momentum: Annotated[float, Gt(0), Le(1)] = 0.1
    translation: bool = True


def init(setup: ClientSetup, rng: torch.Generator) -> State:
    """Return the initial model and c_k = 0."""
    return weights.init(setup, rng) | {
        TRANSLATION: torch.zeros(setup.width, device=setup.train.labels.device),
        REPORTED: torch.tensor(False),
    }


def apply_broadcast(setup: ClientSetup, state: State, broadcast: Message) -> State:
    """Take over the global model, and the global mean where it is sent."""
    state = weights.receive(Model, setup, state, broadcast)
    sent = find_payload(broadcast, FeatureMean)
    return state if sent is None else state | {GLOBAL_MEAN: sent.mean.clone()}


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train; upload the model with the number of samples, and the first time the running mean."""
    options: Options = setup.options
    state, model = apply_broadcast(setup, state, broadcast), setup.model
    put(model, state, "model")
    debias = bool(state[REPORTED])
    translation = nn.Parameter(state[TRANSLATION].clone())
    target = state.get(GLOBAL_MEAN) if debias else None
    running: Tensor | None = None

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        nonlocal running
        features = model.represent(images)
        mean = options.momentum * features.mean(0)
        if running is not None:
            mean = mean + (1 - options.momentum) * running
        running = mean.detach()
        value = cross_entropy(model.head(features + translation), labels)
        return value if target is None else value + options.kappa * ((mean - target).square().mean() / 2)

    trained = [*model.parameters(), translation] if debias and options.translation else model.parameters()
    train(model, setup.train, setup.training, rng, loss, setup.trace, trained)
    upload = weights.weighed(Model, setup)
    if not debias:
        upload = (*upload, FeatureMean(represent(model, setup.train.images).mean(0) if running is None else running))
    private = {TRANSLATION: translation.detach().clone(), REPORTED: torch.ones_like(state[REPORTED])}
    return state | take(model, "model") | private, upload


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> Outcome:
    """Average models as FedAvg; average the running means of all clients that have sent one."""
    averaged, sent = weights.average(Model, setup, state, uploads, rng)
    sums = state.get(MEAN_SUM, torch.zeros(setup.blueprint.width, dtype=torch.float64, device=setup.device))
    count = state.get(MEAN_COUNT, torch.zeros((), dtype=torch.int64, device=setup.device))
    for _, upload in uploads:
        mean = find_payload(upload, FeatureMean)
        if mean is not None:
            share = get_payload(upload, SampleCount).count[0].to(setup.device)
            sums, count = sums + share * mean.mean.double(), count + share
    return averaged | {MEAN_SUM: sums, MEAN_COUNT: count}, (*sent, FeatureMean((sums / count).float()))


def predict(setup: ClientSetup, state: State, images: Tensor) -> Tensor:
    """Return the logits ``(n, C)`` of head(r + c_k)."""
    features = represent_by(setup, state, images)
    with torch.no_grad():
        logits: Tensor = setup.model.head(features + state[TRANSLATION])
    return logits


def public_loss(options: Options, round_: int) -> PublicLoss:
    """From the second round on representations are moved by a private vector and pulled towards a mean."""
    if round_ == 1 or not (options.translation or options.kappa):
        return PublicLoss()
    return PublicLoss(through="representation", head_apart=True)


METHOD = replace(
    fedavg.METHOD,
    name="fedavgdbe",
    source="Zhang et al., NeurIPS 2023",
    options=Options,
    uploads=("model", "sample-count", "feature-mean"),
    broadcasts=("model", "feature-mean"),
    init=init,
    apply_broadcast=apply_broadcast,
    client_step=client_step,
    server_step=server_step,
    predict=predict,
    linear_aggregation=False,
    non_sgd_computation=lambda options: "the running mean of representations, which enters the loss of later batches",
    public_loss=public_loss,
)
