"""Attacks on one round's entangled upload: guess the class prototypes in it, then invert those.

The two lower rungs of a ladder whose top is ``unmix``, which uses many rounds: ``unmix-label`` takes the label encoding
for all there is to know, ``unmix-prior`` adds what a server has anyway. See :mod:`fedpriv.attacks.recover.unmixing_once`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.invert.inversion import DipInversion
from fedpriv.attacks.observation import Knowledge, Needs, Observation, Progress, Reconstruction, TargetId, Unit
from fedpriv.attacks.read.target_features import observation_of
from fedpriv.attacks.recover.found_vectors import invert_vectors
from fedpriv.attacks.recover.unmixing_once import label_only, posterior_mean, prior_of_images, prior_of_others
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import MIXTURES
from fedpriv.wire.payloads import Classifier, Entangled, optional_part, part

Source = Literal["auto", "images", "uploads"]


@dataclass(frozen=True)
class LabelUnmixing:
    """Take the upload for the prototype of every class that its label encoding names, then invert.

    A target is one class of one client (``TargetId.label``). Where one class has all the weight (RSR, RSP) this is exact.

    Attributes:
        scaled: divide by the largest weight for the class that has it.
        iterations: most steps of a row of the inversion.
        restarts: rows a target of the inversion.
    """

    scaled: bool = False
    iterations: Annotated[int, Ge(1)] = 250
    restarts: Annotated[int, Ge(1)] = 1

    name = "unmix-label"
    targets = MIXTURES
    unit: ClassVar[Unit] = "class"
    budget: ClassVar[str | None] = "iterations"
    needs = Needs(extractor=("white_box", "shadow"))

    def run(
        self,
        observations: tuple[Observation, ...],
        targets: tuple[TargetId, ...],
        knowledge: Knowledge,
        *,
        seed: int,
        device: torch.device,
        chunk_rows: int | None = None,
        progress: Progress | None = None,
    ) -> Reconstruction:
        """Guess and invert; see :class:`fedpriv.attacks.observation.Attack`.

        Raises:
            UserError: when the card grants no extractor, or a class has no weight.
        """
        self.needs.refuse(self.name, knowledge.card)
        guesses = []
        for target in targets:
            sent = part(observation_of(observations, target).upload, Entangled)
            held = held_with_weight(sent, target)
            guesses.append(label_only(sent.feature, sent.label_encoding[held], scaled=self.scaled)[_row(held, target)])
        return invert_vectors(
            DipInversion(iterations=self.iterations, restarts=self.restarts),
            torch.stack(guesses),
            targets,
            knowledge,
            seed=seed,
            device=device,
            chunk_rows=chunk_rows,
            progress=progress,
        )


@dataclass(frozen=True)
class PriorUnmixing:
    """Take the posterior mean of the prototypes under what the server knows of the classes, then invert.

    A target is one class of one client (``TargetId.label``).

    Attributes:
        source: where prior prototypes come from: ``images`` are the class means of the attacker's own images under the
            client's extractor (or its shadow), ``uploads`` other clients' uploads of the round and the broadcast
            classifier; ``auto`` takes images where the card grants some.
        noise: how much of an upload is taken to be noise: its variance over that of prototypes, >= 0.
        iterations: most steps of a row of the inversion.
        restarts: rows a target of the inversion.
    """

    source: Source = "auto"
    noise: Annotated[float, Ge(0)] = 0.0
    iterations: Annotated[int, Ge(1)] = 250
    restarts: Annotated[int, Ge(1)] = 1

    name = "unmix-prior"
    targets = MIXTURES
    unit: ClassVar[Unit] = "class"
    budget: ClassVar[str | None] = "iterations"
    needs = Needs(extractor=("white_box", "shadow"))

    def run(
        self,
        observations: tuple[Observation, ...],
        targets: tuple[TargetId, ...],
        knowledge: Knowledge,
        *,
        seed: int,
        device: torch.device,
        chunk_rows: int | None = None,
        progress: Progress | None = None,
    ) -> Reconstruction:
        """Guess and invert; see :class:`fedpriv.attacks.observation.Attack`.

        Raises:
            UserError: when the card grants no extractor, a class has no weight, or there is nothing to make a prior of.
        """
        self.needs.refuse(self.name, knowledge.card)
        prior = {(t.round, t.client): self.prior(observations, t, knowledge) for t in targets}
        guesses = []
        for target in targets:
            sent = part(observation_of(observations, target).upload, Entangled)
            held = held_with_weight(sent, target)
            means = prior[target.round, target.client].to(sent.feature)[held]
            found = posterior_mean(sent.feature, sent.label_encoding[held], means, self.noise)
            guesses.append(found[_row(held, target)])
        return invert_vectors(
            DipInversion(iterations=self.iterations, restarts=self.restarts),
            torch.stack(guesses),
            targets,
            knowledge,
            seed=seed,
            device=device,
            chunk_rows=chunk_rows,
            progress=progress,
        )

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
        head = optional_part(own.broadcast, Classifier)
        uploads = [part(other.upload, Entangled) for other in others]
        return prior_of_others(
            torch.stack([upload.feature.cpu() for upload in uploads]),
            torch.stack([upload.label_encoding.cpu() for upload in uploads]),
            None if head is None else head.state["weight"].cpu(),
        )


def held_with_weight(sent: Entangled, target: TargetId) -> Tensor:
    """Return the classes ``(m,)`` that an upload gives weight.

    Raises:
        UserError: when the target's class is not among them.
    """
    held = (sent.label_encoding.abs() > 0).nonzero().squeeze(1)
    if target.label not in held.tolist():
        raise UserError(
            f"client {target.client} gave class {target.label} no weight in round {target.round}; nothing to unmix"
        )
    return held


def _row(held: Tensor, target: TargetId) -> int:
    return int((held == target.label).nonzero()[0])
