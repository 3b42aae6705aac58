"""FedHeNN: train towards a reference kernel K_ref of public images, which the server samples anew every round.

Source: Makhija, Han, Ho, Ghosh: Architecture Agnostic Federated Learning for Neural Networks, ICML 2022. A client
minimises cross-entropy + eta (1 - CKA(K_i, K_ref)), K_i the kernel (linear or RBF, table 3) of its representations of
the round's public images, in every local batch, over all of them or a random part. The paper leaves the distance
undefined; here it is 1 - CKA. K_ref is constant; eta = eta0 f(t) reaches clients with the broadcast.

- ``fedhenn`` (algorithm 2, equation 6), for clients of any architecture and width: they upload whole models. The server
  keeps every client's newest weights: K_ref = sum_j K_j / N over all N clients. Nothing is averaged but kernels.
- ``fedhenn-homogeneous`` (algorithm 1, equation 5): FedAvg, where K_ref is the kernel of the global model that the client
  just received; it computes that itself. Here alone, where all have one width, Procrustes distance may stand in place of
  1 - CKA (section 3.4).
- ``fedhenn-kernel``, a variant of ours in which the server never holds a client's model: clients upload the kernel K_i of
  their trained model. The reference of a round is about the images of the round before, the mean over that round's clients.
  A broadcast carries, in this order, the L images of the reference kernel (none in the first round) and L new ones.

Representations of public images depend on learnable parameters alone: batch normalisation takes the statistics of the
public images themselves, and dropout is off. So the server, which receives learnable parameters only, computes what the
client does.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpriv.algebra.matrices import KernelName, alignment, kernel, procrustes_distance
from fedpriv.federation.defense import Loss
from fedpriv.federation.local_training import classification_loss
from fedpriv.federation.method import ClientSetup, ServerSetup, Uploads
from fedpriv.federation.states import Outcome, State, inner, on_device, outer, parameters, put
from fedpriv.methods import fedavg, weights
from fedpriv.models.build import build_model
from fedpriv.models.split import SplitModel
from fedpriv.uploads.ledger import FederationSizes, Scalars
from fedpriv.uploads.payloads import (
    Coefficient,
    Kernel,
    Message,
    Model,
    PublicImages,
    PublicLoss,
    find_payload,
    get_payload,
)
from fedpriv.util.errors import UserError

LEAST_IMAGES = 4
"""Centred kernels of two inputs are all proportional to each other; with a few more, alignment says something."""


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedHeNN.

    Attributes:
        weight: eta0, the weight of the alignment term; 0 gives local training (FedAvg for the homogeneous variant).
            The paper's is 0.001 for images.
        schedule: f(t) in round t of T: ``constant`` 1, or ``linear`` t / T. The paper says that f grows, not how.
        kernel: ``linear`` or ``rbf``.
        rbf_scale: width of the RBF kernel as a multiple of the median distance.
        rad_size: public images in a round, L; all of them where the server has fewer. The paper's is 5000.
        rad_batch: how many of them, drawn at random, each local batch is aligned on; None for all.
    """

    weight: Annotated[float, Ge(0)] = 0.001
    schedule: Literal["constant", "linear"] = "linear"
    kernel: KernelName = "linear"
    rbf_scale: Annotated[float, Gt(0)] = 0.5
    rad_size: Annotated[int, Ge(LEAST_IMAGES)] = 32
    rad_batch: Annotated[int, Ge(LEAST_IMAGES)] | None = None


@dataclass(frozen=True)
class HomogeneousOptions(Options):
    """Hyperparameters of the homogeneous variant.

    Attributes:
        distance: ``cka`` of kernels, or ``procrustes`` of the representations themselves.
    """

    distance: Literal["cka", "procrustes"] = "cka"


def coefficient(setup: ServerSetup, round_: int) -> Coefficient:
    """Return eta = eta0 f(t) of round t = 1..T, to be broadcast."""
    weight = setup.options.weight
    eta = weight * round_ / setup.rounds if setup.options.schedule == "linear" else weight
    return Coefficient(torch.tensor([eta], device=setup.device))


def sample_images(setup: ServerSetup, rng: torch.Generator) -> Tensor:
    """Sample a round's RAD ``(L, c, h, w)`` from the server's public images, without replacement."""
    n_public = 0 if setup.public is None else len(setup.public)
    if setup.public is None or n_public < LEAST_IMAGES:
        raise UserError(
            f"FedHeNN aligns representations of public images and found {n_public}; "
            f"set at least {LEAST_IMAGES} aside with public N"
        )
    chosen = torch.randperm(n_public, generator=rng)[: setup.options.rad_size]
    return setup.public[chosen.to(setup.public.device)]


