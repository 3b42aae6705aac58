"""Pulling representations of public images towards a reference kernel: what the variants of FedHeNN share.

Source: Makhija, Han, Ho, Ghosh: Architecture Agnostic Federated Learning for Neural Networks, ICML 2022. A client
minimises cross-entropy + eta (1 - CKA(K_i, K_ref)), where K_i is the kernel of its representations of the round's
representation alignment dataset (RAD): public images that the server samples anew every round. The paper leaves the
distance undefined; here it is 1 - CKA. The term is added to every local batch, over the whole RAD or a random part of
it. K_ref is constant; eta = eta0 f(t) reaches clients with the broadcast. Kernels are linear or RBF (table 3).

Representations of public images depend on learnable parameters alone: batch normalisation takes the statistics of the
public images themselves and leaves its running ones as they are, and dropout is off. So the server, which receives
learnable parameters only, computes what the client does.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpriv.algebra.matrices import KernelName, alignment, kernel
from fedpriv.federation.defense import Loss
from fedpriv.federation.local_training import classification_loss
from fedpriv.federation.method import ClientSetup, ServerSetup
from fedpriv.models.split import SplitModel
from fedpriv.util.errors import UserError
from fedpriv.wire.ledger import FederationSizes, Scalars
from fedpriv.wire.payloads import Coefficient, Message, get_payload

LEAST_IMAGES = 4
"""Centred kernels of two inputs are all proportional to each other; with a few more, alignment says something."""


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedHeNN.

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
    """

    weight: Annotated[float, Ge(0)] = 0.001
    schedule: Literal["constant", "linear", "step"] = "linear"
    step_at: Annotated[float, Ge(0), Le(1)] = 0.5
    kernel: KernelName = "linear"
    rbf_scale: Annotated[float, Gt(0)] = 0.5
    rad_size: Annotated[int, Ge(LEAST_IMAGES)] = 32
    rad_batch: Annotated[int, Ge(LEAST_IMAGES)] | None = None


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


def public_kernel(model: SplitModel, images: Tensor, options: Options) -> Tensor:
    """Return the kernel ``(L, L)`` of a model's representations of public images ``(L, c, h, w)`` in [0, 1]."""
    with own_statistics(model):
        return kernel(model.represent(images), options.kernel, options.rbf_scale)


def aligned_loss(
    setup: ClientSetup, broadcast: Message, images: Tensor, reference: Tensor, rng: torch.Generator
) -> Loss:
    """Return cross-entropy + eta (1 - CKA) of ``setup.model`` with a reference ``(L, L)`` on images ``(L, c, h, w)``."""
    model, options = setup.model, setup.options
    weight = float(get_payload(broadcast, Coefficient).value)
    if weight == 0:
        return classification_loss(model)

    def loss(batch: Tensor, labels: Tensor) -> Tensor:
        some, target = images, reference
        if options.rad_batch is not None and options.rad_batch < len(images):
            index = torch.randperm(len(images), generator=rng)[: options.rad_batch].to(images.device)
            some, target = images[index], reference[index][:, index]
        distance = 1 - alignment(public_kernel(model, some, options), target)
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
