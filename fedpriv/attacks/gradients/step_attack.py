"""The base of attacks that match gradients: each target's step, how many images it took, and their labels."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Annotated, final

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.gradients.layers import Known, SeparatedBatch, separate_batch
from fedpriv.attacks.gradients.matching import Matcher, Matching
from fedpriv.attacks.gradients.update import (
    HEAD,
    GradientMatch,
    LocalStep,
    batch_facts,
    batch_sizes,
    infer_labels,
    local_step,
    one_hot,
    sent_entries,
)
from fedpriv.attacks.inputs.targets import observation_of
from fedpriv.attacks.observation import BatchFacts, Knowledge, Needs, Reconstruction, Statistics, TargetId
from fedpriv.attacks.search.candidates import Row, in_chunks, rows_of
from fedpriv.uploads.kinds import EXTRACTORS, NETWORKS
from fedpriv.util.errors import UserError, shown

_INPUTS, _IN_FULL = 0.3, 3  # weight of the distance of known inputs, and images from which on it weighs in full
_AT_HEAD = 10.0  # times it weighs at the head


@dataclass(frozen=True)
class StepProblem:
    """T updates to explain."""

    model: nn.Module
    facts: BatchFacts  # of the local steps; of targets that differ, of the one with the most steps
    steps: tuple[LocalStep, ...]
    counts: tuple[int, ...]  # T numbers of images, over all steps of each
    labels: Tensor  # (T, M) int64, M the largest count; -1 beyond a target's own, and where they are unknown
    apart: tuple[SeparatedBatch | None, ...]  # T, of steps whose images were separated at the readout
    misled: bool  # whether something else moved the weights: the true images need not be the best explanation
    statistics: tuple[Statistics, ...] = ()  # T clients' before batch norms, or nothing

    def of(self, rows: Sequence[Row]) -> tuple[list[LocalStep], list[int], Tensor]:
        """Return the steps, counts and labels ``(N, M)`` of N rows."""
        places = [row.position for row in rows]
        return [self.steps[place] for place in places], [self.counts[place] for place in places], self.labels[places]

    def matching(self, matcher: Matcher, rows: Sequence[Row]) -> Matching:
        """Return the comparison of candidates with their targets, and with what else is known of their images."""
        steps, counts, _ = self.of(rows)
        known: list[tuple[Known, float] | None] = []
        for row, step, count in zip(rows, steps, counts, strict=True):
            separated, weight = self.apart[row.position], _INPUTS * min(1.0, count / _IN_FULL)
            weight *= _AT_HEAD if step.readout.startswith(HEAD.removesuffix(".")) else 1.0
            known.append((separated.known, weight) if separated is not None and separated.known is not None else None)
        statistics = [self.statistics[row.position] for row in rows] if self.statistics else []
        return matcher.against(steps, counts, known, statistics)

    def probabilities(self, rows: Sequence[Row], n_classes: int) -> Tensor:
        """Return N rows' one-hot labels ``(N, M, K)``, or in their place the derivatives of the readout."""
        places = [row.position for row in rows]
        separated = enumerate(self.apart[index] for index in places)
        slopes = {row: item.derivatives for row, item in separated if item is not None}
        widest = max((entry.shape[1] for entry in slopes.values()), default=n_classes)
        known = one_hot(self.labels[places], n_classes, self.facts.label_smoothing)
        known = functional.pad(known, (0, max(0, widest - n_classes)))
        for row, slope in slopes.items():
            known[row].zero_()[: len(slope), : slope.shape[1]] = slope
        return known

    def in_order(self, rows: Sequence[Row], images: Tensor) -> Tensor:
        """Return N rows' images ``(N, M, c, h, w)``, those of a row that were separated in the order in which they were."""
        results = []
        for row, image in zip(rows, images, strict=True):
            apart, count = self.apart[row.position], self.counts[row.position]
            results.append(image if apart is None else torch.cat([apart.in_order(image[:count]), image[count:]]))
        return torch.stack(results)

    def shown(self, rows: Sequence[Row], values: Tensor) -> Tensor:
        """Return values ``(N, M, ...)`` of N rows, repeated in turn where a row has fewer images than M."""
        places = torch.arange(self.labels.shape[1], device=values.device)
        counts = [self.counts[row.position] for row in rows]
        return torch.stack([value[places % count] for value, count in zip(values, counts, strict=True)])


