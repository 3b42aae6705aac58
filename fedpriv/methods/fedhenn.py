"""FedHeNN: train towards a reference kernel K_ref of public images, which the server samples anew every round.

Source: Makhija, Han, Ho, Ghosh: Architecture Agnostic Federated Learning for Neural Networks, ICML 2022. See
:mod:`fedpriv.methods.shared.alignment` for the term. Three methods differ in where the reference comes from:

- ``fedhenn`` (algorithm 2, equation 6), for clients of any architecture: they upload whole models. The server keeps every
  client's newest weights, so that the reference covers all N clients, also those that did not take part: K_ref =
  sum_j w_j K_j over the round's public images, w_j = 1/N unless ``client_weights`` says otherwise. Nothing is averaged
  but kernels; with weight 0 clients train alone.
- ``fedhenn-homogeneous`` (algorithm 1, equation 5): FedAvg, where K_ref is the kernel of the global model that the client
  just received; it computes that itself. With weight 0 this is FedAvg. Only here, where representations have one
  meaning, can Procrustes distance stand in place of CKA (section 3.4).
- ``fedhenn-kernel``, a variant of ours in which the server never holds a client's model: clients upload the kernel K_i of
  their trained model. Since only clients can compute kernels, the reference of a round is about the images of the round
  before, and is the mean over that round's clients. A broadcast therefore carries, in this order, the L images that the
  reference kernel is about (none in the first round) and L new ones whose kernel is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedpriv.federation.defense import Loss
from fedpriv.federation.local_training import classification_loss, train
from fedpriv.federation.method import ClientSetup, Method, ServerSetup, State, Uploads, own_cross_entropy
from fedpriv.federation.states import inner, outer, parameters, put, take
from fedpriv.methods import fedavg
from fedpriv.methods.shared import alignment, personal_model
from fedpriv.methods.shared.alignment import (
    CKA,
    PROCRUSTES,
    Comparison,
    HomogeneousOptions,
    MixtureOptions,
    Options,
    coefficient,
    mixture_weight,
    public_kernel,
    sample_images,
)
from fedpriv.models.build import build_model
from fedpriv.models.split import SplitModel
from fedpriv.wire.payloads import (
    Coefficient,
    Kernel,
    Message,
    Model,
    PublicImages,
    PublicLoss,
    find_payload,
    get_payload,
)

ROUND, IMAGES, VELOCITY = "round", "images", "velocity"
FIRST = {ROUND: torch.tensor([1])}
_TERM = "alignment of representations of public images"


def aligned(
    setup: ClientSetup,
    broadcast: Message,
    images: Tensor,
    reference: Tensor,
    rng: torch.Generator,
    comparison: Comparison = CKA,
) -> Loss:
    """Return cross-entropy and alignment on images ``(L, c, h, w)`` with a reference, weighted as the server says."""
    weight = float(get_payload(broadcast, Coefficient).value)
    return alignment.aligned_loss(setup, images, reference, weight, rng, comparison)


def trained(setup: ClientSetup, state: State, loss: Loss, rng: torch.Generator) -> State:
    """Train ``setup.model``; return its state, and the momentum that the next round begins with where it is kept."""
    velocity = inner(state, VELOCITY) if setup.options.keep_momentum else None
    train(setup.model, setup.train, setup.training, rng, loss, setup.trace, velocity=velocity)
    return take(setup.model, "model") | outer(velocity or {}, VELOCITY)


def what_else(term: str, options: Options, round_: int) -> str:
    """Return, in words, all that moves the weights beside cross-entropy."""
    kept = "momentum of earlier rounds moves the weights as well" if options.keep_momentum and round_ > 1 else ""
    return "; ".join(filter(None, (term if options.weight else "", kept)))


# ---------------------------------------------------------------- fedhenn


def prefix(client: int) -> str:
    """Return the name that the server files a client's weights under."""
    return f"client-{client:03d}"


