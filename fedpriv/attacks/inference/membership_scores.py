"""Membership scores of vectors, class outputs, kernels over public images and outputs on public samples.

**Deviation.** Of n images of class y whose representations scatter around m_y with covariance S, a mean p deviates by
p - m_y = sum_i (g(x_i) - m_y) / n. A member's own deviation z = g(x) - m_y is part of that sum, and the most powerful test
weighs directions by the inverse of S (Dwork et al., "Robust traceability from trace amounts", FOCS 2015, for independent
attributes). The score is the cosine

    z^T P D / sqrt(z^T P z  D^T P D),    P = (S + r tr(S) / d I)^-1,    D = upload - sum_c w_c m_c,

with means and covariance of the attacker's own images under the client's extractor. Over rounds t, each under its own
extractor, whitened deviations z_t and D_t are compared by generalised least squares,

    sum_ts w_t K^-1_ts z_t^T D_s / sqrt(sum_ts w_t w_s K^-1_ts z_t^T z_s  sum_ts K^-1_ts D_t^T D_s),

with w_t the weight of the class (of means 1), and K = (W diag(v) W^T) * C + noise the covariance of rounds that the numbers
of images lead to expect (:mod:`fedpriv.attacks.inference.member_counts`). A mixture deviates by all of its classes at once;
K^-1 separates them by weights that change from round to round.

**Kernels.** K = H H^T of public images is centred. With a(x) the weights by which ridge regression over pixels makes the
value at x out of those at public images, H^T a(x) stands for the representation of x, and with u_y the mean over public
images of class y less the mean over all, H^T u_y for the direction of its class. The signal is their cosine

    a(x)^T K u_y / sqrt(a(x)^T K a(x)  u_y^T K u_y),

which no rotation changes; without classes of public images the squared length a(x)^T K a(x) over the mean of the diagonal.

**Outputs on public samples.** Each client's network is extracted by ridge regression with a Gaussian kernel over pixels.
With u_k(p) the log outputs of client k on sample p, less their mean over classes and then over samples, and l_k the
regression of u_k, the signal of x of class y is l_k(x)_y. The mean over classes goes because what makes a client surer of
everything is no sign of a member. Small distilled networks, random convolutions and kernels of wide networks found no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedpriv.algebra.matrices import centred
from fedpriv.attacks.inference.base import Candidates
from fedpriv.attacks.inference.mean_uploads import (
    FOLDS,
    TINY,
    ClassCovariance,
    MeanRound,
    MultiRound,
    class_covariance,
    enough_images,
    multi_round,
    upload_deviation,
    whitened_deviations,
)
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
from fedpriv.util.seeds import generator
from fedpriv.wire.kinds import CLASS_OUTPUTS, VECTORS
from fedpriv.wire.payloads import ClassLogits, Kernel, PublicImages, find_payload

COMPARED = VECTORS | CLASS_OUTPUTS
"""Payloads that candidates are compared with as they were uploaded."""

STEADY = 1e-2
"""Share of a round's expected deviation that is taken to be independent of other rounds."""

WIDTH = 2.0
"""Of the kernel over pixels, in summed variances of the public images."""

_TINY = 1e-12


