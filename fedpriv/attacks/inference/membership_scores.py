"""Membership scores of vectors, class outputs, kernels over public images and outputs on public samples.

**Deviation.** A mean of n images deviates from the expectation of its class by sum_i (g(x_i) - m_y) / n, of which a
member's own z = g(x) - m_y is part, and the most powerful test weighs directions by the inverse covariance (Dwork et al.,
"Robust traceability from trace amounts", FOCS 2015, for independent attributes). With z_t and D_t the whitened deviations
of candidate and upload in round t, the score is

    sum_ts w_t K^-1_ts z_t^T D_s / sqrt(sum_ts w_t w_s K^-1_ts z_t^T z_s  sum_ts K^-1_ts D_t^T D_s),

of one round their cosine, with w_t the weight of the class (of means 1), and K = (W diag(v) W^T) * C + noise the
covariance of rounds that the numbers of images lead to expect (:mod:`fedpriv.attacks.inference.member_counts`). A mixture
deviates by all of its classes at once; K^-1 separates them by weights that change from round to round.

**Kernels.** K = H H^T of public images is centred. With a(x) the weights by which ridge regression over pixels makes the
value at x out of those at public images, and u_y the mean over public images of class y less the mean over all, the
signal is

    a(x)^T K u_y / sqrt(a(x)^T K a(x)  u_y^T K u_y),

the cosine of H^T a(x) and H^T u_y; without classes of public images a(x)^T K a(x) over the mean of the diagonal.

**Outputs on public samples.** With u_k(p) the log outputs of client k on sample p, less their mean over classes and then
over samples, and l_k their regression over pixels, the signal of x of class y is l_k(x)_y.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpriv.algebra.matrices import centred
from fedpriv.attacks.inference.base import Candidates
from fedpriv.attacks.inference.mean_uploads import TINY, MeanRound, MultiRound
from fedpriv.attacks.inference.member_counts import LIKELY, MemberCounts, estimate_member_counts
from fedpriv.attacks.inference.property_features import known_classes
from fedpriv.attacks.inference.update_scores import granted_head
from fedpriv.attacks.inputs.extractors import represent
from fedpriv.attacks.inputs.outputs import (
    extrapolate,
    extrapolation_weights,
    log_outputs,
    public_outputs,
    public_samples,
    read_outputs,
)
from fedpriv.attacks.inputs.targets import upload_holds
from fedpriv.attacks.observation import Knowledge, Observation
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import CLASS_OUTPUTS, VECTORS
from fedpriv.wire.payloads import ClassLogits, Kernel, PublicImages, find_payload

COMPARED = VECTORS | CLASS_OUTPUTS
"""Payloads that candidates are compared with as they were uploaded."""

STEADY = 1e-2
"""Share of a round's expected deviation that is taken to be independent of other rounds."""

WIDTH = 2.0
"""Of the kernel over pixels, in summed variances of the public images."""

_TINY = 1e-12


def nearness_to_upload(seen: Observation, candidates: Candidates, knowledge: Knowledge, *, every_class: bool) -> Tensor:
    """Return the distance of candidates from what was uploaded for their class ``(n,)``; infinite where nothing was.

    Of class outputs the KL divergence, otherwise the relative squared distance. With ``every_class`` a mixture is compared
    with for every class.
    """
    features = represent(knowledge, candidates.client, candidates.images).double()
    sent = COMPARED.first(seen.upload)
    if sent is None:
        raise UserError(f"{upload_holds(seen)}; attack 'membership' compares with one of {', '.join(COMPARED)}")
    rows, classes, weights = sent.rows().double().cpu(), sent.said("classes"), sent.said("weights")
    if weights is not None:
        classes = (torch.ones_like(weights) if every_class else weights.abs()).nonzero().squeeze(1)
        rows = rows.expand(len(classes), -1)
    assert classes is not None
    if find_payload(seen.upload, ClassLogits) is not None:
        weight, bias = (value.double().cpu() for value in granted_head(candidates.client, knowledge))
        outputs, softmax = read_outputs(rows)
        uploaded = outputs if softmax else outputs.softmax(1)
        current = (uploaded * uploaded.clamp(min=1e-30).log()).sum(1)
        distances = current - (features @ weight.T + bias).log_softmax(1) @ uploaded.T
    else:
        distances = torch.cdist(features, rows).square() / rows.square().sum(1).clamp(min=1e-12)
    other_class = candidates.labels.cpu()[:, None] != classes.cpu()
    return distances.masked_fill(other_class, torch.inf).amin(1)


# ---------------------------------------------------------------- deviation


def deviation_scores(rounds: Sequence[MeanRound], labels: Tensor) -> Tensor:
    """Return scores of candidates of classes ``(n,)`` by a client's rounds; minus infinity for classes never uploaded."""
    counts = estimate_member_counts(rounds) if len(rounds) > 1 else MemberCounts({})
    result = torch.full((len(labels),), -torch.inf, dtype=torch.float64)
    mixed = rounds[-1].weights is not None
    seen = MultiRound.of(rounds)
    classes = [(seen.weights != 0).any(0).nonzero().squeeze(1)] if mixed else [*labels.unique()[:, None]]
    for some in classes:
        requested = torch.isin(labels, some)
        used = seen
        if not mixed:  # of means, the rounds that hold the class
            used = MultiRound(tuple(item for item in seen.rounds if int(some) in item.classes.tolist()))
        if bool(requested.any()) and used.rounds:
            result[requested] = _cosines(used, some, requested, labels[requested], counts)
    return result