@contextlib.contextmanager
def own_statistics(module: nn.Module) -> Iterator[None]:
    """Evaluate a module with batch normalisation over the batch at hand, its running statistics left alone."""
    modes = [(layer, layer.training) for layer in module.modules()]
    norms = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    tracked = [layer.track_running_stats for layer in norms]
    module.eval()
    for layer in norms:
        layer.training, layer.track_running_stats = True, False
    try:
        yield
    finally:
        for layer, value in zip(norms, tracked, strict=True):
            layer.track_running_stats = value
        for layer_, training in modes:
            layer_.training = training


def turned(options: Options) -> bool:
    """True where representations are compared themselves, up to an orthogonal matrix."""
    return isinstance(options, HomogeneousOptions) and options.distance == "procrustes"


def public_kernel(model: SplitModel, images: Tensor, options: Options) -> Tensor:
    """Return the kernel ``(L, L)`` of representations of images ``(L, c, h, w)``, or where ``turned`` these ``(L, d)``."""
    with own_statistics(model):
        features = model.represent(images)
        return features if turned(options) else kernel(features, options.kernel, options.rbf_scale)


def aligned_loss(
    setup: ClientSetup, broadcast: Message, images: Tensor, reference: Tensor, rng: torch.Generator
) -> Loss:
    """Return cross-entropy + eta times the distance of ``setup.model`` from a reference on images ``(L, c, h, w)``."""
    model, options = setup.model, setup.options
    weight = float(get_payload(broadcast, Coefficient).value)
    if weight == 0:
        return classification_loss(model)

    def loss(batch: Tensor, labels: Tensor) -> Tensor:
        some, target = images, reference
        if options.rad_batch is not None and options.rad_batch < len(images):
            index = torch.randperm(len(images), generator=rng)[: options.rad_batch].to(images.device)
            some, target = images[index], reference[index]
            target = target if turned(options) else target[:, index]
        found = public_kernel(model, some, options)
        distance = procrustes_distance(found, target) if turned(options) else 1 - alignment(found, target)
        return cross_entropy(model(batch), labels) + weight * distance

    return loss


def sizes(facts: FederationSizes, images: int = 1) -> Scalars:
    """Return L x L kernels, and public images for every client: ``images`` times L of them, L as many as there are."""
    n_images = min(facts.options.rad_size, int(facts.need("public")))
    pixels = math.prod(facts.need("blueprint", "models").image_shape)
    kernels = facts.clients * n_images**2
    return {
        ("upload", "kernel.matrix"): kernels,
        ("broadcast", "kernel.matrix"): kernels,
        ("broadcast", "public-images.images"): facts.clients * images * n_images * pixels,
    }


ROUND, IMAGES = "round", "images"
FIRST = {ROUND: torch.tensor([1])}


def prefix(client: int) -> str:
    """Return the name of a client's weights in the server's state."""
    return f"client-{client:03d}"


def start(setup: ServerSetup, rng: torch.Generator) -> Outcome:
    """Give every client the initial weights of its architecture, as the clients do themselves, and broadcast."""
    seed = weights.draw_seed(rng)
    state: State = dict(FIRST)
    for client, blueprint in enumerate(setup.blueprints):
        state |= outer(on_device(setup.device, parameters(build_model(blueprint, seed))), prefix(client))
    return state, broadcast(setup, state, rng)


def broadcast(setup: ServerSetup, state: State, rng: torch.Generator) -> Message:
    """Sample public images; return them with the mean kernel of all clients' models and the round's eta."""
    images = sample_images(setup, rng)
    return PublicImages(images), Kernel(mean_kernel(setup, state, images)), coefficient(setup, int(state[ROUND]))


@torch.no_grad()
def mean_kernel(setup: ServerSetup, state: State, images: Tensor) -> Tensor:
    """Return sum_j K_j / N ``(L, L)`` over all clients' newest models."""

    def kernels() -> Iterator[Tensor]:
        for client, blueprint in enumerate(setup.blueprints):
            model, newest = setup.scratch(blueprint), inner(state, prefix(client))
            for name, parameter in model.named_parameters():  # kernels do not depend on running statistics
                parameter.copy_(newest[name])
            yield public_kernel(model, images, setup.options)

    return mean(kernels())


