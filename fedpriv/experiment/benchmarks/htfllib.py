"""HtFLlib's side of a round: its own servers and clients, unmodified, on the images that fedpriv divides."""

from __future__ import annotations

import importlib
import os
import random
import sys
import types
from argparse import Namespace
from pathlib import Path
from typing import Any

from fedpriv.experiment.benchmarks.turns import MissingPeer, Turns

SERVERS = {
    "local": ("serverlocal", "Local"),
    "lg-fedavg": ("serverlg", "LG_FedAvg"),
    "fedproto": ("serverproto", "FedProto"),
    "fedgh": ("servergh", "FedGH"),
    "fedgen": ("servergen", "FedGen"),
    "fedtgp": ("servertgp", "FedTGP"),
    "fedmrl": ("servermrl", "FedMRL"),
    "fml": ("serverfml", "FML"),
    "fedkd": ("serverkd", "FedKD"),
    "fd": ("serverfd", "FD"),
}
"""fedpriv's names of methods that it has -> module and class."""

CNN = "FedAvgCNN(in_features=3, num_classes=args.num_classes, dim=1600)"

DEFAULTS: dict[str, Any] = {
    **{"device": "cpu", "num_classes": 10, "batch_size": 10, "local_learning_rate": 0.01, "learning_rate_decay": False},
    **{"learning_rate_decay_gamma": 0.99, "top_cnt": 100, "local_epochs": 1, "join_ratio": 1.0},
    **{"random_join_ratio": False, "auto_break": False, "feature_dim": 512, "models_folder_name": "", "few_shot": 0},
    **{"client_drop_rate": 0.0, "train_slow_rate": 0.0, "send_slow_rate": 0.0, "time_select": False},
    **{"time_threthold": 10000, "lamda": 1.0, "noise_dim": 512, "generator_learning_rate": 0.005, "hidden_dim": 512},
    **{"server_epochs": 100, "alpha": 1.0, "beta": 1.0, "mentee_learning_rate": 0.01, "T_start": 0.95, "T_end": 0.98},
    **{"server_learning_rate": 0.01, "margin_threthold": 100.0, "sub_feature_dim": 128, "goal": "test"},
    **{"models": [CNN], "global_model": CNN},
}
"""Its command line's defaults, and its four-layer CNN for everybody."""

NAME = "benchmark"
_INSTALL = "git clone https://github.com/TsingZ0/HtFLlib, then --htfllib HtFLlib"


def server_class(method: str, system: Path) -> Any:
    """Return the class of a method's server from the folder ``system`` of a checkout.

    Raises:
        MissingPeer: where it cannot be imported.
    """
    sys.path.insert(0, str(system))
    try:
        importlib.import_module("h5py")
    except ImportError:  # needed for its own result files alone
        sys.modules["h5py"] = types.ModuleType("h5py")
    module, name = SERVERS[method]
    try:
        found = getattr(importlib.import_module(f"flcore.servers.{module}"), name)
    except ImportError as error:
        raise MissingPeer(f"HtFLlib: its {module} is not importable ({error}); {_INSTALL}") from error
    found.save_results = lambda self: None
    return found


def server_of(method: str, given: dict[str, Any], system: Path, folder: Path) -> Any:
    """Return a server with its clients, which keep their models in a folder."""
    found = server_class(method, system)
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # it keeps whole models, as torch once did by default
    base: Any = importlib.import_module("flcore.servers.serverbase").Server
    made = base.__init__

    def within(self: Any, args: Any, times: int) -> None:
        made(self, args, times)
        args.save_folder_name_full = self.save_folder_name = str(folder)

    base.__init__ = within
    # Models are made unless the name says that they lie in a temporary folder; the full name decides where.
    facts = {"algorithm": SERVERS[method][1], "save_folder_name": "kept", "save_folder_name_full": str(folder)}
    return found(Namespace(**{**DEFAULTS, **facts, **given}), 0)


def by_htfllib(settings: dict[str, Any], turns: Turns) -> None:
    """Run a federation, a round a turn: from the beginning of one to the beginning of the next.

    Raises:
        MissingPeer: without a checkout.
    """
    import numpy as np
    import torch

    from fedpriv.experiment.benchmarks.federated_round import ALIKE, CLIENTS, ENDLESS

    if settings["checkout"] is None:
        raise MissingPeer(f"HtFLlib: no checkout was named; {_INSTALL}")
    system = (Path(settings["checkout"]) / "system").resolve()
    if not system.is_dir():
        raise MissingPeer(f"HtFLlib: {settings['checkout']} holds no folder system/; {_INSTALL}")
    torch.set_num_threads(1)
    scratch = Path(settings["scratch"]).resolve()
    n_classes = _hand_over(settings, scratch / "dataset" / NAME)
    models = scratch / "models"
    for folder in (models, scratch / "system"):
        folder.mkdir()
    os.chdir(scratch / "system")  # its data sets are found from there
    np.random.seed(settings["seed"])  # noqa: NPY002  # the generator which that library draws from
    random.seed(settings["seed"])
    torch.manual_seed(settings["seed"])
    device = "cpu" if settings["device"] == "cpu" else "cuda"
    given = {"device": device, "dataset": NAME, "num_clients": CLIENTS, "global_rounds": ENDLESS, "eval_gap": 1}
    given |= {"num_classes": n_classes, **ALIKE.get(settings["method"], ({}, {}))[1]}
    server = server_of(settings["method"], given, system, models)
    select, under_way = server.select_clients, False

    def begin_round() -> Any:
        nonlocal under_way
        if under_way:
            turns.end()
        turns.begin()
        under_way = True
        return select()

    server.select_clients = begin_round
    server.train()


def _hand_over(settings: dict[str, Any], folder: Path) -> int:
    """Write the division in HtFLlib's layout, images in its range [-1, 1]; return the number of classes."""
    import numpy as np

    from fedpriv.datasets.types import as_unit
    from fedpriv.experiment.benchmarks.federated_round import CLIENTS, config_of
    from fedpriv.federation.prepared import load_data

    federated, _ = load_data(config_of(settings))
    for client in range(CLIENTS):
        for part, samples in (("train", federated.train(client)), ("test", federated.test(client))):
            scaled = (as_unit(samples.images).numpy() - 0.5) / 0.5
            (folder / part).mkdir(parents=True, exist_ok=True)
            held = {"x": scaled.astype("float32"), "y": samples.labels.numpy()}
            np.savez_compressed(folder / part / f"{client}.npz", data=np.array(held))
    return federated.dataset.n_classes
