"""Local work that most methods share: draw batches, train by SGD, represent the training set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.sgd import sgd

from fedpriv.datasets.types import Samples, as_unit
from fedpriv.federation.defense import Loss, Work, guarded
from fedpriv.federation.method import ClientSetup, GuardedTraining, LocalTraining, State
from fedpriv.federation.states import put
from fedpriv.federation.trace import Trace
from fedpriv.models.layout import channels_last, takes_channels_last, weights_channels_last
from fedpriv.models.split import SplitModel
from fedpriv.util.seeds import generator, global_seed


@dataclass(frozen=True)
class Part:
    """Parameters that are trained at a step size of their own, or at that of the training.

    Attributes:
        parameters: to move.
        learning_rate: their step size; None for the training's.
    """

    parameters: tuple[nn.Parameter, ...]
    learning_rate: float | None = None


@dataclass(frozen=True)
class Sgd:
    """Moves parameters against their gradients: v = momentum v + g, p = p - rate v, where g = gradient + weight_decay p.

    By torch's own function: ``torch.optim.SGD`` imports a compiler, a second or two of every process.

    Attributes:
        parts: parameters with their step sizes.
        learning_rate: of parts that have none of their own.
        momentum: of the velocity, which begins as the first gradient.
        weight_decay: of the squared norm, halved.
        velocity: parameter -> what earlier steps left, same shape; changed by every step where there is momentum.
    """

    parts: Sequence[Part]
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    velocity: dict[Tensor, Tensor] = field(default_factory=dict)

    def forget_gradients(self) -> None:
        """Take the gradients off all parameters."""
        for part in self.parts:
            for parameter in part.parameters:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        for part in self.parts:
            moved: list[Tensor] = [one for one in part.parameters if one.grad is not None]
            velocities = [self.velocity.get(one) for one in moved]
            sgd(
                moved,
                [one.grad for one in moved if one.grad is not None],
                velocities,
                foreach=True,
                weight_decay=self.weight_decay,
                momentum=self.momentum,
                lr=part.learning_rate or self.learning_rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
            self.velocity.update((one, now) for one, now in zip(moved, velocities, strict=True) if now is not None)


def velocity_of(module: nn.Module, known: Mapping[str, Tensor]) -> dict[Tensor, Tensor]:
    """Return velocities by parameter from velocities by name, copied; of names that the module lacks, none."""
    return {one: known[name].clone() for name, one in module.named_parameters() if name in known}


def velocity_by_name(module: nn.Module, velocity: Mapping[Tensor, Tensor]) -> dict[str, Tensor]:
    """Return a copy of every velocity by its parameter's name in a module."""
    return {
        name: velocity[one].clone(memory_format=torch.contiguous_format)
        for name, one in module.named_parameters()
        if one in velocity
    }


EVALUATION_BATCH = 256


BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


def has_batch_norm(module: nn.Module) -> bool:
    """True if a module normalises over the batch, and therefore cannot train on a batch of one."""
    return any(isinstance(layer, BATCH_NORMS) for layer in module.modules())


def local_batches(
    n_samples: int, training: LocalTraining, rng: torch.Generator, *, join_single: bool = False
) -> list[Tensor]:
    """Draw the batches of one round: a new order every epoch, unless the training keeps the stored one.

    Args:
        n_samples: training samples of the client.
        training: batch size, epochs, drop_last, max_steps.
        rng: the step's generator.
        join_single: append a tail batch of one image to the batch before it (batch normalisation needs two).

    Returns:
        int64 index tensors, at most ``training.max_steps`` of them.
    """
    sizes = batch_sizes(n_samples, training, join_single=join_single)
    if _poisson(training):
        share = training.batch_size / n_samples
        return [(torch.rand(n_samples, generator=rng) < share).nonzero()[:, 0] for _ in sizes]
    ends = list(accumulate(_epoch_sizes(n_samples, training, join_single=join_single)))
    batches: list[Tensor] = []
    for _ in range(training.epochs):
        order = torch.randperm(n_samples, generator=rng) if training.shuffle else torch.arange(n_samples)
        batches.extend(order.tensor_split(ends)[:-1])
    return batches[: len(sizes)]


