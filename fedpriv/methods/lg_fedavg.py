"""LG-FedAvg: average the heads, keep the extractors.

Source: Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally: Federated
Learning with Local and Global Representations, NeurIPS 2019 workshop on federated learning. Clients train their
whole model by cross-entropy and upload the head; the server averages, and the average replaces every client's head:

    f = sum_k n_k f_k / sum_k n_k.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedpriv.federation.method import ClientSetup, Method, NoOptions, ServerSetup, State
from fedpriv.federation.states import outer, parameters, weighted_mean
from fedpriv.methods.fedavg import sample_count
from fedpriv.methods.shared import global_head, personal_model
from fedpriv.wire.payloads import Classifier, Message, SampleCount, get_payload
from fedpriv.wire.sizes import FederationSizes, Item, labels


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train the whole model; upload its head with the number of samples."""
    trained = global_head.train_locally(setup, state, broadcast, rng)
    return trained, (Classifier(parameters(setup.model.head)), sample_count(setup))


def server_step(
    setup: ServerSetup, state: State, uploads: Sequence[tuple[int, Message]], rng: torch.Generator
) -> tuple[State, Message]:
    """Average the heads by numbers of samples."""
    head = weighted_mean(
        [get_payload(upload, Classifier).state for _, upload in uploads],
        [int(get_payload(upload, SampleCount).count) for _, upload in uploads],
    )
    return outer(head, "head"), (Classifier(head),)


def message_sizes(facts: FederationSizes) -> tuple[Item, ...]:
    """Return a head each way per client, and the number of samples."""
    return (
        Item("upload", "classifier.state", facts.clients * facts.head_scalars),
        labels("sample-count.count", facts.clients),
        global_head.broadcast_item(facts),
    )


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
    message_sizes=message_sizes,
    linear_aggregation=True,
)
