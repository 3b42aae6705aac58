"""Attacks on one round's entangled upload: guess the class prototypes in it, then invert those.

The two lower rungs of a ladder whose top is ``unmix``, which uses many rounds: ``unmix-label`` takes the label encoding
for all there is to know, ``unmix-prior`` adds what a server has anyway. See :mod:`fedpriv.attacks.recover.unmixing_once`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.observation import Knowledge, Observation, TargetId
from fedpriv.attacks.read.target_features import observation_of
from fedpriv.attacks.recover.then_invert import Recovered, RecoverThenInvert, as_uploads
from fedpriv.attacks.recover.unmixing_once import label_only, posterior_mean, prior_of_images, prior_of_others
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import MIXTURES
from fedpriv.wire.payloads import Classifier, Entangled, find_payload, get_payload

Source = Literal["auto", "images", "uploads"]


@dataclass(frozen=True, kw_only=True)
class LabelUnmixing(RecoverThenInvert):
    """Take the upload for the prototype of every class that its label encoding names, then invert.

    A target is one class of one client (``TargetId.label``). Where one class has all the weight (RSR, RSP) this is exact.

    Attributes:
        scaled: divide by the largest weight for the class that has it.
    """

    scaled: bool = False
    iterations: Annotated[int, Ge(1)] = 250

    name = "unmix-label"
    summary = "a mixture taken for the mean of each class that it names, then inverted"
    targets = MIXTURES

    def recover(self, problem: AttackProblem) -> Recovered:
        """Guess the prototype of each target.

        Raises:
            UserError: when a class has no weight.
        """
        guesses = []
        for target in problem.targets:
            sent, held, row = _mixture(problem.observations, target)
            guesses.append(label_only(sent.feature, sent.label_encoding[held], scaled=self.scaled)[row])
        return Recovered(as_uploads(guesses, problem.targets), problem.targets)


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
    iterations: Annotated[int, Ge(1)] = 250

    name = "unmix-prior"
    summary = "class means guessed from one mixture and what the server knows of classes, then inverted"
    targets = MIXTURES

    def recover(self, problem: AttackProblem) -> Recovered:
        """Guess the prototype of each target.

        Raises:
            UserError: when a class has no weight, or there is nothing to make a prior of.
        """
        targets, seen = problem.targets, problem.observations
        prior = {(t.round, t.client): self.prior(seen, t, problem.knowledge) for t in targets}
        guesses = []
        for target in targets:
            sent, held, row = _mixture(seen, target)
            means = prior[target.round, target.client].to(sent.feature)[held]
            guesses.append(posterior_mean(sent.feature, sent.label_encoding[held], means, self.noise)[row])
        return Recovered(as_uploads(guesses, targets), targets)

    def prior(self, observations: Sequence[Observation], target: TargetId, knowledge: Knowledge) -> Tensor:
        """Return the prior prototypes ``(C, d)`` of a target's client, without its own upload.

        Raises:
            UserError: when there is nothing to make them of.
        """
        images, labels = knowledge.public_images, knowledge.public_labels
        if self.source == "images" and (images is None or labels is None):
            raise UserError(
                "attack 'unmix-prior' with source=images needs images of the attacker's own; pass --knowledge "
                "attacker_data=same_domain and --public N"
            )
        if self.source != "uploads" and images is not None and labels is not None:
            extractor = knowledge.extractors[target.client]
            with torch.no_grad():
                features = torch.cat([extractor(batch).cpu() for batch in images.split(256)])
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
    """Return an upload, the classes ``(m,)`` that it gives weight, and the place of the target's among them.

    Raises:
        UserError: when the target's class is not among them.
    """
    sent = get_payload(observation_of(observations, target).upload, Entangled)
    held = (sent.label_encoding.abs() > 0).nonzero().squeeze(1)
    if target.label not in held.tolist():
        raise UserError(
            f"client {target.client} gave class {target.label} no weight in round {target.round}; nothing to unmix"
        )
    return sent, held, held.tolist().index(target.label)
