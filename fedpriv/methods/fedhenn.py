"""FedHeNN for heterogeneous clients: upload whole models, train towards the mean kernel of all of them.

Source: Makhija, Han, Ho, Ghosh: Architecture Agnostic Federated Learning for Neural Networks, ICML 2022, algorithm 2
and equation 6. The server keeps every client's newest weights, so that the reference of a round covers all N clients,
also those that did not take part: K_ref = 1/N sum_j K_j over that round's public images. Nothing is averaged but
kernels; with weight 0 clients train alone. See :mod:`fedpriv.methods.shared.alignment` for the term itself, and
:mod:`fedpriv.methods.fedhenn_kernel` for a variant in which no weights leave the client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedpriv.federation.local_training import train
from fedpriv.federation.method import ClientSetup, Method, ServerSetup, State
from fedpriv.federation.states import inner, outer, parameters, put, take
from fedpriv.methods.shared import personal_model
from fedpriv.methods.shared.alignment import (
    Options,
    aligned_loss,
    coefficient,
    coefficient_item,
    images_item,
    public_kernel,
    rad_images,
    sample_images,
)
from fedpriv.models.build import build_model
from fedpriv.models.split import SplitModel
from fedpriv.wire.payloads import Coefficient, Kernel, Message, Model, PublicImages, get_payload
from fedpriv.wire.public_loss import PublicLoss
from fedpriv.wire.sizes import FederationSizes, Item

ROUND = "round"


def prefix(client: int) -> str:
    """Return what the server files a client's weights under."""
    return f"client-{client:03d}"


def start(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Give every client the initial weights of its architecture, as the clients do themselves, and broadcast."""
    seed = personal_model.draw_seed(rng)
    state: State = {ROUND: torch.tensor([1])}
    for client, blueprint in enumerate(setup.blueprints):
        weights = parameters(build_model(blueprint, seed))
        state |= outer({name: value.to(setup.device) for name, value in weights.items()}, prefix(client))
    return state, broadcast(setup, state, rng)


def broadcast(setup: ServerSetup, state: State, rng: torch.Generator) -> Message:
    """Sample public images; return them with the mean kernel of all clients' models and the round's eta."""
    images = sample_images(setup, rng)
    return PublicImages(images), Kernel(mean_kernel(setup, state, images)), coefficient(setup, int(state[ROUND]))


@torch.no_grad()
def mean_kernel(setup: ServerSetup, state: State, images: Tensor) -> Tensor:
    """Return 1/N sum_j K_j ``(L, L)`` over all clients' newest models, summed in float64."""
    total = torch.zeros(len(images), len(images), dtype=torch.float64, device=images.device)
    for client, blueprint in enumerate(setup.blueprints):
        model = setup.scratch(blueprint)
        load(model, inner(state, prefix(client)))
        total += public_kernel(model, images, setup.options).double()
    return (total / len(setup.blueprints)).float()


@torch.no_grad()
def load(model: SplitModel, weights: Mapping[str, Tensor]) -> None:
    """Load learnable parameters; running statistics stay, and kernels do not depend on them."""
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train by cross-entropy and alignment; upload the whole model."""
    images, reference = get_payload(broadcast, PublicImages).images, get_payload(broadcast, Kernel).matrix
    put(setup.model, state, "model")
    loss = aligned_loss(setup, images, reference, float(get_payload(broadcast, Coefficient).value), rng)
    train(setup.model, setup.train, setup.training, rng, loss, setup.trace)
    return take(setup.model, "model"), (Model(parameters(setup.model)),)


def server_step(
    setup: ServerSetup, state: State, uploads: Sequence[tuple[int, Message]], rng: torch.Generator
) -> tuple[State, Message]:
    """Keep the uploaded weights and represent new public images with everybody's."""
    state = state | {ROUND: state[ROUND] + 1}
    for client, upload in uploads:
        state |= outer(get_payload(upload, Model).state, prefix(client))
    return state, broadcast(setup, state, rng)


def message_sizes(facts: FederationSizes) -> tuple[Item, ...]:
    """Return every client's model up; public images, their L x L kernel and eta down to every client."""
    size = rad_images(facts)
    return (
        Item("upload", "model.state", facts.all_models()),
        images_item(facts, size),
        Item("broadcast", "kernel.matrix", facts.clients * size * size),
        coefficient_item(facts),
    )


def public_loss(options: Options, round_: int) -> PublicLoss:
    """Return that the loss has a term of public images beside the cross-entropy."""
    return PublicLoss(besides="alignment of representations of public images" if options.weight else "")


METHOD = Method(
    name="fedhenn",
    source="Makhija et al., ICML 2022",
    options=Options,
    uploads=("model",),
    broadcasts=("public-images", "kernel", "coefficient"),
    start=start,
    init=personal_model.init,
    apply_broadcast=personal_model.receive_nothing,
    client_step=client_step,
    server_step=server_step,
    predict=personal_model.predict,
    needs_public=True,
    message_sizes=message_sizes,
    public_loss=public_loss,
)
