"""LG-FedAvg: average the heads by numbers of samples, keep the extractors; clients train their whole model.

Source: Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally: Federated
Learning with Local and Global Representations, NeurIPS 2019 workshop on federated learning.
"""

from __future__ import annotations

from functools import partial

from fedpriv.federation.method import Method, NoOptions
from fedpriv.methods.shared import weights
from fedpriv.wire.payloads import Classifier

METHOD = Method(
    name="lg-fedavg",
    source="Liang et al., NeurIPS 2019 workshop",
    options=NoOptions,
    uploads=("classifier", "sample-count"),
    broadcasts=("classifier",),
    start=partial(weights.start, Classifier),
    init=weights.init,
    apply_broadcast=partial(weights.receive, Classifier),
    client_step=partial(weights.client_step, Classifier),
    server_step=partial(weights.average, Classifier),
    predict=weights.predict,
    linear_aggregation=True,
)