def nearness_to_upload(
    seen: Observation, candidates: Candidates, knowledge: Knowledge, *, cosine: bool, every_class: bool
) -> Tensor:
    """Return minus the distance of candidates from what was uploaded for their class ``(n,)``; infinite where nothing was.

    Of class outputs the KL divergence; otherwise the relative squared distance, or with ``cosine`` one less the cosine. With
    ``every_class`` a mixture is compared with for every class.
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
        distances = _divergences(features, rows, candidates.client, knowledge)
    elif cosine:
        distances = 1 - normalize(features) @ normalize(rows).T
    else:
        distances = torch.cdist(features, rows).square() / rows.square().sum(1).clamp(min=1e-12)
    other_class = candidates.labels.cpu()[:, None] != classes.cpu()
    return -distances.masked_fill(other_class, torch.inf).amin(1)


def _divergences(features: Tensor, rows: Tensor, client: int, knowledge: Knowledge) -> Tensor:
    weight, bias = (value.double().cpu() for value in granted_head(client, knowledge))
    outputs, softmax = read_outputs(rows)
    uploaded = outputs if softmax else outputs.softmax(1)
    own = (uploaded * uploaded.clamp(min=1e-30).log()).sum(1)
    return own - (features @ weight.T + bias).log_softmax(1) @ uploaded.T


def deviation_scores(groups: Sequence[Group], labels: Tensor) -> Tensor:
    """Return scores of candidates of classes ``(n,)`` by deviation; minus infinity for classes never uploaded."""
    found = torch.full((len(labels),), -torch.inf, dtype=torch.float64)
    for group in groups:
        asked = torch.isin(labels, group.classes)
        if bool(asked.any()):
            rows = [whitened_deviations(there, one.features[asked], labels[asked]) for one, there in group.pairs]
            found[asked] = group.cosines(rows, [None] * len(rows), labels[asked])
    return found


def leave_one_out_scores(groups: Sequence[Group], own_labels: Tensor, asked: Tensor, *seed: int | str) -> Tensor:
    """Return scores of own images, each as if the attacker had not had it.

    Of as many of each class as candidates are of it, in proportion, because scores scatter differently by class. Covariances
    are those of the images of other :data:`FOLDS`, means those of all but the image: means of fewer images would share their
    error with the deviations, and every non-member would seem to be a member.

    The attacker's own images are of classes ``own_labels`` ``(m,)``, candidates of classes ``asked`` ``(n,)``.
    """
    parts = torch.randperm(len(own_labels), generator=generator(*seed)) % FOLDS
    found, classes = [torch.empty(0, dtype=torch.float64)], [own_labels[:0]]
    for part in range(FOLDS):
        kept, others = parts != part, dict[int, ClassCovariance]()
        if not enough_images(own_labels[kept]):
            continue
        for group in groups:
            tried = (parts == part) & torch.isin(own_labels, group.classes)
            if not bool(tried.any()):
                continue
            labels, rows, moved = own_labels[tried], [], []
            for one, whole in group.pairs:
                if id(one) not in others:
                    others[id(one)] = class_covariance(one.own[kept], own_labels[kept], one.noise)
                there = replace(others[id(one)], means=whole.means, overall=whole.overall)
                away = whole.without(one.own[tried], labels)
                rows.append(whitened_deviations(there, one.own[tried] - away, labels))
                moved.append((there, away))
            found.append(group.cosines(rows, moved, labels))
            classes.append(labels)
    scores, of = torch.cat(found), torch.cat(classes)
    finite = scores.isfinite()
    return _in_proportion(scores[finite], of[finite], asked)


def _in_proportion(scores: Tensor, classes: Tensor, wanted: Tensor) -> Tensor:
    """Return as many scores as there are in the proportions of the wanted classes."""
    if not len(scores) or not len(wanted):
        return scores[:0]
    size = 1 + int(torch.cat([classes, wanted]).amax())
    there, shares = (torch.bincount(one, minlength=size).double() for one in (classes, wanted))
    both = (there > 0) & (shares > 0)
    if not bool(both.any()):
        return scores[:0]
    numbers = (shares * (there[both] / shares[both]).amin()).round().long()
    return torch.cat([scores[classes == label][: int(numbers[label])] for label in both.nonzero().squeeze(1).tolist()])


Moved = tuple[ClassCovariance, Tensor]
"""Covariance of a round, and how far the mean of its class moves for each candidate ``(n, d)``."""


@dataclass(frozen=True)
class Group:
    """Classes that are scored by the same rounds: of means one, of a mixture all.

    Attributes:
        classes: ``(k,)``.
        seen: T rounds.
        places: of the row in each of them.
        weights: of the classes in each ``(T, C)``.
        inverse: K^-1 ``(T, T)``.
    """

    classes: Tensor
    seen: MultiRound
    places: tuple[int, ...]
    weights: Tensor
    inverse: Tensor

    @property
    def pairs(self) -> list[tuple[MeanRound, ClassCovariance]]:
        """Rounds with their covariances."""
        return list(zip(self.seen.rounds, self.seen.covariances, strict=True))

    def cosines(self, rows: Sequence[Tensor], moved: Sequence[Moved | None], labels: Tensor) -> Tensor:
        """Return scores of candidates of classes ``(n,)`` by their whitened deviations ``(n, d)`` in each round."""
        shares, away = self.weights[:, labels], []
        for (one, whole), place, other, share in zip(self.pairs, self.places, moved, shares, strict=True):
            there = whole if other is None else other[0]
            own = upload_deviation(one, there, place)[None]
            away.append(own if other is None else own - share[:, None] * there.whiten(other[1]))
        size = self.seen.lengths.clamp_min(TINY).sqrt()[:, None, None]
        sent, mine = torch.stack(away) / size, shares[:, :, None] * torch.stack(list(rows)) / size
        turned = torch.einsum("ts,snd->tnd", self.inverse, sent)
        products = (mine * turned).sum((0, 2))
        lengths = (mine * torch.einsum("ts,snd->tnd", self.inverse, mine)).sum((0, 2))
        squares = (sent * turned).sum((0, 2))
        found: Tensor = products / (lengths.clamp_min(TINY) * squares.clamp_min(TINY)).sqrt()
        return found


def group_by_class(rounds: Sequence[MeanRound], own_labels: Tensor) -> list[Group]:
    """Group the rounds of one client, at least one, by class; ``own_labels`` ``(m,)`` are of the attacker's own images."""
    counts = estimate_member_counts(rounds, own_labels) if len(rounds) > 1 else MemberCounts({})
    if rounds[-1].sent.weights is not None:
        seen = multi_round([part for one in rounds for part in one.parts()], own_labels)
        weights = torch.stack([one.sent.weights for one in seen.rounds if one.sent.weights is not None])
        classes = (weights != 0).any(0).nonzero().squeeze(1)
        return [_group(classes, seen, (0,) * len(seen.rounds), weights, counts)]
    whole = multi_round(rounds, own_labels) if all(one.entries is None for one in rounds) else None
    found = []
    for label in torch.cat([one.sent.classes for one in rounds]).unique().tolist():
        if whole is None:
            parts = [part for one in rounds for part in one.parts() if label in part.sent.classes.tolist()]
            seen = multi_round(parts, own_labels)
        else:
            seen = whole.chosen([label in one.sent.classes.tolist() for one in rounds])
        places = tuple(one.sent.classes.tolist().index(label) for one in seen.rounds)
        weights = torch.zeros(len(places), 1 + label, dtype=torch.float64)
        weights[:, label] = 1
        found.append(_group(torch.tensor([label]), seen, places, weights, counts))
    return found


