"""FedGen for homogeneous clients: FedAvg, whose clients also train their heads on generated representations.

Source: Zhu, Hong, Zhou: Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021, algorithm
1, as PFLlib has it. All is as in :mod:`fedpriv.methods.fedgen`, but whole models are uploaded, averaged by n_k / n
and broadcast; the generator is trained on the averaged model's head. With weight 0 this is FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedpriv.federation.method import ClientSetup, Method, ServerSetup, State
from fedpriv.federation.states import parameters
from fedpriv.methods import fedavg
from fedpriv.methods.shared import feature_generator, personal_model
from fedpriv.wire.payloads import Message, Model
from fedpriv.wire.public_loss import PublicLoss
from fedpriv.wire.sizes import FederationSizes, Item


def start(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Build the initial model, which is broadcast, and the initial generator, which is not yet."""
    weights, sent = fedavg.start(setup, rng)
    return weights | feature_generator.start(setup, rng), sent


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train; upload the model with the number of samples, and the first time the label histogram."""
    received = fedavg.apply_broadcast(setup, state, broadcast)
    trained = feature_generator.train_with_generator(setup, received, broadcast, rng)
    model = Model(parameters(setup.model))
    return trained, (model, fedavg.sample_count(setup), *feature_generator.first_report(setup, state))


def server_step(
    setup: ServerSetup, state: State, uploads: Sequence[tuple[int, Message]], rng: torch.Generator
) -> tuple[State, Message]:
    """Average the models, train the generator on the average's head; broadcast both, and the label histogram."""
    weights, sent = fedavg.server_step(setup, state, uploads, rng)
    pair = weights["global.head.weight"], weights["global.head.bias"]
    rest, more = feature_generator.server_step(setup, state, uploads, pair, rng)
    return weights | rest, (*sent, *more)


def message_sizes(facts: FederationSizes) -> tuple[Item, ...]:
    """Return FedAvg's, and generator and histogram to every client.

    In the first round clients upload their histograms, and the server sends neither generator nor histogram.
    """
    return (*fedavg.message_sizes(facts), *feature_generator.broadcast_items(facts))


def public_loss(options: feature_generator.Options, round_: int) -> PublicLoss:
    """Return that from the second round on generated representations train the head too."""
    if round_ == 1 or options.weight == 0:
        return PublicLoss()
    return PublicLoss(head_apart=True, later="generated representations, drawn in private, move the head as well")


METHOD = Method(
    name="fedgen-homogeneous",
    source="Zhu et al., ICML 2021",
    options=feature_generator.Options,
    uploads=("model", "sample-count", "label-counts"),
    broadcasts=("model", "generator", "label-counts"),
    start=start,
    init=feature_generator.init,
    apply_broadcast=fedavg.apply_broadcast,
    client_step=client_step,
    server_step=server_step,
    predict=personal_model.predict,
    homogeneous=True,
    message_sizes=message_sizes,
    public_loss=public_loss,
)
