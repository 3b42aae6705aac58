"""Inverting gradients on CIFAR-10 images: rate against a plain loop over targets, PSNR, batches, training, steps.

OMP_NUM_THREADS=1 python benchmarks/inverting_gradients.py --data DIR/cifar10-jpeg
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from cifar import Clock, load, psnr, trained_cnn
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.contract import Attack
from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.gradients.inverting_gradients import GradientDip, InvertingGradients
from fedpriv.attacks.gradients.pixel_search import absolute_variation
from fedpriv.experiment.benchmarks.one_step import Problem, problem_of, run_attack, with_model

LOOP_ITERATIONS = 60
"""Iterations of the plain loop, enough to time it."""


def main() -> None:
    """Measure the parts asked for and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/, one folder a class")
    parser.add_argument(
        "--parts", default="rate,ways,budget,dip,batch,trained,steps", help="which, separated by commas"
    )
    parser.add_argument("--iterations", type=int, default=300, help="of each row of the part selection")
    parser.add_argument("--seed", type=int, default=0, help="draws the images too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    images, labels = load(options.data / "train", 4, skip=4 * options.seed)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(options.seed))
    images, labels = images[order], labels[order]
    floor = psnr(images.mean((0, 2, 3)).view(1, 3, 1, 1).expand_as(images), images).mean()
    print(f"floor of the mean colour: {floor:.1f} dB over {len(images)} images")

    def case(net: str, count: int = 8, batch_size: int = 1, steps: int = 1) -> Problem:
        classes = 100 if net == "lenet-sigmoid" else 10
        own = images[:count], labels[:count]
        return problem_of(net, *own, classes, options.seed, batch_size=batch_size, steps=steps)

    for part in options.parts.split(","):
        if part == "rate":
            for net in ("lenet-sigmoid", "cnn4"):
                _rate(net, case(net), options.seed)
        elif part == "ways":
            for net in ("lenet-sigmoid", "cnn4"):
                for signed in (True, False):
                    way = InvertingGradients(iterations=1000, signed=signed)
                    _show(f"{net}, Adam, {'signs' if signed else 'gradient'}", way, case(net), options.seed)
                _show(f"{net}, L-BFGS", DeepLeakage(outer_steps=49, redraws=0), case(net), options.seed)
                _show(f"{net}, as it is by itself", InvertingGradients(iterations=1000), case(net), options.seed)
        elif part == "budget":
            for net in ("lenet-sigmoid", "cnn4"):
                for iterations in (400, 1600):
                    _show(net, InvertingGradients(iterations=iterations), case(net), options.seed)
        elif part == "dip":
            for net in ("lenet-sigmoid", "cnn4"):
                _show(net, GradientDip(iterations=800), case(net), options.seed)
        elif part == "batch":
            for size in (2, 4, 8):
                _show(
                    f"cnn4, batch of {size}", InvertingGradients(iterations=1600), case("cnn4", 8, size), options.seed
                )
        elif part == "selection":
            for size in (1, 4):
                _selection(f"cnn4, batches of {size}", case("cnn4", 4 * size, size), options.seed, options.iterations)
        elif part == "trained":
            many = load(options.data / "train", 100, skip=200)
            for epochs in (1, 10):
                model = trained_cnn(*many, epochs, options.seed).requires_grad_()
                problem = with_model(model, images[:8], labels[:8], 10, batch_size=1, steps=1)
                _show(f"cnn4 after {epochs} epochs", InvertingGradients(iterations=1600), problem, options.seed)
        elif part == "steps":
            for steps in (2, 4, 8):
                problem = case("lenet-sigmoid", 8, 1, steps)
                for way in ("unrolled", "approximate"):
                    attack = InvertingGradients(
                        iterations=1000, several_steps="unrolled" if way == "unrolled" else "approximate"
                    )
                    _show(f"lenet-sigmoid, {steps} steps, {way}", attack, problem, options.seed)
        else:
            parser.error(f"--parts {part}: expected rate, ways, budget, dip, batch, selection, trained or steps")


def _selection(title: str, problem: Problem, seed: int, iterations: int) -> None:
    """Print how much of the best row's PSNR several rules keep, of four weights with two starts each."""
    scores, distances, variations = [], [], []
    for weight in (0.06, 0.12, 0.24, 0.48):
        for start in (0, 1000):
            attack = InvertingGradients(iterations=iterations, total_variation=weight, signed=True)
            found = run_attack(attack, problem, seed + start)
            variation = absolute_variation(found.images)
            variations.append(variation)
            distances.append(found.objective[:, 0] / (0.02 + variation).square())
            truth = problem.images.split(found.images.shape[1])
            scores.append(torch.stack([_assigned(*pair).mean() for pair in zip(found.images, truth, strict=True)]))
    reached, distance, variation = (torch.stack(one) for one in (scores, distances, variations))
    best, average = reached.max(0).values, reached.mean(0)
    print(
        f"{title}, {iterations} iterations: best of 8 rows {best.mean():.1f} dB, a row by chance {average.mean():.1f} dB"
    )
    for power in (0, 0.5, 1, 1.5, 2, 3):
        chosen = (distance * (0.02 + variation) ** power).argmin(0)
        kept = reached.gather(0, chosen.unsqueeze(0))[0]
        print(
            f"  distance times variation to the {power}: {kept.mean():.1f} dB, {(kept / best).mean():.1%} of the best"
        )


def _rate(net: str, problem: Problem, seed: int) -> None:
    clock = Clock()
    run_attack(InvertingGradients(iterations=LOOP_ITERATIONS * 4, total_variation=0.06, signed=True), problem, seed)
    batched = len(problem.images) * LOOP_ITERATIONS * 4 / clock.seconds()
    clock = Clock()
    for place in range(len(problem.images)):
        _plain_loop(problem, place)
    looped = len(problem.images) * LOOP_ITERATIONS / clock.seconds()
    print(
        f"{net}: {batched:.0f} target-iterations per CPU s with {len(problem.images)} targets, {looped:.0f} in a plain loop "
        f"over targets: {batched / looped:.1f} times"
    )


def _plain_loop(problem: Problem, place: int) -> Tensor:
    """Invert one upload the way papers' code does: one model, one image, parameters' gradients with their graph."""
    wanted = problem.gradients()[place]
    label = problem.labels[place : place + 1]
    candidate = torch.randn(1, *problem.images.shape[1:]).mul(0.1).add(0.5).clamp(0, 1).requires_grad_()
    optimiser = torch.optim.Adam([candidate], lr=0.05)
    norm = torch.stack([value.square().sum() for value in wanted]).sum().sqrt()
    for _ in range(LOOP_ITERATIONS):
        loss = functional.cross_entropy(problem.model(candidate), label)
        found = torch.autograd.grad(loss, list(problem.model.parameters()), create_graph=True)
        inner = torch.stack([(one * other).sum() for one, other in zip(found, wanted, strict=True)]).sum()
        own = torch.stack([value.square().sum() for value in found]).sum().sqrt()
        across = (candidate[..., 1:] - candidate[..., :-1]).abs().mean()
        down = (candidate[..., 1:, :] - candidate[..., :-1, :]).abs().mean()
        objective = 1 - inner / (own * norm) + 0.1 * (across + down)
        (gradient,) = torch.autograd.grad(objective, candidate)
        candidate.grad = gradient.sign()
        optimiser.step()
        with torch.no_grad():
            candidate.clamp_(0, 1)
    return candidate.detach()


def _show(title: str, attack: Attack, problem: Problem, seed: int) -> None:
    clock = Clock()
    found = run_attack(attack, problem, seed)
    seconds = clock.seconds()
    count = found.images.shape[1]
    scores = torch.cat(
        [_assigned(guesses, truth) for guesses, truth in zip(found.images, problem.images.split(count), strict=True)]
    )
    rate = len(problem.images) * found.cost.iterations / seconds
    name = f"{attack.name} {found.cost.iterations} iterations"
    print(
        f"{title}, {name}: mean {scores.mean():.1f} dB, median {scores.median():.1f} dB, {seconds:.1f} CPU s, "
        f"{rate:.0f} image-iterations per CPU s | {' '.join(f'{score:.1f}' for score in scores.tolist())}",
        flush=True,
    )


def _assigned(guesses: Tensor, truth: Tensor) -> Tensor:
    """Return the PSNR of each true image with the guess that the assignment of least total error gives it."""
    errors = (guesses.unsqueeze(1) - truth.unsqueeze(0)).square().flatten(2).mean(2)
    rows, columns = linear_sum_assignment(errors.numpy())
    return psnr(guesses[torch.as_tensor(rows)], truth[torch.as_tensor(columns)])


if __name__ == "__main__":
    main()