@dataclass(frozen=True, kw_only=True)
class GradientMatching(Attack):
    """A target is an upload as a whole; its images are all those of its local steps, in the order of the steps.

    Attributes:
        restarts: rows a target; the one with the lowest objective is kept.
        ignore: parameters whose gradients are left out of the comparison, because a defense changed them: patterns of
            names, joined by +, for example ``head.weight`` or ``bottleneck.*+head.*``.
        match: what of the rest is compared: ``all`` entries, only those ``sent`` (not zero: the answer to pruning), their
            ``signs`` (the answer to ``sign``), all as far as a ``censored`` update tells of them (the answer to
            ``percentile-privacy``), or all ``relative`` to each tensor's size (the answer to ``noise``).
        apart: whether the images of a step are separated first, where a fully connected layer or the head lets them: then
            each is asked for its own share of the update (:mod:`fedpriv.attacks.gradients.layers`). Where labels do not say
            the loss they are in any case.
    """

    restarts: Annotated[int, Ge(1)] = 1
    ignore: str = ""
    match: GradientMatch = "all"
    apart: bool = True

    targets = NETWORKS
    unit = "upload"
    needs = Needs(batch=True)
    # An extractor was trained through a head, which stayed private.
    requirements_by_kind = ((EXTRACTORS, Needs(extractor=("white_box",), batch=True)),)

    @property
    def labels_known(self) -> bool:
        """False where labels are found together with the images; else they are looked up or inferred."""
        return True

    @abstractmethod
    def search(
        self, problem: AttackProblem, updates: StepProblem, matcher: Matcher, bytes_per_row: int
    ) -> Reconstruction:
        """Search for the images of all targets; ``bytes_per_row`` estimates the memory of one row."""

    def bytes_beside(self, problem: AttackProblem, updates: StepProblem) -> int:
        """Estimate the memory of a row beside what matching takes."""
        return 0

    @final
    def run(self, problem: AttackProblem) -> Reconstruction:
        updates, matcher, needed = self._read(problem)
        return self.search(problem, updates, matcher, needed + self.bytes_beside(problem, updates))

    def objective(self, problem: AttackProblem) -> Objective | None:
        """Return the cosine distance of the updates that images lead to; None where their labels would have to be found."""
        if not self.labels_known:
            return None
        updates, matcher, needed = self._read(problem)
        rows = rows_of(problem.targets, 1)

        def of(images: Tensor) -> Tensor:
            def cosine(some: Sequence[Row]) -> Tensor:
                image = images[some[0].position : some[0].position + len(some)]
                steps, counts, _ = updates.of(some)
                image = updates.in_order(some, image[:, torch.arange(max(counts)) % image.shape[1]])
                known = updates.probabilities(some, problem.knowledge.n_classes)
                return matcher.against(steps, counts).cosine(image, known, torch.arange(len(some))).detach()

            return torch.cat([result for _, result in in_chunks(problem, rows, cosine, needed)])

        return of

    def _read(self, problem: AttackProblem) -> tuple[StepProblem, Matcher, int]:
        """Return the updates, what compares candidates with them, and the memory of a row while its images are matched."""
        updates, known = self.read(problem), problem.knowledge
        matcher = Matcher(updates.model, known.image_shape, updates.facts, problem.device, known.loss.proximal)
        pixels = updates.labels.shape[1] * math.prod(known.image_shape)
        weights = sum(parameter.numel() for parameter in updates.model.parameters())
        # Candidate and wanted gradients with what their derivatives need, for every step that is unrolled; activations.
        return updates, matcher, 4 * (8 * weights * updates.facts.steps + 400 * pixels)

    def read(self, problem: AttackProblem) -> StepProblem:
        """Return the updates to explain, or refuse; parameters that are ignored still tell labels, and images apart."""
        targets, knowledge, loss = problem.targets, problem.knowledge, problem.knowledge.loss
        known = [batch_facts(self.name, knowledge, target.client) for target in targets]
        model, facts = known[0][0], [facts for _, facts in known]
        compared, whole, labels = [], [], []
        for target, own in zip(targets, facts, strict=True):
            seen = observation_of(problem.observations, target)
            step = local_step(seen, model, own.learning_rate, problem.device, knowledge.heads.get(target.client))
            unknown = torch.full((own.images,), -1)
            found = _known_labels(self.name, target, step, knowledge, own).cpu() if self.labels_known else unknown
            gradient = _without(self.name, step, self.ignore)
            if loss.head_apart:
                gradient = {name: value for name, value in gradient.items() if not name.startswith(HEAD)}
            compared.append(replace(step, gradient=gradient, sizes=tuple(batch_sizes(len(found), own))))
            whole.append(step)
            labels.append(found)
        apart: list[SeparatedBatch | None] = [None] * len(targets)
        if self.labels_known and self.match == "all":
            apart = separate_batch(model, compared, whole, labels, problem, always=self.apart)
        counts = tuple(len(own_labels) for own_labels in labels)
        table = torch.full((len(targets), max(counts)), -1)
        for row, own_labels, separated in zip(table, labels, apart, strict=True):
            row[: len(own_labels)] = own_labels if separated is None else separated.labels
        # Soft labels are found with the images, whatever teaches the logits.
        readable = loss.through == "cross_entropy" or (loss.through == "logits" and not self.labels_known)
        taught = not readable and any(item is None for item in apart)
        granted = [knowledge.statistics.get((target.round, target.client)) for target in targets]
        pairs = zip(compared, apart, strict=True)
        steps = [step if separated is None else separated.step for step, separated in pairs]
        return StepProblem(
            model=model,
            facts=max(facts, key=lambda own: own.steps),
            steps=tuple(_restricted(self.name, step, self.match) for step in steps),
            counts=counts,
            labels=table.to(problem.device),
            apart=tuple(apart),
            misled=taught or loss.disturbed or (loss.disturbed_later and any(len(s.sizes) > 1 for s in compared)),
            statistics=tuple(entry for entry in granted if entry) if all(granted) else (),
        )