def _group(classes: Tensor, seen: MultiRound, places: tuple[int, ...], weights: Tensor, counts: MemberCounts) -> Group:
    numbers = seen.covariances[-1].numbers
    beside = torch.tensor([1 / numbers.get(label, 1) for label in classes.tolist()], dtype=torch.float64)
    inverse = torch.tensor([1 / counts.numbers.get(label, LIKELY) for label in classes.tolist()], dtype=torch.float64)
    shares = weights[:, classes]
    expected = (shares * (beside + inverse)) @ shares.T
    own = STEADY * expected.diagonal() + counts.drift * shares.square().sum(1) + seen.noise
    covariance = expected * seen.alike + torch.diag(own.clamp_min(TINY))
    return Group(classes, seen, places, weights, torch.linalg.inv(covariance))


def kernel_signals(seen: Sequence[Observation], images: Tensor, labels: Tensor, knowledge: Knowledge) -> Tensor:
    """Return the kernel signal of each of k uploads of a round for each candidate ``(k, n)``, float64 on the CPU."""
    kernels = [_centred_kernel(one) for one in seen]
    public = _public_images(seen[0], len(kernels[0]))
    weights = extrapolation_weights(public, images, WIDTH)
    classes = _classes(public, knowledge)
    towards = None if classes is None else _directions(classes, labels.cpu())
    return torch.stack([_signal(one, weights, towards) for one in kernels])


def _centred_kernel(seen: Observation) -> Tensor:
    sent = find_payload(seen.upload, Kernel)
    if sent is None:
        raise UserError(f"{upload_holds(seen)}; expected a kernel")
    return centred(sent.matrix.double().cpu())


def _public_images(seen: Observation, number: int) -> Tensor:
    sent = find_payload(seen.broadcast, PublicImages)
    if sent is None:
        raise UserError(f"broadcast of round {seen.round}: holds no public images; a kernel is about some")
    return sent.images[-number:]


def _classes(public: Tensor, knowledge: Knowledge) -> Tensor | None:
    """Return the classes ``(L,)`` of public images, -1 for an unknown one; None where all are unknown."""
    own, labels = knowledge.public_images, knowledge.public_labels
    if own is None or labels is None or own.shape[1:] != public.shape[1:]:
        return None
    found = known_classes(public, own, labels)
    return found if bool((found >= 0).any()) else None


def _directions(classes: Tensor, labels: Tensor) -> Tensor:
    """Return for each candidate the weights of public images in the direction of its class ``(n, L)``; 0 without any."""
    same = (labels[:, None] == classes).double()
    number = same.sum(1, keepdim=True)
    return torch.where(number > 0, same / number.clamp_min(1) - 1 / len(classes), 0.0)


def _signal(matrix: Tensor, weights: Tensor, towards: Tensor | None) -> Tensor:
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
    sent = [public_outputs(one) for one in seen]
    known = public_samples("membership", sent[0], knowledge)
    logs = torch.stack([log_outputs(one) for one in sent], 1)
    logs = logs - logs.mean(2, keepdim=True)
    logs = logs - logs.mean(0)
    # The regression is linear in its values: all clients' networks are extracted at once.
    extracted = extrapolate(known, logs.flatten(1), images, WIDTH).unflatten(1, logs.shape[1:])
    own = labels.cpu()[:, None, None].expand(-1, len(sent), 1)
    found: Tensor = extracted.gather(2, own)[:, :, 0].T
    return found
