"""Inverting gradients and DLG, one row a target, beside the package ``breaching`` at the same number of steps."""

from __future__ import annotations

import warnings
from typing import Any

from fedpriv.experiment.benchmarks.contract import Asked, Case, Comparison, Goal, Side
from fedpriv.experiment.benchmarks.turns import Turns

_HERE = "fedpriv.experiment.benchmarks.gradient_matching"

EVALUATIONS = 20
"""Inner steps of one outer step of DLG, here and there."""

NETWORKS = {"lenet-sigmoid": ("LeNet", 100), "cnn4": ("cnn4", 10)}
"""Names of networks -> in words, classes."""


def _inverting_cases(asked: Asked) -> tuple[Case, ...]:
    steps = 100 if asked.full else 20
    goals = {("lenet-sigmoid", 1): 2.0, ("cnn4", 1): 2.0} | {
        (net, many): at_least for net, at_least in (("lenet-sigmoid", 6.0), ("cnn4", 4.0)) for many in (8, 32)
    }
    return tuple(
        _case(
            asked, "inverting-gradients", net, targets, steps, Goal(f"at least {least:g} times breaching", None, least)
        )
        for (net, targets), least in sorted(goals.items(), key=lambda one: (one[0][0] == "cnn4", one[0][1]))
    )


def _dlg_cases(asked: Asked) -> tuple[Case, ...]:
    steps = 10 if asked.full else 4
    goals = {1: 1.2, 8: 2.5}
    return tuple(
        _case(asked, "dlg", "lenet-sigmoid", targets, steps, Goal(f"at least {least:g} times breaching", None, least))
        for targets, least in goals.items()
    )


def _case(asked: Asked, attack: str, net: str, targets: int, steps: int, goal: Goal) -> Case:
    settings = asked.settings(attack=attack, net=net, targets=targets, steps=steps)
    units = targets * steps * (EVALUATIONS if attack == "dlg" else 1)
    return Case(
        name=f"{NETWORKS[net][0]}, {targets} target{'s' * (targets > 1)}",
        sides=(
            Side("fedpriv", f"{_HERE}:by_fedpriv", settings, units=units),
            Side("breaching", f"{_HERE}:by_breaching", settings, units=units),
        ),
        clock=asked.clock,
        unit="target-iterations",
        device=asked.device,
        pairs=5 if asked.full else 3,
        counted=True,
        goal=goal,
    )


INVERTING_GRADIENTS = Comparison(
    "inverting gradients of 1, 8 and 32 uploads of one image each, beside breaching",
    _inverting_cases,
    True,
    "breaching",
)
DLG = Comparison("DLG on 1 and 8 uploads of one image each, beside breaching", _dlg_cases, True, "breaching")


def by_fedpriv(settings: dict[str, Any], turns: Turns) -> None:
    """Attack all uploads, once a turn."""
    from fedpriv.attacks.gradients.dlg import DeepLeakage
    from fedpriv.attacks.gradients.inverting_gradients import InvertingGradients
    from fedpriv.experiment.benchmarks.one_step import run_attack
    from fedpriv.util.device import pick_device

    device = str(pick_device(settings["device"]))
    problem = _problem(settings)
    for _ in turns:
        steps = turns.part_of(settings["steps"])
        attack = (
            # As many evaluations as the other: no start is drawn anew, and none is done before its steps are.
            DeepLeakage(outer_steps=steps, redraws=0, stop_below=0.0)
            if settings["attack"] == "dlg"
            else InvertingGradients(iterations=steps, total_variation=0.06, signed=settings["net"] == "cnn4")
        )
        run_attack(attack, problem, settings["seed"], device)


def by_breaching(settings: dict[str, Any], turns: Turns) -> None:
    """Attack all uploads, once a turn.

    Raises:
        MissingPeer: where it is not importable.
    """
    import torch

    from fedpriv.experiment.benchmarks.breaching import attack_by_peer, imported

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    peer = imported()
    problem = _problem(settings)
    name, overrides = "invertinggradients", ["regularization.total_variation.scale=0.2"]
    if settings["attack"] == "dlg":
        name, overrides = "deepleakage", ["attack_type=optimization"]
    for _ in turns:
        steps = f"optim.max_iterations={turns.part_of(settings['steps'])}"
        attack_by_peer(peer, problem, name, [*overrides, steps], settings["seed"], settings["device"])


def _problem(settings: dict[str, Any]) -> Any:
    from fedpriv.experiment.benchmarks.one_step import one_step_problem
    from fedpriv.experiment.benchmarks.pictures import some_images

    images, labels = some_images(settings["images"], settings["targets"], settings["seed"])
    return one_step_problem(
        settings["net"], images, labels, max(NETWORKS[settings["net"]][1], int(labels.max()) + 1), settings["seed"]
    )
