"""Class scores and shares in uploads that need no learning.

**Public outputs.** A classifier trained on shares pi answers p(c | x) in proportion to pi(c) p(x | c), so that of clients
k and j log p_k(c | x) - log p_j(c | x) = log pi_k(c) - log pi_j(c) up to a constant (after Shi, Ouyang and Wang, arXiv
2502.08001).

**Kernels.** Two public images of a class that a client holds are more alike in its kernel than in other clients'.

**Biases.** A class's bias rises where the client has more of its images than the model expects (Wainakh et al., PoPETs
2022).

**Gradients.** Training changes weights, in expectation, by before - after = a sum_k s_k g_k with a > 0, s the shares of
classes and g_k the mean gradient of own images of class k at the broadcast weights, the uploaded ones, and half-way.
Shares are those of least squares under s >= 0; rounds are averaged by the explained part of the change's square. (Numbers
of labels from averages over local training: Geng et al., arXiv 2110.09074, 2021; shares for any part of a model are
ours.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from fedpriv.algebra.matrices import centred
from fedpriv.attacks.gradients.update import last_layer
from fedpriv.attacks.inference.base import InferenceProblem
from fedpriv.attacks.inference.update_scores import BATCH, Training, training_of
from fedpriv.attacks.inputs.outputs import log_outputs, public_outputs
from fedpriv.attacks.inputs.updates import Weights, read_update
from fedpriv.attacks.observation import Knowledge, Observation
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import EXTRACTORS, HEADS, LAYERS, MAPPINGS, NETWORKS, TRAINED
from fedpriv.wire.payloads import (
    Classifier,
    Kernel,
    PublicImages,
    find_payload,
    get_payload,
)

WAY = (0.0, 0.5, 1.0)
"""Places between the broadcast and the uploaded weights that gradients are averaged over."""

LEAST = 1e-6
"""Least share of a class, and least weight of a round."""

MOST_VALUES = 2**25
"""The most values of all classes' gradients that are compared: 256 MiB in double precision."""

_SAME = 1e-4
"""Largest difference of pixels of one image."""

_LEAST_SQUARE, _STEADY, _TINY = 1e-30, 1e-12, 1e-12
"""Least length that is divided by; least eigenvalue, to the largest, of normal equations; least probability."""


def public_logit_shares(uploads: Mapping[int, Observation]) -> dict[int, Tensor]:
    """Return by how much each client's mean log output of a class is above the others' ``(C,)``, float64, of mean zero.

    Its softmax estimates the client's shares. Uploads are of two clients or more, on the same public samples.
    """
    means = torch.stack([log_outputs(public_outputs(seen)).mean(0) for seen in uploads.values()])
    above = means - (means.sum(0) - means) / (len(means) - 1)
    return dict(zip(uploads, above - above.mean(1, keepdim=True), strict=True))


def has_head_bias(problem: InferenceProblem) -> bool:
    """True if all clients' uploads hold a head that was broadcast too."""
    return all(_bias_change(seen, problem.knowledge) is not None for seen in problem.uploads.values())


def head_bias_delta(problem: InferenceProblem) -> dict[int, Tensor]:
    """Return by how much each class's bias rose ``(C,)``, float64, in units of the mean size, averaged over rounds.

    For a problem that :func:`has_head_bias`.
    """
    deltas = {}
    for client in problem.uploads:
        changes = (_bias_change(seen, knowledge) for seen, knowledge in problem.uploads_of(client))
        each = [change for change in changes if change is not None]
        scaled = [change / change.abs().mean().clamp_min(_LEAST_SQUARE) for change in each]
        deltas[client] = torch.stack(scaled).mean(0)
    return deltas


def _bias_change(seen: Observation, knowledge: Knowledge) -> Tensor | None:
    """Return the change of the head's biases, or where it has none the sums of its rows', float64; None without a head."""
    head, after = find_payload(seen.broadcast, Classifier), find_payload(seen.upload, Classifier)
    if head is not None and after is not None:
        change: Weights = {name: after.state[name] - head.state[name] for name in ("weight", "bias")}
    elif knowledge.model is not None and NETWORKS.first(seen.upload) is not None and NETWORKS.first(seen.broadcast):
        shapes = {name: parameter.shape for name, parameter in knowledge.model.named_parameters()}
        update = read_update(seen, shapes, torch.device("cpu"))
        change = {name: update.after[name] - value for name, value in update.before.items()}
    else:
        return None
    try:
        weight, bias = last_layer(change, knowledge.n_classes)
    except UserError:
        return None
    rose = (weight.sum(1) if bias is None else bias).double().cpu()
    return rose if bool(rose.isfinite().all()) else torch.zeros_like(rose)


