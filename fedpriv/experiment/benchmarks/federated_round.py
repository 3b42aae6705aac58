"""A round of a federation, its evaluation included, beside the same round of HtFLlib (https://github.com/TsingZ0/HtFLlib)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.experiment.benchmarks.contract import QUICK, Asked, Case, Comparison, Goal, Side
from fedpriv.experiment.benchmarks.pictures import RANDOM, SIDE
from fedpriv.experiment.benchmarks.turns import Turns

if TYPE_CHECKING:
    from fedpriv.federation.client_part import ClientJob, ClientResult
    from fedpriv.federation.prepared import Federation
    from fedpriv.federation.run_directory import RunConfig

CLIENTS = 10
ENDLESS = 1000
"""Rounds planned; as many are run as there are turns."""

SHARES = {"local": 0.6, "lg-fedavg": 0.6, "fedproto": 0.75, "fedgh": 0.6, "fedmrl": 0.75, "fedkd": 0.45}
"""Methods -> the largest share of HtFLlib's CPU seconds that a round should take."""

ALIKE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fedmrl": ({"narrowing": "htfllib", "small_width": 128}, {}),
    "fedproto": ({"weight": 10.0}, {"lamda": 10.0}),
    "fedkd": ({"parity": True}, {}),
}
"""Options that make both the same method: fedpriv's, HtFLlib's."""

_HERE = "fedpriv.experiment.benchmarks"


def _cases(asked: Asked) -> tuple[Case, ...]:
    per_class = 400 if asked.full else 60
    found = []
    for method, share in SHARES.items():
        settings = asked.settings(method=method, per_class=per_class)
        found.append(
            Case(
                name=method,
                sides=(
                    Side("fedpriv", f"{_HERE}.federated_round:by_fedpriv", settings),
                    Side("HtFLlib", f"{_HERE}.htfllib:by_htfllib", {**settings, "checkout": asked.htfllib}),
                ),
                clock=asked.clock,
                faster=False,
                device=asked.device,
                pairs=5 if asked.full else 3,
                counted=True,
                goal=Goal(f"at most {share:g} of HtFLlib's CPU seconds", at_most=share),
                smaller="" if asked.full else QUICK,
            )
        )
    return tuple(found)


COMPARISON = Comparison(
    "a round of 10 clients with a 4-layer CNN, evaluation included, beside HtFLlib", _cases, on_gpu=True, peer="HtFLlib"
)


def config_of(settings: dict[str, Any]) -> RunConfig:
    """Return the run: Dirichlet 0.1, batches of 10 in stored order without tails, one local epoch, SGD of 0.01."""
    from fedpriv.datasets.federated import PartitionOptions
    from fedpriv.federation.method import LocalTraining
    from fedpriv.federation.run_directory import RunConfig

    folder, method = settings["images"], settings["method"]
    return RunConfig(
        method=method,
        options=ALIKE.get(method, ({}, {}))[0],
        dataset=RANDOM if folder is None else "folder",
        data_dir=folder,
        image_size=SIDE,
        per_class=settings["per_class"],
        strangers=0.0,
        partition=PartitionOptions(alpha=0.1),
        clients=CLIENTS,
        rounds=ENDLESS,
        models="cnn4",
        training=LocalTraining(drop_last=True, shuffle=False),
        seed=settings["seed"],
        capture="none",
    )


def by_fedpriv(settings: dict[str, Any], turns: Turns) -> None:
    """Run a federation, a round a turn: from the beginning of one to the beginning of the next."""
    import torch

    from fedpriv.experiment.federation import prepare
    from fedpriv.federation.engines.local import run_clients
    from fedpriv.federation.rounds import run
    from fedpriv.federation.run_directory import RunDirectory
    from fedpriv.util.device import pick_device

    torch.set_num_threads(1)
    config = config_of(settings)
    federation = prepare(config, pick_device(settings["device"]))
    under_way = False

    def engine(federation: Federation, jobs: Sequence[ClientJob]) -> Iterator[ClientResult]:
        nonlocal under_way
        if under_way:
            turns.end()
        turns.begin()
        under_way = True
        yield from run_clients(federation, jobs)

    run(federation, RunDirectory.create(Path(settings["scratch"]) / "run", config), engine)
