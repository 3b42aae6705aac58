"""LG-FedAvg: heads are averaged, extractors stay with the clients.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally, NeurIPS 2019 workshop
on federated learning.
"""

from __future__ import annotations

from fedpriv.methods.fedavg import averaging
from fedpriv.uploads.payloads import Classifier

METHOD = averaging(
    Classifier,
    name="lg-fedavg",
    about="LG-FedAvg: average the heads by numbers of samples, keep the extractors; clients train their whole model.",
    source="Liang et al., NeurIPS 2019 workshop",
)
