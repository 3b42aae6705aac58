"""The baseline of membership inference: a score of the same candidates without the attacked upload.

A network has learned its members, so that their loss is lower, and their representations lie nearer to those of their class,
than those of held-out images. An attacker who is assumed to know the network sees that without any upload. What the upload
adds is the difference of an attack to this score. Which score is the baseline of a kind of upload stands in
:data:`BASELINES`, so that none is chosen by the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedpriv.attacks.inference.base import Candidates, InferenceProblem, Moment
from fedpriv.attacks.inference.update_scores import training_of
from fedpriv.attacks.inputs.extractors import represent
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import CLASS_OUTPUTS, TRAINED, VECTORS, Kinds

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
    features = represent(knowledge, candidates.client, candidates.images).double()
    current, classes = class_means(features, labels)
    means, there = current, classes
    if knowledge.public_images is not None and knowledge.public_labels is not None:
        auxiliary = represent(
            knowledge, candidates.client, knowledge.public_images.to(candidates.images.device)
        ).double()
        means, there = class_means(auxiliary, knowledge.public_labels.cpu())
        missing = ~torch.isin(classes, there)
        means, there = torch.cat([means, current[missing]]), torch.cat([there, classes[missing]])
    distances = torch.cdist(features, means).square()
    position = (labels[:, None] == there).long().argmax(1)
    return -cross_entropy(-distances / distances.mean().clamp_min(1e-12), position, reduction="none")


def class_means(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean representation ``(k, d)`` of each class that is there, and these classes ``(k,)``."""
    classes = labels.unique()
    return torch.stack([features[labels == label].mean(0) for label in classes]), classes


def low_loss(problem: InferenceProblem, candidates: Candidates) -> Tensor | None:
    """Return minus the cross-entropy of each candidate by the client's assumed extractor and head."""
    knowledge, client = problem.knowledge, candidates.client
    if client not in knowledge.extractors or client not in knowledge.heads or knowledge.card.extractor == "shadow":
        return None
    weight, bias = (value.double().cpu() for value in knowledge.heads[client])
    logits = represent(knowledge, client, candidates.images).double() @ weight.T + bias
    return -cross_entropy(logits, candidates.labels.cpu(), reduction="none")


def low_loss_before(problem: InferenceProblem, candidates: Candidates) -> Tensor | None:
    """Return minus the cross-entropy of each candidate by the weights broadcast before the first attacked round."""
    newest = Moment(tuple(problem.uploads.values()), problem.knowledge)
    for moment in (*problem.earlier, newest):
        for seen in moment.observations:
            if seen.client == candidates.client:
                try:
                    training = training_of(seen, seen.client, candidates.images, moment.knowledge)
                except UserError:  # a part of the model is private, or was not broadcast
                    return None
                labels = candidates.labels.to(training.inputs.device)
                return -training.losses(training.before, labels).double().cpu()
    return None


BASELINES: tuple[tuple[Kinds, str, Score], ...] = (
    (VECTORS, "assumed_extractor", like_its_class),
    (CLASS_OUTPUTS, "assumed_model", low_loss),
    (TRAINED, "broadcast_model", low_loss_before),
)
"""Kinds of upload, the name of their baseline, and its score. Attacks on other kinds use no network: theirs is chance."""


def baseline_scores(problem: InferenceProblem) -> tuple[str, Mapping[int, Tensor]]:
    """Return the name of the baseline and each client's scores; no scores where chance is the baseline.

    Args:
        problem: what the attack is handed, with candidates.
    """
    for kinds, name, score in BASELINES:
        if problem.kind is not None and problem.kind in kinds:
            results = {client: score(problem, candidate) for client, candidate in problem.candidates.items()}
            known = {client: values for client, values in results.items() if values is not None}
            return (name, known) if len(known) == len(results) else ("", {})
    return "", {}