def _cosines(seen: MultiRound, classes: Tensor, values: Tensor, labels: Tensor, counts: MemberCounts) -> Tensor:
    """Return scores of the candidates that are ``values`` ``(n,)`` about, of ``labels``, by rounds that hold the classes."""
    mixed = seen.rounds[-1].weights is not None
    weights = seen.weights if mixed else torch.zeros(len(seen.rounds), 1 + int(classes.max()), dtype=torch.float64)
    places = [0 if mixed else entry.classes.tolist().index(int(classes)) for entry in seen.rounds]
    if not mixed:
        weights[:, classes] = 1
    inverse = torch.linalg.inv(_covariance(seen, classes, weights[:, classes], counts))
    shares, size = weights[:, labels, None], seen.lengths.sqrt()[:, None, None]
    rows = [item.covariance.whitened_deviations(item.features[values], labels) for item in seen.rounds]
    mine = shares * torch.stack(rows) / size
    pairs = zip(seen.rounds, places, strict=True)
    sent = torch.stack([items.whitened_deviation(position)[None] for items, position in pairs]) / size
    turned = torch.einsum("ts,snd->tnd", inverse, sent)
    lengths = (mine * torch.einsum("ts,snd->tnd", inverse, mine)).sum((0, 2))
    squares = (sent * turned).sum((0, 2))
    result: Tensor = (mine * turned).sum((0, 2)) / (lengths.clamp_min(TINY) * squares.clamp_min(TINY)).sqrt()
    return result


def _covariance(seen: MultiRound, classes: Tensor, shares: Tensor, counts: MemberCounts) -> Tensor:
    """Return K ``(T, T)`` of rounds with shares ``(T, k)`` of the classes ``(k,)``."""
    numbers, labels = seen.rounds[-1].covariance.numbers, classes.tolist()
    each = [1 / numbers.get(label, 1) + 1 / counts.numbers.get(label, LIKELY) for label in labels]
    expected = (shares * torch.tensor(each, dtype=torch.float64)) @ shares.T
    current = STEADY * expected.diagonal() + counts.drift * shares.square().sum(1) + seen.noise
    return expected * seen.alike + torch.diag(current.clamp_min(TINY))


# ---------------------------------------------------------------- kernels and outputs on public samples


def kernel_signals(seen: Sequence[Observation], images: Tensor, labels: Tensor, knowledge: Knowledge) -> Tensor:
    """Return the kernel signal of each of k uploads of a round for each candidate ``(k, n)``, float64 on the CPU."""
    kernels = [find_payload(entry.upload, Kernel) for entry in seen]
    matrices = [centred(kernel.matrix.double().cpu()) for kernel in kernels if kernel is not None]
    sent = find_payload(seen[0].broadcast, PublicImages)
    if sent is None:
        raise UserError(f"broadcast of round {seen[0].round}: holds no public images; a kernel is about some")
    public = sent.images[-len(matrices[0]) :]
    weights = extrapolation_weights(public, images, WIDTH)
    current, own_labels = knowledge.public_images, knowledge.public_labels
    towards = None
    if current is not None and own_labels is not None and current.shape[1:] == public.shape[1:]:
        classes = known_classes(public, current, own_labels)
        if bool((classes >= 0).any()):
            same = (labels.cpu()[:, None] == classes).double()
            number = same.sum(1, keepdim=True)
            towards = torch.where(number > 0, same / number.clamp_min(1) - 1 / len(classes), 0.0)
    return torch.stack([_kernel_signal(item, weights, towards) for item in matrices])


def _kernel_signal(matrix: Tensor, weights: Tensor, towards: Tensor | None) -> Tensor:
    """Return the cosine ``(n,)`` of extrapolated representations and class directions, or the square of their lengths."""
    across = weights @ matrix
    squares: Tensor = torch.linalg.vecdot(across, weights)
    if towards is None:
        return squares / matrix.diagonal().mean().clamp_min(_TINY)
    others: Tensor = torch.linalg.vecdot(towards @ matrix, towards)
    # A defense may leave a matrix that is no product: a negative square counts as none.
    lengths = (squares.clamp_min(0) * others.clamp_min(0)).sqrt()
    cosines: Tensor = torch.linalg.vecdot(across, towards) / lengths.clamp_min(_TINY)
    return cosines.clamp(-1, 1)


def public_signals(seen: Sequence[Observation], images: Tensor, labels: Tensor, knowledge: Knowledge) -> Tensor:
    """Return the extracted log output of each of k uploads at each candidate, of its class: ``(k, n)`` float64."""
    sent = [public_outputs(item) for item in seen]
    known = public_samples("membership", sent[0], knowledge)
    logs = torch.stack([log_outputs(entry) for entry in sent], 1)
    logs = logs - logs.mean(2, keepdim=True)
    logs = logs - logs.mean(0)
    # The regression is linear in its values: all clients' networks are extracted at once.
    extracted = extrapolate(known, logs.flatten(1), images, WIDTH).unflatten(1, logs.shape[1:])
    current = labels.cpu()[:, None, None].expand(-1, len(sent), 1)
    values: Tensor = extracted.gather(2, current)[:, :, 0].T
    return values
