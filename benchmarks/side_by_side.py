"""The same uploads attacked by fedpriv and by the public library ``breaching``, at the same budget, one thread each.

OMP_NUM_THREADS=1 PYTHONPATH=DIR/breaching python benchmarks/side_by_side.py --data DIR/cifar10-jpeg

``breaching`` (https://github.com/JonasGeiping/breaching) is not a dependency: without it, one line says so and only
fedpriv is measured. Both attackers get the same weights, the same gradients and the labels.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from cifar import Clock, load, psnr
from torch import Tensor

from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.gradients.inverting_gradients import InvertingGradients
from fedpriv.experiment.benchmarks.breaching import attack_by_peer, imported
from fedpriv.experiment.benchmarks.one_step import Problem, one_step_problem, run_attack
from fedpriv.experiment.benchmarks.turns import MissingPeer


def main() -> None:
    """Attack, print both sides and their difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/, one folder a class")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=400, help="of inverting gradients")
    parser.add_argument("--outer-steps", type=int, default=60, help="of DLG, 20 evaluations each")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    try:
        peer = imported()
    except MissingPeer as reason:
        peer = None
        print(f"{reason}: only fedpriv is measured")

    images, labels = load(options.data / "train", -(-options.images // 10))
    images, labels = images[: options.images], labels[: options.images]
    iterations = f"optim.max_iterations={options.iterations}"
    dlg = ["attack_type=optimization", f"optim.max_iterations={options.outer_steps}"]
    cases: list[tuple[str, str, Any, str, Sequence[str]]] = [
        ("dlg", "lenet-sigmoid", DeepLeakage(outer_steps=options.outer_steps), "deepleakage", dlg),
        *(
            (
                "inverting-gradients",
                net,
                InvertingGradients(
                    iterations=options.iterations, total_variation=weight, signed=signed
                ),  # one row a target, as the peer
                "invertinggradients",
                [iterations, f"regularization.total_variation.scale={scale}"],
            )
            for net, weight, signed, scale in (
                ("lenet-sigmoid", 0.06, False, 0.2),
                ("lenet-sigmoid", 0.06, False, 0.02),
                ("cnn4", 0.06, True, 0.2),
                ("cnn4", 0.06, True, 0.02),
            )
        ),
    ]
    for title, net, own, name, overrides in cases:
        problem = one_step_problem(net, images, labels, 100 if net == "lenet-sigmoid" else 10, options.seed)

        def ours(attack: Any = own, problem: Problem = problem) -> Tensor:
            return run_attack(attack, problem, options.seed).images[:, 0]

        def theirs(problem: Problem = problem, name: str = name, overrides: Sequence[str] = overrides) -> Tensor:
            return attack_by_peer(peer, problem, name, overrides, options.seed)

        print(f"{title} on {net}: {own}; peer: {name} {' '.join(overrides)}")
        measured = _report("fedpriv", ours, images)
        if peer is not None:
            other = _report("breaching", theirs, images)
            print(
                f"  difference: mean {(measured - other).mean():+.1f} dB, median {(measured - other).median():+.1f} dB"
            )


def _report(who: str, attack: Callable[[], Tensor], images: Tensor) -> Tensor:
    clock = Clock()
    scores = psnr(attack(), images)
    listed = " ".join(f"{score:.1f}" for score in scores.tolist())
    print(
        f"  {who:9}: mean {scores.mean():.1f} dB, median {scores.median():.1f} dB, {clock.seconds():.1f} CPU s | {listed}"
    )
    return scores


if __name__ == "__main__":
    main()
