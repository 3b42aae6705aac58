"""Membership by a likelihood ratio: does the upload look as if the candidate had been trained on, or as if it had not?

It takes as long as the federation's own training of so many clients, and so runs only when it is named.

From the broadcast that the client answered, the server trains shadow clients on images of its own choice, some of which are
candidates. What a shadow's weights say of a candidate is one normal distribution over shadows that held it and another over
those that did not; the score is the log likelihood ratio at what the client's weights say (LiRA: Carlini et al., "Membership
inference attacks from first principles", IEEE S&P 2022).

Differences from the source: shadows start where the client started, so a few dozen steps make one, and one round is scored,
or the mean over some. Spreads are pooled over candidates, the distance between a candidate's two means is shrunk towards the
mean distance, and the median of a class is taken off, because shares of classes are known but in part. Several signals are
combined as normal with one covariance. Shadows train and upload behind the client's defenses.

A threshold is set by the shadows: each is scored in the client's place against all others, on what it did not hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.inference.base import Candidates, Inference, InferenceProblem, Scores
from fedpriv.attacks.inference.calibration import AUXILIARY, CandidateScores, average_rounds, calibrate_by_class
from fedpriv.attacks.inference.shadow_clients import LEAST_IMAGES, draw_halves, train_shadow_updates
from fedpriv.attacks.inference.update_scores import Training, alignments, nearness, refuse_span, training_of
from fedpriv.attacks.inputs.updates import require_facts
from fedpriv.attacks.observation import BatchFacts, Knowledge, Needs, Observation, RequirementsByKind
from fedpriv.attacks.trained import Same
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator
from fedpriv.wire.kinds import BESIDE_A_HEAD, HEADS, TRAINED

FEWEST_SHADOWS = 4
"""Fewest shadow clients whose training must not diverge."""

_STEADY = 1e-9
"""Ridge on the correlation of signals."""

_MOST_VALUES = 2**28
"""The most values of all shadows' updates: 2 GiB."""


@dataclass(frozen=True, kw_only=True)
class LikelihoodRatio(Inference):
    """Score candidates by shadow clients that held them and shadow clients that did not.

    Attributes:
        candidates: the most members, and as many non-members, for each client.
        judge: ``span`` or ``gradient`` of :mod:`fedpriv.attacks.inference.update_scores`, or ``loss``, as the log odds of
            the class; ``together`` for all of them, the first where a layer before the head is uploaded.
        shadows: shadow clients for each client and round.
    """

    candidates: Annotated[int, Ge(1)] = 100
    judge: Literal["together", "span", "gradient", "loss"] = "together"
    shadows: Annotated[int, Ge(8)] = 32

    name = "likelihood-ratio"
    version = 4
    summary = "scores of candidate images by shadow clients that held them or did not"
    asks = "images"
    only_by_name = True
    most_rounds = 3
    targets = TRAINED
    needs = Needs(batch=True, attacker_data=("same_domain",))
    requirements_by_kind: ClassVar[RequirementsByKind] = (
        (HEADS, Needs(extractor=("white_box", "query"), batch=True, attacker_data=("same_domain",))),
        (BESIDE_A_HEAD, Needs(extractor=("white_box",), batch=True, attacker_data=("same_domain",))),
    )

    @property
    def n_candidates(self) -> int:
        """The most members, and as many non-members, for each client."""
        return self.candidates

    def run(self, problem: InferenceProblem) -> Scores:
        """Score the candidates of every client."""
        found: dict[int, CandidateScores] = {}
        for client, asked in problem.candidates.items():
            seen = problem.uploads_of(client)
            found[client] = average_rounds([self._of_round(problem, one, asked, known) for one, known in seen])
            if problem.progress is not None:
                problem.progress(len(found), len(problem.candidates))
        return Scores(
            self.ask(problem),
            {client: one.scores for client, one in found.items()},
            source=f"{self._number} shadow clients for each client and round",
            null={client: one.null() for client, one in found.items()},
            null_source="shadow clients",
        )

    @property
    def _number(self) -> int:
        return self.shadows + self.shadows % 2

    def _of_round(
        self, problem: InferenceProblem, seen: Observation, asked: Candidates, knowledge: Knowledge
    ) -> CandidateScores:
        images, labels = _own_images(knowledge, asked)
        training = training_of(seen, seen.client, images, knowledge)
        facts = require_facts(self.name, knowledge, seen.client)
        if self._number * sum(value.numel() for value in training.before.values()) > _MOST_VALUES:
            raise UserError(
                f"attack {self.name!r}: {self._number} updates of weights this large take more than 2 GiB; expected fewer "
                "shadows"
            )
        n_asked, parts = len(asked.labels), (problem.seed, "likelihood ratio", seen.round, seen.client)
        compute = knowledge.gradients.get(seen.client)
        defend = knowledge.defended_weights.get((seen.round, seen.client))
        key = (*parts, self, *map(Same, (seen.broadcast, asked.images, compute, defend)))

        def made() -> tuple[list[Training], Tensor]:
            rng = generator(*parts)
            client_images = draw_halves(labels[:n_asked], labels[n_asked:], self._number, _size(seen, facts), rng)
            inside = torch.zeros(len(client_images), len(labels), dtype=torch.bool)
            for place, own in enumerate(client_images):
                inside[place, own] = True
            found = train_shadow_updates(
                training, labels.to(images.device), client_images, facts, parts, compute, defend
            )
            return found, inside[:, :n_asked]

        shadows, inside = problem.trained.get(key, made)
        signals = self._signals(training, shadows, labels.to(images.device), n_asked)
        there = signals[:, 1:].isfinite().all(2).all(0)
        if int(there.sum()) < FEWEST_SHADOWS:
            raise UserError(
                f"attack {self.name!r}: {int((~there).sum())} of {len(there)} shadow clients diverge in training at "
                f"learning rate {facts.learning_rate:g}; expected {FEWEST_SHADOWS} that do not; check the batch facts"
            )
        signals, inside = torch.cat([signals[:, :1], signals[:, 1:][:, there]], 1), inside[there]
        usual = calibrate_by_class(labels[:n_asked])
        rows = ratios(signals, inside)
        scores = torch.stack([usual(row, ()) for row in rows])
        return CandidateScores(scores[0], {AUXILIARY: scores[1:][~inside]})

    def _signals(self, training: Training, shadows: list[Training], labels: Tensor, n_asked: int) -> Tensor:
        """Return signals of the client for each candidate, and below them those of each shadow ``(q, 1 + s, n)``."""
        asked, answers = replace(training, inputs=training.inputs[:n_asked]), labels[:n_asked]
        every = [asked, *(replace(asked, after=one.after, project=one.project) for one in shadows)]
        if self.judge == "span" and not training.layers:
            raise refuse_span(self.name)
        found = []
        if self.judge in ("together", "gradient"):
            found.append(alignments(every, answers).double().cpu())
        if self.judge in ("together", "loss"):
            found.append(torch.stack([asked.log_odds(one.after, answers) for one in every]).cpu())
        if self.judge == "span" or (self.judge == "together" and training.hidden):
            inputs = [layer.inputs()[:n_asked] for layer in training.layers]
            found.append(torch.stack([nearness(training.layers, one.after, inputs) for one in every]))
        return torch.stack(found)


