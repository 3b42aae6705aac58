"""FedGen: the server trains a generator of representations on the clients' heads, and clients train their heads on it.

Source: Zhu, Hong, Zhou: Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021, algorithm
1, in the form of HtFLlib and PFLlib, which leave out the paper's diversity loss and its KL term. With the generator
G, noise u, and classes y drawn from all clients' training labels together, a client minimises

    CE(f(g(x)), y) + weight * CE(f(G(u, y')), y')

over its model (not over G), and the server minimises CE(sum_k n_k f_k(G(u, y)) / n, y) over G by Adam, its moments
new every round. Heads are linear, so the mean of their logits is the logit of their mean, which is broadcast anyway.

``fedgen`` uploads heads of any architectures; ``fedgen-homogeneous``, as PFLlib has it, whole models. Both average by
n_k / n; with weight 0 the second is FedAvg. The label histogram is sent in clear with a client's first upload; the server
broadcasts the sum and the generator every round from the second on.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from fedpriv.federation.method import ClientSetup, Method, ServerSetup, Uploads
from fedpriv.federation.states import State
from fedpriv.methods.shared import feature_generator, weights
from fedpriv.methods.shared.weights import Kind
from fedpriv.wire.payloads import Classifier, Message, Model, PublicLoss


def start(kind: Kind, setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Build the initial weights, which are broadcast, and the initial generator, which is not yet."""
    averaged, sent = weights.start(kind, setup, rng)
    return averaged | feature_generator.start(setup, rng), sent


def client_step(
    kind: Kind, setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator
) -> tuple[State, Message]:
    """Train; upload head or model with the number of samples, and the first time the label histogram."""
    received = weights.receive(kind, setup, state, broadcast)
    trained = feature_generator.train_with_generator(setup, received, broadcast, rng)
    return trained, (*weights.weighed(kind, setup), *feature_generator.first_report(setup, state))


def server_step(
    kind: Kind, setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator
) -> tuple[State, Message]:
    """Average heads or models, train the generator on the average's head; broadcast both, and the label histogram."""
    averaged, sent = weights.average(kind, setup, state, uploads, rng)
    prefix = "global." if kind is Classifier else "global.head."
    head = averaged[f"{prefix}weight"], averaged[f"{prefix}bias"]
    rest, more = feature_generator.server_step(setup, state, uploads, head, rng)
    return averaged | rest, (*sent, *more)


METHOD = Method(
    name="fedgen",
    source="Zhu et al., ICML 2021",
    options=feature_generator.Options,
    uploads=("classifier", "sample-count", "label-counts"),
    broadcasts=("classifier", "generator", "label-counts"),
    start=partial(start, Classifier),
    init=feature_generator.init,
    apply_broadcast=partial(weights.receive, Classifier),
    client_step=partial(client_step, Classifier),
    server_step=partial(server_step, Classifier),
    predict=weights.predict,
    sizes=feature_generator.sizes,
)


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
    start=partial(start, Model),
    apply_broadcast=partial(weights.receive, Model),
    client_step=partial(client_step, Model),
    server_step=partial(server_step, Model),
    homogeneous=True,
    public_loss=public_loss,
)