def mean(kernels: Iterable[Tensor]) -> Tensor:
    """Return the mean of kernels ``(L, L)``, summed in float64, one kernel at a time."""
    total, number = torch.zeros((), dtype=torch.float64), 0
    for matrix in kernels:
        total, number = total.to(matrix.device) + matrix.double(), number + 1
    return (total / number).float()


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train by cross-entropy and alignment; upload the whole model."""
    images, reference = get_payload(broadcast, PublicImages).images, get_payload(broadcast, Kernel).matrix
    loss = aligned_loss(setup, broadcast, images, reference, rng)
    return weights.trained_model(setup, state, loss, rng), (Model(parameters(setup.model)),)


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> Outcome:
    """Keep the uploaded weights and represent new public images with everybody's."""
    state = state | {ROUND: state[ROUND] + 1}
    for client, upload in uploads:
        state |= outer(get_payload(upload, Model).state, prefix(client))
    return state, broadcast(setup, state, rng)


METHOD = replace(
    weights.LOCAL,
    name="fedhenn",
    source="Makhija et al., ICML 2022",
    options=Options,
    uploads=("model",),
    broadcasts=("public-images", "kernel", "coefficient"),
    start=start,
    client_step=client_step,
    server_step=server_step,
    needs_public=True,
    sizes=sizes,
    public_loss=lambda options, round_: PublicLoss(disturbed=options.weight != 0),
)


def start_averaging(setup: ServerSetup, rng: torch.Generator) -> Outcome:
    """Broadcast the initial global model with the first public images."""
    state, message = weights.start(Model, setup, rng)
    return state | FIRST, (*message, PublicImages(sample_images(setup, rng)), coefficient(setup, 1))


def train_averaged(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train the global model by cross-entropy and alignment with where it came from; upload it."""
    images, state = get_payload(broadcast, PublicImages).images, weights.receive(Model, setup, state, broadcast)
    put(setup.model, state, "model")
    with torch.no_grad():
        reference = public_kernel(setup.model, images, setup.options)
    loss = aligned_loss(setup, broadcast, images, reference, rng)
    return weights.trained_model(setup, state, loss, rng), weights.weighed(Model, setup)


def average(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> Outcome:
    """Average by numbers of samples; sample new public images."""
    averaged, message = weights.average(Model, setup, state, uploads, rng)
    round_ = state[ROUND] + 1
    images = PublicImages(sample_images(setup, rng))
    return averaged | {ROUND: round_}, (*message, images, coefficient(setup, int(round_)))


HOMOGENEOUS = replace(
    fedavg.METHOD,
    name="fedhenn-homogeneous",
    about="FedHeNN with one architecture: the clients' models are averaged as well.",
    source="Makhija et al., ICML 2022",
    options=HomogeneousOptions,
    broadcasts=("model", "public-images", "coefficient"),
    start=start_averaging,
    client_step=train_averaged,
    server_step=average,
    needs_public=True,
    sizes=sizes,
    # The gradient of the term is zero where a round begins.
    public_loss=lambda options, round_: PublicLoss(disturbed_later=options.weight != 0),
)


def start_kernels(setup: ServerSetup, rng: torch.Generator) -> Outcome:
    """Ask for the kernel of the first public images; there is no reference yet."""
    images = sample_images(setup, rng)
    return FIRST | {IMAGES: images}, (PublicImages(images), coefficient(setup, 1))


def train_and_compare(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train by cross-entropy and alignment; upload the kernel of the new public images."""
    images, reference = get_payload(broadcast, PublicImages).images, find_payload(broadcast, Kernel)
    known = 0 if reference is None else len(reference.matrix)
    loss = classification_loss(setup.model)
    if reference is not None:
        loss = aligned_loss(setup, broadcast, images[:known], reference.matrix, rng)
    state = weights.trained_model(setup, state, loss, rng)
    with torch.no_grad():
        matrix = public_kernel(setup.model, images[known:], setup.options)
    return state, (Kernel(matrix),)


def average_kernels(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> Outcome:
    """Average the kernels of the round's clients and ask for those of new images."""
    reference = Kernel(mean(get_payload(upload, Kernel).matrix for _, upload in uploads))
    images, round_ = sample_images(setup, rng), state[ROUND] + 1
    both = PublicImages(torch.cat([state[IMAGES], images]))
    return {ROUND: round_, IMAGES: images}, (both, reference, coefficient(setup, int(round_)))


KERNEL = replace(
    METHOD,
    name="fedhenn-kernel",
    about="FedHeNN whose clients upload kernels in the place of models: a variant of ours.",
    source="variant of Makhija et al., ICML 2022",
    uploads=("kernel",),
    start=start_kernels,
    client_step=train_and_compare,
    server_step=average_kernels,
    sizes=partial(sizes, images=2),
    linear_aggregation=True,
    public_loss=lambda options, round_: PublicLoss(),
)
