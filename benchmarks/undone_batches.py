"""Batches that a client changed before its gradient was taken, set right: mixtures by their weights, transformed clothes.

    OMP_NUM_THREADS=1 python benchmarks/undone_batches.py --part mixed
    OMP_NUM_THREADS=1 python benchmarks/undone_batches.py --part transformed

Mixed: one step of a small sigmoid network on made-up images of 8 x 8 of different classes, mixed by as many weights as there
are images; the condition of the weights, and what DLG and the search for mixtures come to. Transformed: images of the
embedded clothes, changed by the published policy and found exactly, so that what is measured is the undoing alone.
"""

from __future__ import annotations

import argparse

import torch
from cifar import Clock, psnr
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.algebra.augmentation_policy import PUBLISHED, read_policy
from fedpriv.attacks.contract import Attack
from fedpriv.attacks.features.transformation import TransformationSearch
from fedpriv.attacks.gradients.dlg import DeepLeakage, MixtureSeparation
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.observation import BatchFacts, Knowledge, KnowledgeCard, Observation
from fedpriv.datasets import load_dataset
from fedpriv.datasets.types import as_unit
from fedpriv.defenses.mixup import Mixup, mixed_step
from fedpriv.defenses.transform import transform
from fedpriv.federation.defense import Work
from fedpriv.util.seeds import generator, global_seed
from fedpriv.wire.payloads import Model

RATE = 0.5
"""Step size of the client."""


def network() -> nn.Module:
    """Return a small sigmoid network with weights from U(-0.5, 0.5)."""
    with global_seed(1):
        model = nn.Sequential(
            nn.Conv2d(1, 12, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, padding=2),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(192, 10),
        )
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def mixed_upload(model: nn.Module, images: Tensor, labels: Tensor, seed: int) -> tuple[Observation, Tensor]:
    """Return the upload of a client that mixes, after one step, and its weights ``(n, n)``."""
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    mixup = Mixup(images=len(labels))

    def work() -> Work:
        rng = generator(seed, "mixtures")
        return Work(model, lambda x, y: functional.cross_entropy(model(x), y), tuple(model.parameters()), None, rng)

    def step(given: Work, batch: Tensor, classes: Tensor) -> Tensor:
        loss = given.loss(batch, classes)
        loss.backward()
        return loss.detach()

    weights: list[Tensor] = []

    def weigh(given: Work, batch: Tensor, classes: Tensor) -> Tensor:
        weights.append(batch)
        return torch.zeros(())

    mixed_step(weigh, mixup)(work(), torch.eye(len(labels)), labels)
    mixed_step(step, mixup)(work(), images, labels)
    after = {
        name: before[name] - RATE * value.grad for name, value in model.named_parameters() if value.grad is not None
    }
    model.zero_grad()
    return Observation(0, 0, (Model(after),), (Model(before),)), weights[0]


def mixed(count: int, seed: int) -> str:
    """Return a row of the table: images, condition of the weights, what both attacks come to, what they take."""
    model, rng = network(), generator(seed, "images", count)
    images = functional.interpolate(torch.rand(count, 1, 4, 4, generator=rng), scale_factor=2, mode="bilinear")
    labels = torch.randperm(10, generator=rng)[:count]
    upload, weights = mixed_upload(model, images, labels, seed)
    card = KnowledgeCard(labels="given")
    known = Knowledge(card, (1, 8, 8), 10, model=model, batch=BatchFacts(count, RATE, 1), labels={(0, 0): labels})
    attacks: tuple[Attack, ...] = (DeepLeakage(outer_steps=60), MixtureSeparation(outer_steps=60))
    cells = [str(count), str(seed), f"{torch.linalg.cond(weights):.2g}"]
    clock = Clock()
    for attack in attacks:
        found = attack((upload,), known, list_targets((upload,), "model"), seed=seed)
        cells.append(f"{psnr(found.images[0].detach(), images).mean():.1f} dB")
    return "| " + " | ".join([*cells, f"{clock.seconds():.1f}"]) + " |"


def transformed(number: int, seed: int) -> str:
    """Return the mean PSNR of as many clothes, undone, with that of the guesses beside them."""
    samples = load_dataset("fashion").samples
    images, labels = as_unit(samples.images), samples.labels
    order = torch.randperm(len(images), generator=generator(seed, "clothes"))
    truth, own = order[:number], order[number : len(order) // 2]
    policies = read_policy(PUBLISHED, "the policy")
    attack, clock = TransformationSearch(), Clock()
    found: dict[str, list[float]] = {name: [] for name in ("as trained on", "undone", "class mean", "nearest own")}
    for place in truth.tolist():
        image, alike = images[place], images[own[labels[own] == labels[place]]]
        changed = transform(image, policies, generator(seed, "transform", place), crop=True)
        undone = attack.untransformed(changed, alike)
        closest = alike[(alike - changed).square().flatten(1).sum(1).argmin()]
        for name, guess in zip(found, (changed, undone, alike.mean(0), closest), strict=True):
            found[name].append(float(psnr(guess[None], image[None])))
    each = len(own) / len(labels.unique())
    told = [f"{name}: {sum(s) / len(s):.1f} dB, median {torch.tensor(s).median():.1f}" for name, s in found.items()]
    return "\n".join([*told, f"{each:.0f} own images a class, {clock.seconds() / number:.2f} CPU s an image"])


def main() -> None:
    """Print the part that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("mixed", "transformed"), required=True)
    parser.add_argument("--counts", type=int, nargs="+", default=[2, 3, 4], help="mixed: images of a batch")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3], help="of draws; of clothes the first")
    parser.add_argument("--number", type=int, default=48, help="transformed: images")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part == "transformed":
        print(transformed(options.number, options.seeds[0]))
        return
    print("| images | seed | condition of M | `dlg` | `demix` | CPU s |\n| ---: | ---: | ---: | ---: | ---: | ---: |")
    for count in options.counts:
        for seed in options.seeds:
            print(mixed(count, seed), flush=True)


if __name__ == "__main__":
    main()
