"""FPL: several prototypes a class, found by clustering what the clients uploaded.

Source: Huang, Ye, Shi, Li, Du: Rethinking Federated Learning with Domain Shift: A Prototype View, CVPR 2023, equations
5-12. With the cluster prototypes P_c of each class c, P their union and m_c the mean of P_c, a client minimises
cross-entropy plus the mean over its batch of

    -log(sum_{p in P_y} exp(cos(r, p) / T) / sum_{p in P} exp(cos(r, p) / T))  +  mean((r - m_y)^2)

Samples of a class without prototypes add nothing but stay in the denominator. The published method also averages whole
models; this is the model-heterogeneous use of it, which exchanges prototypes only: exact class means in evaluation mode
after training.

The server clusters a class's prototypes by first neighbours, without a number of clusters to choose: Sarfraz, Sharma,
Stiefelhagen: Efficient Parameter-free Clustering Using First Neighbor Relations (FINCH), CVPR 2019, equation 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from fedpriv.federation.local_training import class_means
from fedpriv.federation.method import ClientSetup, ServerSetup, Uploads
from fedpriv.federation.states import Outcome, State
from fedpriv.methods import fedproto, weights
from fedpriv.uploads.payloads import Message, Prototypes, find_payload, get_payload

FEATURES, CLASSES = "clusters.features", "clusters.classes"


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FPL.

    Attributes:
        temperature: T of the contrastive term.
        contrast: weight of the contrastive term; the paper's is 1.
        consistency: weight of the squared distance to the class's mean prototype; the paper's is 1.
    """

    temperature: Annotated[float, Gt(0)] = 0.02
    contrast: Annotated[float, Ge(0)] = 1.0
    consistency: Annotated[float, Ge(0)] = 1.0


def init(setup: ClientSetup, rng: torch.Generator) -> State:
    """Return the initial model; there are no cluster prototypes yet."""
    device = setup.train.labels.device
    return weights.init(setup, rng) | {
        FEATURES: torch.zeros(0, setup.width, device=device),
        CLASSES: torch.zeros(0, dtype=torch.int64, device=device),
    }


def apply_broadcast(setup: ClientSetup, state: State, broadcast: Message) -> State:
    """Take over the broadcast cluster prototypes."""
    received = find_payload(broadcast, Prototypes)
    if received is None:
        return state
    return state | {FEATURES: received.features.clone(), CLASSES: received.classes.clone()}


def contrastive_terms(features: Tensor, targets: Tensor, clusters: Tensor, classes: Tensor, t: float) -> Tensor:
    """Return each row's contrastive term ``(n,)``, its class having a cluster; rows ``(n, d)``, clusters ``(Q, d)``."""
    scores = normalize(features, dim=1) @ normalize(clusters, dim=1).T / t
    current = scores.masked_fill(classes != targets[:, None], -torch.inf)
    return scores.logsumexp(1) - current.logsumexp(1)


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train with the cluster prototypes; upload the mean representation of every class the client holds."""
    options: Options = setup.options
    state = apply_broadcast(setup, state, broadcast)
    model, clusters, classes = setup.model, state[FEATURES], state[CLASSES]
    known = torch.zeros(setup.n_classes, dtype=torch.bool, device=classes.device).index_fill_(0, classes, True)
    anchors = torch.zeros(setup.n_classes, setup.width, device=classes.device)
    if len(classes):
        means, present, _ = class_means(clusters, classes)
        anchors[present] = means

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        features = model.represent(images)
        value = cross_entropy(model.head(features), labels)
        seen = known[labels]
        if not seen.any():
            return value
        some, targets = features[seen], labels[seen]
        extra = options.consistency * (some - anchors[targets]).square().mean(1)
        extra = extra + options.contrast * contrastive_terms(some, targets, clusters, classes, options.temperature)
        return value + extra.sum() / len(labels)

    return state | weights.trained_model(setup, state, loss, rng), (weights.prototypes(setup),)


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> Outcome:
    """Cluster each class's prototypes; only this round's clients count, as in the paper."""
    rows = [get_payload(upload, Prototypes) for _, upload in uploads]
    features, classes = torch.cat([row.features for row in rows]), torch.cat([row.classes for row in rows])
    results, of_class = [], []
    for c in classes.unique().tolist():
        points = features[classes == c]
        results.append(group_means(points, coarsest_groups(points)))
        of_class += [c] * len(results[-1])
    return {}, (Prototypes(torch.cat(results), torch.tensor(of_class, device=features.device)),)


METHOD = replace(
    weights.LOCAL,
    name="fpl",
    source="Huang et al., CVPR 2023",
    options=Options,
    uploads=("prototype",),
    broadcasts=("prototype",),
    init=init,
    apply_broadcast=apply_broadcast,
    client_step=client_step,
    server_step=server_step,
    # All Q cluster prototypes are broadcast; Q depends on the prototypes.
    sizes=lambda facts: fedproto.broadcast_scalars(facts, facts.need("clusters")),
)


def first_neighbour_groups(points: Tensor) -> Tensor:
    """Return a group number for every point of ``(n, d)``, n >= 1, counted from 0 in the order of first members.

    Points i and j are linked when j is i's nearest other point, i is j's, or both have the same nearest one; groups are
    the connected components. Nearness is cosine similarity, ties go to the earlier point.
    """
    from scipy.sparse import coo_array  # type: ignore[import-untyped]
    from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

    n = len(points)
    if n == 1:
        return torch.zeros(1, dtype=torch.int64)
    directions = normalize(points.double().cpu(), dim=1)
    nearest = (directions @ directions.T).fill_diagonal_(-torch.inf).argmax(1).numpy()
    # Two points with one nearest neighbour are both linked to it, so linking each to its own suffices.
    links = coo_array((np.ones(n), (np.arange(n), nearest)), shape=(n, n))
    _, result = connected_components(links, directed=False)
    _, first, group = np.unique(result, return_index=True, return_inverse=True)
    return torch.from_numpy(first.argsort().argsort()[group])


def coarsest_groups(points: Tensor) -> Tensor:
    """Return groups ``(n,)`` of points ``(n, d)``: the last level that is not a single group, or the first if that is one.

    Every level joins the first neighbours among the means of the groups before; means are of the original points.
    """
    groups = first_neighbour_groups(points)
    while True:
        joined = first_neighbour_groups(group_means(points, groups))[groups]
        if int(joined.max()) in (0, int(groups.max())):
            return groups
        groups = joined


def group_means(points: Tensor, groups: Tensor) -> Tensor:
    """Return the mean ``(g, d)`` of the points ``(n, d)`` of every group ``(n,)``, summed in float64."""
    groups = groups.to(points.device)
    n_groups = int(groups.max()) + 1
    sums = torch.zeros(n_groups, points.shape[1], dtype=torch.float64, device=points.device)
    sums.index_add_(0, groups, points.double())
    return (sums / torch.bincount(groups, minlength=n_groups)[:, None]).to(points.dtype)
