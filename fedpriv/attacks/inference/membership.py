"""Membership inference: was this very image among those that a client's upload was computed from?

Candidates are scored, higher for likelier members, by the upload and the client's extractor g; scores are compared with
those by other clients' uploads and averaged over rounds. A class that the upload does not contain has no members: minus
infinity.

**Distance**: ||g(x) - p||^2 / ||p||^2 with the nearest p uploaded for the candidate's class; of class outputs
KL(u_y || softmax(head(g(x)))), with u_y the uploaded mean output of the class.

**Deviation**, with labelled auxiliary images. A mean of n images deviates from the expectation of its class by sum_i
(g(x_i) - m_y) / n, of which a member's own g(x) - m_y is part (Dwork et al., FOCS 2015). With z_t and D_t the whitened
deviations of candidate and upload in round t, w_t the weight of the class and K the covariance of rounds
(:mod:`fedpriv.attacks.inference.means`), the score is

    sum_ts w_t K^-1_ts z_t^T D_s / sqrt(sum_ts w_t w_s K^-1_ts z_t^T z_s  sum_ts K^-1_ts D_t^T D_s).

**Kernels.** With K = H H^T of public images centred, a(x) the weights of ridge regression over pixels and u_y the mean over
public images of class y less that over all, the signal is the cosine of H^T a(x) and H^T u_y; without classes of public
images a(x)^T K a(x) over the mean of the diagonal.

**Outputs on public samples.** The log outputs of client k, less their means, regressed over pixels: the signal is their
value at x for class y.

**Trained weights**: :mod:`fedpriv.attacks.inference.update_scores`.

**Calibration** (the principle of FedMIA: Zhu et al., CVPR 2025). With distances d_k(x) from client k's upload, score =
1/2 mean over others j of log d_j(x) - log d_k(x). With signals s_k(x) of weights, c_k(x) = s_k(x) - (n m_k(class of x) +
m_k) / (n + 1), m_k the median of all candidates and m_k(y) of the n of a class; score = c_k(x) - 1/2 mean over others of
c_j(x). With signals from public inputs, z(x) = (s_k(x) - mean of the others) / (d(x) + 0.3 median of d), d their standard
deviation, less the class median likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.algebra.matrices import centred
from fedpriv.attacks.inference import means
from fedpriv.attacks.inference.base import Candidates, Inference, InferenceProblem, Scores
from fedpriv.attacks.inference.update_scores import granted_head, update_signals
from fedpriv.attacks.inputs import outputs
from fedpriv.attacks.inputs.targets import represent, upload_holds
from fedpriv.attacks.observation import Knowledge, Needs, Observation, ThreatModel
from fedpriv.uploads import kinds
from fedpriv.uploads.payloads import Kernel, PublicImages, find_payload
from fedpriv.util.errors import UserError

COMPARED = kinds.VECTORS | kinds.CLASS_OUTPUTS
"""Payloads that candidates are compared with as they were uploaded."""

MOST_ROUNDS_OF_MEANS = 15  # by default: a mixture is separated by weights that change often

MOST_OTHERS, FEW_OTHERS, FEWEST_OTHERS = 20, 4, 2
"""The most other clients that calibrate trained weights: of whole models, where all share the candidates' gradients; of
single layers; and where each takes another pass through a network, or another projection."""

LEAST_DISTANCE, FEWEST_FOR_A_SPREAD, WIDTH, _TINY = 1e-9, 3, 2.0, 1e-12
"""A distance that counts as none; other clients below which a candidate's spread is not taken; width of the kernel over
pixels, in summed variances of the public images; least length that is divided by."""

SHARE, FLOOR, STEADY = 0.5, 0.3, 1e-2
"""Share of the others' mean that is taken off; of the median spread of their signals that is added to each; and of a round's
expected deviation that is independent of other rounds. Chosen on a few federations, confirmed on others."""


@dataclass(frozen=True, kw_only=True)
class MembershipInference(Inference):
    """Score candidates by how near they are to what was uploaded.

    Attributes:
        candidates: the most members, and as many non-members, for each client.
        classes: of mixtures: ``sent``, those that the label encoding gives weight, or ``any``, where encodings hide weights
            (the adaptive attack on ``hide-labels``).
    """

    candidates: Annotated[int, Ge(1)] = 100
    classes: Literal["sent", "any"] = "sent"

    name = "membership"
    version = 8
    summary = "scores of candidate images: which ones the client trained on"
    asks = "images"
    most_rounds = 5
    targets = COMPARED | kinds.ANSWERS | kinds.TRAINED
    needs = Needs(extractor=("white_box", "query"))
    requirements_by_kind = (
        (kinds.KERNELS | kinds.WHOLE, Needs()),
        (kinds.PUBLIC_OUTPUTS, Needs(attacker_data=("same_domain",))),
        (kinds.BESIDE_A_HEAD, Needs(extractor=("white_box",))),
    )

    def takes_extractor(self, kind: str, granted: ThreatModel) -> bool:
        """True of uploads that candidates' representations are compared with."""
        return kind not in kinds.KERNELS | kinds.WHOLE | kinds.PUBLIC_OUTPUTS

    def rounds_on(self, kind: str, card: ThreatModel) -> int:
        """Return the default number of rounds: of distances the newest alone; several do no better."""
        if kind in means.AVERAGES and card.attacker_data == "same_domain":
            return MOST_ROUNDS_OF_MEANS
        return 1 if kind in COMPARED else self.most_rounds

    def run(self, problem: InferenceProblem) -> Scores:
        results = {client: self._score(problem, candidate) for client, candidate in problem.candidates.items()}
        return Scores(self.ask(problem), results)

    def _score(self, problem: InferenceProblem, candidates: Candidates) -> Tensor:
        each = problem.uploads_of(candidates.client)
        if self._deviates(*each[-1], problem.kind):
            of_means = []
            for seen, knowledge in each:
                own, labels, shown = knowledge.public_images, knowledge.public_labels, candidates.images
                if own is not None and labels is not None and self._deviates(seen, knowledge, problem.kind):
                    of_means.append(means.read_mean_round(seen, knowledge, shown, own, labels, problem.trained))
            return deviation_scores(of_means, candidates.labels.cpu())
        rounds = []
        for moment in problem.rounds:
            for seen in moment.observations:
                if seen.client == candidates.client:
                    others = [o for o in moment.observations if _calibrates(o, seen, problem.kind, moment.knowledge)]
                    rounds.append(self._score_round([seen, *others], candidates, moment.knowledge, problem.kind))
        return average_rounds(rounds)

    def _deviates(self, seen: Observation, knowledge: Knowledge, kind: str) -> bool:
        """True where a mean or a mixture is scored by its deviation from the attacker's own images."""
        sent, labels = COMPARED.first(seen.upload), knowledge.public_labels
        if kind not in COMPARED or sent is None or sent.kind not in means.AVERAGES:
            return False
        if self.classes == "any" and sent.said("weights") is not None:
            return False
        return labels is not None and knowledge.card.attacker_data == "same_domain" and means.enough_images(labels)

    def _score_round(self, seen: list[Observation], candidates: Candidates, knowledge: Knowledge, kind: str) -> Tensor:
        """Return scores ``(n,)`` by one round's uploads, the client's first."""
        images, labels = candidates.images, candidates.labels
        if kind in kinds.TRAINED:
            nearest = sorted(seen[1:], key=lambda item: (item.client <= candidates.client, item.client))
            shared = kind in kinds.WHOLE and kinds.payload_kind(kind).space == "weights"
            most = FEW_OTHERS if kind in kinds.LAYERS else MOST_OTHERS if shared else FEWEST_OTHERS
            return calibrate_by_class(update_signals([seen[0], *nearest[:most]], images, labels, knowledge), labels)
        if kind in kinds.ANSWERS:
            signals = kernel_signals if kind in kinds.KERNELS else public_signals
            return calibrate_by_spread(signals(seen, images, labels, knowledge), labels)
        every_class = self.classes == "any"
        mine, *others = (nearness_to_upload(o, images, labels, knowledge, every_class=every_class) for o in seen)
        return calibrate_by_other_clients(mine, others)


