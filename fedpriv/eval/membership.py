"""Scores of membership inference: members told from non-members, and the classes that a client holds read off.

Candidates are balanced: for each member drawn there is one non-member of the same class, so that knowing which classes a
client holds is worth nothing. Non-members are the client's own held-out images, so that knowing how a client's images look
is worth nothing either. Where nobody brings held-out images, others' images take their place, and no leak is claimed.
Scores of a client are put on a common scale by the median and spread of all its candidates, which needs no knowledge of who
is a member. Reported are the area under the ROC curve and the true-positive rate at 1 % false positives (Carlini
et al. 2022, Membership inference attacks from first principles), with intervals over clients; the difference to chance, to
shuffled uploads and to the baseline, a score of the same candidates without the upload.

A network has learned its members, so that their loss is lower, and their representations lie nearer to those of their class,
than those of held-out images. An attacker who is assumed to know the network sees that without any upload: which score is
the baseline of a kind of upload stands in :data:`BASELINES`, so that none is chosen by the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedpriv.attacks.inference.base import Candidates, Inference, InferenceProblem
from fedpriv.attacks.inference.update_scores import training_of
from fedpriv.attacks.inputs.targets import represent
from fedpriv.eval.floors import SHUFFLED
from fedpriv.eval.inference_case import InferenceCase, Ranked, named_classes
from fedpriv.eval.intervals import Values
from fedpriv.eval.premise import class_means
from fedpriv.eval.records import Baseline, MembershipRecord, Provenance, Seconds
from fedpriv.sources.truth import Holdings
from fedpriv.uploads.kinds import CLASS_OUTPUTS, TRAINED, VECTORS, Kinds
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed


@dataclass(frozen=True)
class Trial:
    """One client's candidates, and the answers ``(n,)``, which no attack is handed."""

    candidates: Candidates
    member: NDArray[np.bool_]


