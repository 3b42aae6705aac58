"""FedAvg: average whole models, weighted by the number of training samples.

Source: McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data, AISTATS 2017, algorithm 1.
"""

from __future__ import annotations

from functools import partial

from fedpriv.federation.method import Method, NoOptions
from fedpriv.methods.shared import weights
from fedpriv.wire.payloads import Model

METHOD = Method(
    name="fedavg",
    source="McMahan et al., AISTATS 2017",
    options=NoOptions,
    uploads=("model", "sample-count"),
    broadcasts=("model",),
    start=partial(weights.start, Model),
    init=weights.init,
    apply_broadcast=partial(weights.receive, Model),
    client_step=partial(weights.client_step, Model),
    server_step=partial(weights.average, Model),
    predict=weights.predict,
    homogeneous=True,
    linear_aggregation=True,
)