def _calibrates(other: Observation, seen: Observation, kind: str, knowledge: Knowledge) -> bool:
    """True for another client's upload that candidates can be compared with; not for the same one (secure aggregation)."""
    among = next(group for group in (kinds.TRAINED, kinds.ANSWERS, COMPARED) if kind in group)
    mine, theirs = among.first(seen.upload), among.first(other.upload)
    if other.client == seen.client or mine is None or theirs is None:
        return False
    first, second = mine.tensors(), theirs.tensors()
    if first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items()):
        return False
    if kind in kinds.ANSWERS | kinds.WHOLE:
        return True
    private = kind in kinds.CLASS_OUTPUTS or (kind in kinds.TRAINED and kind not in kinds.HEADS)
    return other.client in (knowledge.heads if private else knowledge.extractors)


def average_rounds(rounds: Sequence[Tensor]) -> Tensor:
    """Return the mean over rounds of scores ``(n,)``, each less its median and over its spread; ruled out as in the last."""
    if len(rounds) == 1:
        return rounds[0]
    scaled = []
    for item in rounds:
        finite = item[item.isfinite()]
        if len(finite):
            middle = finite.median()
            spread = (finite - middle).abs().median()
            scaled.append((item - middle) / (spread if spread > 0 else 1.0))
    if not scaled:
        return rounds[-1]
    table = torch.stack(scaled)
    there = table.isfinite()
    mean = torch.where(there, table, 0.0).sum(0) / there.sum(0).clamp_min(1)
    return mean.masked_fill(~(there.any(0) & rounds[-1].isfinite()), -torch.inf)


