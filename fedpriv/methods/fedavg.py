"""FedAvg: whole models are averaged, weighted by numbers of training samples.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017, algorithm 1.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from fedpriv.federation.method import Method
from fedpriv.methods.local import METHOD as LOCAL
from fedpriv.methods.weights import Kind, average, client_step, receive, start
from fedpriv.uploads.payloads import Model


def averaging(kind: Kind, **changes: Any) -> Method:
    """Return the method that averages a part of the clients' weights by numbers of samples."""
    same: dict[str, Any] = {
        "uploads": (kind.kind, "sample-count"),
        "broadcasts": (kind.kind,),
        "start": partial(start, kind),
        "apply_broadcast": partial(receive, kind),
        "client_step": partial(client_step, kind),
        "server_step": partial(average, kind),
        "linear_aggregation": True,
    }
    return replace(LOCAL, **same | changes)


METHOD = averaging(
    Model,
    name="fedavg",
    about="FedAvg: average whole models, weighted by the number of training samples.",
    source="McMahan et al., AISTATS 2017",
    homogeneous=True,
)
