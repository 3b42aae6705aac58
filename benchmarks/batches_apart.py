"""How many images of a batch are separated rightly by the gradient of a fully connected layer, against their derivatives.

OMP_NUM_THREADS=1 python benchmarks/batches_apart.py --data DIR/cifar10-jpeg/test --seed 79

cnn4, untrained or after training on other images; images drawn by the seed. Labels are given; ``--without-labels`` zeros
alone tell images apart. An image counts as right where the cosine of its own derivative and a part's is above 0.999;
"attested" are the parts that the separation vouches for, "all right" the batches of which no image is missing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from arena import Pool
from cifar import Clock
from one_step import problem_of, with_model
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.attacks.gradients.layers import label_slopes, logits_behind
from fedpriv.attacks.gradients.separation import LinearGradient, separate

LAYER = "extractor.7"


def own_derivatives(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return each image's share ``(n, m)`` of the gradient of the layer's bias."""
    bias = model.get_parameter(f"{LAYER}.bias")
    losses = functional.cross_entropy(model(images), labels, reduction="none") / len(images)
    return torch.stack([torch.autograd.grad(loss, bias, retain_graph=True)[0] for loss in losses])


def train(model: nn.Module, pool: Pool, count: int) -> None:
    """Train on so many other images, in batches of fifty, as often as it takes."""
    drawn = pool.draw(min(count, 4000), "training")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    order = torch.arange(count) % len(drawn.labels)
    for own in order.split(50):
        optimiser.zero_grad()
        functional.cross_entropy(model(drawn.images[own]), drawn.labels[own]).backward()
        optimiser.step()


def main() -> None:
    """Print a line for each size of batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of images, one folder a class")
    parser.add_argument("--seed", type=int, required=True, help="draws the images, weights and starts")
    parser.add_argument("--sizes", type=int, nargs="*", default=[4, 8, 16, 24, 32, 64, 128])
    parser.add_argument("--batches", type=int, default=8, help="of each size")
    parser.add_argument("--without-labels", action="store_true")
    parser.add_argument("--trained", type=int, default=0, help="images that the network was trained on before")
    parser.add_argument("--others", type=Path, help="folder of images to train on")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pool = Pool(options.data, "folder", options.seed)
    print("| images | batches | attested | right | of those attested, wrong | all right | CPU s a batch |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for size in options.sizes:
        drawn = pool.draw(size * options.batches, f"batches of {size}")
        part = drawn.images, drawn.labels
        problem = problem_of("cnn4", *part, drawn.n_classes, options.seed, batch_size=size, steps=1)
        if options.trained:
            train(problem.model, Pool(options.others or options.data, "folder", options.seed), options.trained)
            problem = with_model(problem.model, *part, drawn.n_classes, batch_size=size, steps=1)
        weights = {name: value.detach() for name, value in problem.model.named_parameters()}
        behind = logits_behind(problem.model, weights, LAYER, problem.knowledge.image_shape)
        attested = right = wrong = whole = 0
        seconds = 0.0
        for place, gradient in enumerate(problem.gradients()):
            own = slice(place * size, (place + 1) * size)
            truth = own_derivatives(problem.model, drawn.images[own], drawn.labels[own])
            sent = dict(zip(weights, gradient, strict=True))
            known = LinearGradient(sent, None, LAYER)
            clock, draw = Clock(), torch.Generator().manual_seed(options.seed)
            by_label = None
            if not options.without_labels:
                by_label = label_slopes(behind, weights[f"{LAYER}.bias"], drawn.labels[own], sent)
            errors, vouched = separate(known.rows, known.bias, size, draw, by_label)
            seconds += clock.seconds()
            alike = functional.cosine_similarity(errors.T.float().unsqueeze(1), truth, dim=2) > 0.999
            attested += vouched
            right += int(alike.any(0).sum())
            wrong += int((~alike[:vouched].any(1)).sum())
            whole += bool(alike.any(0).all())
        counts = f"{attested} | {right} of {size * options.batches} | {wrong} | {whole}"
        print(f"| {size} | {options.batches} | {counts} | {seconds / options.batches:.1f} |")


if __name__ == "__main__":
    main()
