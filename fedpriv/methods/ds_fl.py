"""DS-FL: clients and a server's model learn from the sharpened mean of all clients' softmax outputs on unlabelled samples.

Source: Itahara, Nishio, Koda, Morikura, Yamamoto: Distillation-Based Semi-Supervised Federated Learning for
Communication-Efficient Collaborative Training with Non-IID Private Data, IEEE Transactions on Mobile Computing 2021. In
every round clients *update* on private data, *predict* softmax outputs on the round's part of the unlabelled open set,
*upload* them, the server *aggregates* and *broadcasts*, and clients and the server's own model *distil*: they minimise the
cross-entropy of their outputs with the aggregate. With p the mean of the clients' outputs on a sample, the aggregate is

    era (entropy reduction aggregation): softmax(p / T), T = 0.1
    sa (simple aggregation):             p.

A round here begins where the server's broadcast arrives: distillation of the aggregate before it comes first, then update,
prediction and upload (:mod:`fedpriv.methods.shared.public_answers`). Clients' accuracy after training is thus after update;
the paper's headline is the server's model, recorded as predictor ``server_model``. It has client 0's architecture and random
initial weights. With ``sa`` the mean is brought back to a distribution, by cutting at zero and dividing by the sum, since a
defense may have made it negative.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import classification_loss, classify, train
from fedpriv.federation.method import ClientSetup, LocalTraining, Method, ServerSetup, Uploads
from fedpriv.federation.states import State, put, take
from fedpriv.methods.shared import public_answers, weights
from fedpriv.methods.shared.public_answers import ASKED, ask, distil, images_of, logits_asked_for, mean_of, on_public
from fedpriv.models.build import build_model
from fedpriv.models.split import SplitModel
from fedpriv.util.seeds import derive_seed
from fedpriv.wire.payloads import Message, PublicLogits, find_payload

SERVER = "server"
"""Prefix of the server's model in its state."""

Aggregation = Literal["era", "sa"]


@dataclass(frozen=True)
class ServerTraining:
    """The server's distillation, by SGD.

    Attributes:
        epochs: passes over the round's samples.
        learning_rate: step size.
        batch_size: samples a step.
    """

    epochs: Annotated[int, Ge(1)] = 5
    learning_rate: Annotated[float, Gt(0)] = 0.1
    batch_size: Annotated[int, Ge(1)] = 10


@dataclass(frozen=True)
class Options:
    """Hyperparameters of DS-FL.

    Attributes:
        samples: public samples asked about in a round; all where there are fewer.
        aggregation: ``era`` or ``sa``.
        temperature: T of ``era``; 0.1 in the paper.
        distill_epochs: passes of clients over the round's public samples; 0 gives local training.
        distill_batch: public samples a step of it.
        server: training of the server's model.
    """

    samples: Annotated[int, Ge(1)] = 1000
    aggregation: Aggregation = "era"
    temperature: Annotated[float, Gt(0)] = 0.1
    distill_epochs: Annotated[int, Ge(0)] = 1
    distill_batch: Annotated[int, Ge(1)] = 32
    server: ServerTraining = ServerTraining()


def aggregated(mean: Tensor, options: Options) -> Tensor:
    """Return the aggregate ``(n, C)`` of the clients' mean outputs ``(n, C)``: rows of shares that sum to one."""
    if options.aggregation == "era":
        return (mean / options.temperature).softmax(1)
    shares = mean.clamp_min(0)
    return shares / shares.sum(1, keepdim=True).clamp_min(1e-12)


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Distil the aggregate, where there is one; train on private data; upload softmax outputs."""
    options: Options = setup.options
    model, aggregate = setup.model, find_payload(broadcast, PublicLogits)
    put(model, state, "model")
    if aggregate is not None and options.distill_epochs:
        training = on_public(setup.training, options.distill_epochs, options.distill_batch)
        distil(model, images_of(setup)[aggregate.samples], aggregate.values, cross_entropy, training, rng)
    train(model, setup.train, setup.training, rng, classification_loss(model), setup.trace)
    logits, requested = logits_asked_for(setup, broadcast)
    return take(model, "model"), (PublicLogits(logits.softmax(1), requested),)


def server_scratch(setup: ServerSetup) -> SplitModel:
    """Return a module for the server's model that shares nothing with a client's."""
    return copy.deepcopy(setup.scratch(setup.blueprint))


def start(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Build the server's model; ask for the outputs on the first samples."""
    seed = derive_seed(weights.draw_seed(rng), "server model")
    model = build_model(setup.blueprint, seed).to(setup.device)
    state, requested = ask(setup, rng)
    return state | take(model, SERVER), (requested,)


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Aggregate, distil into the server's model; broadcast the aggregate and ask for outputs on new samples."""
    options: Options = setup.options
    samples, aggregate = state[ASKED], aggregated(mean_of(uploads), options)
    drawn, requested = ask(setup, rng)
    model, how = server_scratch(setup), options.server
    put(model, state, SERVER)
    assert setup.public is not None
    training = LocalTraining(learning_rate=how.learning_rate, batch_size=how.batch_size, epochs=how.epochs)
    distil(model, setup.public[samples], aggregate, cross_entropy, training, rng)
    return drawn | take(model, SERVER), (requested, PublicLogits(aggregate, samples))


def server_predict(setup: ServerSetup, state: State, images: Tensor) -> Tensor:
    """Return the logits ``(n, C)`` of the server's model."""
    model = server_scratch(setup)
    put(model, state, SERVER)
    return classify(model, images)


METHOD = Method(
    name="ds-fl",
    source="Itahara et al., IEEE TMC 2021",
    options=Options,
    uploads=("public-logits",),
    broadcasts=("public-samples", "public-logits"),
    start=start,
    init=weights.init,
    # The aggregate is distilled at the start of the next round: that is training.
    apply_broadcast=weights.receive_nothing,
    client_step=client_step,
    server_step=server_step,
    predict=weights.predict,
    server_predict=server_predict,
    needs_public=True,
    sizes=public_answers.sizes,
    linear_aggregation=True,
)
