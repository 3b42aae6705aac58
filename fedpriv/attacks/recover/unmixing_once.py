"""The attack on one round's entangled upload: guess its class prototypes by what is known of classes, then invert those.

The rung below ``unmix``, which uses many rounds: its posterior (:mod:`fedpriv.attacks.recover.round_posterior`) of one
round, at hyperparameters that one round cannot tell. One upload r = sum_c w_c p_c is one equation in as many prototypes as
the client has classes; ``unmix-prior`` takes the posterior mean under p_c ~ N(q_c, S) independently and
r = sum_c w_c p_c + N(0, s^2):

    p_c = q_c + w_c S (sum_k w_k^2 S + s^2)^-1 (r - sum_k w_k q_k).

It needs no rank condition; classes of little weight keep q_c. The prior means q_c come from what a server has: other
clients' uploads of the round, the rows of the classifier that it broadcast, or the class means of its own images under the
client's extractor or a shadow of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.observation import Knowledge, Observation, TargetId
from fedpriv.attacks.read.extractors import represent
from fedpriv.attacks.read.target_features import observation_of
from fedpriv.attacks.recover.round_posterior import Uploads, Variances, gains
from fedpriv.attacks.recover.then_invert import Recovered, RecoverThenInvert, as_uploads
from fedpriv.attacks.trained import Trained
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import MIXTURES
from fedpriv.wire.payloads import Classifier, Entangled, find_payload, get_payload

_RIDGES = (*(10.0**power for power in (-3, -2, -1, 0, 1, 2)), math.inf)

Source = Literal["auto", "images", "uploads"]


@dataclass(frozen=True, kw_only=True)
class PriorUnmixing(RecoverThenInvert):
    """Take the posterior mean of the prototypes under what the server knows of the classes, then invert.

    A target is one class of one client (``TargetId.label``).

    Attributes:
        source: where prior prototypes come from: ``images`` are the class means of the attacker's own images under the
            client's extractor (or its shadow), ``uploads`` other clients' uploads of the round and the broadcast
            classifier; ``auto`` takes images where the card grants some.
        noise: how much of an upload is taken to be noise: its variance over that of prototypes, >= 0.
    """

    source: Source = "auto"
    noise: Annotated[float, Ge(0)] = 0.0
    iterations: Annotated[int, Ge(1)] = 100

    name = "unmix-prior"
    summary = "class means guessed from one mixture and what the server knows of classes, then inverted"
    version = 4
    targets = MIXTURES

    def recover(self, problem: AttackProblem) -> Recovered:
        """Guess the prototype of each target."""
        targets, seen = problem.targets, problem.observations
        one_each = {(target.round, target.client): target for target in targets}
        prior = {where: self.prior(seen, one, problem.knowledge, problem.trained) for where, one in one_each.items()}
        guesses = []
        for target in targets:
            sent, held, row = _mixture(seen, target)
            means = prior[target.round, target.client].to(sent.feature)[held]
            guesses.append(posterior_mean(sent.feature, sent.label_encoding[held], means, self.noise)[row])
        return Recovered(as_uploads(guesses, targets), targets)

    def prior(
        self, observations: Sequence[Observation], target: TargetId, knowledge: Knowledge, kept: Trained | None = None
    ) -> Tensor:
        """Return the prior prototypes ``(C, d)`` of a target's client, without its own upload."""
        images, labels = knowledge.public_images, knowledge.public_labels
        if self.source == "images" and (images is None or labels is None):
            raise UserError(
                "attack 'unmix-prior' with source=images needs images of the attacker's own; pass "
                f"{argument('knowledge', {'attacker_data': 'same_domain'})} and {argument('public')} N"
            )
        if self.source != "uploads" and images is not None and labels is not None:
            features = represent(knowledge, target.client, images, kept)
            return prior_of_images(features, labels.cpu(), knowledge.n_classes)
        own = observation_of(observations, target)
        others = [o for o in observations if o.round == target.round and o.client != target.client]
        if not others:
            raise UserError(
                f"attack 'unmix-prior': no other client uploaded in round {target.round}, so there is nothing to make a "
                "prior of; grant attacker_data=same_domain"
            )
        head = find_payload(own.broadcast, Classifier)
        uploads = [get_payload(other.upload, Entangled) for other in others]
        return prior_of_others(
            torch.stack([upload.feature.cpu() for upload in uploads]),
            torch.stack([upload.label_encoding.cpu() for upload in uploads]),
            None if head is None else head.state["weight"].cpu(),
        )


