"""Membership by a likelihood ratio: does the upload look as if the candidate had been trained on, or as if it had not?

From the broadcast, the server trains shadow clients on images of its own choice, some of which are candidates. What a
shadow's weights say of a candidate is one normal distribution over shadows that held it and another over those that did
not; the score is the log likelihood ratio at what the client's weights say (LiRA: Carlini et al., IEEE S&P 2022).

Differences from the source: shadows start where the client started, and train and upload behind its defenses. Spreads are
pooled over candidates, the distance between a candidate's two means is shrunk towards the mean distance, and the median
of a class is taken off. The signals of :mod:`fedpriv.attacks.inference.update_scores` and the log odds of the class are
combined.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.inference.base import Candidates, Inference, InferenceProblem, Scores
from fedpriv.attacks.inference.membership import average_rounds, calibrate_by_class
from fedpriv.attacks.inference.shadow_clients import LEAST_IMAGES, draw_halves, train_shadow_updates
from fedpriv.attacks.inference.update_scores import Training, alignments, nearness, training_of
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
        shadows: shadow clients for each client and round.
    """

    candidates: Annotated[int, Ge(1)] = 100
    shadows: Annotated[int, Ge(8)] = 32

    name = "likelihood-ratio"
    version = 5
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

    def run(self, problem: InferenceProblem) -> Scores:
        """Score the candidates of every client."""
        values: dict[int, Tensor] = {}
        for client, candidate in problem.candidates.items():
            seen = problem.uploads_of(client)
            values[client] = average_rounds([self._of_round(problem, item, candidate, known) for item, known in seen])
            if problem.progress is not None:
                problem.progress(len(values), len(problem.candidates))
        source = f"{self._number} shadow clients for each client and round"
        return Scores(self.ask(problem), values, source=source)

    @property
    def _number(self) -> int:
        return self.shadows + self.shadows % 2

    def _of_round(
        self, problem: InferenceProblem, seen: Observation, candidates: Candidates, knowledge: Knowledge
    ) -> Tensor:
        images, labels = _own_images(knowledge, candidates)
        training = training_of(seen, seen.client, images, knowledge)
        facts = require_facts(self.name, knowledge, seen.client)
        if self._number * sum(value.numel() for value in training.before.values()) > _MOST_VALUES:
            raise UserError(
                f"attack {self.name!r}: {self._number} updates of weights this large take more than 2 GiB; expected fewer "
                "shadows"
            )
        n_asked, parts = len(candidates.labels), (problem.seed, "likelihood ratio", seen.round, seen.client)
        compute = knowledge.gradients.get(seen.client)
        defend = knowledge.defended_weights.get((seen.round, seen.client))

        def made() -> tuple[list[Training], Tensor]:
            rng = generator(*parts)
            client_images = draw_halves(labels[:n_asked], labels[n_asked:], self._number, _size(seen, facts), rng)
            inside = torch.zeros(len(client_images), len(labels), dtype=torch.bool)
            for index, client_image in enumerate(client_images):
                inside[index, client_image] = True
            answers = labels.to(images.device)
            result = train_shadow_updates(training, answers, client_images, facts, parts, compute, defend)
            return result, inside[:, :n_asked]

        key = (*parts, self, *map(Same, (seen.broadcast, candidates.images, compute, defend)))
        shadows, inside = problem.trained.get(key, made)
        signals = _signals(training, shadows, labels.to(images.device)[:n_asked])
        there = signals[:, 1:].isfinite().all(2).all(0)
        if int(there.sum()) < FEWEST_SHADOWS:
            raise UserError(
                f"attack {self.name!r}: {int((~there).sum())} of {len(there)} shadow clients diverge in training at "
                f"learning rate {facts.learning_rate:g}; expected {FEWEST_SHADOWS} that do not; check the batch facts"
            )
        ratios = likelihood_ratios(signals[:, 0], signals[:, 1:][:, there], inside[there])
        return calibrate_by_class(ratios[None], labels[:n_asked])


