"""How many images of a batch are told apart rightly by the gradient of a fully connected layer, against their derivatives.

OMP_NUM_THREADS=1 python benchmarks/batches_apart.py --data DIR/cifar10-jpeg/test --seed 79

Untrained cnn4, images drawn by the seed. An image counts as right where the cosine of its own derivative and a part's is
above 0.999; "attested" are the parts that the separation vouches for, "all right" the batches of which no image is missing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from arena import Pool
from cifar import Clock
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.attacks.gradients.linear_gradient import DRAWS, SEPARABLE, linear_gradient
from fedpriv.attacks.gradients.separation import separate
from fedpriv.experiment.benchmarks.one_step import problem_of

LAYER = "extractor.7"


def own_derivatives(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return each image's share ``(n, m)`` of the gradient of the layer's bias."""
    bias = model.get_parameter(f"{LAYER}.bias")
    losses = functional.cross_entropy(model(images), labels, reduction="none") / len(images)
    return torch.stack([torch.autograd.grad(loss, bias, retain_graph=True)[0] for loss in losses])


def main() -> None:
    """Print a line for each size of batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of images, one folder a class")
    parser.add_argument("--seed", type=int, required=True, help="draws the images, weights and starts")
    parser.add_argument("--sizes", type=int, nargs="*", default=[4, 8, 12, 16, 24, 32])
    parser.add_argument("--batches", type=int, default=8, help="of each size")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pool = Pool(options.data, "folder", options.seed)
    print("| images | batches | attested | right | of those attested, wrong | all right | CPU s a batch |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for size in options.sizes:
        drawn = pool.draw(size * options.batches, f"batches of {size}")
        part = drawn.images, drawn.labels
        problem = problem_of("cnn4", *part, drawn.n_classes, options.seed, batch_size=size, steps=1)
        names = [name for name, _ in problem.model.named_parameters()]
        attested = right = wrong = whole = 0
        seconds = 0.0
        for place, gradient in enumerate(problem.gradients()):
            own = slice(place * size, (place + 1) * size)
            truth = own_derivatives(problem.model, drawn.images[own], drawn.labels[own])
            known = linear_gradient(dict(zip(names, gradient, strict=True)), None, LAYER)
            clock, draw = Clock(), torch.Generator().manual_seed(options.seed)
            parts = separate(known.rows, known.bias, size, draw, DRAWS if size <= SEPARABLE else 0)
            seconds += clock.seconds()
            alike = functional.cosine_similarity(parts.errors.T.float().unsqueeze(1), truth, dim=2) > 0.999
            attested += parts.attested
            right += int(alike.any(0).sum())
            wrong += int((~alike[: parts.attested].any(1)).sum())
            whole += bool(alike.any(0).all())
        counts = f"{attested} | {right} of {size * options.batches} | {wrong} | {whole}"
        print(f"| {size} | {options.batches} | {counts} | {seconds / options.batches:.1f} |")


if __name__ == "__main__":
    main()
