"""Inverting gradients: match the direction of the client's update, under a prior over pixels or cosines.

Geiping, Bauermeister, Droege and Moeller, "Inverting Gradients: How easy is it to break privacy in federated
learning?" (NeurIPS 2020). Settings follow from what everybody knows: whether the network has kinks, how many images there
are, and what the search may cost; chosen on a few CIFAR-10 images on two untrained networks
(``docs/attacks/inverting-gradients.md``).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.matching import Matcher, Matching
from fedpriv.attacks.gradients.step_attack import GradientMatching, StepProblem
from fedpriv.attacks.gradients.update import square_norms
from fedpriv.attacks.observation import Reconstruction
from fedpriv.attacks.priors.spectral import DECAY, Frame, drops, frame_of, has_own_images
from fedpriv.attacks.search.candidates import Row, Solved, Tick, climb, joined, ladder
from fedpriv.attacks.search.cuda_graph import Replay, recorder_on
from fedpriv.attacks.search.fit import Adam, cooling
from fedpriv.attacks.search.lbfgs import LbfgsSettings, bytes_of_history, minimise

_KINKED = (
    *("ReluBackward", "LeakyReluBackward", "PreluKernelBackward", "ThresholdBackward", "HardtanhBackward"),
    *("HardswishBackward", "HardsigmoidBackward", "RreluWithNoiseBackward"),
)
"""Beginnings of the names that autograd gives to activations whose derivative jumps."""

_SMALL = 48 * 48  # pixels of a small image; a larger one's gradient says too little of each pixel, so priors have to
_SHORT, _RELAXED = 100, 0.75  # evaluations up to which weights are as they are; power with which they fall with more
_PIXELS_FROM = 200  # evaluations from which pixels are nearer, behind kinks where what is known determines them

_SPREAD, _FRAME_SPREAD = 0.1, 0.3  # of one unit of L-BFGS, which scales its first step: pixel values, and deviations
_INNER, _DONE = 20, 1e-9  # steps of a call of L-BFGS; share of the squared norm at which nothing is left to find
_SCALE = 0.5  # pixel values of one unit of a learning rate: about the standard deviation of images, as in the paper
_BETAS, _LONG_BETAS = (0.9, 0.999), (0.97, 0.999)  # of Adam; of unsigned searches over pixels, with long valleys
_EPSILON = 1e-9  # of Adam, for variables ten times the paper's


@dataclass(frozen=True)
class SearchConfig:
    """Settings of one search."""

    variation: float = 0.0  # first weight of total variation
    signed: bool = False  # whether Adam is given the gradient's signs only
    learning_rate: float = 0.0  # first step size, in standard deviations of images, or of coordinates
    curved: bool = False  # L-BFGS in place of Adam, without total variation
    framed: bool = False  # whether coordinates are those of a spectrum in place of pixels
    unlikely: float = 0.0  # first weight of the mean square of these coordinates

    @property
    def kind(self) -> tuple[bool, bool, bool]:
        """Searches of one kind are made together."""
        return self.curved, self.signed, self.framed


@dataclass(frozen=True)
class TargetInfo:
    """The images of one target, and what is known of them before anything is searched for."""

    count: int
    apart: bool = False  # separated, so that each is asked for its own share of the update
    determined: bool = False  # of each as many numbers are known as it has pixels, from what it put into a layer
    own_images: bool = False  # the attacker has images of the same data set
    misled: bool = False  # their update was taught by what nobody outside knows, so that others explain it better

    def gains_by_frame(self, network: NetworkKind, iterations: int) -> bool:
        """True where coordinates of a spectrum were measured to bring images nearer than pixels do."""
        if network.normed:
            return network.kinked
        determined = network.kinked and self.determined
        return not determined or (self.own_images and iterations < _PIXELS_FROM)


@dataclass(frozen=True)
class NetworkKind:
    """Traits of a network: activations with kinks, batch norms, and images of more than 48 x 48 pixels."""

    kinked: bool
    normed: bool
    large: bool = False

    @classmethod
    def of(cls, model: nn.Module, image_shape: tuple[int, int, int]) -> NetworkKind:
        """Return the kind of a network that takes images of this shape."""
        normed = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules())
        return cls(has_kinks(model, image_shape), normed, image_shape[1] * image_shape[2] > _SMALL)


def has_kinks(model: nn.Module, image_shape: tuple[int, int, int]) -> bool:
    """True where an activation's derivative jumps, as that of ReLU does: the distance of gradients then has cliffs."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    images = torch.zeros(2, *image_shape, device=device).requires_grad_()
    output: Tensor = copy.deepcopy(model).eval()(images)
    seen, left = set(), [output.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        if node.name().startswith(_KINKED):
            return True
        seen.add(node)
        left += [before for before, _ in node.next_functions]
    return False


def choose_configs(network: NetworkKind, target: TargetInfo, iterations: int) -> tuple[SearchConfig, ...]:
    """Return the settings over pixels that are worth a trial in so many evaluations, the likeliest first."""
    count, relaxed = target.count, min(1.0, (_SHORT / iterations) ** _RELAXED)
    variation = 2.0 if network.normed else min(0.12 * count, 1.0)
    if network.kinked:
        if target.apart and not network.normed:
            left = max(0.5 if count == 1 else 0.25, relaxed) if target.determined else 1.0
            variation = 0.24 * min(count, 8) * left
        return (SearchConfig(variation, True, 0.2),)
    if target.apart and count > 1:
        variation *= relaxed
    slow = SearchConfig(2.0, True, 0.2) if network.large else SearchConfig(variation, False, 0.3)
    curved = count == 1 and iterations >= (1600 if network.large else 100)
    return (SearchConfig(curved=True), slow) if curved else (slow,)


def choose_framed_configs(network: NetworkKind, target: TargetInfo, iterations: int) -> tuple[SearchConfig, ...]:
    """Return the settings in coordinates of a spectrum that are worth a trial, the likeliest first."""
    short = _SHORT / iterations
    weight = 0.1 * min(target.count, 3) * min(1.0, short) ** _RELAXED
    if target.misled:
        weight *= 300
    elif network.normed:
        weight = 3.0 * min(1.0, short) ** 0.5
    if network.kinked:
        return (SearchConfig(weight, True, 0.3 / max(1.0, short), framed=True, unlikely=weight),)
    if (target.apart or target.count == 1) and not target.misled:
        weight = 0.1 * min(1.0, short) ** 2
    slow = SearchConfig(0.0, False, 0.3 * min(1.5, 1 / short), framed=True, unlikely=weight)
    if target.misled:
        return (slow,)
    if iterations >= (400 if network.large else 60):
        return SearchConfig(curved=True, framed=True), slow
    return (SearchConfig(0.5, True, 0.2, framed=True, unlikely=0.5),) if network.large else (slow,)


SearchResult = tuple[Tensor, Tensor, Tensor]
"""Images ``(N, M, c, h, w)`` in [0, 1], their distances ``(N,)``, and evaluations of each row ``(N,)``."""


class AdamSearch:
    """N rows on their way by Adam, all with signs or all without, in so many evaluations of each.

    From images ``start`` ``(N, M, c, h, w)``, of ``labels`` ``(N, M, C)`` (probabilities), in the coordinates of a
    ``frame``, or else over pixels within their box.
    """

    def __init__(
        self,
        iterations: int,
        matching: Matching,
        labels: Tensor,
        start: Tensor,
        configs: Sequence[SearchConfig],
        frame: Frame | None = None,
    ) -> None:
        self._iterations, self._matching, self._labels = iterations, matching, labels
        self._frame, self._signed = frame, configs[0].signed
        self._rows = torch.arange(len(start), device=start.device)
        # Adam's steps do not depend on the scale of a variable, so each row's learning rate is the scale of its own.
        rates = start.new_tensor([config.learning_rate for config in configs]).view(-1, 1, 1, 1, 1)
        self._scale = _SCALE * rates if frame is None else rates
        self._most, self._middle = 0.5 / self._scale, start.new_tensor(0.5)
        if frame is None:
            point = ((start - 0.5) / self._scale).clamp(-self._most, self._most)
        else:
            point = frame.points(start) / self._scale
        self._point = point.requires_grad_()
        betas = _BETAS if self._signed or frame is not None else _LONG_BETAS
        self._optimiser = Adam([self._point], 1.0, betas=betas, epsilon=_EPSILON, fused=True)
        self._first = start.new_tensor([[config.variation, config.unlikely] for config in configs]).T
        self._weights = self._first.clone()
        self._lowest = start.new_full((len(start),), torch.inf)
        self._images = self._shown().detach().clone()
        self._distance = torch.full_like(self._lowest, torch.inf)

    def _shown(self) -> Tensor:
        if self._frame is not None:
            return self._frame.images(self._point * self._scale)
        return torch.addcmul(self._middle, self._point, self._scale)

    def _evaluate(self) -> Tensor:
        """Return objectives ``(N,)`` of the present images; remember those of rows that never had a lower one."""
        images = self._shown()
        distance = self._matching.cosine(images, self._labels, self._rows)
        objective = distance + self._weights[0] * absolute_variation(images)
        if self._frame is not None:
            objective = objective + self._weights[1] * (self._point * self._scale).square().flatten(1).mean(1)
        with torch.no_grad():
            better = objective < self._lowest
            self._lowest = torch.where(better, objective, self._lowest)
            self._distance = torch.where(better, distance, self._distance)
            self._images = torch.where(better.view(-1, 1, 1, 1, 1), images, self._images)
        return objective

    def optimise(self, tick: Tick) -> SearchResult:
        """Take all steps, and evaluate a last time; ``tick`` is told of the steps done."""
        step_again = Replay(self._step, (self, self._optimiser), recorder_on(self._point.device))
        before = 0
        for step in range(self._iterations - 1):
            self._optimiser.pace(cooling(step / self._iterations))
            passed = drops(step / self._iterations)
            if passed != before:  # objectives under another weight cannot be compared
                before, self._weights = passed, self._first * DECAY**passed
                self._lowest = torch.full_like(self._lowest, torch.inf)
            step_again()
            tick(step + 1)
        self._evaluate()
        return self._images, self._distance, torch.full((len(self._rows),), self._iterations)

    def _step(self) -> None:
        """Evaluate, then take a step back into the box."""
        (gradient,) = torch.autograd.grad(self._evaluate().sum(), self._point)
        # A row that is not finite stays where it is; the others go on.
        gradient = gradient.nan_to_num(0.0, 0.0, 0.0)
        self._optimiser.step([gradient.sign() if self._signed else gradient])
        if self._frame is None:
            with torch.no_grad():
                self._point.clamp_(-self._most, self._most)


def optimise_by_lbfgs(
    iterations: int,
    matching: Matching,
    labels: Tensor,
    start: Tensor,
    scale: Tensor,
    tick: Tick,
    frame: Frame | None = None,
) -> SearchResult:
    """Follow the squared distance of N rows down by L-BFGS, without prior and box; ``scale`` ``(N,)`` are squared norms."""

    def images_at(points: Tensor, rows: Tensor | None = None) -> Tensor:
        if frame is not None:
            return frame.drawn(_FRAME_SPREAD * points.view(-1, *start.shape[1:]), rows)
        return (0.5 + _SPREAD * points).view(-1, *start.shape[1:])

    evaluate = matching.descent(lambda points, rows: (images_at(points, rows), labels[rows]))
    # After the last step its place is evaluated, and at the end what is shown.
    inner = min(_INNER, max(1, iterations - 2))
    settings = LbfgsSettings(max(1, (iterations - 2) // inner), inner)
    begin = (start - 0.5) / _SPREAD if frame is None else frame.points(start) / _FRAME_SPREAD
    result = minimise(evaluate, begin.flatten(1), settings, _DONE * scale, lambda done: tick(done * inner))
    images = images_at(result.best).clamp(0, 1)
    with torch.no_grad():
        distance = matching.cosine(images, labels, torch.arange(len(images), device=images.device))
    return images, distance, result.evaluations + 1


def absolute_variation(images: Tensor) -> Tensor:
    """Return mean ``|right - here|`` plus mean ``|below - here|`` of each row's images ``(N, M, c, h, w)``: ``(N,)``."""
    across, down = (torch.diff(images, dim=axis).abs().flatten(1).mean(1) for axis in (-1, -2))
    return across + down


_LEAST = 12  # iterations that show anything
_START, _NEAR = 0.2, 0.1  # noise of the start: in pixels, of a unit of the learning rate; in a frame, of deviations
_FLAT = 0.02  # mean difference of neighbouring pixels below which an image is hardly smoother for differing less
_CONVERGED = 1e-3  # distance below which a row has converged


@dataclass(frozen=True, kw_only=True)
class InvertingGradients(GradientMatching):
    """Gradient matching in the cosine distance, of images that are held back, by Adam or L-BFGS.

    A target is searched by several candidates, which differ in settings and start; by halves those with the lowest
    objective, distance times squared variation, go on (:func:`fedpriv.attacks.search.candidates.climb`). Departs from the
    paper in its coordinates, and in that the prior's weight falls with the step size. What is not named follows from the
    kind of network, the number of images and the iterations (:func:`fedpriv.attacks.gradients.inverting.choose_configs`).

    Attributes:
        iterations: evaluations of the gradient a target, of all its candidates together.
        restarts: starts a target with each setting.
        total_variation: first weight of the mean absolute difference of neighbouring pixels, across plus down.
        prior: ``spectrum`` (:mod:`fedpriv.attacks.priors.spectral`), or ``variation`` of pixels as in the paper; ``auto``
            takes the spectrum where it was measured to help, unless ``total_variation`` is given.
    """

    iterations: Annotated[int, Ge(1)] = 2000
    total_variation: Literal["auto"] | Annotated[float, Ge(0)] = "auto"
    prior: Literal["auto", "spectrum", "variation"] = "auto"

    name = "inverting-gradients"
    summary = "smooth images whose gradient is the uploaded one, by direction"
    version = 12
    budget = "iterations"

    def configs(self, network: NetworkKind, target: TargetInfo) -> tuple[SearchConfig, ...]:
        """Return the settings of the rows of a target: those that were asked for, else the best known."""
        framed = self.prior == "auto" and self.total_variation == "auto"
        framed = framed and target.gains_by_frame(network, self.iterations)
        best = choose_framed_configs if framed or self.prior == "spectrum" else choose_configs
        known = best(network, target, self.iterations)
        if self.total_variation == "auto":
            return known
        return (replace(next(item for item in known if not item.curved), variation=self.total_variation),)

    def bytes_beside(self, problem: AttackProblem, updates: StepProblem) -> int:
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
            misled = updates.misled and apart is None
            info = TargetInfo(count, apart is not None, determined, has_own_images(knowledge), misled)
            configs.append(self.configs(network, info))

        def walk(
            rows: Sequence[Row], tick: Tick, iterations: int, configs: Sequence[SearchConfig], start: Tensor
        ) -> Solved:
            """Go on with rows whose settings are of one kind, from images ``(N, M, c, h, w)``."""
            first, matching = configs[0], updates.matching(matcher, rows)
            known = updates.probabilities(rows, knowledge.n_classes)
            steps, _, labels = updates.of(rows)
            frame = frame_of(knowledge, problem.trained, labels) if first.framed else None
            if first.curved:
                result = optimise_by_lbfgs(iterations, matching, known, start, square_norms(steps), tick, frame)
            else:
                result = AdamSearch(iterations, matching, known, start, configs, frame).optimise(tick)
            images, distance, evaluations = result
            return Solved(
                images=updates.shown(rows, images),
                objective=distance.clamp_min(0) * (_FLAT + absolute_variation(images)).square(),
                converged=matching.explained(images, known) < _CONVERGED,
                labels=updates.shown(rows, labels),
                iterations=int(evaluations.max()),
                evaluations=evaluations,
            )

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
                parts.append((places, walk(own_rows, tell, iterations, own_configs, start[places].to(problem.device))))
            return joined(parts)

        rungs = ladder(self.restarts * len(configs[0]), self.iterations, _LEAST)
        return climb(problem, some, rungs, bytes_per_row)

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
