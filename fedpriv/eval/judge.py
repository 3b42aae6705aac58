"""An independent classifier: does an image look like its class to somebody who never saw the client's model or images?

Class inversion makes class images, which PSNR cannot judge: no single image is right. What can be asked is whether another
classifier gives a reconstruction the right class (attack accuracy; Zhang et al., "The secret revealer", CVPR 2020). The
same classifier's answers to the client's true images and to the baselines stand beside it.

Clients are divided in two halves, and each half is judged by a classifier trained on images of the data set that are in
no training set of the half and are not the attacker's. So no judge has seen a true image behind a target it judges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.observation import TargetId
from fedpriv.attacks.search.fit import Adam, cooling
from fedpriv.datasets.types import as_unit
from fedpriv.eval.floors import NEAREST
from fedpriv.eval.intervals import Means, Values
from fedpriv.eval.records import ClassAccuracy
from fedpriv.federation.prepared import Federation
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint, SplitModel, fastest_order
from fedpriv.sources.truth import Truth
from fedpriv.util.errors import UserError
from fedpriv.util.files import checked_tensors, write_bytes
from fedpriv.util.seeds import derive_seed, generator

JUDGED = ("class-inversion",)
"""Attacks that make class images."""

MOST_IMAGES = 4000
_STEPS, _BATCH, _RATE, _WIDTH = 400, 64, 3e-3, 128


@dataclass(frozen=True)
class ClassEvaluator:
    """Classifiers on the CPU, one a half of the clients; who is judged by which; images that each was trained on."""

    models: tuple[SplitModel, ...]
    half: Mapping[int, int]
    trained_on: tuple[int, ...]

    @torch.no_grad()
    def classes(self, client: int, images: Tensor) -> Tensor:
        """Return the class ``(n,)`` that the client's judge gives each image ``(n, c, h, w)`` in [0, 1]."""
        model = self.models[self.half[client]]
        return torch.cat([model(part).argmax(1) for part in images.float().split(512)])


def train_class_evaluator(federation: Federation, clients: Sequence[int], seed: int) -> ClassEvaluator:
    """Train the judges for the clients of some targets, on images of the data set that are not the attacker's."""
    named = sorted(set(clients))
    order = [named[i] for i in torch.randperm(len(named), generator=generator(seed, "judge", "halves")).tolist()]
    halves = [half for half in (order[::2], order[1::2]) if half]
    models, sizes = [], []
    for number, half in enumerate(halves):
        model, size = _train(federation, half, derive_seed(seed, "judge", number))
        models.append(model)
        sizes.append(size)
    return ClassEvaluator(tuple(models), {client: i for i, half in enumerate(halves) for client in half}, tuple(sizes))


def _train(federation: Federation, clients: Sequence[int], seed: int) -> tuple[SplitModel, int]:
    dataset = federation.data.dataset
    seen = np.concatenate([federation.data.clients[client].train_index for client in clients])
    unseen = torch.as_tensor(np.setdiff1d(np.arange(len(dataset.samples)), seen))
    rng = generator(seed, "images")
    unseen = unseen[torch.randperm(len(unseen), generator=rng)[:MOST_IMAGES]]
    images, labels = as_unit(dataset.samples.images[unseen]), dataset.samples.labels[unseen]
    model = _blank(dataset.image_shape, dataset.n_classes, seed).train()
    with fastest_order(model, functional.cross_entropy) as ordered:
        optimiser = Adam(model.parameters(), _RATE, fused=True)
        for step in range(_STEPS):
            index = torch.randint(len(labels), (_BATCH,), generator=rng)
            optimiser.pace(_RATE * cooling(step / _STEPS))
            optimiser.descend(functional.cross_entropy(model(ordered(images[index])), labels[index]))
    return model.eval().requires_grad_(False), len(labels)


def _blank(image_shape: tuple[int, int, int], n_classes: int, seed: int) -> SplitModel:
    name = "cnn4" if min(image_shape[1:]) >= 16 else "small-cnn"
    return build_model(Blueprint(name, image_shape, n_classes, _WIDTH), derive_seed(seed, "weights"))


# ---------------------------------------------------------------- what it says


def class_accuracy(
    judge: ClassEvaluator,
    targets: Sequence[TargetId],
    truths: Sequence[Truth],
    guesses: Mapping[str, Sequence[Tensor]],
    means: Means,
) -> tuple[ClassAccuracy, dict[str, Values]]:
    """Return the share of reconstructions that are given their true class, and how far each guess falls short of it.

    ``guesses`` has per guesser T tensors ``(M, c, h, w)``, the attack's own under ``attack``. With the metric comes every
    guess and the true images by the same rule; a target of several classes counts by their shares. Differences are ``(T,)``.
    """
    results = {
        name: [_share(judge, t, truth, shots) for t, truth, shots in zip(targets, truths, sets, strict=True)]
        for name, sets in guesses.items()
    }
    real = [
        float((truth.weights * (judge.classes(t.client, truth.members) == truth.labels)).sum() / truth.weights.sum())
        for t, truth in zip(targets, truths, strict=True)
    ]
    # Every auxiliary image is judged, for one drawn at random says little.
    results["random_image"] = [
        _share(judge, t, truth, truth.pool.guesses) for t, truth in zip(targets, truths, strict=True)
    ]
    blind = {name: float(np.mean(hits)) for name, hits in results.items() if name not in ("attack", NEAREST)}
    of = max(blind, key=lambda name: blind[name])
    measured = ClassAccuracy(
        **dict(means.finite(results["attack"], "share")),
        real=float(np.mean(real)),
        chance=blind[of],
        chance_of=of,
        floors={name: float(np.mean(hits)) for name, hits in results.items() if name != "attack"},
        trained_on=judge.trained_on,
    )
    return measured, {name: np.array(results["attack"]) - np.array(results[name]) for name in blind}


def _share(judge: ClassEvaluator, target: TargetId, truth: Truth, shots: Tensor) -> float:
    given = judge.classes(target.client, shots)
    shares = truth.label_weights()
    return float(np.mean([shares.get(int(label), 0.0) for label in given]))


# ---------------------------------------------------------------- files


def save_class_evaluator(path: Path, judge: ClassEvaluator) -> None:
    """Write ``judge.safetensors``, so that a saved attack can be scored again by the same classifiers."""
    blocks = {
        f"{number}/{name}": value.contiguous()
        for number, model in enumerate(judge.models)
        for name, value in model.state_dict().items()
    }
    blocks["half"] = torch.tensor(sorted(judge.half.items()), dtype=torch.int64)
    blocks["trained_on"] = torch.tensor(judge.trained_on, dtype=torch.int64)
    write_bytes(path, save(blocks))


def load_class_evaluator(path: Path, image_shape: tuple[int, int, int]) -> ClassEvaluator | None:
    """Read ``judge.safetensors``; None where there is none.

    Raises:
        UserError: when it is damaged.
    """
    if not path.is_file():
        return None
    try:
        blocks = load_file(checked_tensors(path))
        half = {int(client): int(number) for client, number in blocks.pop("half")}
        trained_on = tuple(int(number) for number in blocks.pop("trained_on"))
        models = []
        for number in range(len(trained_on)):
            state = {name.partition("/")[2]: value for name, value in blocks.items() if name.startswith(f"{number}/")}
            model = _blank(image_shape, len(state["head.bias"]), 0)
            model.load_state_dict(state)
            models.append(model.eval().requires_grad_(False))
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        raise UserError(f"{path}: not a judge of images {image_shape} ({str(error).splitlines()[0]})") from error
    return ClassEvaluator(tuple(models), half, trained_on)
