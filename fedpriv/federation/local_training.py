"""Local work that most methods share: draw batches, train by SGD, represent images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.sgd import sgd

from fedpriv.datasets.types import Samples, as_unit
from fedpriv.federation.defense import Loss, Step, Work, plain_step
from fedpriv.federation.method import ClientSetup, GuardedTraining, LocalTraining
from fedpriv.federation.states import State, Trace, put
from fedpriv.models.split import SplitModel, fastest_order
from fedpriv.util.seeds import generator, global_seed


class Sgd:
    """Moves parameters against their gradients: v = momentum v + g, p = p - rate v, where g = gradient + weight_decay p.

    By torch's function, since ``torch.optim.SGD`` imports a compiler, a second or two of every process.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], training: LocalTraining) -> None:
        self._parameters, self._training = parameters, training
        self._velocity: dict[Tensor, Tensor] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient, and drop the gradients."""
        moved: list[Tensor] = [items for items in self._parameters if items.grad is not None]
        velocities = [self._velocity.get(entry) for entry in moved]
        sgd(
            moved,
            [item.grad for item in moved if item.grad is not None],
            velocities,
            foreach=True,
            weight_decay=self._training.weight_decay,
            momentum=self._training.momentum,
            lr=self._training.learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        self._velocity |= {one: now for one, now in zip(moved, velocities, strict=True) if now is not None}
        for parameter in moved:
            parameter.grad = None


EVALUATION_BATCH = 256


def has_batch_norm(module: nn.Module) -> bool:
    """True if a module normalises over the batch, and therefore cannot train on a batch of one."""
    return any(isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) for layer in module.modules())


def local_batches(
    n_samples: int, training: LocalTraining, rng: torch.Generator, *, join_single: bool = False
) -> list[Tensor]:
    """Draw the batches of one round, int64 indices into ``n_samples`` images each.

    ``join_single`` appends a tail batch of one image to the batch before it, since batch normalisation needs two.
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
    """Return the sizes of the batches of :func:`local_batches`; of Poisson samples their means, never joined."""
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
    trained: Iterable[nn.Parameter] | None = None,
) -> float:
    """Train by SGD for one round, in place, with a fresh optimiser; return the mean loss over the batches, NaN without any.

    ``rng`` draws the batches first, then the seed of dropout and of the guards; ``trained`` are the parameters to move,
    by default all of ``module``, which is put into training mode and decides whether single-image tails are joined.
    """
    batches = local_batches(len(samples), training, rng, join_single=has_batch_norm(module))
    trace.local_steps(batches)
    noise = int(torch.randint(2**62, (1,), generator=rng))
    moved = tuple(module.parameters() if trained is None else trained)
    optimiser = Sgd(moved, training)
    guards, poisson = (training.guards, training.poisson) if isinstance(training, GuardedTraining) else ((), False)
    expected = float(min(training.batch_size, len(samples))) if poisson else None
    step: Step = plain_step
    work = Work(module, loss, moved, expected, generator(noise, "guards"))
    for guard in guards:
        step = guard(step)
    module.train()
    for parameter in moved:
        parameter.grad = None
    total = torch.zeros((), device=samples.labels.device)
    # Guards take gradients apart in ways of their own, which need not fit another order of them.
    kept = guards or samples.images.dim() != 4
    with global_seed(noise), nullcontext(lambda images: images) if kept else fastest_order(module, loss) as ordered:
        for index in _moved(batches, samples.labels.device):
            images, labels = samples.batch(index)
            total += step(work, ordered(images), labels)
            optimiser.step()
    return float(total) / len(batches) if batches else float("nan")


def _moved(batches: Sequence[Tensor], device: torch.device) -> Sequence[Tensor]:
    """Return batches on a device; all at once, since a GPU is waited for with each transfer."""
    if device.type == "cpu" or not batches:
        return batches
    moved: Sequence[Tensor] = torch.cat(list(batches)).to(device).split([len(index) for index in batches])
    return moved


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
    """Return :func:`represent` of images by a client's model (the private one where None) with the weights of a state.

    The last result is kept: several ways to predict, and the same client before and after it receives a head, share it.
    """
    module = setup.model if model is None else model
    put(module, state, prefix)
    module.eval()
    weights = [v for k, v in state.items() if k.startswith(f"{prefix}.") and not k.startswith(f"{prefix}.head.")]
    return _represented(module, images, *weights)


@lru_cache(maxsize=1)  # modules and tensors are known by what they are, not by what they hold
def _represented(module: SplitModel, images: Tensor, *weights: Tensor) -> Tensor:
    """Return representations of images by a module that has these weights."""
    return represent(module, images)


@torch.no_grad()
def classify_by(setup: ClientSetup, state: State, images: Tensor) -> Tensor:
    """Return :func:`classify` of images by a client's private model with the weights of a state."""
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
