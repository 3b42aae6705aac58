"""Inverting gradients: match the direction of the client's update, under a prior over pixels, cosines or networks.

Geiping, Bauermeister, Droege and Moeller, "Inverting Gradients: How easy is it to break privacy in federated
learning?" (NeurIPS 2020); the generator's prior is that of Ulyanov, Vedaldi and Lempitsky (CVPR 2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
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
from fedpriv.attacks.gradients.search import AdamSearch, absolute_variation, optimise_by_lbfgs
from fedpriv.attacks.gradients.separated_batch import Known
from fedpriv.attacks.gradients.step_attack import GradientMatching, StepProblem, Tick
from fedpriv.attacks.gradients.update import square_norms
from fedpriv.attacks.inputs.updates import HEAD
from fedpriv.attacks.inversion.vector import DipFitting
from fedpriv.attacks.observation import Needs, Reconstruction
from fedpriv.attacks.priors.denoiser import DenoiserTraining, own_denoiser, strangeness
from fedpriv.attacks.priors.dip import DeepImagePrior
from fedpriv.attacks.priors.spectral import frame_of, has_own_images
from fedpriv.attacks.search.candidates import Row, Solved, fit_rows, joined
from fedpriv.attacks.search.halving import climb, ladder
from fedpriv.util.seeds import Last

_TRIAL, _LEAST = 0.2, 12
"""Share of the iterations in which it is found out which row goes on; iterations of a row in which anything can be seen."""

_START, _NEAR = 0.2, 0.1
"""Noise of the start: in pixels in the unit of the learning rate, and in a frame in standard deviations."""

_FLAT = 0.02
"""Mean difference of neighbouring pixels below which an image is hardly smoother for differing less."""

_INPUTS, _IN_FULL, _AT_HEAD = 0.3, 3, 10.0
"""Weight of the relative squared distance of what went into a layer; images from which on it weighs in full (of fewer, in
proportion); and times it weighs at the head."""

_CONVERGED = 1e-3
"""Distance below which a row has converged."""


@dataclass(frozen=True, kw_only=True)
class DirectionMatching(GradientMatching):
    """Gradient matching in the cosine distance.

    Attributes:
        statistics_weight: of the distance between the statistics before batch norms and the client's, where the network
            has batch norms and the card grants statistics; added to the distance. 0 leaves them out.
        apart: whether the images of a step are separated first, where a fully connected layer lets them: then each is asked
            for its own share of the update (:mod:`fedpriv.attacks.gradients.separated_batch`).
    """

    statistics_weight: Annotated[float, Ge(0)] = 0.01
    apart: bool = True

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
            weight = _INPUTS * min(1.0, count / _IN_FULL)
            if step.readout.startswith(HEAD.removesuffix(".")):
                weight *= _AT_HEAD
            known.append((separated.known, weight) if separated is not None and separated.known is not None else None)
        kept = updates.statistics and self.statistics_weight
        statistics = [updates.statistics[row.position] for row in rows] if kept else []
        return matcher.against(steps, counts, known, statistics, self.statistics_weight)


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
        total_variation: first weight of the mean absolute difference of neighbouring pixels, across plus down. ``auto`` sets
            it by the kind of network, the number of images and the iterations
            (:func:`fedpriv.attacks.gradients.presets.choose_configs`).
        learning_rate: first step size of Adam, in standard deviations of images (0.5 of a pixel's range); falls to zero as
            a cosine does. ``auto`` sets it with the weights.
        signed: whether Adam is given the gradient's signs only, as in the paper. ``auto`` sets it by the network.
        prior: ``spectrum`` searches in coordinates scaled as images are, around an image that is likely beforehand
            (:mod:`fedpriv.attacks.priors.spectral`). ``variation`` searches pixels under total variation, as the paper does;
            ``learned`` the same beside a denoiser of the attacker's own images (:mod:`fedpriv.attacks.priors.denoiser`).
            ``auto`` takes the spectrum where it was measured to help, unless ``total_variation`` is given.
        prior_weight: of what the denoiser changes, beside total variation, with which it is weighted.
        denoiser: how the denoiser is trained, once for a run; for ``iterations`` steps at most.
    """

    iterations: Annotated[int, Ge(1)] = 2000
    total_variation: Literal["auto"] | Annotated[float, Ge(0)] = "auto"
    learning_rate: Literal["auto"] | Annotated[float, Gt(0)] = "auto"
    signed: Literal["auto"] | bool = "auto"
    prior: Literal["auto", "spectrum", "variation", "learned"] = "auto"
    prior_weight: Annotated[float, Ge(0)] = 0.1
    denoiser: DenoiserTraining = DenoiserTraining()

    name = "inverting-gradients"
    summary = "smooth images whose gradient is the uploaded one, by direction"
    version = 11

    def requirements_for(self, kind: str | None) -> Needs:
        """Return the needs, with images to learn on where the prior is to be learned."""
        needs = super().requirements_for(kind)
        learns = Needs(attacker_data=("same_domain", "other_domain"))
        return needs.together(learns) if self.prior == "learned" else needs

    def configs(self, network: NetworkKind, target: TargetInfo) -> tuple[SearchConfig, ...]:
        """Return the settings of the rows of a target: those that were asked for, else the best known."""
        plain = self.total_variation == self.signed == self.learning_rate == "auto"
        framed = self.prior == "auto" and self.total_variation == "auto"
        framed = framed and target.gains_by_frame(network, self.iterations)
        best = choose_framed_configs if framed or self.prior == "spectrum" else choose_configs
        known = best(network, target, self.iterations)
        if not plain:
            known = tuple(config for config in known if not config.curved)
        if self.prior == "learned":
            known = tuple(config.held_back for config in known)
        if self.total_variation != "auto":
            known = (replace(known[0], variation=self.total_variation),)
        if self.signed != "auto":
            known = tuple(replace(config, signed=self.signed) for config in known)
        if self.learning_rate != "auto":
            known = tuple(replace(config, learning_rate=self.learning_rate) for config in known)
        return known

    def bytes_beside(self, problem: AttackProblem, updates: StepProblem) -> int:
        """Estimate the memory of a history of L-BFGS, twice a hundred vectors, where rows are searched by it."""
        network = NetworkKind.of(updates.model, problem.knowledge.image_shape)
        curved = any(config.curved for config in self.configs(network, TargetInfo(1)))
        return 4 * 200 * updates.labels.shape[1] * math.prod(problem.knowledge.image_shape) if curved else 0

    def search(
        self, problem: AttackProblem, updates: StepProblem, matcher: Matcher, bytes_per_row: int
    ) -> Reconstruction:
        """Search with every setting, and by halves with those that look best."""
        knowledge = problem.knowledge
        network, pixels = NetworkKind.of(updates.model, knowledge.image_shape), math.prod(knowledge.image_shape)
        configs = []
        for count, apart in zip(updates.counts, updates.apart, strict=True):
            known = None if apart is None else apart.known
            determined = known is not None and known.inputs.shape[1] >= pixels
            misled = bool(updates.misfit) and apart is None
            info = TargetInfo(count, apart is not None, determined, has_own_images(knowledge), misled)
            configs.append(self.configs(network, info))

        def some(rows: Sequence[Row], iterations: int, begun: Tensor | None, tick: Tick) -> Solved:
            group = [configs[row.position][row.restart % len(configs[0])] for row in rows]
            start = self._starts(problem, updates, rows, group) if begun is None else begun
            parts: list[tuple[list[int], Solved]] = []
            for kind in dict.fromkeys(config.kind for config in group):
                places = [place for place, config in enumerate(group) if config.kind == kind]
                before = iterations * sum(len(earlier) for earlier, _ in parts)

                def tell(number: int, before: int = before, many: int = len(places)) -> None:
                    tick((before + number * many) // len(rows))

                own_rows, own_configs = [rows[place] for place in places], [group[place] for place in places]
                searched = self._walk(problem, updates, matcher, own_rows, tell, iterations, own_configs, start[places])
                parts.append((places, searched))
            return joined(parts)

        rungs = ladder(self.restarts * len(configs[0]), self.iterations, _TRIAL, _LEAST)
        return climb(problem, some, rungs, bytes_per_row)

    def _walk(
        self,
        problem: AttackProblem,
        updates: StepProblem,
        matcher: Matcher,
        rows: Sequence[Row],
        tick: Tick,
        iterations: int,
        configs: Sequence[SearchConfig],
        start: Tensor,
    ) -> Solved:
        """Go on with rows whose settings are of one kind, from images ``(N, M, c, h, w)``."""
        start, first = start.to(problem.device), configs[0]
        matching = self.matching(updates, matcher, rows)
        known = updates.probabilities(rows, problem.knowledge.n_classes)
        steps, _, labels = updates.of(rows)
        frame = frame_of(problem.knowledge, problem.trained, labels) if first.framed else None
        if first.curved:
            result = optimise_by_lbfgs(iterations, matching, known, start, square_norms(steps), tick, frame)
        else:
            beside = self._strangeness(problem) if first.learned else None
            result = AdamSearch(iterations, matching, known, start, configs, beside, frame).optimise(tick)
        images, distance, evaluations = result
        return Solved(
            images=updates.shown(rows, images),
            objective=distance.clamp_min(0) * (_FLAT + absolute_variation(images)).square(),
            converged=matching.explained(images, known) < _CONVERGED,
            labels=updates.shown(rows, labels),
            iterations=int(evaluations.max()),
            evaluations=evaluations,
        )

    def _strangeness(self, problem: AttackProblem) -> Callable[[Tensor], Tensor]:
        """Return the weighted strangeness ``(N,)`` of images ``(N, M, c, h, w)`` to the attacker's denoiser."""
        denoiser = own_denoiser(self.name, problem, self.denoiser, self.iterations)

        def penalty(images: Tensor) -> Tensor:
            each = strangeness(images.flatten(0, 1), denoiser, self.denoiser.noise)
            return self.prior_weight * each.view(images.shape[:2]).mean(1)

        return penalty

    def _starts(
        self, problem: AttackProblem, updates: StepProblem, rows: Sequence[Row], configs: Sequence[SearchConfig]
    ) -> Tensor:
        """Return starts ``(N, M, c, h, w)`` near mid-grey, or near what is likely, each from its row's own generator."""
        batch = (updates.labels.shape[1], *problem.knowledge.image_shape)
        draws = torch.stack([torch.randn(batch, generator=row.generator(problem.seed)) for row in rows])
        starts = (0.5 - 0.5 * _START * draws).clamp_(0, 1)
        if any(config.framed for config in configs):
            _, _, labels = updates.of(rows)
            frame = frame_of(problem.knowledge, problem.trained, labels.cpu())
            likely = frame.drawn(_NEAR * draws).clamp(0, 1)
            framed = torch.tensor([config.framed for config in configs]).view(-1, 1, 1, 1, 1)
            starts = torch.where(framed, likely, starts)
        return starts


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

    def solve(
        self, problem: AttackProblem, updates: StepProblem, matcher: Matcher, rows: Sequence[Row], tick: Tick
    ) -> Solved:
        """Fit one generator network an image."""
        knowledge, device = problem.knowledge, problem.device
        _, _, labels = updates.of(rows)
        count = labels.shape[1]
        matching = self.matching(updates, matcher, rows)
        probabilities = updates.probabilities(rows, knowledge.n_classes)

        @Last
        def wanted(which: Tensor) -> tuple[Tensor, Tensor]:
            there = which.to(device)
            return probabilities[there], there

        def distance(pictures: Tensor, which: Tensor) -> Tensor:
            return matching.cosine(pictures.unflatten(1, (count, -1)), *wanted(which))

        draws = [row.generator(problem.seed, image) for row in rows for image in range(count)]
        prior = DeepImagePrior(draws, knowledge.image_shape, self.generator, device, count)
        result = fit_rows(rows, prior, distance, self.schedule, tick, count=count)
        return replace(
            result,
            images=updates.shown(rows, result.images),
            converged=matching.explained(result.images, probabilities) < self.tolerance,
            labels=updates.shown(rows, labels),
        )