def class_similarity(matrix: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Return the mean similarity of two images of each class ``(C,)``, float64; NaN for a class of fewer than two.

    The kernel ``(L, L)`` of images of classes ``labels`` ``(L,)`` is centred and divided by the mean of its diagonal, so
    that neither an offset nor the length of representations counts.
    """
    similar = centred(matrix.double().cpu())
    similar = similar / similar.diagonal().mean().clamp_min(1e-9)
    similar = similar.clone().fill_diagonal_(0)
    of_class = one_hot(labels.cpu(), n_classes).double()
    number = of_class.sum(0)
    return (of_class.T @ similar @ of_class).diagonal() / torch.where(number > 1, number * (number - 1), torch.nan)


def kernel_class_scores(
    uploads: Mapping[int, Observation], images: Tensor, labels: Tensor, n_classes: int
) -> dict[int, tuple[Tensor, Tensor]]:
    """Return for each client the classes that can be asked about ``(k,)`` and their scores ``(k,)``, float64.

    A score says by how many standard deviations of the other clients' the images of a class are more alike, less the mean
    over classes. The attacker's own images, of the classes ``labels``, include those that were broadcast to the clients.
    """
    rows = []
    for seen in uploads.values():
        matrix = get_payload(seen.upload, Kernel).matrix
        classes = known_classes(get_payload(seen.broadcast, PublicImages).images[-len(matrix) :], images, labels)
        if bool((classes < 0).any()):
            raise UserError(
                "property: an image that was broadcast is none of the attacker's own, so its class is not known"
            )
        rows.append(class_similarity(matrix, classes, n_classes))
    table = torch.stack(rows)
    classes = table.isfinite().all(0).nonzero().squeeze(1)
    if not len(classes):
        raise UserError("property: no class has two of the public images of the round; train with a larger rad_size")
    table = table[:, classes]
    scores = {}
    for index, client in enumerate(uploads):
        others = table[torch.arange(len(table)) != index]
        above = (table[index] - others.mean(0)) / others.std(0, unbiased=False).clamp_min(1e-9)
        scores[client] = classes, above - above.mean()
    return scores


def known_classes(values: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """Return the class ``(L,)`` of each broadcast image among the attacker's own, of classes ``labels``, else -1."""
    current = images.flatten(1).cpu()
    wanted = values.flatten(1).to(current)
    nearest = torch.cdist(wanted, current).argmin(1)
    strange = (current[nearest] - wanted).abs().amax(1) > _SAME
    return labels.cpu()[nearest].masked_fill(strange, -1)


def can_mix_gradients(problem: InferenceProblem) -> bool:
    """True if the attacker can compute gradients of its own images through all clients' uploads."""
    knowledge = problem.knowledge
    if knowledge.public_images is None or knowledge.public_labels is None:
        return False
    return all(_through(seen, knowledge) for seen in problem.uploads.values())


def _through(seen: Observation, knowledge: Knowledge) -> bool:
    sent = TRAINED.first(seen.upload)
    if sent is None or (NETWORKS if sent.kind in NETWORKS else LAYERS).first(seen.broadcast) is None:
        return False
    if sent.kind in NETWORKS:
        return knowledge.model is not None and (sent.kind not in EXTRACTORS or seen.client in knowledge.heads)
    there = seen.client in knowledge.extractors
    return there and (sent.kind in HEADS or (sent.kind in MAPPINGS and seen.client in knowledge.heads))


def shares_by_gradients(problem: InferenceProblem) -> dict[int, Tensor]:
    """Return the shares of classes ``(C,)`` in each client's images, float64, over all rounds.

    Nearly zero for classes of which the attacker has no image. For a problem that :func:`can_mix_gradients`.
    """
    results = {}
    for client in problem.uploads:
        fits = []
        for item, knowledge in problem.uploads_of(client):
            if not _through(item, knowledge):
                continue
            images, labels = knowledge.public_images, knowledge.public_labels
            assert images is not None
            assert labels is not None
            training = training_of(item, client, images, knowledge)
            fits.append(shares_of(training, labels.to(training.inputs.device), knowledge.n_classes))
        weights = torch.tensor([explained for _, explained in fits], dtype=torch.float64).clamp_min(LEAST)
        mean = (torch.stack([shares for shares, _ in fits]) * weights[:, None]).sum(0) / weights.sum()
        results[client] = (mean + LEAST) / (mean + LEAST).sum()
        if problem.progress is not None:
            problem.progress(len(results), len(problem.uploads))
    return results


def shares_of(training: Training, labels: Tensor, n_classes: int) -> tuple[Tensor, float]:
    """Return the shares of classes ``(C,)`` that explain one training best, float64 on the CPU, and the explained part.

    That part, of the change's square, is in [0, 1]; shares are even where it is 0. The training has the attacker's own
    images of classes ``labels`` ``(m,)`` as inputs.
    """
    from scipy.optimize import nnls  # type: ignore[import-untyped]  # takes a quarter of a second to import

    names, is_head = _compared(training, n_classes)
    change = _flat(training, {name: training.before[name] - training.after[name] for name in names})
    gradients = class_gradients(training, labels, n_classes, names, mixed=is_head)
    columns = torch.stack([_flat(training, gradient) for gradient in gradients], 1)
    lengths, whole = columns.norm(dim=0).clamp_min(_LEAST_SQUARE), float(change.square().sum())
    columns /= lengths
    gram, inner = (columns.T @ columns).cpu(), (columns.T @ change).cpu()
    even = torch.full((n_classes,), 1 / n_classes, dtype=torch.float64)
    if not whole or not bool(gram.isfinite().all() and inner.isfinite().all()):
        return even, 0.0
    # Non-negative least squares by the normal equations of columns of length one, or zero.
    values, vectors = torch.linalg.eigh(gram)
    roots = values.clamp_min(_STEADY * float(values[-1])).sqrt()
    least = torch.from_numpy(nnls((roots[:, None] * vectors.T).numpy(), ((vectors.T @ inner) / roots).numpy())[0])
    rest = float((change - columns @ least.to(columns)).square().sum())
    # Rounding would fill a column of zeros.
    shares = torch.where(lengths.cpu() > _LEAST_SQUARE, least / lengths.cpu(), 0.0)
    return (shares / shares.sum(), max(0.0, 1 - rest / whole)) if float(shares.sum()) else (even, 0.0)


def class_gradients(
    training: Training, labels: Tensor, n_classes: int, names: Sequence[str], *, mixed: bool
) -> list[Weights]:
    """Return the mean gradient of each class, by name, between the broadcast and the uploaded weights; zero without images.

    Own images, the training's inputs, are of classes ``labels`` ``(m,)``. Where ``mixed``, those of all classes go through
    the network together, so that layers before a head take one pass.
    """
    numbers = torch.bincount(labels, minlength=n_classes)
    results = [{name: torch.zeros_like(training.before[name]) for name in names} for _ in range(n_classes)]
    several = -(-len(labels) // BATCH)
    by_class = [part for label in labels.unique() for part in (labels == label).nonzero().squeeze(1).split(BATCH)]
    spread = [torch.arange(first, len(labels), several, device=labels.device) for first in range(several)]
    for position in WAY:
        weights = {name: torch.lerp(value, training.after[name], position) for name, value in training.before.items()}
        requested = {name: weights[name].detach().requires_grad_() for name in names}
        for part in spread if mixed else by_class:
            # A batch norm needs two images.
            rows = part if len(part) > 1 else part.repeat(2)
            with torch.enable_grad():
                losses = cross_entropy(
                    training.logits(weights | requested, training.inputs[rows]), labels[rows], reduction="none"
                )
            there = labels[part].unique().tolist()
            for label in there:
                share = int((labels[part] == label).sum()) / (int(numbers[label]) * len(WAY))
                mean = losses[labels[rows] == label].mean() * share
                slopes = torch.autograd.grad(mean, list(requested.values()), retain_graph=label != there[-1])
                for name, slope in zip(names, slopes, strict=True):
                    results[label][name] += slope
    return results


def _compared(training: Training, n_classes: int) -> tuple[list[str], bool]:
    """Return the names of the head's parameters, or else the last up to :data:`MOST_VALUES`, and if it is a head."""
    try:
        weight, bias = last_layer(training.before, n_classes)
    except UserError:
        names, values = list(training.before), 0
        for kept, name in enumerate(reversed(names), start=1):
            values += n_classes * training.before[name].numel()
            if values > MOST_VALUES:
                return names[-max(1, kept - 1) :], False
        return names, False
    return [name for name, value in training.before.items() if value is weight or value is bias], True


def _flat(training: Training, changes: Mapping[str, Tensor]) -> Tensor:
    """Return the comparable part of changes as one vector, float64."""
    kept = changes if training.project is None else training.project(changes)
    return torch.cat([value.flatten() for value in kept.values()]).double()
