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
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.matching import Matcher
from fedpriv.attacks.gradients.search import (
    AdamSearch,
    NetworkKind,
    SearchConfig,
    TargetInfo,
    absolute_variation,
    choose_configs,
    choose_framed_configs,
    optimise_by_lbfgs,
)
from fedpriv.attacks.gradients.step_attack import GradientMatching, StepProblem
from fedpriv.attacks.gradients.update import square_norms
from fedpriv.attacks.inversion.vector import DipFitting
from fedpriv.attacks.observation import Needs, Reconstruction
from fedpriv.attacks.priors.dip import DeepImagePrior
from fedpriv.attacks.priors.pixels import own_denoiser, strangeness
from fedpriv.attacks.priors.spectral import frame_of, has_own_images
from fedpriv.attacks.search.candidates import Row, Solved, Tick, climb, fit_rows, joined, ladder
from fedpriv.attacks.search.lbfgs import bytes_of_history
from fedpriv.util.seeds import Last

_TRIAL, _LEAST = 0.2, 12  # share of the iterations that choose the row that goes on; iterations that show anything
_START, _NEAR = 0.2, 0.1  # noise of the start: in pixels, of a unit of the learning rate; in a frame, of deviations
_FLAT = 0.02  # mean difference of neighbouring pixels below which an image is hardly smoother for differing less
_STRANGE = 0.1  # weight of what the denoiser changes, beside total variation, with which it is weighted
_CONVERGED = 1e-3  # distance below which a row has converged


@dataclass(frozen=True, kw_only=True)
class InvertingGradients(GradientMatching):
    """Gradient matching in the cosine distance, of images that are held back, by Adam or L-BFGS.

    A target is searched by several candidates, which differ in settings and start; by halves those with the lowest
    objective, distance times squared variation, go on (:func:`fedpriv.attacks.search.candidates.climb`). Departs from the
    paper in its coordinates, and in that the prior's weight falls with the step size. What is not named follows from the
    kind of network, the number of images and the iterations (:func:`fedpriv.attacks.gradients.search.choose_configs`).

    Attributes:
        iterations: evaluations of the gradient a target, of all its candidates together.
        restarts: starts a target with each setting.
        total_variation: first weight of the mean absolute difference of neighbouring pixels, across plus down.
        prior: ``spectrum`` (:mod:`fedpriv.attacks.priors.spectral`), ``variation`` of pixels as in the paper, ``learned``
            the same beside a denoiser (:mod:`fedpriv.attacks.priors.pixels`); ``auto`` takes the spectrum where it was
            measured to help, unless ``total_variation`` is given.
    """

    iterations: Annotated[int, Ge(1)] = 2000
    total_variation: Literal["auto"] | Annotated[float, Ge(0)] = "auto"
    prior: Literal["auto", "spectrum", "variation", "learned"] = "auto"

    name = "inverting-gradients"
    summary = "smooth images whose gradient is the uploaded one, by direction"
    version = 12
    budget = "iterations"

    def requirements_for(self, kind: str | None) -> Needs:
        """Return the needs, with images to learn on where the prior is to be learned."""
        needs = super().requirements_for(kind)
        learns = Needs(attacker_data=("same_domain", "other_domain"))
        return needs.together(learns) if self.prior == "learned" else needs

    def configs(self, network: NetworkKind, target: TargetInfo) -> tuple[SearchConfig, ...]:
        """Return the settings of the rows of a target: those that were asked for, else the best known."""
        framed = self.prior == "auto" and self.total_variation == "auto"
        framed = framed and target.gains_by_frame(network, self.iterations)
        best = choose_framed_configs if framed or self.prior == "spectrum" else choose_configs
        known = best(network, target, self.iterations)
        if self.prior == "learned":
            known = tuple(config.held_back for config in known)
        if self.total_variation == "auto":
            return known
        return (replace(next(item for item in known if not item.curved), variation=self.total_variation),)

    def bytes_beside(self, problem: AttackProblem, updates: StepProblem) -> int:
        """Estimate the memory of a history of L-BFGS where rows are searched by it."""
        network = NetworkKind.of(updates.model, problem.knowledge.image_shape)
        curved = any(config.curved for config in self.configs(network, TargetInfo(1)))
        return curved * bytes_of_history(updates.labels.shape[1] * math.prod(problem.knowledge.image_shape))

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
        matching = updates.matching(matcher, rows)
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
        denoiser = own_denoiser(self.name, problem, self.iterations)

        def penalty(images: Tensor) -> Tensor:
            return _STRANGE * strangeness(images.flatten(0, 1), denoiser).view(images.shape[:2]).mean(1)

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
class GradientDip(DipFitting, GradientMatching):
    """Gradient matching in the cosine distance over the weights of one generator network an image, by plain Adam."""

    iterations: Annotated[int, Ge(1)] = 2000
    tolerance: Annotated[float, Ge(0)] = 1e-6
    patience: Annotated[int, Ge(1)] = 500

    name = "gradient-dip"
    summary = "images drawn by untrained networks whose gradient is the uploaded one, by direction"
    version = 7
    budget = "iterations"

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
        matching = updates.matching(matcher, rows)
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