def _signals(training: Training, shadows: list[Training], labels: Tensor) -> Tensor:
    """Return signals of the client for each candidate, and below them those of each shadow ``(q, 1 + s, n)``."""
    requested = replace(training, inputs=training.inputs[: len(labels)])
    every = [requested, *(replace(requested, after=shadow.after, project=shadow.project) for shadow in shadows)]
    results = [
        alignments(every, labels).double().cpu(),
        torch.stack([requested.log_odds(item.after, labels) for item in every]).cpu(),
    ]
    if training.layer is not None:
        inputs = training.layer.inputs()[: len(labels)]
        results.append(torch.stack([nearness(training.layer, entry.after, inputs) for entry in every]))
    return torch.stack(results)


def likelihood_ratios(signals: Tensor, shadows: Tensor, inside: Tensor) -> Tensor:
    """Return log likelihood ratios ``(n,)``.

    Args:
        signals: of the client ``(q, n)``.
        shadows: the same of s shadow clients ``(q, s, n)``.
        inside: which candidates each shadow holds ``(s, n)``.
    """
    # Turned so that they do not correlate around each candidate's means, ratios of normal distributions are summed.
    apart = [torch.where(entry, shadows - _mean(shadows, entry), 0.0).flatten(1) for entry in (inside, ~inside)]
    rows = torch.cat(apart, 1)
    lengths = rows.square().sum(1).sqrt().clamp_min(1e-12)
    rows = rows / lengths[:, None]
    factor = torch.linalg.cholesky(rows @ rows.T + _STEADY * torch.eye(len(rows), dtype=rows.dtype))
    flat = torch.cat([signals[:, None], shadows], 1).flatten(1) / lengths[:, None]
    turned = torch.linalg.solve_triangular(factor, flat, upper=False).view(len(signals), -1, signals.shape[1])
    return torch.stack([_ratio(item[0], item[1:], inside) for item in turned]).sum(0)


def _mean(values: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean over shadows of the chosen values ``(..., s, n)`` of each candidate ``(..., 1, n)``."""
    return torch.where(chosen, values, 0.0).sum(-2, keepdim=True) / chosen.sum(0).clamp_min(1)


def _ratio(values: Tensor, shadows: Tensor, inside: Tensor) -> Tensor:
    without, spread_out, n_out = _fitted(shadows, ~inside)
    within, spread_in, n_in = _fitted(shadows, inside)
    spread = ((spread_out.square() + spread_in.square()) / 2).sqrt()
    apart = (within - without) / spread
    noise = (1 / n_in + 1 / n_out).mean()
    mean = apart.mean()
    scatter = (apart - mean).square().sum() / max(1, len(apart) - 1)
    apart = mean + (1 - noise / scatter.clamp_min(1e-12)).clamp(0, 1) * (apart - mean)
    return apart * ((values - without) / spread - apart / 2)


def _fitted(values: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean of the chosen values of each candidate ``(n,)``, their spread over all, and how many they are."""
    mean = _mean(values, chosen)[0]
    residuals = torch.where(chosen, values - mean, 0.0).square().sum()
    free = (chosen.sum() - (chosen.sum(0) > 0).sum()).clamp_min(1)
    return mean, (residuals / free).sqrt().clamp_min(1e-12), chosen.sum(0).clamp_min(1)


def _size(seen: Observation, facts: BatchFacts) -> int:
    """Return the number of images of a client: as it discloses, or those of its steps up to the first short one."""
    disclosed = [size for size in (item.said("size") for item in seen.upload) if size is not None]
    if disclosed:
        return int(disclosed[0])
    total = 0
    for size in facts.sizes or (facts.batch_size,) * facts.steps:
        total += size
        if size < facts.batch_size:
            break
    return total


def _own_images(knowledge: Knowledge, candidates: Candidates) -> tuple[Tensor, Tensor]:
    """Return candidates and after them the attacker's own images of their classes, with classes on the CPU."""
    images, labels = knowledge.public_images, knowledge.public_labels
    if images is None or labels is None or len(labels) < LEAST_IMAGES:
        raise UserError(
            f"attack 'likelihood-ratio' got {0 if labels is None else len(labels)} labelled images to make clients of; "
            f"expected at least {LEAST_IMAGES}"
        )
    there = torch.isin(labels.cpu(), candidates.labels.cpu()).nonzero().squeeze(1)
    spare = images[there.to(images.device)].to(candidates.images.device)
    return torch.cat([candidates.images, spare]), torch.cat([candidates.labels.cpu(), labels.cpu()[there]])
