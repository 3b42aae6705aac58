"""Unmixing FedRE's uploads of one CIFAR-10 client: error by rounds seen, and by how far its extractor has settled.

    OMP_NUM_THREADS=1 python benchmarks/unmixing.py --data DIR/cifar10-jpeg [--history FILE]

One client holds 100 images of each of 10 classes and trains the 4-layer CNN for 80 rounds (batch 32, SGD 0.06). For each
end round and window, weights are drawn anew ``--draws`` times and the prototypes unmixed by plain least squares over the
window and by the posterior, without head or images.
Prototypes of all rounds are kept in FILE, and taken from there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from cifar import load
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedpriv.algebra.entanglement import normalised_draws
from fedpriv.attacks.features.posterior import Uploads, infer
from fedpriv.datasets.types import Samples
from fedpriv.federation.local_training import class_means, classification_loss, represent, train
from fedpriv.federation.method import LocalTraining
from fedpriv.federation.states import Trace
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint
from fedpriv.util.seeds import generator


def settle(folder: Path, rounds: int, seed: int) -> Tensor:
    """Train the client and return its prototypes after every round ``(rounds, 10, 512)``."""
    images, labels = load(folder / "train", 100)
    samples = Samples(images, labels)
    model = build_model(Blueprint("cnn4", (3, 32, 32), 10, 512), seed).to(memory_format=torch.channels_last)
    training = LocalTraining(learning_rate=0.06, batch_size=32)
    history = []
    for number in range(rounds):
        train(model, samples, training, generator(seed, number), classification_loss(model), Trace())
        history.append(class_means(represent(model, images), labels)[0])
    return torch.stack(history)


def trial(history: Tensor, rounds: int, seed: int, *, fixed: bool) -> tuple[float, ...]:
    """Return two median relative errors, the one that the posterior expects, and its rate of identification."""
    rng = generator(seed, "weights")
    weights = torch.stack([normalised_draws(10, rng) for _ in range(rounds)])
    weights = weights[:1].expand_as(weights) if fixed else weights
    truth = history[-1]
    uploads = torch.stack([w @ p for w, p in zip(weights, history[-rounds:], strict=True)])
    plain = (torch.linalg.pinv(weights.double(), rtol=1e-8) @ uploads.double()).float()
    numbers = torch.arange(len(history) - rounds, len(history)) + 1
    found = infer(Uploads(uploads.double(), weights.double(), numbers))
    errors = [float(((guess - truth).norm(dim=1) / truth.norm(dim=1)).median()) for guess in (plain, found.prototypes)]
    hits = float((torch.cdist(found.prototypes, truth).argmin(1) == torch.arange(10)).float().mean())
    return *errors, float((found.distance / found.prototypes.norm(dim=1)).median()), hits


def main() -> None:
    """Train once, unmix many times, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--history", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.history is not None and arguments.history.is_file():
        history = load_file(arguments.history)["prototypes"]
    else:
        history = settle(arguments.data, 80, arguments.seed)
        if arguments.history is not None:
            save_file({"prototypes": history}, arguments.history)
    heads = ("least squares", "posterior", "expects", "posterior nearest")
    print(f"{'end':>4} {'drift':>7} {'rounds':>6} " + " ".join(f"{head:>17}" for head in heads))
    for end in (80, 60, 45, 35, 25):
        drift = float((history[end - 1] - history[end - 2]).norm() / history[end - 1].norm())
        for rounds in (10, 12, 15, 20, 30):
            if rounds <= end:
                row(history[:end], drift, rounds, arguments.draws, fixed=False)
    row(history, 0.0, 30, arguments.draws, fixed=True)


def row(history: Tensor, drift: float, rounds: int, draws: int, *, fixed: bool) -> None:
    """Print the medians over draws of the weights."""
    found = torch.tensor([trial(history, rounds, seed, fixed=fixed) for seed in range(draws)])
    shown = [*found[:, :3].median(0).values.tolist(), *found[:, 3:].mean(0).tolist()]
    note = "  fixed weights" if fixed else ""
    print(
        f"{len(history):4} {drift:7.2%} {rounds:6} " + " ".join(f"{value:17.1%}" for value in shown) + note, flush=True
    )


if __name__ == "__main__":
    main()
