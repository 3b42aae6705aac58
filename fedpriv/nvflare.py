"""Your own NVFlare job, recorded: one filter on what its server gets, and one on what it sends.

Needs NVFlare: ``pip install "fedpriv[nvflare]"``, on the server too. Nothing of it is imported before ``Record`` is used::

    recipe = FedAvgRecipe(...)
    recipe.add_server_input_filter(fedpriv.nvflare.Record("runs/mine"), tasks=["train"])
    recipe.add_server_output_filter(fedpriv.nvflare.Record("runs/mine"), tasks=["train"])

Then: ``fedpriv attack --run runs/mine --target model``. Clients go by the names of their sites, so that no truth file is
needed to say whose data stands behind an upload.

``Guard`` is a filter of clients' results, which attacks an update before it is sent::

    recipe.add_client_output_filter(fedpriv.nvflare.Guard("hospital:facts"), tasks=["train"])
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name not in ("Record", "Guard"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # By name alone: NVFlare copies into its jobs whatever the file of a filter imports by statement.
    result = globals()[name] = importlib.import_module("fedpriv.integrations.nvflare").filter_class(__name__, name)
    return result
