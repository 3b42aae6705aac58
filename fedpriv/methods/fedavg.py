"""FedAvg: average whole models, weighted by the number of training samples.

Source: McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data, AISTATS 2017, algorithm 1. Learnable parameters are exchanged; batch-norm statistics stay with the
client, as in the reference libraries.
"""

from __future__ import annotations

import torch

from fedpriv.federation.local_training import classification_loss, train
from fedpriv.federation.method import ClientSetup, Method, NoOptions, ServerSetup, State, Uploads
from fedpriv.federation.states import outer, parameters, put, take, weighted_mean
from fedpriv.methods.shared import personal_model
from fedpriv.models.build import build_model
from fedpriv.wire.payloads import Classifier, Extractor, Message, Model, SampleCount, get_payload


def start(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Build the initial global model and broadcast it."""
    model = build_model(setup.blueprint, personal_model.draw_seed(rng)).to(setup.device)
    weights = parameters(model)
    return outer(weights, "global"), (Model(weights),)


def apply_broadcast(setup: ClientSetup, state: State, broadcast: Message) -> State:
    """Replace the client's parameters by the global ones."""
    weights = get_payload(broadcast, Model).state
    return state | outer({name: value.clone() for name, value in weights.items()}, "model")


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train the global model on the client's data; upload it with the number of samples."""
    put(setup.model, apply_broadcast(setup, state, broadcast), "model")
    train(setup.model, setup.train, setup.training, rng, classification_loss(setup.model), setup.trace)
    upload = (Model(parameters(setup.model)), sample_count(setup))
    return take(setup.model, "model"), upload


def sample_count(setup: ClientSetup) -> SampleCount:
    """Return the client's number of training samples, n_k."""
    return SampleCount(torch.tensor([len(setup.train)]))


def mean_by_samples(uploads: Uploads, kind: type[Model | Extractor | Classifier]) -> State:
    """Return sum_k n_k w_k / sum_k n_k over the weights of a kind that the clients of a round uploaded."""
    return weighted_mean(
        [get_payload(upload, kind).state for _, upload in uploads],
        [int(get_payload(upload, SampleCount).count) for _, upload in uploads],
    )


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Average the models by numbers of samples."""
    weights = mean_by_samples(uploads, Model)
    return outer(weights, "global"), (Model(weights),)


METHOD = Method(
    name="fedavg",
    source="McMahan et al., AISTATS 2017",
    options=NoOptions,
    uploads=("model", "sample-count"),
    broadcasts=("model",),
    start=start,
    init=personal_model.init,
    apply_broadcast=apply_broadcast,
    client_step=client_step,
    server_step=server_step,
    predict=personal_model.predict,
    homogeneous=True,
    linear_aggregation=True,
)
