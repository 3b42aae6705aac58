"""DS-FL: clients and a model of the server's learn from sharpened mean outputs on public samples.

Itahara, Nishio, Koda, Morikura, Yamamoto: Distillation-Based Semi-Supervised Federated Learning for
Communication-Efficient Collaborative Training with Non-IID Private Data, IEEE Transactions on Mobile Computing 2021.
Of the clients' mean softmax outputs p, ``era`` (entropy reduction aggregation) makes softmax(p / T), T = 0.1, and
``sa`` (simple aggregation) p, brought back to a distribution, since a defense may have made it negative. Clients, and
a model of the server's with client 0's architecture, minimise the cross-entropy of their outputs with it. Clients'
accuracy after training is after the update; the paper's headline is the server's model, recorded as predictor
``server_model``.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import classify
from fedpriv.federation.method import ClientSetup, LocalTraining, ServerSetup, Uploads
from fedpriv.federation.states import State, put, take
from fedpriv.methods import weights
from fedpriv.methods.fedmd import METHOD as FEDMD
from fedpriv.methods.public_outputs import ASKED, ask, distil, images_of, mean_of, on_public, train_and_answer
from fedpriv.methods.weights import ServerTraining
from fedpriv.models.build import build_model
from fedpriv.models.split import SplitModel
from fedpriv.uploads.payloads import Message, PublicLogits, find_payload
from fedpriv.util.seeds import derive_seed

SERVER = "server"
"""Prefix of the server's model in its state."""


@dataclass(frozen=True)
class ServerDistillation(ServerTraining):
    """The training of the server's model on the round's samples, by SGD."""

    learning_rate: Annotated[float, Gt(0)] = 0.1
    epochs: Annotated[int, Ge(1)] = 5


@dataclass(frozen=True)
class DsFlOptions:
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
    aggregation: Literal["era", "sa"] = "era"
    temperature: Annotated[float, Gt(0)] = 0.1
    distill_epochs: Annotated[int, Ge(0)] = 1
    distill_batch: Annotated[int, Ge(1)] = 32
    server: ServerDistillation = ServerDistillation()


def aggregated(mean: Tensor, options: DsFlOptions) -> Tensor:
    """Return the aggregate ``(n, C)`` of the clients' mean outputs ``(n, C)``: rows of shares that sum to one."""
    if options.aggregation == "era":
        return (mean / options.temperature).softmax(1)
    shares = mean.clamp_min(0)
    return shares / shares.sum(1, keepdim=True).clamp_min(1e-12)


def distil_and_update(
    setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator
) -> tuple[State, Message]:
    """Distil the aggregate, where there is one; train on private data; upload softmax outputs."""
    options: DsFlOptions = setup.options
    model, aggregate = setup.model, find_payload(broadcast, PublicLogits)
    put(model, state, "model")
    if aggregate is not None and options.distill_epochs:
        training = on_public(setup.training, options.distill_epochs, options.distill_batch)
        distil(model, images_of(setup)[aggregate.samples], aggregate.values, cross_entropy, training, rng)
    logits, requested = train_and_answer(setup, broadcast, rng)
    return take(model, "model"), (PublicLogits(logits.softmax(1), requested),)


def server_scratch(setup: ServerSetup) -> SplitModel:
    """Return a module for the server's model that shares nothing with a client's."""
    return copy.deepcopy(setup.scratch(setup.blueprint))


def start_server(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Build the server's model; ask for the outputs on the first samples."""
    seed = derive_seed(weights.draw_seed(rng), "server model")
    model = build_model(setup.blueprint, seed).to(setup.device)
    state, requested = ask(setup, rng)
    return state | take(model, SERVER), requested


def aggregate_and_distil(
    setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator
) -> tuple[State, Message]:
    """Aggregate, distil into the server's model; broadcast the aggregate and ask for outputs on new samples."""
    options: DsFlOptions = setup.options
    samples, aggregate = state[ASKED], aggregated(mean_of(uploads), options)
    drawn, requested = ask(setup, rng)
    model, how = server_scratch(setup), options.server
    put(model, state, SERVER)
    training = LocalTraining(learning_rate=how.learning_rate, batch_size=how.batch_size, epochs=how.epochs)
    distil(model, images_of(setup)[samples], aggregate, cross_entropy, training, rng)
    return drawn | take(model, SERVER), (*requested, PublicLogits(aggregate, samples))


def server_predict(setup: ServerSetup, state: State, images: Tensor) -> Tensor:
    """Return the logits ``(n, C)`` of the server's model."""
    model = server_scratch(setup)
    put(model, state, SERVER)
    return classify(model, images)


METHOD = replace(
    FEDMD,
    name="ds-fl",
    about="DS-FL: clients and a server's model learn from the sharpened mean of all softmax outputs on unlabelled samples.",
    source="Itahara et al., IEEE TMC 2021",
    options=DsFlOptions,
    start=start_server,
    init=weights.init,
    client_step=distil_and_update,
    server_step=aggregate_and_distil,
    server_predict=server_predict,
    needs_public_labels=False,
)
