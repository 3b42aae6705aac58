"""One image added to a class between two rounds: what the difference of two prototypes gives back of it.

    python benchmarks/differencing.py [--picture FILE.png]

A client of 300 images of clothes is trained; then one more arrives. Its class's prototype and count are uploaded before
and after, with the extractor kept as it is, or trained on in between for a pass over the data at the given learning rate.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import torch
from torch import Tensor

from fedpriv.attacks.features.rounds import Change, Differencing, change_of_target, changed_targets
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.datasets import SourceOptions, load_dataset
from fedpriv.datasets.types import Samples, as_unit
from fedpriv.federation.local_training import class_means, classification_loss, represent, train
from fedpriv.federation.method import LocalTraining
from fedpriv.federation.trace import Trace
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.scoring.leakage import psnr, relative_error
from fedpriv.util.seeds import generator
from fedpriv.wire.payloads import Prototypes

HELD, ADDED, WIDTH = 300, 5, 128
RATES = (0.0, 0.01, 0.1)


def upload(model: SplitModel, samples: Samples) -> Prototypes:
    """Return the prototypes with counts of a client."""
    return Prototypes(*class_means(represent(model, samples.images), samples.labels))


def trained_client(samples: Samples, n_classes: int, seed: int) -> SplitModel:
    """Return a model trained on a client's images."""
    model = build_model(Blueprint("small-mlp", (1, 28, 28), n_classes, WIDTH), seed)
    train(
        model,
        samples,
        LocalTraining(learning_rate=0.1, batch_size=10, epochs=20),
        generator(seed, "client"),
        classification_loss(model),
        Trace(),
    )
    return model.eval()


def trial(
    trained: SplitModel, before: Samples, after: Samples, rate: float, seed: int, iterations: int
) -> tuple[Change, Tensor, Tensor]:
    """Return the change that is found, the true representation ``(d,)`` and the reconstruction ``(c, h, w)``."""
    model, n_classes = copy.deepcopy(trained), trained.head.out_features
    first = upload(model, before)
    if rate:
        train(
            model,
            after,
            LocalTraining(learning_rate=rate, batch_size=10, epochs=1),
            generator(seed, "next"),
            classification_loss(model),
            Trace(),
        )
    model.eval().requires_grad_(False)
    observations = Observation(1, 0, (first,), ()), Observation(2, 0, (upload(model, after),), ())
    targets = changed_targets(observations, "prototype")
    knowledge = Knowledge(ThreatModel(rounds_seen=2), (1, 28, 28), n_classes, extractors={0: model.represent})
    attack = Differencing(iterations=iterations)
    found = change_of_target(observations, targets[0])
    assert found is not None
    image = attack(observations, knowledge, targets, seed=seed, device=torch.device("cpu")).images[0, 0]
    return found, represent(model, after.images[-1:])[0], image


def main() -> None:
    """Print one line a learning rate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dataset = load_dataset("fashion", SourceOptions())
    order = torch.randperm(len(dataset.samples), generator=generator(arguments.seed, "order"))
    images, labels = as_unit(dataset.samples.images[order]), dataset.samples.labels[order]
    print(f"{'rate':>8} {'error':>8} {'foreseen':>9} {'PSNR':>7}   (medians over {ADDED} added images)")
    before = Samples(images[:HELD], labels[:HELD])
    trained = trained_client(before, dataset.n_classes, arguments.seed)
    shown: list[Tensor] = []
    for rate in RATES:
        lines, pictures = [], []
        for number in range(ADDED):
            last = [*range(HELD), HELD + number]
            found, truth, image = trial(
                trained,
                before,
                Samples(images[last], labels[last]),
                rate,
                arguments.seed,
                arguments.iterations,
            )
            wanted = images[HELD + number][None]
            error = float(relative_error(found.vector[None], truth[None])[0])
            lines.append([error, found.noise, float(psnr(image[None], wanted)[0])])
            pictures.append(image)
        error, noise, quality = torch.tensor(lines).median(0).values.tolist()
        print(f"{rate:8g} {error:8.1%} {noise:9.1%} {quality:7.1f}", flush=True)
        shown.append(torch.stack(pictures))
    added, own = images[HELD : HELD + ADDED], labels[HELD : HELD + ADDED]
    means = torch.stack([images[HELD + ADDED :][labels[HELD + ADDED :] == label].mean(0) for label in own])
    print(f"class mean image of others: PSNR {float(psnr(means, added).median()):.1f}")
    if arguments.picture:
        draw(arguments.picture, [added, means, *shown])


def draw(path: Path, rows: list[Tensor]) -> None:
    """Draw every row of images, named."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = [
        "added image",
        "class mean (blind)",
        "extractor constant",
        *(f"trained on at {rate:g}" for rate in RATES[1:]),
    ]
    figure, axes = plt.subplots(len(rows), ADDED, figsize=(ADDED, 1.05 * len(rows)))
    for line, name, row in zip(axes, names, rows, strict=True):
        for place, image in zip(line, row, strict=True):
            place.imshow(image[0].clamp(0, 1), cmap="gray", vmin=0, vmax=1)
            place.set_xticks([])
            place.set_yticks([])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
    figure.tight_layout()
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
