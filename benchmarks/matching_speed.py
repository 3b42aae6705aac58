"""Speed of gradient matching beside the public library ``breaching``: target-iterations per CPU second, in one run.

OMP_NUM_THREADS=1 PYTHONPATH=DIR/breaching python benchmarks/matching_speed.py --data DIR/cifar10-jpeg

Both attack the same uploads from the same weights with labels given, one thread each, in turns. The peer takes one target
after the other, so it is measured on one. Iterations of inverting gradients are steps; those of DLG are evaluations. Also
printed: the matrix products of an iteration against what this machine does of them in a second, measured here.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cifar import Clock, load
from gradients import Problem, one_step_problem, run_attack
from side_by_side import attack_by_peer
from torch.utils.flop_counter import FlopCounterMode

from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.gradients.inverting_gradients import InvertingGradients

CASES = (
    ("inverting-gradients", "lenet-sigmoid", (1, 8, 32)),
    ("inverting-gradients", "cnn4", (1, 8, 32)),
    ("dlg", "lenet-sigmoid", (1, 8)),
)


def peak() -> float:
    """Return floating-point operations a second of a large matrix product, the best of ten."""
    matrix = torch.randn(1024, 1024)
    best = float("inf")
    for _ in range(10):
        start = time.process_time()
        matrix @ matrix
        best = min(best, time.process_time() - start)
    return 2 * 1024**3 / best


def attack_of(name: str, net: str, iterations: int) -> Any:
    """Return the attack with a budget; DLG takes 20 evaluations a step and one more, and no second start."""
    if name == "dlg":
        return DeepLeakage(outer_steps=iterations // 20, redraws=0, stop_below=0.0)
    return InvertingGradients(iterations=iterations, total_variation=0.06, signed=net == "cnn4")


def peer_of(peer: Any, problem: Problem, name: str, iterations: int) -> None:
    """Let the peer attack."""
    number = f"optim.max_iterations={iterations // 20 if name == 'dlg' else iterations}"
    if name == "dlg":
        attack_by_peer(peer, problem, "deepleakage", ["attack_type=optimization", number], 0)
    else:
        attack_by_peer(peer, problem, "invertinggradients", [number, "regularization.total_variation.scale=0.06"], 0)


def rate(work: Callable[[], None], done: int) -> float:
    """Return target-iterations a CPU second."""
    clock = Clock()
    work()
    return done / clock.seconds()


def main() -> None:
    """Measure, print each side and the ratio with least, median and most."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/, one folder a class")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="attack:net:targets, for example dlg:lenet-sigmoid:8")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    peer = importlib.import_module("breaching")
    images, labels = load(options.data / "train", 4)
    most = peak()
    print(f"a matrix product of 1024: {most / 1e9:.0f} GFLOP/s")
    for name, net, sizes in CASES:
        for size in sizes:
            if options.only and f"{name}:{net}:{size}" not in options.only:
                continue
            classes = 100 if net == "lenet-sigmoid" else 10
            own = one_step_problem(net, images[:size], labels[:size], classes, 0)
            alone = one_step_problem(net, images[:1], labels[:1], classes, 0)
            attack = attack_of(name, net, options.iterations)

            def ours(attack: Any = attack, problem: Problem = own) -> None:
                run_attack(attack, problem, 0)

            def theirs(problem: Problem = alone, name: str = name) -> None:
                peer_of(peer, problem, name, options.iterations)

            ours()
            theirs()
            with FlopCounterMode(display=False) as flops:
                ours()
            products = flops.get_total_flops() / size / options.iterations
            pairs = [
                (rate(ours, size * options.iterations), rate(theirs, options.iterations)) for _ in range(options.pairs)
            ]
            ratios = sorted(one / other for one, other in pairs)
            middle = [statistics.median(side) for side in zip(*pairs, strict=True)]
            print(
                f"{name} {net}, {size} targets: fedpriv {middle[0]:.0f}, breaching {middle[1]:.0f}, ratio "
                f"{ratios[0]:.1f}-{statistics.median(ratios):.1f}-{ratios[-1]:.1f}; products {products / 1e6:.1f} MFLOP, "
                f"{products * middle[0] / most:.0%} of the peak",
                flush=True,
            )


if __name__ == "__main__":
    main()