def _mixture(observations: Sequence[Observation], target: TargetId) -> tuple[Entangled, Tensor, int]:
    """Return an upload, the classes ``(m,)`` that it gives weight, and the place of the target's among them."""
    sent = get_payload(observation_of(observations, target).upload, Entangled)
    held = (sent.label_encoding.abs() > 0).nonzero().squeeze(1)
    if target.label not in held.tolist():
        raise UserError(
            f"client {target.client} gave class {target.label} no weight in round {target.round}; nothing to unmix"
        )
    return sent, held, held.tolist().index(target.label)


def posterior_mean(feature: Tensor, weights: Tensor, prior: Tensor, noise: float = 0.0) -> Tensor:
    """Return the posterior mean of each prototype ``(m, d)`` given one upload ``(d,)`` and its weights ``(m,)``.

    ``prior`` ``(m, d)`` holds the means q; noise, >= 0, is s^2 over S: at 0 the guess fits the upload exactly.
    """
    surprise = feature - weights @ prior
    seen = Uploads(torch.zeros(1, 1, dtype=torch.float64), weights.double().cpu()[None], torch.ones(1))
    gain = gains(seen, Variances(level=0, per_round=0, noise=noise))[:, 0].to(feature)
    return prior + torch.outer(gain, surprise)


def prior_of_others(features: Tensor, weights: Tensor, shape: Tensor | None = None) -> Tensor:
    """Return prior prototypes ``(C, d)`` from one round's uploads ``(K, d)`` of other clients, with their label encodings.

    Clients' prototypes of a class are alike where a common head aligns their extractors, so the K uploads are K equations
    in C shared prototypes. They are solved by ridge regression towards a start that K equations do determine: the mean
    upload, plus the classifier's centred rows ``shape`` ``(C, d)``, if any, times one scale. How much ridge is chosen by
    predicting each upload from the others.
    """
    uploads, mixing = features.double(), weights.double()
    rows = None if shape is None else (shape - shape.mean(0)).double()
    if len(uploads) < 3:
        return start_of_others(uploads, mixing, rows).float()
    errors = []
    for ridge in _RIDGES:
        total = 0.0
        for left in range(len(uploads)):
            others = torch.arange(len(uploads)) != left
            guess = _ridge(uploads[others], mixing[others], rows, ridge)
            total += float((mixing[left] @ guess - uploads[left]).square().sum())
        errors.append(total)
    best = _RIDGES[min(range(len(_RIDGES)), key=errors.__getitem__)]
    return _ridge(uploads, mixing, rows, best).float()


def start_of_others(uploads: Tensor, mixing: Tensor, rows: Tensor | None) -> Tensor:
    """Return ``mean + scale * rows`` ``(C, d)`` fitted to the uploads by least squares over mean and scale.

    Args:
        uploads: ``(K, d)`` float64, K >= 1.
        mixing: ``(K, C)`` float64, their weights by class.
        rows: ``(C, d)`` float64 that sum to zero, or None for the mean alone.
    """
    centre = uploads.mean(0)
    if rows is None:
        return centre.repeat(mixing.shape[1], 1)
    shown = mixing @ rows
    apart = shown - shown.mean(0)
    scale = float((apart * (uploads - centre)).sum() / apart.square().sum().clamp_min(1e-12))
    return centre - scale * shown.mean(0) + scale * rows


def _ridge(uploads: Tensor, mixing: Tensor, rows: Tensor | None, ridge: float) -> Tensor:
    start = start_of_others(uploads, mixing, rows)
    if math.isinf(ridge):
        return start
    gram = mixing @ mixing.T + ridge * torch.eye(len(mixing), dtype=mixing.dtype)
    found: Tensor = start + mixing.T @ torch.linalg.solve(gram, uploads - mixing @ start)
    return found


def prior_of_images(features: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Return the class means ``(C, d)`` of the attacker's own images; their overall mean for a class without any."""
    counts = torch.bincount(labels, minlength=n_classes).to(features)
    sums = torch.zeros(n_classes, features.shape[1]).to(features).index_add(0, labels, features)
    return torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], features.mean(0))