def _without(attack: str, step: LocalStep, ignore: str) -> dict[str, Tensor]:
    """Return a gradient without the parameters that patterns as of ``fnmatch``, joined by +, name; each must name some."""
    names, kept = ", ".join(step.gradient), dict(step.gradient)
    for pattern in ignore.split("+") if ignore else []:
        ignored = [name for name in step.gradient if fnmatchcase(name, pattern)]
        if not ignored:
            raise UserError(
                f"attack {attack!r}: ignore={pattern}: no uploaded parameter is named so; there are: {names}"
            )
        kept = {name: value for name, value in kept.items() if name not in ignored}
    if not kept:
        raise UserError(f"attack {attack!r}: ignore={ignore} leaves nothing to compare; there are: {names}")
    return kept


def _restricted(attack: str, step: LocalStep, match: GradientMatch) -> LocalStep:
    """Return a step of which only the entries that the client sent, or their signs, are compared; no truncated one."""
    if match != "all" and step.project is not None:
        raise UserError(
            f"attack {attack!r}: match={match}: a low-rank upload is not pruned entry by entry; drop the option"
        )
    entries = sent_entries(step.gradient, match)
    if entries is None:
        return step
    if entries.relative is not None:
        sized = {name: value[0] for name, value in entries(entries.wanted).items()}
        return replace(step, gradient=sized, project=entries)
    return replace(step, project=entries)


def _known_labels(attack: str, target: TargetId, step: LocalStep, knowledge: Knowledge, facts: BatchFacts) -> Tensor:
    """Return the labels ``(M,)`` of a target's images: given where granted, else inferred and dealt out over steps."""
    most = facts.batch_size * facts.steps
    if knowledge.card.labels == "inferred":
        assert knowledge.model is not None
        labels = infer_labels(step, knowledge.model, facts.images, knowledge.n_classes, knowledge.image_shape)
        sizes = enumerate(batch_sizes(facts.images, facts))
        turns = sorted((turn, batch) for batch, size in sizes for turn in range(size))
        order = sorted(range(len(turns)), key=lambda position: (turns[position][1], turns[position][0]))
        return labels[torch.tensor(order, device=labels.device)]
    where = f"client {target.client} in round {target.round}"
    given = knowledge.labels.get((target.round, target.client))
    if given is None:
        raise UserError(
            f"attack {attack!r}: the threat model gives labels, but none were handed over for {where}; "
            f"pass knowledge={shown({'labels': 'inferred'})}"
        )
    if not 0 < len(given) <= most + facts.steps:  # a step may have taken a tail of one image along
        expected = f"1 to {most}: {facts.steps} step(s) of a batch of {facts.batch_size}"
        raise UserError(f"attack {attack!r}: {len(given)} labels for {where}, expected {expected}")
    return given
