"""The attack adapted to entangled uploads: unmix the class prototypes over rounds by linear algebra, then invert those.

What FedRE's evaluation inverts is one round's mixture, which resembles no image of anybody's, so that a low score is
certain and proves nothing. But its upload of round t is r_t = sum_c w_tc p_c(t), and the label encoding w_t is uploaded in
clear. Re-sampled weights make every round a fresh linear equation in the same m prototypes, and a trained extractor moves
little from round to round, so the prototypes can be solved for. Fixed weights give one equation only, however many rounds.

The estimator is the posterior of :mod:`fedpriv.attacks.recover.round_posterior`, which takes together what the server has:
all rounds, the rows of the head that it broadcasts, and the class means of its own images where the card grants some.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.observation import Knowledge, Needs, Observation, TargetId
from fedpriv.attacks.read.extractors import represent
from fedpriv.attacks.read.target_features import rounds_of
from fedpriv.attacks.recover.hidden_weights import Shapes, infer_hidden
from fedpriv.attacks.recover.round_posterior import Shape, Uploads, infer
from fedpriv.attacks.recover.round_shapes import head_rows, shape_of_head, shape_of_means
from fedpriv.attacks.recover.then_invert import Recovered, RecoverThenInvert, as_uploads
from fedpriv.attacks.recover.unmixing_once import prior_of_images
from fedpriv.attacks.trained import Trained
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import MIXTURES
from fedpriv.wire.payloads import Entangled, get_payload


@dataclass(frozen=True, kw_only=True)
class UnmixedInversion(RecoverThenInvert):
    """Unmix a client's prototypes from all rounds seen, then invert each.

    A target is one class of one client (``TargetId.label``), as of the last round.

    Attributes:
        prior: ``images`` starts from the class means of the attacker's own images, ``none`` does without; ``auto`` takes
            images where the card grants some.
        head: the rows of the broadcast head are a prior too.
        weights: ``sent`` as label encodings, or ``hidden``: encodings name the class of largest weight at most, and weights
            are found with the prototypes (the answer to ``hide-labels``); see :mod:`fedpriv.attacks.recover.hidden_weights`.
        zeros: ``sent``; or ``missing``: a coordinate that is zero was not sent in that round (the answer to ``diagonal``),
            and coordinates are unmixed from the rounds that show them.
    """

    prior: Literal["auto", "images", "none"] = "auto"
    head: bool = True
    weights: Literal["sent", "hidden"] = "sent"
    zeros: Literal["sent", "missing"] = "sent"
    iterations: Annotated[int, Ge(1)] = 100

    name = "unmix"
    summary = "class means unmixed from many rounds of mixtures, then inverted"
    version = 7
    targets = MIXTURES
    needs = Needs(min_rounds=2)

    def recover(self, problem: AttackProblem) -> Recovered:
        """Unmix every attacked client's prototypes."""
        unmixed = {
            k: self.unmixed(problem.observations, k, problem.knowledge, problem.trained) for k in problem.clients
        }
        places = tuple(replace(t, index=_position(unmixed[t.client].classes, t)) for t in problem.targets)

        def rows(name: Literal["prototypes", "distance", "directions"]) -> list[Tensor] | None:
            found = [getattr(unmixed[place.client], name) for place in places]
            return (
                None
                if any(one is None for one in found)
                else [one[place.index] for one, place in zip(found, places, strict=True)]
            )

        vectors, distance, directions = rows("prototypes"), rows("distance"), rows("directions")
        assert vectors is not None
        return Recovered(
            as_uploads(vectors, places),
            places,
            distance=None if distance is None else torch.stack(distance),
            directions=None if directions is None else torch.stack(directions),
        )

    def unmixed(
        self, observations: Sequence[Observation], client: int, knowledge: Knowledge, kept: Trained | None = None
    ) -> ClientUnmixed:
        """Return a client's prototypes with their classes; ``kept`` holds what was computed already.

        Raises:
            UserError: with ``prior=images`` where the card grants none.
        """
        features, weights, classes = uploads_of(observations, client)
        images, labels = knowledge.public_images, knowledge.public_labels
        if self.prior == "images" and (images is None or labels is None):
            raise UserError(
                "attack 'unmix' with prior=images needs images of the attacker's own; pass "
                f"{argument('knowledge', {'attacker_data': 'same_domain'})} and {argument('public')} N"
            )
        own = None
        if self.prior != "none" and images is not None and labels is not None:
            own = represent(knowledge, client, images, kept)
        rounds = rounds_of(observations, client)
        numbers = torch.tensor([seen.round for seen in rounds])
        uploads = Uploads(features.double().cpu(), weights.double().cpu(), numbers)
        rows = head_rows(rounds, features.shape[1]) if self.head else None
        if rows is not None and int(classes.max()) >= rows.shape[1]:
            rows = None  # of a head that knows fewer classes than the client mixes
        means = None
        if own is not None and labels is not None:
            means = prior_of_images(own.double(), labels.cpu(), knowledge.n_classes)[classes]

        def shapes(mixed: Uploads) -> list[Shape]:
            of_head = [] if rows is None else [shape_of_head(mixed, rows, classes)]
            return of_head + ([] if means is None else [shape_of_means(mixed, means)])

        if self.zeros == "missing":
            return ClientUnmixed(_unmixed_by_block(uploads, shapes), classes)
        hidden = self.weights == "hidden"
        found = infer_hidden(uploads, shapes)[0] if hidden else infer(uploads, shapes(uploads))
        return ClientUnmixed(found.prototypes, classes, found.distance, found.directions)


