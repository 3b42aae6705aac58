"""HtFLlib (https://github.com/TsingZ0/HtFLlib) as a peer: its own servers and clients, unmodified.

Run as a command: one federation with a seed of its own, and the accuracy that it prints after the last round, as JSON.

Run by ``accuracies.py`` in the folder ``system`` of a checkout, with a JSON text: ``algorithm``, ``seed``, ``dataset``,
``rounds``, ``clients``, ``options``. That library resets torch's generator to 0 for every client; here to the seed.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
import tempfile
import types
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch

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

_INSTALL = "git clone https://github.com/TsingZ0/HtFLlib, then --htfllib HtFLlib"


def server_class(method: str, system: Path) -> Any:
    """Return the class of a method's server from the folder ``system`` of a checkout.

    Raises:
        SystemExit: where it cannot be imported.
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
        raise SystemExit(f"HtFLlib: its {module} is not importable ({error}); {_INSTALL}") from error
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


def main() -> None:
    """Run what the argument asks for."""
    asked = json.loads(sys.argv[1])
    reset = torch.manual_seed
    torch.manual_seed = lambda _: reset(asked["seed"])  # type: ignore[assignment]
    torch.set_num_threads(1)
    np.random.seed(asked["seed"])  # noqa: NPY002  # the generator which that library draws from
    random.seed(asked["seed"])
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        given = {"dataset": asked["dataset"], "num_clients": asked["clients"], "global_rounds": asked["rounds"]}
        given |= {"eval_gap": asked["rounds"], **asked["options"]}
        server = server_of(asked["algorithm"], given, Path.cwd(), Path(folder))
        server.train()
        print("RESULT " + json.dumps({"accuracy": server.rs_test_acc[-1]}))


if __name__ == "__main__":
    main()