def calibrate_by_other_clients(values: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Return scores ``(n,)`` of distances ``(n,)`` from the client's upload and the others', float64.

    Distances are at least 0, infinite where membership is ruled out. The calibration is the mean over the others whose
    uploads hold the candidate's class, or where none does over all candidates.
    """
    if not others:
        return -values.double()
    logs = torch.stack([other.double().clamp_min(LEAST_DISTANCE).log() for other in others])
    finite = logs.isfinite()
    known, number = torch.where(finite, logs, 0.0), finite.sum(0)
    overall = known.sum() / finite.sum().clamp_min(1)
    null = torch.where(number > 0, known.sum(0) / number.clamp_min(1), overall)
    return SHARE * null - values.double().clamp_min(LEAST_DISTANCE).log()


def calibrate_by_class(signals: Tensor, labels: Tensor) -> Tensor:
    """Return scores ``(n,)`` of signals of trained weights ``(k, n)``, the client's first, by candidates' classes."""
    left = _less_class_median(signals.double(), labels)
    spread = left.abs().median(1, keepdim=True).values
    left = left / torch.where(spread > 0, spread, 1.0)
    return left[0] - SHARE * left[1:].mean(0) if len(left) > 1 else left[0]


def calibrate_by_spread(signals: Tensor, labels: Tensor) -> Tensor:
    """Return scores ``(n,)`` of signals of answers to public inputs ``(k, n)``, the client's first."""
    above, others = signals[:1].double(), signals[1:].double()
    if len(others):
        above = above - others.mean(0)
    if len(others) >= FEWEST_FOR_A_SPREAD:
        spread = others.std(0)
        floor = FLOOR * spread.quantile(0.5)
        above = above / torch.where(floor > 0, spread + floor, 1.0)
    return _less_class_median(above, labels)[0]


def _less_class_median(values: Tensor, labels: Tensor) -> Tensor:
    """Return values ``(k, n)`` less the median of their class, drawn towards the median of all."""
    _, position, number = labels.cpu().unique(return_inverse=True, return_counts=True)
    middles = torch.stack([values[:, position == index].quantile(0.5, dim=1) for index in range(len(number))], 1)
    usual = (number * middles + values.quantile(0.5, dim=1, keepdim=True)) / (number + 1)
    result: Tensor = values - usual[:, position]
    return result


# ---------------------------------------------------------------- distance and deviation


def nearness_to_upload(
    seen: Observation, images: Tensor, labels: Tensor, knowledge: Knowledge, *, every_class: bool
) -> Tensor:
    """Return the distance of candidates from what was uploaded for their class ``(n,)``; infinite where nothing was.

    Of class outputs the KL divergence, otherwise the relative squared distance; a mixture may be of ``every_class``.
    """
    features = represent(knowledge, seen.client, images).double()
    sent = COMPARED.first(seen.upload)
    if sent is None:
        raise UserError(f"{upload_holds(seen)}; attack 'membership' compares with one of {', '.join(COMPARED)}")
    rows, classes, _ = means.rows_by_class(sent, every_class=every_class)
    if sent.kind in kinds.CLASS_OUTPUTS:
        weight, bias = (value.double().cpu() for value in granted_head(seen.client, knowledge))
        uploaded, softmax = outputs.read_outputs(rows)
        uploaded = uploaded if softmax else uploaded.softmax(1)
        current = (uploaded * uploaded.clamp(min=1e-30).log()).sum(1)
        distances = current - (features @ weight.T + bias).log_softmax(1) @ uploaded.T
    else:
        distances = torch.cdist(features, rows).square() / rows.square().sum(1).clamp(min=1e-12)
    return distances.masked_fill(labels.cpu()[:, None] != classes, torch.inf).amin(1)


def deviation_scores(rounds: Sequence[means.MeanRound], labels: Tensor) -> Tensor:
    """Return scores of candidates of classes ``(n,)`` by a client's rounds; minus infinity for classes never uploaded."""
    counts = means.estimate_member_counts(rounds) if len(rounds) > 1 else means.MemberCounts({})
    result = torch.full((len(labels),), -torch.inf, dtype=torch.float64)
    seen, groups = means.MultiRound.of(rounds), []
    if rounds[-1].weights is not None:
        groups.append((seen, (seen.weights != 0).any(0).nonzero().squeeze(1)))
    else:  # of means, the rounds that hold each class
        for label in labels.unique():
            of_class = means.MultiRound(tuple(item for item in seen.rounds if bool((item.classes == label).any())))
            groups.append((of_class, label[None]))
    for used, classes in groups:
        requested = torch.isin(labels, classes)
        if bool(requested.any()) and used.rounds:
            result[requested] = _cosines(used, classes, requested, labels[requested], counts)
    return result


def _cosines(
    seen: means.MultiRound, classes: Tensor, values: Tensor, labels: Tensor, counts: means.MemberCounts
) -> Tensor:
    """Return scores of the candidates that are ``values`` ``(n,)`` about, of ``labels``, by rounds that hold the classes."""
    mixed = seen.rounds[-1].weights is not None
    n_rounds = len(seen.rounds)
    weights = seen.weights if mixed else torch.ones(n_rounds, 1 + int(classes.max()), dtype=torch.float64)
    places = [0 if mixed else item.classes.tolist().index(int(classes)) for item in seen.rounds]
    inverse = torch.linalg.inv(_covariance(seen, classes, weights[:, classes], counts))
    shares, size = weights[:, labels, None], seen.lengths.sqrt()[:, None, None]
    rows = [item.covariance.whitened_deviations(item.features[values], labels) for item in seen.rounds]
    mine = shares * torch.stack(rows) / size
    pairs = zip(seen.rounds, places, strict=True)
    sent = torch.stack([item.whitened_deviation(place)[None] for item, place in pairs]) / size
    turned = torch.einsum("ts,snd->tnd", inverse, sent)
    lengths = (mine * torch.einsum("ts,snd->tnd", inverse, mine)).sum((0, 2)).clamp_min(means.TINY)
    squares = (sent * turned).sum((0, 2)).clamp_min(means.TINY)
    return (mine * turned).sum((0, 2)) / (lengths * squares).sqrt()


def _covariance(seen: means.MultiRound, classes: Tensor, shares: Tensor, counts: means.MemberCounts) -> Tensor:
    """Return K ``(T, T)`` of rounds with shares ``(T, k)`` of the classes ``(k,)``."""
    numbers, labels = seen.rounds[-1].covariance.numbers, classes.tolist()
    each = [1 / numbers.get(label, 1) + 1 / counts.numbers.get(label, means.LIKELY) for label in labels]
    expected = (shares * torch.tensor(each, dtype=torch.float64)) @ shares.T
    current = STEADY * expected.diagonal() + counts.drift * shares.square().sum(1) + seen.noise
    return expected * seen.alike + torch.diag(current.clamp_min(means.TINY))


# ---------------------------------------------------------------- kernels and outputs on public samples


def kernel_signals(seen: Sequence[Observation], images: Tensor, labels: Tensor, knowledge: Knowledge) -> Tensor:
    """Return the kernel signal of each of k uploads of a round for each candidate ``(k, n)``, float64 on the CPU."""
    kernels = [find_payload(entry.upload, Kernel) for entry in seen]
    matrices = [centred(kernel.matrix.double().cpu()) for kernel in kernels if kernel is not None]
    sent = find_payload(seen[0].broadcast, PublicImages)
    if sent is None:
        raise UserError(f"broadcast of round {seen[0].round}: holds no public images; a kernel is about some")
    public = sent.images[-len(matrices[0]) :]
    weights = outputs.extrapolation_weights(public, images, WIDTH)
    auxiliary, known_labels = knowledge.public_images, knowledge.public_labels
    towards = None
    if auxiliary is not None and known_labels is not None and auxiliary.shape[1:] == public.shape[1:]:
        classes = outputs.known_classes(public, auxiliary, known_labels)
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
    sent = [outputs.public_outputs(item) for item in seen]
    known = outputs.public_samples("membership", sent[0], knowledge)
    logs = torch.stack([outputs.log_outputs(entry) for entry in sent], 1)
    logs = logs - logs.mean(2, keepdim=True)
    logs = logs - logs.mean(0)
    # The regression is linear in its values: all clients' networks are extracted at once.
    extracted = outputs.extrapolate(known, logs.flatten(1), images, WIDTH).unflatten(1, logs.shape[1:])
    current = labels.cpu()[:, None, None].expand(-1, len(sent), 1)
    values: Tensor = extracted.gather(2, current)[:, :, 0].T
    return values