def start(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Give every client the initial weights of its architecture, as the clients do themselves, and broadcast."""
    seed = personal_model.draw_seed(rng)
    state: State = dict(FIRST)
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
    """Return sum_j w_j K_j ``(L, L)`` over all clients' newest models, summed in float64; the weights sum to one."""

    def kernels() -> Iterator[tuple[int, Tensor]]:
        for client, blueprint in enumerate(setup.blueprints):
            model = setup.scratch(blueprint)
            load(model, inner(state, prefix(client)))
            yield client, public_kernel(model, images, setup.options)

    return mixed(kernels(), setup.options)


def mixed(kernels: Iterable[tuple[int, Tensor]], options: MixtureOptions) -> Tensor:
    """Return the mean ``(L, L)`` of (client, kernel), each weighted by w_j, summed in float64; one kernel at a time."""
    total, weights = torch.zeros((), dtype=torch.float64), 0.0
    for client, matrix in kernels:
        weight = mixture_weight(options, client)
        total, weights = total.to(matrix.device) + weight * matrix.double(), weights + weight
    return (total / weights).float()


@torch.no_grad()
def load(model: SplitModel, weights: Mapping[str, Tensor]) -> None:
    """Load learnable parameters; running statistics stay, and kernels do not depend on them."""
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train by cross-entropy and alignment; upload the whole model."""
    put(setup.model, state, "model")
    images, reference = get_payload(broadcast, PublicImages).images, get_payload(broadcast, Kernel).matrix
    state = trained(setup, state, aligned(setup, broadcast, images, reference, rng), rng)
    return state, (Model(parameters(setup.model)),)


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Keep the uploaded weights and represent new public images with everybody's."""
    state = state | {ROUND: state[ROUND] + 1}
    for client, upload in uploads:
        state |= outer(get_payload(upload, Model).state, prefix(client))
    return state, broadcast(setup, state, rng)


METHOD = Method(
    name="fedhenn",
    source="Makhija et al., ICML 2022",
    options=MixtureOptions,
    uploads=("model",),
    broadcasts=("public-images", "kernel", "coefficient"),
    start=start,
    init=personal_model.init,
    apply_broadcast=personal_model.receive_nothing,
    client_step=client_step,
    server_step=server_step,
    predict=personal_model.predict,
    check=alignment.check,
    needs_public=True,
    sizes=alignment.sizes,
    public_loss=lambda options, round_: PublicLoss(besides=what_else(_TERM, options, round_)),
)


# ---------------------------------------------------------------- fedhenn-homogeneous


def start_averaging(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Broadcast the initial global model with the first public images."""
    state, message = fedavg.start(setup, rng)
    return state | FIRST, (*message, PublicImages(sample_images(setup, rng)), coefficient(setup, 1))


def train_averaged(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train the global model by cross-entropy and alignment with where it came from; upload it."""
    images = get_payload(broadcast, PublicImages).images
    comparison = PROCRUSTES if setup.options.distance == "procrustes" else CKA
    put(setup.model, fedavg.apply_broadcast(setup, state, broadcast), "model")
    with torch.no_grad():
        reference = comparison.made(setup.model, images, setup.options)
    state = trained(setup, state, aligned(setup, broadcast, images, reference, rng, comparison), rng)
    return state, (Model(parameters(setup.model)), fedavg.sample_count(setup))


def average(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Average by numbers of samples; sample new public images."""
    averaged, message = fedavg.server_step(setup, state, uploads, rng)
    round_ = state[ROUND] + 1
    images = PublicImages(sample_images(setup, rng))
    return averaged | {ROUND: round_}, (*message, images, coefficient(setup, int(round_)))


HOMOGENEOUS = replace(
    fedavg.METHOD,
    name="fedhenn-homogeneous",
    source="Makhija et al., ICML 2022",
    options=HomogeneousOptions,
    broadcasts=("model", "public-images", "coefficient"),
    start=start_averaging,
    client_step=train_averaged,
    server_step=average,
    check=alignment.check,
    needs_public=True,
    sizes=alignment.sizes,
    # The gradient of the term is zero where a round begins.
    public_loss=lambda options, round_: PublicLoss(
        besides=what_else("", options, round_), later=_TERM if options.weight else ""
    ),
)


# ---------------------------------------------------------------- fedhenn-kernel


def start_kernels(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Ask for the kernel of the first public images; there is no reference yet."""
    images = sample_images(setup, rng)
    return FIRST | {IMAGES: images}, (PublicImages(images), coefficient(setup, 1))


def train_and_compare(
    setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator
) -> tuple[State, Message]:
    """Train by cross-entropy and alignment; upload the kernel of the new public images."""
    images, reference = get_payload(broadcast, PublicImages).images, find_payload(broadcast, Kernel)
    put(setup.model, state, "model")
    known = 0 if reference is None else len(reference.matrix)
    loss = classification_loss(setup.model)
    if reference is not None:
        loss = aligned(setup, broadcast, images[:known], reference.matrix, rng)
    state = trained(setup, state, loss, rng)
    with torch.no_grad():
        matrix = public_kernel(setup.model, images[known:], setup.options)
    return state, (Kernel(matrix),)


def average_kernels(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Average the kernels of the round's clients and ask for those of new images."""
    kernels = ((client, get_payload(upload, Kernel).matrix) for client, upload in uploads)
    images, round_ = sample_images(setup, rng), state[ROUND] + 1
    both = PublicImages(torch.cat([state[IMAGES], images]))
    return {ROUND: round_, IMAGES: images}, (
        both,
        Kernel(mixed(kernels, setup.options)),
        coefficient(setup, int(round_)),
    )


KERNEL = replace(
    METHOD,
    name="fedhenn-kernel",
    source="variant of Makhija et al., ICML 2022",
    uploads=("kernel",),
    start=start_kernels,
    client_step=train_and_compare,
    server_step=average_kernels,
    sizes=partial(alignment.sizes, images=2),
    linear_aggregation=True,
    public_loss=own_cross_entropy,
)
