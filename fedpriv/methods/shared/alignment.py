"""Pulling representations of public images towards a reference kernel: what the variants of FedHeNN share.

Source: Makhija, Han, Ho, Ghosh: Architecture Agnostic Federated Learning for Neural Networks, ICML 2022. A client
minimises cross-entropy + eta (1 - CKA(K_i, K_ref)), where K_i is the kernel of its representations of the round's
representation alignment dataset (RAD): public images that the server samples anew every round. The paper leaves the
distance undefined; here it is 1 - CKA. The term is added to every local batch, over the whole RAD or a random part of
it. K_ref is constant, gradients flow through K_i only. eta = eta0 f(t) reaches clients with the broadcast. Kernels are
linear or RBF, which the paper's table 3 compares.

The paper trains by SGD with momentum and does not say whether momentum outlives a round; ``keep_momentum`` is that it does.

Representations of public images depend on learnable parameters alone: batch normalisation takes the statistics of the
public images themselves and leaves its running ones as they are, and dropout is off. So the server, which receives
learnable parameters only, computes what the client does, and public images leave no trace in a client's statistics.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpriv.algebra.matrices import KernelName, alignment, kernel, procrustes_distance
from fedpriv.federation.defense import Loss
from fedpriv.federation.local_training import classification_loss
from fedpriv.federation.method import ClientSetup, Plan, ServerSetup
from fedpriv.models.split import SplitModel
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.wire.ledger import FederationSizes, Scalars
from fedpriv.wire.payloads import Coefficient

LEAST_IMAGES = 4
"""Centred kernels of two inputs are all proportional to each other; with a few more, alignment says something."""


@dataclass(frozen=True)
class Options:
    """Hyperparameters that all variants of FedHeNN have.

    Attributes:
        weight: eta0, the weight of the alignment term; 0 gives local training (FedAvg for the homogeneous variant).
            The paper's is 0.001 for images.
        schedule: f(t) in round t of T: ``constant`` 1, ``linear`` t / T, ``step`` 0 up to ``step_at`` and 1 after it.
            The paper says that f grows, not how.
        step_at: share of the planned rounds in which ``step`` is 0.
        kernel: ``linear`` or ``rbf``.
        rbf_scale: width of the RBF kernel as a multiple of the median distance.
        rad_size: public images in a round, L; all of them where the server has fewer. The paper's is 5000.
        rad_batch: how many of them, drawn at random, each local batch is aligned on; None for all.
        keep_momentum: a client's momentum goes on where its last round left it, instead of starting at zero in each.
    """

    weight: Annotated[float, Ge(0)] = 0.001
    schedule: Literal["constant", "linear", "step"] = "linear"
    step_at: Annotated[float, Ge(0), Le(1)] = 0.5
    kernel: KernelName = "linear"
    rbf_scale: Annotated[float, Gt(0)] = 0.5
    rad_size: Annotated[int, Ge(LEAST_IMAGES)] = 32
    rad_batch: Annotated[int, Ge(LEAST_IMAGES)] | None = None
    keep_momentum: bool = False


@dataclass(frozen=True)
class MixtureOptions(Options):
    """Hyperparameters where the reference is a mixture of clients' kernels.

    Attributes:
        client_weights: w_j, the weight of client j's kernel in the reference: entry j mod length, in proportion. Empty
            for equal ones, as in the paper's experiments.
    """

    client_weights: tuple[Annotated[float, Gt(0)], ...] = ()


@dataclass(frozen=True)
class HomogeneousOptions(Options):
    """Hyperparameters where the reference is one model of the clients' own architecture.

    Attributes:
        distance: ``cka``, or ``procrustes`` between the representations themselves, which the paper compares it with in
            section 3.4; ``kernel`` and ``rbf_scale`` are CKA's.
    """

    distance: Literal["cka", "procrustes"] = "cka"


def mixture_weight(options: MixtureOptions, client: int) -> float:
    """Return w_j of a client, not normalised."""
    return options.client_weights[client % len(options.client_weights)] if options.client_weights else 1.0


def eta(options: Options, round_: int, rounds: int) -> float:
    """Return eta0 f(t) for round t = 1..T."""
    if options.schedule == "linear":
        return options.weight * round_ / rounds
    return options.weight if options.schedule == "constant" or round_ > options.step_at * rounds else 0.0


def coefficient(setup: ServerSetup, round_: int) -> Coefficient:
    """Return eta of a round, to be broadcast."""
    return Coefficient(torch.tensor([eta(setup.options, round_, setup.rounds)], device=setup.device))


def sample_images(setup: ServerSetup, rng: torch.Generator) -> Tensor:
    """Sample a round's RAD ``(L, c, h, w)`` from the server's public images, without replacement."""
    n_public = 0 if setup.public is None else len(setup.public)
    if setup.public is None or n_public < LEAST_IMAGES:
        raise UserError(
            f"FedHeNN aligns representations of public images and found {n_public}; "
            f"set at least {LEAST_IMAGES} aside with {argument('public')} N"
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
        for found, training in modes:
            found.training = training


def public_kernel(model: SplitModel, images: Tensor, options: Options) -> Tensor:
    """Return the kernel ``(L, L)`` of a model's representations of public images ``(L, c, h, w)`` in [0, 1]."""
    with own_statistics(model):
        return kernel(model.represent(images), options.kernel, options.rbf_scale)


def public_features(model: SplitModel, images: Tensor, options: Options) -> Tensor:
    """Return a model's representations ``(L, d)`` of public images ``(L, c, h, w)`` in [0, 1]."""
    with own_statistics(model):
        return model.represent(images)


@dataclass(frozen=True)
class Comparison:
    """A distance between what a client's model and a reference make of public images.

    Attributes:
        made: (model, images ``(L, c, h, w)``, options) -> what is compared.
        part: (that of a reference, indices ``(l,)``) -> that of some of the images.
        distance: (of the client's model, of the reference) -> scalar.
    """

    made: Callable[[SplitModel, Tensor, Any], Tensor]
    part: Callable[[Tensor, Tensor], Tensor]
    distance: Callable[[Tensor, Tensor], Tensor]


CKA = Comparison(public_kernel, lambda matrix, index: matrix[index][:, index], lambda one, two: 1 - alignment(one, two))
"""1 - CKA of kernels ``(L, L)``, in [0, 1]."""

PROCRUSTES = Comparison(public_features, lambda features, index: features[index], procrustes_distance)
"""Of representations ``(L, d)``, in [0, 2]."""


def aligned_loss(
    setup: ClientSetup,
    images: Tensor,
    reference: Tensor,
    weight: float,
    rng: torch.Generator,
    comparison: Comparison = CKA,
) -> Loss:
    """Return cross-entropy + weight x the distance of ``setup.model`` from a reference on images ``(L, c, h, w)``."""
    model, options = setup.model, setup.options
    if weight == 0:
        return classification_loss(model)

    def loss(batch: Tensor, labels: Tensor) -> Tensor:
        some, target = images, reference
        if options.rad_batch is not None and options.rad_batch < len(images):
            index = torch.randperm(len(images), generator=rng)[: options.rad_batch].to(images.device)
            some, target = images[index], comparison.part(reference, index)
        distance = comparison.distance(comparison.made(model, some, options), target)
        return cross_entropy(model(batch), labels) + weight * distance

    return loss


def check(plan: Plan) -> None:
    """Refuse to keep momentum that there is none of."""
    if plan.options.keep_momentum and not plan.training.momentum:
        raise UserError(
            f"FedHeNN: keep_momentum, but clients train without momentum; pass {argument('momentum', 0.9)}, or leave the "
            "option out"
        )


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
