"""LG-FedAvg: average the heads, keep the extractors.

Source: Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally: Federated
Learning with Local and Global Representations, NeurIPS 2019 workshop on federated learning. Clients train their
whole model by cross-entropy and upload the head; the server averages, and the average replaces every client's head:

    f = sum_k n_k f_k / sum_k n_k.
"""

from __future__ import annotations

import torch

from fedpriv.federation.method import ClientSetup, Method, NoOptions, ServerSetup, State, Uploads
from fedpriv.federation.states import outer, parameters
from fedpriv.methods.fedavg import mean_by_samples, sample_count
from fedpriv.methods.shared import global_head, personal_model
from fedpriv.wire.payloads import Classifier, Message


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train the whole model; upload its head with the number of samples."""
    trained = global_head.train_locally(setup, state, broadcast, rng)
    return trained, (Classifier(parameters(setup.model.head)), sample_count(setup))


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Average the heads by numbers of samples."""
    head = mean_by_samples(uploads, Classifier)
    return outer(head, "head"), (Classifier(head),)


METHOD = Method(
    name="lg-fedavg",
    source="Liang et al., NeurIPS 2019 workshop",
    options=NoOptions,
    uploads=("classifier", "sample-count"),
    broadcasts=("classifier",),
    start=global_head.start,
    init=personal_model.init,
    apply_broadcast=global_head.apply_broadcast,
    client_step=client_step,
    server_step=server_step,
    predict=personal_model.predict,
    linear_aggregation=True,
)
