"""FedGen: the server trains a generator of representations on the clients' heads, and clients train their heads on it.

Source: Zhu, Hong, Zhou: Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021, algorithm
1, in the form of HtFLlib and PFLlib, which leave out the paper's diversity loss and its KL term. With the generator
G, noise u, and classes y drawn from all clients' training labels together, a client minimises

    CE(f(g(x)), y) + weight * CE(f(G(u, y')), y')

over its model (not over G), and the server minimises CE(sum_k n_k f_k(G(u, y)) / n, y) over G by Adam, its moments
new every round. Heads are linear, so the mean of their logits is the logit of their mean, sum_k n_k f_k / n, which
is broadcast anyway. In ``fedgen`` clients upload heads and may have different architectures.

The label histogram is sent in clear, once, with a client's first upload; the server broadcasts the sum. Neither it
nor a trained generator exists in the first round, so the second term begins with the second (the libraries count
labels before the federation and train the first round's heads on an untrained generator). Generator and histogram
are broadcast every round. The generator is counted in both of the ledger's counts; table 11 of the FedRE paper
leaves it out.

In ``fedgen-homogeneous``, as PFLlib has it, whole models are uploaded, averaged by n_k / n and broadcast, and the generator
is trained on the averaged model's head. With weight 0 it is FedAvg.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fedpriv.federation.method import ClientSetup, Method, ServerSetup, State, Uploads
from fedpriv.federation.states import parameters
from fedpriv.methods import fedavg, lg_fedavg
from fedpriv.methods.fedavg import sample_count
from fedpriv.methods.shared import feature_generator, global_head, personal_model
from fedpriv.wire.payloads import Classifier, Message, Model, PublicLoss


def start(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Build the initial head, which is broadcast, and the initial generator, which is not yet."""
    head, sent = global_head.start(setup, rng)
    return head | feature_generator.start(setup, rng), sent


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train; upload the head with the number of samples, and the first time the label histogram."""
    received = global_head.apply_broadcast(setup, state, broadcast)
    trained = feature_generator.train_with_generator(setup, received, broadcast, rng)
    head = Classifier(parameters(setup.model.head))
    return trained, (head, sample_count(setup), *feature_generator.first_report(setup, state))


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Average the heads, train the generator on the average; broadcast both, and the label histogram."""
    head, sent = lg_fedavg.server_step(setup, state, uploads, rng)
    pair = head["head.weight"], head["head.bias"]
    rest, more = feature_generator.server_step(setup, state, uploads, pair, rng)
    return head | rest, (*sent, *more)


METHOD = Method(
    name="fedgen",
    source="Zhu et al., ICML 2021",
    options=feature_generator.Options,
    uploads=("classifier", "sample-count", "label-counts"),
    broadcasts=("classifier", "generator", "label-counts"),
    start=start,
    init=feature_generator.init,
    apply_broadcast=global_head.apply_broadcast,
    client_step=client_step,
    server_step=server_step,
    predict=personal_model.predict,
    sizes=feature_generator.sizes,
)


# ---------------------------------------------------------------- fedgen-homogeneous


def start_averaging(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Build the initial model, which is broadcast, and the initial generator, which is not yet."""
    weights, sent = fedavg.start(setup, rng)
    return weights | feature_generator.start(setup, rng), sent


def train_averaged(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train; upload the model with the number of samples, and the first time the label histogram."""
    received = fedavg.apply_broadcast(setup, state, broadcast)
    trained = feature_generator.train_with_generator(setup, received, broadcast, rng)
    model = Model(parameters(setup.model))
    return trained, (model, sample_count(setup), *feature_generator.first_report(setup, state))


def average(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Average the models, train the generator on the average's head; broadcast both, and the label histogram."""
    weights, sent = fedavg.server_step(setup, state, uploads, rng)
    pair = weights["global.head.weight"], weights["global.head.bias"]
    rest, more = feature_generator.server_step(setup, state, uploads, pair, rng)
    return weights | rest, (*sent, *more)


def public_loss(options: feature_generator.Options, round_: int) -> PublicLoss:
    """From the second round on generated representations train the head too."""
    if round_ == 1 or options.weight == 0:
        return PublicLoss()
    return PublicLoss(head_apart=True, later="generated representations, drawn in private, move the head as well")


HOMOGENEOUS = replace(
    METHOD,
    name="fedgen-homogeneous",
    uploads=("model", "sample-count", "label-counts"),
    broadcasts=("model", "generator", "label-counts"),
    start=start_averaging,
    apply_broadcast=fedavg.apply_broadcast,
    client_step=train_averaged,
    server_step=average,
    homogeneous=True,
    public_loss=public_loss,
)