def batch_sizes(n_samples: int, training: LocalTraining, *, join_single: bool = False) -> list[int]:
    """Return the sizes of the batches of one round, of Poisson samples the sizes that they have on average.

    Args:
        n_samples: training samples of the client.
        training: batch size, epochs, drop_last, max_steps.
        join_single: see :func:`local_batches`; Poisson samples are never joined.
    """
    if _poisson(training):
        return [min(training.batch_size, n_samples)] * steps(n_samples, training)
    sizes, most = _epoch_sizes(n_samples, training, join_single=join_single), training.max_steps
    epochs = training.epochs if most is None else min(training.epochs, -(-most // max(1, len(sizes))))
    return (sizes * epochs)[:most]


def steps(n_samples: int, training: LocalTraining) -> int:
    """Return the number of local steps of a round, single-image tails not joined."""
    planned = len(_epoch_sizes(n_samples, training, join_single=False)) * training.epochs
    return planned if training.max_steps is None else min(planned, training.max_steps)


def _epoch_sizes(n_samples: int, training: LocalTraining, *, join_single: bool) -> list[int]:
    full, tail = divmod(n_samples, training.batch_size)
    sizes = [training.batch_size] * full + [tail] * (tail > 0 and not training.drop_last)
    return [*sizes[:-2], sizes[-2] + 1] if join_single and len(sizes) > 1 and sizes[-1] == 1 else sizes


def _poisson(training: LocalTraining) -> bool:
    return isinstance(training, GuardedTraining) and training.poisson


def train(
    module: nn.Module,
    samples: Samples,
    training: LocalTraining,
    rng: torch.Generator,
    loss: Loss,
    trace: Trace,
    trained: Iterable[nn.Parameter | Part] | None = None,
    velocity: dict[str, Tensor] | None = None,
) -> float:
    """Train by SGD for one round, in place. A fresh optimiser every round, as the reference libraries have it, unless told.

    Args:
        module: put into training mode; decides whether single-image tails are joined.
        samples: the client's training samples.
        training: hyperparameters, and the guards of defenses where it has any.
        rng: draws the batches first, then the seed of dropout and of the guards.
        loss: what to minimise on a batch.
        trace: where the batches are noted.
        trained: parameters to move, or parts with a step size of their own; default all of ``module``.
        velocity: momentum by the names of ``module``'s parameters: what the round starts with, none where it is empty; what
            it ends with is put there. None for a round of its own.

    Returns:
        Mean loss over the batches, NaN where there was none.
    """
    batches = local_batches(len(samples), training, rng, join_single=has_batch_norm(module))
    trace.local_steps(batches)
    noise = int(torch.randint(2**62, (1,), generator=rng))
    parts = _parts(module.parameters() if trained is None else trained)
    moved = tuple(parameter for part in parts for parameter in part.parameters)
    optimiser = Sgd(parts, training.learning_rate, training.momentum, training.weight_decay)
    optimiser.velocity.update(velocity_of(module, velocity or {}))
    guards, poisson = (training.guards, training.poisson) if isinstance(training, GuardedTraining) else ((), False)
    expected = float(min(training.batch_size, len(samples))) if poisson else None
    step, work = guarded(guards), Work(module, loss, moved, expected, generator(noise, "guards"))
    module.train()
    total = torch.zeros((), device=samples.labels.device)
    # Guards take gradients apart in ways of their own, which need not fit another order of them.
    turned = not guards and samples.images.dim() == 4 and takes_channels_last(module, loss)
    layout = weights_channels_last(module) if turned else nullcontext()
    with global_seed(noise), layout:
        for index in _moved(batches, samples.labels.device):
            optimiser.forget_gradients()
            images, labels = samples.batch(index)
            total += step(work, channels_last(images) if turned else images, labels)
            optimiser.step()
    if velocity is not None:
        velocity |= velocity_by_name(module, optimiser.velocity)
    trace.local_steps_done()
    return float(total) / len(batches) if batches else float("nan")


def _moved(batches: Sequence[Tensor], device: torch.device) -> Sequence[Tensor]:
    """Return batches on a device; all at once, since a GPU is waited for with each transfer."""
    if device.type == "cpu" or not batches:
        return batches
    moved: Sequence[Tensor] = torch.cat(list(batches)).to(device).split([len(index) for index in batches])
    return moved


def _parts(trained: Iterable[nn.Parameter | Part]) -> list[Part]:
    """Return parts as they are, and one part of all parameters that stand alone."""
    given = list(trained)
    loose = tuple(one for one in given if not isinstance(one, Part))
    return [*([Part(loose)] if loose else []), *(one for one in given if isinstance(one, Part))]


def classification_loss(model: SplitModel) -> Loss:
    """Return mean cross-entropy of the model's logits."""
    return lambda images, labels: cross_entropy(model(images), labels)


@torch.no_grad()
def represent(model: SplitModel, images: Tensor) -> Tensor:
    """Return representations ``(n, d)`` of images (bytes or floats) in evaluation mode."""
    model.eval()
    return torch.cat([model.represent(as_unit(chunk)) for chunk in images.split(EVALUATION_BATCH)])


def represent_by(
    setup: ClientSetup, state: State, images: Tensor, model: SplitModel | None = None, prefix: str = "model"
) -> Tensor:
    """Return :func:`represent` of images by a client's model with the weights of a state, which it is left with.

    Computed once while the client is scored and its extractor stands.

    Args:
        setup: of the client.
        state: holds the weights.
        images: ``(n, c, h, w)``, bytes or floats.
        model: a module of the architecture; the private model where None.
        prefix: of its weights in the state.
    """
    module = setup.model if model is None else model
    put(module, state, prefix)
    cache = setup.representation_cache
    if cache is None:
        return represent(module, images)
    # A state is never changed in place, so images and weights are known again as the very tensors that they were.
    extractor = {
        name: value
        for name, value in state.items()
        if name.startswith(f"{prefix}.") and not name.startswith(f"{prefix}.head.")
    }
    last = cache.get(prefix)
    same = last is not None and last[0] is images and last[1].keys() == extractor.keys()
    if last is None or not same or any(last[1][name] is not value for name, value in extractor.items()):
        last = cache[prefix] = images, extractor, represent(module, images)
    return last[2]


@torch.no_grad()
def classify_by(setup: ClientSetup, state: State, images: Tensor) -> Tensor:
    """Return :func:`classify` of images by a client's private model; as :func:`represent_by`."""
    features = represent_by(setup, state, images)
    return torch.cat([setup.model.head(chunk) for chunk in features.split(EVALUATION_BATCH)])


@torch.no_grad()
def classify(model: SplitModel, images: Tensor) -> Tensor:
    """Return logits ``(n, C)`` of images (bytes or floats) in evaluation mode."""
    model.eval()
    return torch.cat([model(as_unit(chunk)) for chunk in images.split(EVALUATION_BATCH)])


def class_means(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return prototypes ``(c, d)``, their classes ``(c,)`` ascending, and how many samples each averages ``(c,)``."""
    classes, of_class, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(classes), features.shape[1], device=features.device).index_add_(0, of_class, features)
    return sums / counts[:, None], classes, counts
