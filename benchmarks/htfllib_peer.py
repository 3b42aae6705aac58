"""One federation of HtFLlib, with a seed of its own: the accuracy that it prints after the last round, as JSON.

Run by ``accuracies.py`` in the folder ``system`` of a checkout, with a JSON text: ``algorithm``, ``seed``, ``dataset``,
``rounds``, ``clients``, ``options``. That library resets torch's generator to 0 for every client; here to the seed.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from fedpriv.experiment.benchmarks.htfllib import server_of


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
