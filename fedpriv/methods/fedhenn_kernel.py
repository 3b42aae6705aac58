"""FedHeNN without uploading weights: clients return kernels of public images.

A variant of ours of FedHeNN (Makhija et al., ICML 2022), in which the server never holds a client's model. Clients
receive the images to represent and return the kernel K_i of their trained model. Since only clients can compute
kernels, the reference of a round is about the images that were represented in the round before, and is the mean over
that round's clients. A broadcast therefore carries, in this order, the L images that the reference kernel is about
(none in the first round) and L new ones whose kernel is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedpriv.federation.local_training import classification_loss, train
from fedpriv.federation.method import ClientSetup, Method, ServerSetup, State
from fedpriv.federation.states import put, take
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
from fedpriv.wire.payloads import Coefficient, Kernel, Message, PublicImages, find_payload, get_payload
from fedpriv.wire.sizes import FederationSizes, Item

ROUND, IMAGES = "round", "images"


def start(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Ask for the kernel of the first public images; there is no reference yet."""
    images = sample_images(setup, rng)
    return {ROUND: torch.tensor([1]), IMAGES: images}, (PublicImages(images), coefficient(setup, 1))


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train by cross-entropy and alignment; upload the kernel of the new public images."""
    images, reference = get_payload(broadcast, PublicImages).images, find_payload(broadcast, Kernel)
    put(setup.model, state, "model")
    asked = images
    loss = classification_loss(setup.model)
    if reference is not None:
        known, asked = images[: len(reference.matrix)], images[len(reference.matrix) :]
        loss = aligned_loss(setup, known, reference.matrix, float(get_payload(broadcast, Coefficient).value), rng)
    train(setup.model, setup.train, setup.training, rng, loss, setup.trace)
    with torch.no_grad():
        matrix = public_kernel(setup.model, asked, setup.options)
    return take(setup.model, "model"), (Kernel(matrix),)


def server_step(
    setup: ServerSetup, state: State, uploads: Sequence[tuple[int, Message]], rng: torch.Generator
) -> tuple[State, Message]:
    """Average the kernels of the round's clients and ask for those of new images."""
    kernels = torch.stack([get_payload(upload, Kernel).matrix.double() for _, upload in uploads])
    images, round_ = sample_images(setup, rng), state[ROUND] + 1
    message = (
        PublicImages(torch.cat([state[IMAGES], images])),
        Kernel(kernels.mean(0).float()),
        coefficient(setup, int(round_)),
    )
    return {ROUND: round_, IMAGES: images}, message


def message_sizes(facts: FederationSizes) -> tuple[Item, ...]:
    """Return an L x L kernel each way and 2 L public images down per client (L, and no kernel down, in round 1)."""
    size = rad_images(facts)
    kernels = facts.clients * size * size
    return (
        Item("upload", "kernel.matrix", kernels),
        images_item(facts, 2 * size),
        Item("broadcast", "kernel.matrix", kernels),
        coefficient_item(facts),
    )


METHOD = Method(
    name="fedhenn-kernel",
    source="variant of Makhija et al., ICML 2022",
    options=Options,
    uploads=("kernel",),
    broadcasts=("public-images", "kernel", "coefficient"),
    start=start,
    init=personal_model.init,
    apply_broadcast=personal_model.receive_nothing,
    client_step=client_step,
    server_step=server_step,
    predict=personal_model.predict,
    needs_public=True,
    message_sizes=message_sizes,
    linear_aggregation=True,
)
