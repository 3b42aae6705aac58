"""Inverting gradients: match the direction of the client's update, under total variation or a deep image prior.

Geiping, Bauermeister, Droege and Moeller, "Inverting Gradients: How easy is it to break privacy in federated
learning?" (NeurIPS 2020); the generator's prior is that of Ulyanov, Vedaldi and Lempitsky (CVPR 2018), whose weights are
optimised instead of pixels. That of a spectrum is our own (:mod:`fedpriv.attacks.priors.spectral`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le, Lt, MinLen
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.matching import Matcher, Matching
from fedpriv.attacks.gradients.presets import (
    NetworkKind,
    SearchConfig,
    TargetInfo,
    choose_configs,
    choose_framed_configs,
)
from fedpriv.attacks.gradients.search import (
    PixelSearch,
    SearchResult,
    SearchSettings,
    absolute_variation,
    optimise_by_lbfgs,
)
from fedpriv.attacks.gradients.separated_batch import Known
from fedpriv.attacks.gradients.step_attack import GradientMatching, StepProblem, Tick
from fedpriv.attacks.gradients.update import square_norms
from fedpriv.attacks.inputs.updates import HEAD
from fedpriv.attacks.inversion.vector import DipFitting
from fedpriv.attacks.observation import DataAccess, Knowledge, Needs, Reconstruction
from fedpriv.attacks.priors.denoiser import DenoiserTraining, own_denoiser, strangeness
from fedpriv.attacks.priors.dip import DeepImagePrior
from fedpriv.attacks.priors.spectral import frame_of, has_own_images
from fedpriv.attacks.search.candidates import Row, Solved, fit_rows, joined
from fedpriv.attacks.search.halving import climb, ladder
from fedpriv.util.last import Last

_LEAST = 12
"""Iterations of a row in which something can be seen."""

_NEAR = 0.5
"""Standard deviations of a coordinate at the start of a frame, as a share of the start's noise."""

_FLAT = 0.02
"""Mean difference of neighbouring pixels below which an image is hardly smoother for differing less."""

_IN_FULL, _AT_HEAD = 3, 10.0
"""Images from which what went into a layer weighs in full (of fewer, in proportion), and times it weighs at the head."""

LEARNS_ON: tuple[DataAccess, ...] = ("same_domain", "other_domain")
"""Images of the attacker's own on which a prior can be learned."""

Weight = Annotated[float, Ge(0)]


@dataclass(frozen=True, kw_only=True)
class DirectionMatching(GradientMatching):
    """Gradient matching in the cosine distance.

    Attributes:
        statistics_weight: of the distance between the statistics before batch norms and the client's, where the network
            has batch norms and the card grants statistics; added to the distance. 0 leaves them out.
        apart: whether the images of a step are told apart first, where a fully connected layer lets them: then each is asked
            for its own share of the update (:mod:`fedpriv.attacks.gradients.separated_batch`).
        inputs_weight: of the relative squared distance of what went into that layer, added to the distance: in full from
            three images on, in proportion for fewer.
    """

    statistics_weight: Annotated[float, Ge(0)] = 0.01
    apart: bool = True
    inputs_weight: Annotated[float, Ge(0)] = 0.3

    budget = "iterations"

    @property
    def separates_batches(self) -> bool:
        """As asked for."""
        return self.apart

    def matching(self, updates: StepProblem, matcher: Matcher, rows: Sequence[Row]) -> Matching:
        """Return the comparison of candidates with their targets, and with what else is known of their images."""
        steps, counts, _ = updates.of(rows)
        known: list[tuple[Known, float] | None] = []
        for row, step, count in zip(rows, steps, counts, strict=True):
            separated = updates.apart[row.position]
            weight = self.inputs_weight * min(1.0, count / _IN_FULL)
            if step.readout.startswith(HEAD.removesuffix(".")):
                weight *= _AT_HEAD
            known.append((separated.known, weight) if separated is not None and separated.known is not None else None)
        statistics = [updates.statistics[row.position] for row in rows] if updates.statistics else []
        if not self.statistics_weight:
            statistics = []
        return matcher.against(steps, counts, known if self.inputs_weight else (), statistics, self.statistics_weight)


