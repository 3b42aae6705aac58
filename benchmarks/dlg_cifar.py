"""DLG on single CIFAR-10 images with the sigmoid LeNet (100 classes), as in its paper.

OMP_NUM_THREADS=1 python benchmarks/dlg_cifar.py --data DIR/cifar10-jpeg
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from cifar import Clock, load, psnr
from torch.nn import functional

from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.observation import BatchFacts, Knowledge, KnowledgeCard, Observation
from fedpriv.attacks.read.target_features import list_targets
from fedpriv.models import default_width
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint
from fedpriv.wire.payloads import Model


def main() -> None:
    """Take one SGD step a client on one image, invert the uploads, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/, one folder a class")
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--outer-steps", type=int, default=100)
    parser.add_argument("--redraws", type=int, default=8)
    parser.add_argument("--labels", choices=("given", "inferred", "joint"), default="inferred")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="the client's")
    parser.add_argument("--chunk-rows", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)

    shape = (3, 32, 32)
    images, labels = load(options.data / "train", -(-options.images // 10))
    images, labels = images[: options.images], labels[: options.images]
    model = build_model(Blueprint("lenet-sigmoid", shape, 100, default_width("lenet-sigmoid", shape)), options.seed)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    observations = []
    for client, (image, label) in enumerate(zip(images, labels, strict=True)):
        loss = functional.cross_entropy(model(image.unsqueeze(0)), label.unsqueeze(0))
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        pairs = zip(before.items(), gradients, strict=True)
        after = {name: value - options.learning_rate * gradient for (name, value), gradient in pairs}
        observations.append(Observation(0, client, (Model(after),), (Model(before),)))
    knowledge = Knowledge(
        KnowledgeCard(labels="given" if options.labels == "given" else "inferred"),
        shape,
        100,
        model=model,
        batch=BatchFacts(1, options.learning_rate, 1),
        labels={(0, client): labels[client : client + 1] for client in range(len(images))},
    )
    attack = DeepLeakage(
        outer_steps=options.outer_steps,
        redraws=options.redraws,
        labels="joint" if options.labels == "joint" else "auto",
    )
    clock = Clock()
    found = attack(
        tuple(observations),
        knowledge,
        list_targets(observations, "model"),
        seed=options.seed,
        device=torch.device("cpu"),
        chunk_rows=options.chunk_rows,
    )
    scores = psnr(found.images[:, 0], images)
    print(f"{attack}")
    print("PSNR", " ".join(f"{score:.1f}" for score in scores.tolist()))
    print(f"median {scores.median():.1f} dB, above 30 dB {int((scores > 30).sum())} of {len(scores)}")
    print(f"labels right {int((found.labels[:, 0] == labels).sum())}; converged {int(found.converged.sum())}")
    print(f"relative distance {' '.join(f'{value:.0e}' for value in found.objective[:, 0].tolist())}")
    print(f"{clock.seconds() / len(images):.1f} CPU s an image, {found.cost.iterations} evaluations at most")


if __name__ == "__main__":
    main()