def ratios(signals: Tensor, inside: Tensor) -> Tensor:
    """Return log likelihood ratios ``(1 + s, n)`` of the client, and of each shadow by all others.

    Signals ``(q, 1 + s, n)`` are of the client and of s shadows; ``inside`` ``(s, n)`` marks the candidates of each shadow.
    """
    rows = []
    for place in range(signals.shape[1]):
        kept = torch.ones(len(inside), dtype=torch.bool)
        if place:
            kept[place - 1] = False
        apart = _uncorrelated(signals, signals[:, 1:][:, kept], inside[kept])
        each = [_ratio(one[place], one[1:][kept], inside[kept]) for one in apart]
        rows.append(torch.stack(each).sum(0))
    return torch.stack(rows)


def _uncorrelated(signals: Tensor, shadows: Tensor, inside: Tensor) -> Tensor:
    """Return signals ``(q, ..., n)`` turned so that those of shadows do not correlate around each candidate's means.

    The log likelihood ratio of normal distributions of one covariance is then the sum over signals.
    """
    if len(signals) == 1:
        return signals
    residuals = []
    for chosen in (inside, ~inside):
        number = chosen.sum(0).clamp_min(1)
        means = torch.where(chosen, shadows, 0.0).sum(1, keepdim=True) / number
        residuals.append(torch.where(chosen, shadows - means, 0.0).flatten(1))
    rows = torch.cat(residuals, 1)
    lengths = rows.square().sum(1).sqrt().clamp_min(1e-12)
    rows = rows / lengths[:, None]
    factor = torch.linalg.cholesky(rows @ rows.T + _STEADY * torch.eye(len(rows), dtype=rows.dtype))
    flat = signals.flatten(1) / lengths[:, None]
    turned: Tensor = torch.linalg.solve_triangular(factor, flat, upper=False)
    return turned.view_as(signals)


def _ratio(own: Tensor, shadows: Tensor, inside: Tensor) -> Tensor:
    without, spread_out, n_out = _fitted(shadows, ~inside)
    within, spread_in, n_in = _fitted(shadows, inside)
    spread = ((spread_out.square() + spread_in.square()) / 2).sqrt()
    apart = (within - without) / spread
    noise = (1 / n_in + 1 / n_out).mean()
    mean = apart.mean()
    scatter = (apart - mean).square().sum() / max(1, len(apart) - 1)
    apart = mean + (1 - noise / scatter.clamp_min(1e-12)).clamp(0, 1) * (apart - mean)
    return apart * ((own - without) / spread - apart / 2)


def _fitted(values: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean of the chosen values of each candidate ``(n,)``, their spread over all, and how many they are."""
    number = chosen.sum(0).clamp_min(1)
    mean = torch.where(chosen, values, 0.0).sum(0) / number
    residuals = torch.where(chosen, values - mean, 0.0).square().sum()
    free = (chosen.sum() - (chosen.sum(0) > 0).sum()).clamp_min(1)
    return mean, (residuals / free).sqrt().clamp_min(1e-12), number


def _size(seen: Observation, facts: BatchFacts) -> int:
    """Return the number of images of a client: as it discloses, or those of its steps up to the first short one."""
    disclosed = [size for size in (one.said("size") for one in seen.upload) if size is not None]
    if disclosed:
        return int(disclosed[0])
    total = 0
    for size in facts.sizes or (facts.batch_size,) * facts.steps:
        total += size
        if size < facts.batch_size:
            break
    return total


def _own_images(knowledge: Knowledge, asked: Candidates) -> tuple[Tensor, Tensor]:
    """Return candidates and after them the attacker's own images of their classes, with classes on the CPU."""
    images, labels = knowledge.public_images, knowledge.public_labels
    if images is None or labels is None or len(labels) < LEAST_IMAGES:
        raise UserError(
            f"attack 'likelihood-ratio' got {0 if labels is None else len(labels)} labelled images to make clients of; "
            f"expected at least {LEAST_IMAGES}"
        )
    there = torch.isin(labels.cpu(), asked.labels.cpu()).nonzero().squeeze(1)
    spare = images[there.to(images.device)].to(asked.images.device)
    return torch.cat([asked.images, spare]), torch.cat([asked.labels.cpu(), labels.cpu()[there]])