def draw_trials(truth: Holdings, clients: Sequence[int], number: int, seed: int) -> list[Trial]:
    """Draw at most ``number`` members of each client, and for each a non-member of the same class, in mixed order.

    Members are images that went into the upload. Non-members are the client's held-out images; where nobody has any, images
    that are not the client's.
    """
    labels = truth.samples.labels.numpy()
    trials = []
    for client in clients:
        rng = np.random.default_rng(derive_seed(seed, "membership", client))
        kept = truth.train[client]
        current = rng.permutation(np.unique(truth.used.get(client, kept)))
        outside = truth.held_out.get(client, kept[:0])
        if not truth.held_out:
            outside = np.setdiff1d(np.arange(len(labels)), kept)
        outside = rng.permutation(np.unique(outside))
        pools = {label: list(outside[labels[outside] == label]) for label in np.unique(labels[current])}
        pairs = [(i, pools[labels[i]].pop()) for i in current if pools[labels[i]]]
        index = np.array([i for pair in pairs[:number] for i in pair], dtype=np.int64)
        member = np.tile([True, False], len(index) // 2)
        order = rng.permutation(len(index))
        index, member = index[order], member[order]
        images, classes = truth.samples.batch(torch.as_tensor(index))
        candidates = Candidates(client, images.to(truth.device), classes)
        trials.append(Trial(candidates, member))
    return trials


def trials_for(inference: Inference, case: InferenceCase) -> list[Trial]:
    """Return the candidates of every client that has some; a UserError when none has both members and non-members."""
    drawn = draw_trials(case.truth, sorted(case.problem(inference).uploads), inference.n_candidates, case.seed)
    trials = [trial for trial in drawn if len(trial.member)]
    if not trials:
        which = "held-out image of a client" if case.truth.held_out else "image outside the clients' training sets"
        raise UserError(f"{inference.name}: no {which} has the class of one of its training images")
    return trials


def on_common_scale(scores: Values) -> Values:
    """Return one client's scores less their median, over their median distance from it; ruled-out ones just below."""
    finite = np.isfinite(scores)
    if not finite.any():
        return np.zeros_like(scores)
    middle = float(np.median(scores[finite]))
    spread = float(np.median(np.abs(scores[finite] - middle))) or 1.0
    scaled = (np.where(finite, scores, middle) - middle) / spread
    return np.where(finite, scaled, min(0.0, scaled.min()) - 1)


def evaluate(inference: Inference, case: InferenceCase, about: Provenance) -> MembershipRecord:
    """Ask about every client's candidates, and by shuffled uploads, and return the record; errors as :func:`trials_for`."""
    trials = trials_for(inference, case)
    problem = case.problem(inference, {trial.candidates.client: trial.candidates for trial in trials})
    member = [trial.member for trial in trials]
    units = [about.unit_of(trial.candidates.client) for trial in trials]

    def rank(values: Mapping[int, Tensor]) -> Ranked:
        scores = [on_common_scale(values[trial.candidates.client].numpy()) for trial in trials]
        return Ranked.of(scores, member, units, apart=about.per_image)

    result = inference(problem)
    ranked, wrong = rank(result.values), case.shuffled(problem)
    shuffled = None if wrong is None else rank(inference(wrong).values)
    name, alone = baseline_scores(problem)
    baseline = rank(alone) if alone else None
    guesses = {SHUFFLED: shuffled, name: baseline}
    return MembershipRecord(
        **dict(about),
        **dict(ranked.rates()),
        round=case.round,
        n_clients=len(set(units)),
        n_candidates=int(sum(len(m) for m in member)),
        n_nonmembers=int(sum((~m).sum() for m in member)),
        nonmembers="held_out" if case.truth.held_out else "others",
        baseline=None if baseline is None else Baseline(name=name, auc=baseline.with_interval("auc")),
        shuffled=None if shuffled is None else shuffled.rates(),
        comparisons=ranked.against(guesses, ("membership", "members_found"), name),
        classes=named_classes(problem.said(), case.truth),
        cost=Seconds(seconds=result.seconds),
    )


# ---------------------------------------------------------------- baseline


Score = Callable[[InferenceProblem, Candidates], Tensor | None]
"""Problem and one client's candidates -> scores ``(n,)`` float64, or None where the network is not assumed to be known."""


def like_its_class(problem: InferenceProblem, candidates: Candidates) -> Tensor | None:
    """Return minus the cross-entropy of each candidate by a nearest-mean classifier in the assumed extractor's space.

    Its logits are minus the squared distances to class means, over the mean of all. Class means are those of the attacker's
    labelled auxiliary images; where it has none, of the candidates, members and others together.
    """
    knowledge, labels = problem.knowledge, candidates.labels.cpu()
    if candidates.client not in knowledge.extractors or knowledge.card.extractor == "shadow":
        return None
    features = represent(knowledge, candidates.client, candidates.images, problem.trained).double()
    classes = there = labels.unique()
    current = means = class_means(features, labels, classes)
    if knowledge.public_images is not None and knowledge.public_labels is not None:
        images = knowledge.public_images.to(candidates.images.device)
        auxiliary = represent(knowledge, candidates.client, images, problem.trained).double()
        public_labels = knowledge.public_labels.cpu()
        missing = ~torch.isin(classes, public_labels)
        known = public_labels.unique()
        means = torch.cat([class_means(auxiliary, public_labels, known), current[missing]])
        there = torch.cat([known, classes[missing]])
    distances = torch.cdist(features, means).square()
    position = (labels[:, None] == there).long().argmax(1)
    return -cross_entropy(-distances / distances.mean().clamp_min(1e-12), position, reduction="none")


def low_loss(problem: InferenceProblem, candidates: Candidates) -> Tensor | None:
    """Return minus the cross-entropy of each candidate by the client's assumed extractor and head."""
    knowledge, client = problem.knowledge, candidates.client
    if client not in knowledge.extractors or client not in knowledge.heads or knowledge.card.extractor == "shadow":
        return None
    weight, bias = (value.double().cpu() for value in knowledge.heads[client])
    logits = represent(knowledge, client, candidates.images, problem.trained).double() @ weight.T + bias
    return -cross_entropy(logits, candidates.labels.cpu(), reduction="none")


def low_loss_before(problem: InferenceProblem, candidates: Candidates) -> Tensor | None:
    """Return minus the cross-entropy of each candidate by the weights broadcast before the first attacked round.

    None where these are the client's own, which it uploaded the round before: they are no knowledge without an upload.
    """
    seen, knowledge = problem.uploads_of(candidates.client)[0]
    if seen.continued:
        return None
    try:
        training = training_of(seen, seen.client, candidates.images, knowledge)
    except UserError:  # a part of the model is private, or was not broadcast
        return None
    labels = candidates.labels.to(training.inputs.device)
    return -training.losses(training.before, labels).double().cpu()


BASELINES: tuple[tuple[Kinds, str, Score], ...] = (
    (VECTORS, "assumed_extractor", like_its_class),
    (CLASS_OUTPUTS, "assumed_model", low_loss),
    (TRAINED, "broadcast_model", low_loss_before),
)
"""Kinds of upload, the name of their baseline, and its score. Attacks on other kinds use no network: theirs is chance."""


def baseline_scores(problem: InferenceProblem) -> tuple[str, Mapping[int, Tensor]]:
    """Return the name of the baseline and each client's scores; no scores where chance is the baseline."""
    for kinds, name, score in BASELINES:
        if problem.kind is not None and problem.kind in kinds:
            results = {client: score(problem, candidate) for client, candidate in problem.candidates.items()}
            known = {client: values for client, values in results.items() if values is not None}
            return (name, known) if len(known) == len(results) else ("", {})
    return "", {}