@dataclass(frozen=True, kw_only=True)
class InvertingGradients(DirectionMatching):
    """Gradient matching in the cosine distance, of images that are held back, by Adam or L-BFGS.

    A target is searched in several rows, which differ in settings and start; by halves those with the lowest objective go on
    (:mod:`fedpriv.attacks.search.halving`). Departs from the paper in its coordinates, and in that the weights of what holds
    images back fall together with the step size. The images of a row are those, among all iterates under the last weight,
    with the lowest sum of distance and weighted variation. Between rows the product of distance and squared variation
    decides, which is the objective reported: it prefers neither noisy images that fit a little better nor smooth ones that
    fit a little worse.

    Attributes:
        iterations: evaluations of the gradient a target, of all its rows together.
        restarts: starts a target with each setting.
        total_variation: first weight of the mean absolute difference of neighbouring pixels, across plus down: one, or
            several, each with rows of its own. ``auto`` sets all this by the kind of network, the number of images and the
            iterations (:func:`fedpriv.attacks.gradients.presets.choose_configs`).
        variation_decay: what that weight is multiplied by after 3/8, 5/8 and 7/8 of a row's iterations; 1 is the paper's.
        learning_rate: first step size of Adam, in standard deviations of images (0.5 of a pixel's range); falls to zero as
            a cosine does. ``auto`` sets it with the weights.
        signed: whether Adam is given the gradient's signs only, as in the paper: one answer, or several, which the weights
            of total variation take in turn. ``auto`` sets it by the network.
        trial: share of the iterations in which it is found out which row goes on.
        start_noise: standard deviation of the start in the unit of the learning rate, around mid-grey; 1 is the paper's.
        prior: ``spectrum`` searches in coordinates scaled as images are, around an image that is likely beforehand
            (:mod:`fedpriv.attacks.priors.spectral`). ``variation`` searches pixels under total variation, as the paper does;
            ``learned`` the same beside a denoiser of the attacker's own images (:mod:`fedpriv.attacks.priors.denoiser`).
            ``auto`` takes the spectrum where it was measured to help, unless ``total_variation`` is given.
        prior_weight: of what the denoiser changes, beside total variation, with which it is weighted.
        denoiser: how the denoiser is trained, once for a run; for ``iterations`` steps at most.
        tolerance: a row has converged when its distance is below.
    """

    iterations: Annotated[int, Ge(1)] = 2000
    total_variation: Literal["auto"] | Weight | Annotated[tuple[Weight, ...], MinLen(1)] = "auto"
    variation_decay: Annotated[float, Ge(0), Le(1)] = 0.2
    learning_rate: Literal["auto"] | Annotated[float, Gt(0)] = "auto"
    signed: Literal["auto"] | bool | Annotated[tuple[bool, ...], MinLen(1)] = "auto"
    trial: Annotated[float, Ge(0), Lt(1)] = 0.2
    start_noise: Annotated[float, Ge(0)] = 0.2
    prior: Literal["auto", "spectrum", "variation", "learned"] = "auto"
    prior_weight: Annotated[float, Ge(0)] = 0.1
    denoiser: DenoiserTraining = DenoiserTraining()
    tolerance: Annotated[float, Ge(0)] = 1e-3

    name = "inverting-gradients"
    summary = "smooth images whose gradient is the uploaded one, by direction"
    version = 11

    def requirements_for(self, kind: str | None) -> Needs:
        """Return the needs, with images to learn on where the prior is to be learned."""
        needs = super().requirements_for(kind)
        return needs.together(Needs(attacker_data=LEARNS_ON)) if self.prior == "learned" else needs

    def configs(self, network: NetworkKind, target: TargetInfo) -> tuple[SearchConfig, ...]:
        """Return the settings of the rows of a target: those that were asked for, else the best known."""
        framed = (
            self.prior == "auto" and self.total_variation == "auto" and target.gains_by_frame(network, self.iterations)
        )
        best = choose_framed_configs if framed or self.prior == "spectrum" else choose_configs
        known = best(network, target, self.iterations)
        weights, signs, learned = self.total_variation, self.signed, self.prior == "learned"
        if not weights == signs == self.learning_rate == "auto":
            known = tuple(config for config in known if not config.curved)
        if weights != "auto":
            known = tuple(replace(known[0], variation=entry) for entry in _as_tuple(weights))
        if signs != "auto":
            turns = _as_tuple(signs)
            known = tuple(replace(config, signed=turns[index % len(turns)]) for index, config in enumerate(known))
        if self.learning_rate != "auto":
            known = tuple(replace(config, learning_rate=self.learning_rate) for config in known)
        if learned:
            kept = [config.held_back for config in known]
            if weights != "auto":
                kept = [replace(item, variation=config.variation) for item, config in zip(kept, known, strict=True)]
            known = tuple(kept)
        return known

    def _strangeness(self, problem: AttackProblem) -> Callable[[Tensor], Tensor]:
        """Return the weighted strangeness ``(N,)`` of images ``(N, M, c, h, w)`` to the attacker's denoiser."""
        denoiser = own_denoiser(self.name, problem, self.denoiser, self.iterations)

        def penalty(images: Tensor) -> Tensor:
            rows, number = images.shape[:2]
            each = strangeness(images.flatten(0, 1), denoiser, self.denoiser.noise).view(rows, number)
            return self.prior_weight * each.mean(1)

        return penalty

    def bytes_beside(self, problem: AttackProblem, updates: StepProblem) -> int:
        """Estimate the memory of a history of L-BFGS, twice a hundred vectors, where rows are searched by it."""
        network = NetworkKind.of(updates.model, problem.knowledge.image_shape)
        curved = any(config.curved for config in self.configs(network, TargetInfo(1)))
        return 4 * 200 * updates.labels.shape[1] * math.prod(problem.knowledge.image_shape) if curved else 0

    def search(
        self, problem: AttackProblem, updates: StepProblem, matcher: Matcher, bytes_per_row: int
    ) -> Reconstruction:
        """Search with every setting, and by halves with those that look best."""
        network = NetworkKind.of(updates.model, problem.knowledge.image_shape)
        configs = [self.configs(network, item) for item in _wanted(problem.knowledge, updates)]

        def some(rows: Sequence[Row], iterations: int, begun: Tensor | None, tick: Tick) -> Solved:
            group = [configs[row.position][row.restart % len(configs[0])] for row in rows]
            start = self._starts(problem, updates, rows, group) if begun is None else begun
            parts: list[tuple[list[int], Solved]] = []
            for kind in dict.fromkeys(config.kind for config in group):
                places = [place for place, config in enumerate(group) if config.kind == kind]
                leg = iterations, [rows[index] for index in places], [group[positions] for positions in places]
                before = iterations * sum(len(earlier) for earlier, _ in parts)

                def told(number: int, before: int = before, many: int = len(places)) -> None:
                    tick((before + number * many) // len(rows))

                parts.append((places, self._walk(problem, updates, matcher, *leg, start[places], told)))
            return joined(parts)

        rungs = ladder(self.restarts * len(configs[0]), self.iterations, self.trial, _LEAST)
        return climb(problem, some, rungs, bytes_per_row)

    def _walk(
        self,
        problem: AttackProblem,
        updates: StepProblem,
        matcher: Matcher,
        iterations: int,
        rows: list[Row],
        configs: list[SearchConfig],
        start: Tensor,
        tick: Tick,
    ) -> Solved:
        """Go on with rows whose settings are of one kind, from images ``(N, M, c, h, w)``."""
        start, first = start.to(problem.device), configs[0]
        matching = self.matching(updates, matcher, rows)
        known = updates.probabilities(rows, problem.knowledge.n_classes)
        steps, _, labels = updates.of(rows)
        frame = frame_of(problem.knowledge, problem.trained, labels) if first.framed else None
        if first.curved:
            search_result = optimise_by_lbfgs(iterations, matching, known, start, square_norms(steps), tick, frame)
        else:
            beside = self._strangeness(problem) if first.learned else None
            settings = SearchSettings(iterations, self.variation_decay, beside, frame)
            search = PixelSearch(settings, matching, known, start, configs)
            search.optimise(tick)
            search_result = SearchResult(search.images, search.distance, torch.full((len(rows),), iterations))
        variation = absolute_variation(search_result.images)
        return Solved(
            images=updates.shown(rows, search_result.images),
            objective=search_result.distance.clamp_min(0) * (_FLAT + variation).square(),
            converged=matching.explained(search_result.images, known) < self.tolerance,
            labels=updates.shown(rows, labels),
            iterations=int(search_result.evaluations.max()),
            evaluations=search_result.evaluations,
        )

    def _starts(
        self, problem: AttackProblem, updates: StepProblem, rows: Sequence[Row], configs: Sequence[SearchConfig]
    ) -> Tensor:
        """Return starts ``(N, M, c, h, w)`` near mid-grey, or near what is likely, each from its row's own generator."""
        batch = (updates.labels.shape[1], *problem.knowledge.image_shape)
        draws = torch.stack([torch.randn(batch, generator=row.generator(problem.seed)) for row in rows])
        starts = (0.5 - 0.5 * self.start_noise * draws).clamp_(0, 1)
        if any(config.framed for config in configs):
            _, _, labels = updates.of(rows)
            frame = frame_of(problem.knowledge, problem.trained, labels.cpu())
            likely = frame.drawn(_NEAR * self.start_noise * draws).clamp(0, 1)
            framed = torch.tensor([config.framed for config in configs]).view(-1, 1, 1, 1, 1)
            starts = torch.where(framed, likely, starts)
        return starts


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _wanted(knowledge: Knowledge, updates: StepProblem) -> list[TargetInfo]:
    """Return the images of each target, and what is known of them."""
    learns, pixels = has_own_images(knowledge), math.prod(knowledge.image_shape)
    results = []
    for count, apart in zip(updates.counts, updates.apart, strict=True):
        known = None if apart is None else apart.known
        sure = known is not None and known.inputs.shape[1] >= pixels
        misled = bool(updates.misfit) and apart is None
        results.append(TargetInfo(count, apart=apart is not None, determined=sure, own_images=learns, misled=misled))
    return results


@dataclass(frozen=True, kw_only=True)
class GradientDip(DipFitting, DirectionMatching):
    """Gradient matching in the cosine distance over the weights of one generator network an image, by plain Adam."""

    iterations: Annotated[int, Ge(1)] = 2000
    tolerance: Annotated[float, Ge(0)] = 1e-6
    patience: Annotated[int, Ge(1)] = 500

    name = "gradient-dip"
    summary = "images drawn by untrained networks whose gradient is the uploaded one, by direction"
    version = 6

    def bytes_beside(self, problem: AttackProblem, updates: StepProblem) -> int:
        """Estimate the memory of a row's generator networks."""
        return updates.labels.shape[1] * self.bytes_per_image(problem.knowledge.image_shape)

    def search(
        self, problem: AttackProblem, updates: StepProblem, matcher: Matcher, bytes_per_row: int
    ) -> Reconstruction:
        """Search in every restart."""
        return self.every_row(self._solve, problem, updates, matcher, bytes_per_row)

    def _solve(
        self, problem: AttackProblem, updates: StepProblem, matcher: Matcher, rows: Sequence[Row], tick: Tick
    ) -> Solved:
        """Fit one generator network an image."""
        knowledge, device = problem.knowledge, problem.device
        _, _, labels = updates.of(rows)
        count = labels.shape[1]
        matching = self.matching(updates, matcher, rows)
        probabilities = updates.probabilities(rows, knowledge.n_classes)

        @Last
        def asked(which: Tensor) -> tuple[Tensor, Tensor]:
            there = which.to(device)
            return probabilities[there], there

        def distance(pictures: Tensor, which: Tensor) -> Tensor:
            return matching.cosine(pictures.unflatten(1, (count, -1)), *asked(which))

        draws = [row.generator(problem.seed, image) for row in rows for image in range(count)]
        prior = DeepImagePrior(draws, knowledge.image_shape, self.generator, device, count)
        result = fit_rows(rows, prior, distance, self.schedule, tick, count=count)
        return replace(
            result,
            images=updates.shown(rows, result.images),
            converged=matching.explained(result.images, probabilities) < self.tolerance,
            labels=updates.shown(rows, labels),
        )


@dataclass(frozen=True, kw_only=True)
class LearnedGradients(InvertingGradients):
    """The same search with a learned prior everywhere, also where inverting gradients by itself would not take the time."""

    prior: Literal["auto", "spectrum", "variation", "learned"] = "learned"

    name = "gradient-learned"
    summary = (
        "images whose gradient is the uploaded one, by direction, held back by a denoiser that the attacker trained"
    )
    version = 7
    needs = InvertingGradients.needs.together(Needs(attacker_data=LEARNS_ON))
    requirements_by_kind = tuple(
        (kinds, needs.together(Needs(attacker_data=LEARNS_ON)))
        for kinds, needs in InvertingGradients.requirements_by_kind
    )
    only_by_name = True