def _unmixed_by_block(uploads: Uploads, shapes: Shapes) -> Tensor:
    """Return the prototypes ``(m, d)`` of coordinates that each round shows some of; zero where none does."""
    found = torch.zeros(uploads.weights.shape[1], uploads.features.shape[1])
    patterns, member = (uploads.features != 0).T.unique(dim=0, return_inverse=True)
    whole = shapes(uploads)
    for number, shown in enumerate(patterns):
        if not bool(shown.any()):
            continue
        columns = (member == number).nonzero().flatten()
        part = Uploads(uploads.features[shown][:, columns], uploads.weights[shown], uploads.rounds[shown])
        cut = [_of_block(own, shown, columns) for own in whole]
        found[:, columns] = infer(part, cut).prototypes
    return found


def _of_block(shape: Shape, shown: Tensor, columns: Tensor) -> Shape:
    leads = None if shape.leads is None else shape.leads[:, columns]
    return Shape(shape.rows[:, columns], shape.mixed[shown][:, columns], leads)


@dataclass(frozen=True)
class ClientUnmixed:
    """The estimate of one client.

    Attributes:
        prototypes: ``(m, d)`` float32, as of the last round.
        classes: ``(m,)`` of its rows.
        distance: ``(m,)`` expected distance from the true prototypes, where the estimator knows it.
        directions: ``(m, d)`` in which each stands out from the others, where the estimator tells.
    """

    prototypes: Tensor
    classes: Tensor
    distance: Tensor | None = None
    directions: Tensor | None = None


def uploads_of(observations: Sequence[Observation], client: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a client's uploads ``(T, d)``, weights ``(T, m)`` of classes that ever had any, and these classes ``(m,)``."""
    uploads = [get_payload(seen.upload, Entangled) for seen in rounds_of(observations, client)]
    return stack_rounds([u.feature for u in uploads], [u.label_encoding for u in uploads])


def _position(classes: Tensor, target: TargetId) -> int:
    places = (classes == target.label).nonzero()
    if not len(places):
        raise UserError(f"client {target.client} never gave class {target.label} any weight; nothing to unmix")
    return int(places[0])


def stack_rounds(features: Sequence[Tensor], encodings: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return uploads ``(T, d)``, weights ``(T, m)`` of the classes that ever had weight, and these classes ``(m,)``."""
    weights = torch.stack(list(encodings))
    classes = (weights.abs() > 0).any(0).nonzero().squeeze(1)
    return torch.stack(list(features)), weights[:, classes], classes
