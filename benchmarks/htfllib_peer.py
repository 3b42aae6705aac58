"""One federation of HtFLlib, with a seed of its own: the accuracy that it prints after the last round, as JSON.

Run by ``accuracies.py`` in the folder ``system`` of a checkout, with a JSON text: ``algorithm``, ``seed``, ``dataset``,
``rounds``, ``clients``, ``options``. That library resets torch's generator to 0 for every client; here to the seed.

With ``paced`` it evaluates every round, and at the beginning of each prints its CPU seconds and waits for a line of input
(``rounds_beside_htfllib.py``).
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import tempfile
import time
import types
from argparse import Namespace
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
    **{
        "learning_rate_decay_gamma": 0.99,
        "top_cnt": 100,
        "local_epochs": 1,
        "join_ratio": 1.0,
        "random_join_ratio": False,
    },
    **{"auto_break": False, "feature_dim": 512, "models_folder_name": "", "few_shot": 0, "client_drop_rate": 0.0},
    **{"train_slow_rate": 0.0, "send_slow_rate": 0.0, "time_select": False, "time_threthold": 10000, "lamda": 1.0},
    **{"noise_dim": 512, "generator_learning_rate": 0.005, "hidden_dim": 512, "server_epochs": 100, "alpha": 1.0},
    **{"beta": 1.0, "mentee_learning_rate": 0.01, "T_start": 0.95, "T_end": 0.98, "server_learning_rate": 0.01},
    **{"margin_threthold": 100.0, "sub_feature_dim": 128, "goal": "test", "models": [CNN], "global_model": CNN},
}
"""Its command line's defaults, and its four-layer CNN for everybody."""


def pause() -> None:
    """Print the CPU seconds of this process so far, and wait for a line."""
    print(f"AT {time.process_time()}", flush=True)
    sys.stdin.readline()


def main() -> None:
    """Run what the argument asks for."""
    asked = json.loads(sys.argv[1])
    sys.path.insert(0, ".")
    for missing in ("h5py",):  # needed for its own result files alone
        try:
            importlib.import_module(missing)
        except ImportError:
            sys.modules[missing] = types.ModuleType(missing)
    reset = torch.manual_seed
    torch.manual_seed = lambda _: reset(asked["seed"])  # type: ignore[assignment]
    load = torch.load
    torch.load = lambda *given, **named: load(*given, **{**named, "weights_only": False})
    torch.set_num_threads(1)
    np.random.seed(asked["seed"])  # noqa: NPY002  # the generator which that library draws from
    random.seed(asked["seed"])
    torch.manual_seed(0)
    module, name = SERVERS[asked["algorithm"]]
    with tempfile.TemporaryDirectory() as folder:
        facts = {"algorithm": name, "dataset": asked["dataset"], "num_clients": asked["clients"]}
        facts |= {"global_rounds": asked["rounds"], "eval_gap": asked["rounds"], "save_folder_name": folder + "/temp"}
        given = Namespace(**{**DEFAULTS, **facts, **asked["options"]})
        given.save_folder_name_full = given.save_folder_name
        server_of = getattr(importlib.import_module(f"flcore.servers.{module}"), name)
        server_of.save_results = lambda self: None
        given.save_folder_name = "kept"  # so that models are made; the full name decides where
        base = importlib.import_module("flcore.servers.serverbase").Server
        made = base.__init__

        def within(self: Any, args: Any, times: int) -> None:
            made(self, args, times)
            args.save_folder_name_full = self.save_folder_name = folder

        base.__init__ = within
        if asked.get("paced"):
            given.eval_gap, chosen = 1, base.select_clients

            def waiting(self: Any) -> Any:
                pause()
                return chosen(self)

            base.select_clients = waiting
        server = server_of(given, 0)
        server.train()
        print("RESULT " + json.dumps({"accuracy": server.rs_test_acc[-1]}))


if __name__ == "__main__":
    main()
