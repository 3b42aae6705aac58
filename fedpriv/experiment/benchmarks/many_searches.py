"""DIP with eight or more targets side by side, beside one target at a time and beside ordinary modules in a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedpriv.experiment.benchmarks.contract import Asked, Case, Comparison, Goal, Side
from fedpriv.experiment.benchmarks.turns import Turns

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fedpriv.models.split import SplitModel

_HERE = "fedpriv.experiment.benchmarks.many_searches"


def _cases(asked: Asked) -> tuple[Case, ...]:
    return _case(asked, 8), *((_case(asked, 32),) if asked.full else ())


def _case(asked: Asked, targets: int) -> Case:
    iterations, pairs = (60, 5) if asked.full else (15, 3)
    settings = asked.settings(targets=targets, iterations=iterations)
    units = targets * iterations
    return Case(
        name=f"{targets} targets",
        sides=(
            Side("fedpriv", f"{_HERE}:by_fedpriv", {**settings, "rows": targets}, units=units),
            Side("ordinary modules", f"{_HERE}:by_modules", settings, units=units),
            Side("fedpriv, one at a time", f"{_HERE}:by_fedpriv", {**settings, "rows": 1}, units=units),
        ),
        clock=asked.clock,
        unit="target-iterations",
        device=asked.device,
        pairs=pairs,
        seconds=20 + pairs * units / 20,
        counted=True,
        goal=Goal("at least 3 times ordinary modules, one target at a time", at_least=3.0),
    )


COMPARISON = Comparison(
    "DIP of 8 targets side by side (full: of 32, too), beside ordinary modules one target at a time", _cases, True
)


def by_fedpriv(settings: dict[str, Any], turns: Turns) -> None:
    """Invert the representations, so many ``rows`` at a time, once a turn."""
    from fedpriv.attacks.invert.inversion import DipInversion
    from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Observation
    from fedpriv.attacks.read.target_features import list_targets
    from fedpriv.util.device import pick_device
    from fedpriv.wire.payloads import Representations

    device = pick_device(settings["device"])
    model, labels, features = _problem(settings, device)
    observations = (Observation(0, 0, (Representations(features.cpu(), labels),), ()),)
    knowledge = Knowledge(KnowledgeCard(), (3, 32, 32), model.head.out_features, extractors={0: model.represent})
    targets = list_targets(observations, "representation")
    for _ in turns:
        iterations = turns.part_of(settings["iterations"])
        attack = DipInversion(iterations=iterations, tolerance=0.0, patience=iterations + 1)
        attack(observations, knowledge, targets, seed=0, device=device, chunk_rows=settings["rows"])


def by_modules(settings: dict[str, Any], turns: Turns) -> None:
    """Invert them one after the other with an ordinary module each, once a turn."""
    from fedpriv.experiment.benchmarks.ordinary_hourglass import invert
    from fedpriv.util.device import pick_device

    device = pick_device(settings["device"])
    model, _, features = _problem(settings, device)
    for _ in turns:
        iterations = turns.part_of(settings["iterations"])
        for wanted in features:
            invert(model, wanted, iterations)


def _problem(settings: dict[str, Any], device: torch.device) -> tuple[SplitModel, Tensor, Tensor]:
    """Return a network, labels ``(n,)``, and the representations ``(n, 512)`` of as many images."""
    import torch

    from fedpriv.experiment.benchmarks.pictures import some_images
    from fedpriv.models.build import build_model
    from fedpriv.models.split import Blueprint

    images, labels = some_images(settings["images"], settings["targets"], settings["seed"])
    blueprint = Blueprint("cnn4", (3, 32, 32), max(10, int(labels.max()) + 1), 512)
    model = build_model(blueprint, settings["seed"]).eval().requires_grad_(False).to(device)
    with torch.no_grad():
        return model, labels, model.represent(images.to(device))
