"""FedGen: the server trains a generator of representations on the clients' heads, and clients train their heads on it.

Source: Zhu, Hong, Zhou: Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021, algorithm
1, in the form of HtFLlib and PFLlib, which leave out the paper's diversity loss and its KL term. With the generator
G, noise u, and classes y drawn from all clients' training labels together, a client minimises

    CE(f(g(x)), y) + weight * CE(f(G(u, y')), y')

over its model (not over G), and the server minimises CE(sum_k n_k f_k(G(u, y)) / n, y) over G by Adam, its moments
new every round. Heads are linear, so the mean of their logits is the logit of their mean, sum_k n_k f_k / n, which
is broadcast anyway. Here clients upload heads and may have different architectures;
:mod:`fedpriv.methods.fedgen_homogeneous` averages models.

The label histogram is sent in clear, once, with a client's first upload; the server broadcasts the sum. Neither it
nor a trained generator exists in the first round, so the second term begins with the second (the libraries count
labels before the federation and train the first round's heads on an untrained generator). Generator and histogram
are broadcast every round. The generator is counted in both of the ledger's counts; table 11 of the FedRE paper
leaves it out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedpriv.federation.method import ClientSetup, Method, ServerSetup, State
from fedpriv.federation.states import parameters
from fedpriv.methods import lg_fedavg
from fedpriv.methods.fedavg import sample_count
from fedpriv.methods.shared import feature_generator, global_head, personal_model
from fedpriv.wire.payloads import Classifier, Message
from fedpriv.wire.sizes import FederationSizes, Item


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


def server_step(
    setup: ServerSetup, state: State, uploads: Sequence[tuple[int, Message]], rng: torch.Generator
) -> tuple[State, Message]:
    """Average the heads, train the generator on the average; broadcast both, and the label histogram."""
    head, sent = lg_fedavg.server_step(setup, state, uploads, rng)
    pair = head["head.weight"], head["head.bias"]
    rest, more = feature_generator.server_step(setup, state, uploads, pair, rng)
    return head | rest, (*sent, *more)


def message_sizes(facts: FederationSizes) -> tuple[Item, ...]:
    """Return LG-FedAvg's, and generator and histogram to every client.

    In the first round clients upload their histograms, and the server sends neither generator nor histogram.
    """
    return (*lg_fedavg.message_sizes(facts), *feature_generator.broadcast_items(facts))


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
    message_sizes=message_sizes,
)
