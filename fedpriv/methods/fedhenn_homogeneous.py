"""FedHeNN for homogeneous clients: FedAvg, with local representations pulled towards the global model's.

Source: Makhija, Han, Ho, Ghosh: Architecture Agnostic Federated Learning for Neural Networks, ICML 2022, algorithm 1
and equation 5. K_ref is the kernel of the global model that the client just received, over the round's public images;
the client computes it itself. With weight 0 this is FedAvg. See :mod:`fedpriv.methods.shared.alignment` for the term.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedpriv.federation.local_training import train
from fedpriv.federation.method import ClientSetup, Method, ServerSetup, State
from fedpriv.federation.states import parameters, put, take
from fedpriv.methods import fedavg
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
from fedpriv.wire.payloads import Coefficient, Message, Model, PublicImages, get_payload
from fedpriv.wire.public_loss import PublicLoss
from fedpriv.wire.sizes import FederationSizes, Item

ROUND = "round"


def start(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Broadcast the initial global model with the first public images."""
    state, message = fedavg.start(setup, rng)
    return state | {ROUND: torch.tensor([1])}, (
        *message,
        PublicImages(sample_images(setup, rng)),
        coefficient(setup, 1),
    )


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train the global model by cross-entropy and alignment with where it came from; upload it."""
    images = get_payload(broadcast, PublicImages).images
    put(setup.model, fedavg.apply_broadcast(setup, state, broadcast), "model")
    with torch.no_grad():
        reference = public_kernel(setup.model, images, setup.options)
    loss = aligned_loss(setup, images, reference, float(get_payload(broadcast, Coefficient).value), rng)
    train(setup.model, setup.train, setup.training, rng, loss, setup.trace)
    return take(setup.model, "model"), (Model(parameters(setup.model)), fedavg.sample_count(setup))


def server_step(
    setup: ServerSetup, state: State, uploads: Sequence[tuple[int, Message]], rng: torch.Generator
) -> tuple[State, Message]:
    """Average by numbers of samples; sample new public images."""
    averaged, message = fedavg.server_step(setup, state, uploads, rng)
    round_ = state[ROUND] + 1
    images = PublicImages(sample_images(setup, rng))
    return averaged | {ROUND: round_}, (*message, images, coefficient(setup, int(round_)))


def message_sizes(facts: FederationSizes) -> tuple[Item, ...]:
    """Return what FedAvg sends, and public images and eta down to every client."""
    return (*fedavg.message_sizes(facts), images_item(facts, rad_images(facts)), coefficient_item(facts))


def public_loss(options: Options, round_: int) -> PublicLoss:
    """Return that the loss has a term of public images, whose gradient is zero where a round begins."""
    return PublicLoss(later="alignment of representations of public images" if options.weight else "")


METHOD = Method(
    name="fedhenn-homogeneous",
    source="Makhija et al., ICML 2022",
    options=Options,
    uploads=("model", "sample-count"),
    broadcasts=("model", "public-images", "coefficient"),
    start=start,
    init=personal_model.init,
    apply_broadcast=fedavg.apply_broadcast,
    client_step=client_step,
    server_step=server_step,
    predict=personal_model.predict,
    homogeneous=True,
    needs_public=True,
    message_sizes=message_sizes,
    linear_aggregation=True,
    public_loss=public_loss,
)
