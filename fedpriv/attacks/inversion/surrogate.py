"""Substitutes for a private extractor or model, trained on the attacker's own labelled images.

In model-heterogeneous federations nobody sends an extractor. What is sent ties its output down: a head f that classifies
its representations, and prototypes p_c, which are the means of its representations by class. A shadow extractor g of an
architecture of the attacker's choice is trained to go with both,

    CE(f(g(a)), y) + mu ||g(a) - p_y||^2 / mean_c ||p_c||^2,

with f and p frozen. Means by class are all that prototypes tell, so what tells images of one class apart is a guess.

Where clients send mean outputs u_c of their classes (FD), the head is not known either. A whole model h is trained to answer
as the client's does on average,

    CE(h(a), y) + mu D(h(a), u_y),

with D as in :func:`fedpriv.attacks.inputs.outputs.output_distance`. Classes that the client did not send keep the first
term only.


Simulators: extractors of the attacker's own that answer as a private one was seen to answer.

An extractor g stays with its client, but representations z_i = g(x_i) of private images, with their classes y_i, were
uploaded. A simulator h is trained so that on the attacker's own images a, of classes b, the pairs (h(a), b) are distributed
as the pairs (z, y) are, and the known head f classifies both alike:

    CE(f(h(a)), b) + mu MMD^2({(h(a), b)}, {(z, y)})

with a kernel over pairs, ``k = (1 + w [y = y']) / (1 + w) mean_s exp(-||z - z'||^2 / (s m))``: m is the mean squared
distance of uploaded representations, which are scaled to unit spread, s = 1/4, 1/2, 1, 2, 4. No pair of an image and its
representation is known. The first term is that of SDAR (Zhu et al. 2025, the simulator's loss), the second, without
classes, that of FORA (Xu et al. 2024, MK-MMD). Neither's discriminator is here: it took away from what came back through
vectors (``docs/attacks/simulator.md``).


Inversion without the extractor: simulators stand in for it, and what they have in common is decoded.

Several simulators are trained on what a client uploaded, and a decoder for all of
them. An image is the mean of what the uploaded vector decodes to as each one's. How far it may be trusted is learned from
the simulators alone: each in turn plays the private extractor on held-out images, the others' decoders answer, and
least squares gives the share of the way from the mean image of the class to the decoded one that is worth going.

"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.inputs.outputs import output_distance, read_outputs
from fedpriv.attacks.inputs.targets import observation_of
from fedpriv.attacks.inversion.decoder import LEAST_IMAGES, divided, pairs
from fedpriv.attacks.inversion.decoder_network import Decoder, DecoderTraining, Pairs, train_decoder
from fedpriv.attacks.observation import Cost, Needs, Observation, Reconstruction, TargetId
from fedpriv.attacks.search.fit import Adam
from fedpriv.attacks.search.objectives import relative_feature_distance
from fedpriv.attacks.trained import Same
from fedpriv.datasets.types import Samples
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator, global_seed
from fedpriv.wire.kinds import OF_IMAGES
from fedpriv.wire.payloads import Classifier, ClassLogits, Prototypes, Representations, find_payload

WIDTH = 64
"""Length of a substitute's representations where the client's own is not known and does not matter."""

ShadowModel = tuple[Callable[[Tensor], Tensor], tuple[Tensor, Tensor]]
"""A differentiable extractor in evaluation mode, and its head's weight ``(C, d)`` and bias ``(C,)``."""


@dataclass(frozen=True)
class Anchors:
    """A head and class means that a private extractor's output is known to fit; None where unknown.

    Attributes:
        weight: ``(C, d)``.
        bias: ``(C,)``.
        prototypes: ``(c, d)`` class means.
        classes: ``(c,)`` int64 their classes.
    """

    weight: Tensor | None = None
    bias: Tensor | None = None
    prototypes: Tensor | None = None
    classes: Tensor | None = None

    @property
    def width(self) -> int:
        """Length d of a representation."""
        known = self.weight if self.weight is not None else self.prototypes
        assert known is not None
        return known.shape[1]


@dataclass(frozen=True)
class ShadowTraining:
    """The training of a substitute, by Adam.

    Attributes:
        architecture: a name of ``fedpriv.models.MODELS``; the client's own is not known. None takes cnn4 for images
            of 32 positions a side or more, small-cnn for smaller ones.
        epochs: passes over the attacker's images.
        batch_size: images a step.
        learning_rate: Adam's step size.
        alignment: mu, the weight of the distance to what was sent.
        steps: steps at most, however many passes these are; None for no limit.
    """

    architecture: str | None = None
    epochs: int = 40
    batch_size: int = 32
    learning_rate: float = 1e-3
    alignment: float = 1.0
    steps: int | None = None


def find_anchors(observations: Sequence[Observation], client: int, round_: int) -> Anchors:
    """Return the client's own head and class means where it uploads them in a round, else those that it was sent.

    Raises:
        UserError: when there is neither a head nor a class mean, or nothing of the client.
    """
    for seen in observations:
        if (seen.round, seen.client) != (round_, client):
            continue
        head = find_payload(seen.upload, Classifier) or find_payload(seen.broadcast, Classifier)
        means = find_payload(seen.upload, Prototypes)
        raw = find_payload(seen.upload, Representations)
        if means is None and raw is not None:
            classes = raw.labels.unique()
            means = Prototypes(torch.stack([raw.features[raw.labels == c].mean(0) for c in classes]), classes)
        means = means or find_payload(seen.broadcast, Prototypes)
        if head is None and (means is None or not len(means.classes)):
            break
        return Anchors(
            weight=None if head is None else head.state["weight"],
            bias=None if head is None else head.state["bias"],
            prototypes=None if means is None else means.features,
            classes=None if means is None else means.classes,
        )
    raise UserError(
        f"knowledge extractor=shadow: neither upload nor broadcast of client {client} in round {round_} holds a classifier, "
        "prototypes or representations to align a shadow extractor with"
    )


def shadow_extractor(
    observations: Sequence[Observation],
    client: int,
    round_: int,
    own: Samples,
    n_classes: int,
    seed: int,
    training: ShadowTraining | None = None,
) -> Callable[[Tensor], Tensor]:
    """Train a substitute for a client's extractor.

    Args:
        observations: what the server saw.
        client: whose extractor to stand in for.
        round_: whose uploads it should fit.
        own: the attacker's images ``(p, c, h, w)`` in [0, 1] with labels.
        n_classes: C.
        seed: of the initial weights and the order of images.
        training: default :class:`ShadowTraining`.

    Returns:
        Images ``(n, c, h, w)`` to representations ``(n, d)``, differentiable, in evaluation mode.

    Raises:
        UserError: when there is nothing to align with.
    """
    how = training or ShadowTraining()
    anchors = find_anchors(observations, client, round_)
    model = substitute(own.images, n_classes, anchors.width, derive_seed(seed, "shadow", client), how.architecture)
    loss_of = _anchored_loss(anchors, n_classes, how.alignment, own.images.device)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return loss_of(model.represent(images), labels)

    parameters = [*model.extractor.parameters(), *model.mapping.parameters()]
    # Batch norm, where the architecture has it, needs two images.
    train_substitute(parameters, own, loss, how, generator(seed, "shadow order", client), least=2)
    model.eval().requires_grad_(False)
    return model.represent


def shadow_model(
    observations: Sequence[Observation],
    client: int,
    round_: int,
    own: Samples,
    n_classes: int,
    seed: int,
    training: ShadowTraining | None = None,
) -> ShadowModel:
    """Train a substitute for a client's whole model by its class outputs; arguments as of :func:`shadow_extractor`.

    Raises:
        UserError: when the client sent no class outputs.
    """
    how = training or ShadowTraining()
    sent = find_payload(observation_of(observations, TargetId(round_, client)).upload, ClassLogits)
    if sent is None:
        raise UserError(f"knowledge extractor=shadow: client {client} sent no class outputs in round {round_}")
    values, softmax = read_outputs(sent.values)
    table, known = by_class(values, sent.classes, n_classes, own.images.device)
    model = substitute(own.images, n_classes, WIDTH, derive_seed(seed, "shadow", client), how.architecture)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        logits = model(images)
        apart = output_distance(logits, table[labels], softmax=softmax) * known[labels]
        return functional.cross_entropy(logits, labels) + how.alignment * apart.mean()

    samples = Samples(own.images, own.labels.to(own.images.device))
    order = generator(seed, "shadow order", client)
    train_substitute(list(model.parameters()), samples, loss, how, order, least=2)
    model.eval().requires_grad_(False)
    return model.represent, (model.head.weight.detach(), model.head.bias.detach())


def substitute(images: Tensor, n_classes: int, width: int, seed: int, architecture: str | None = None) -> SplitModel:
    """Return an untrained model for images ``(p, c, h, w)`` on their device, in training mode; see `ShadowTraining`."""
    channels, height, side = images.shape[1:]
    name = architecture or ("cnn4" if min(height, side) >= 32 else "small-cnn")
    return build_model(Blueprint(name, (channels, height, side), n_classes, width), seed).to(images.device).train()


def train_substitute(
    parameters: Sequence[Tensor],
    own: Samples,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    how: ShadowTraining,
    rng: torch.Generator,
    *,
    least: int = 1,
) -> None:
    """Minimise a loss of (images, labels) over batches of at least ``least`` images, in an order that ``rng`` draws."""
    optimiser = Adam(parameters, how.learning_rate)
    orders = (torch.randperm(len(own.labels), generator=rng).to(own.images.device) for _ in range(how.epochs))
    batches = (index for order in orders for index in order.split(how.batch_size) if len(index) >= least)
    for index in islice(batches, how.steps):
        loss = loss_of(own.images[index], own.labels[index])
        optimiser.forget_gradients()
        loss.backward()
        optimiser.step()


def by_class(rows: Tensor, classes: Tensor, n_classes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return rows ``(c, k)`` as a table ``(C, k)`` with zeros for other classes, and 1 for each class that is there."""
    rows, classes = rows.to(device), classes.to(device)
    table = rows.new_zeros(n_classes, rows.shape[1]).index_copy(0, classes, rows)
    return table, rows.new_zeros(n_classes).index_fill(0, classes, 1.0)


def _anchored_loss(
    anchors: Anchors, n_classes: int, alignment: float, device: torch.device
) -> Callable[[Tensor, Tensor], Tensor]:
    table, known, scale = None, None, 1.0
    if anchors.prototypes is not None and anchors.classes is not None:
        table, known = by_class(anchors.prototypes, anchors.classes, n_classes, device)
        scale = float(anchors.prototypes.to(device).square().sum(1).mean().clamp_min(1e-12))
    weight = None if anchors.weight is None else anchors.weight.to(device)
    bias = None if anchors.bias is None else anchors.bias.to(device)

    def loss(features: Tensor, labels: Tensor) -> Tensor:
        total = features.new_zeros(())
        if weight is not None:
            total = total + functional.cross_entropy(functional.linear(features, weight, bias), labels)
        if table is not None and known is not None:
            distance = (features - table[labels]).square().sum(1) * known[labels]
            total = total + alignment * distance.mean() / scale
        return total

    return loss


LEAST_ROWS = 8
"""Uploaded representations below which a distribution is not worth fitting."""

_SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Widths of the kernels, in the mean squared distance of uploaded representations."""

_SAME_CLASS = 3.0
"""How much more two vectors of one class weigh in the kernel."""

_REACH = 3.0
"""Spreads of the uploaded representations that a unit of a simulator's last layer is worth: how fast it learns."""


@dataclass(frozen=True)
class Answers:
    """Uploads by a private extractor, and the head that classifies them.

    Attributes:
        features: ``(n, d)``, or maps ``(n, c, h, w)``, of n private images.
        labels: ``(n,)`` int64, their classes; None where these are not known.
        head: from features to logits ``(n, C)``, held fixed; None where none was sent.
    """

    features: Tensor
    labels: Tensor | None = None
    head: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class SimulatorTraining:
    """The training of a simulator, by Adam.

    Attributes:
        steps: steps.
        batch_size: uploaded representations, and images of the attacker's own, a step.
        learning_rate: step size.
        matching: mu, the weight of the discrepancy of the distributions.
    """

    steps: int = 600
    batch_size: int = 128
    learning_rate: float = 1e-3
    matching: float = 100.0


def discrepancy(ours: Tensor, theirs: Tensor, our_labels: Tensor | None, their_labels: Tensor | None) -> Tensor:
    """Return the squared maximum mean discrepancy of samples ``(n, d)`` and ``(m, d)``, with classes or without.

    The biased estimate, which is never below zero; gradients go through the first sample.
    """
    both = torch.cat([ours, theirs])
    squares = both.square().sum(1)
    apart = (squares[:, None] + squares - 2 * both @ both.T).clamp_min(0)
    number = len(ours)
    unit = apart[number:, number:].detach().mean().clamp_min(1e-12)
    kernel = torch.stack([torch.exp(-apart / (scale * unit)) for scale in _SCALES]).mean(0)
    if our_labels is not None and their_labels is not None:
        labels = torch.cat([our_labels, their_labels])
        kernel = kernel * (1 + _SAME_CLASS * (labels[:, None] == labels)) / (1 + _SAME_CLASS)
    return kernel[:number, :number].mean() + kernel[number:, number:].mean() - 2 * kernel[:number, number:].mean()


class SimulatorNetwork(nn.Module):
    """Two convolutions that halve the sides, and a linear layer from which deviations of representations come.

    Not the client's architecture, which is not known; only the width, the scale and the sign of its output are. A network
    that begins near the centre of what was uploaded is drawn into place; one that begins far from it is not.

    Args:
        image_shape: (channels, height, width).
        like: ``(n, d)`` uploaded representations. Where none is negative, a ReLU ends the network.
        pooled: whether maxima over 2 x 2 positions halve the sides, or strides: simulators of both kinds err differently.
    """

    def __init__(self, image_shape: tuple[int, int, int], like: Tensor, *, pooled: bool) -> None:
        super().__init__()
        channels, height, side = image_shape
        layers: list[nn.Module] = []
        for before, after in ((channels, 32), (32, 64)):
            layers += [nn.Conv2d(before, after, 3, stride=1 if pooled else 2, padding=1), nn.ReLU()]
            layers += [nn.MaxPool2d(2, ceil_mode=True)] if pooled else []
        size = 64 * math.ceil(math.ceil(height / 2) / 2) * math.ceil(math.ceil(side / 2) / 2)
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(size, like.shape[1]))
        self.centre, self.unit = nn.Buffer(like.mean(0)), nn.Buffer(like.std(0).mean())
        self.rectified = bool((like >= 0).all())

    def forward(self, images: Tensor) -> Tensor:
        """Return representations ``(n, d)`` of images ``(n, c, h, w)``."""
        found: Tensor = self.centre + _REACH * self.unit * self.layers(images)
        return found.relu() if self.rectified else found


def known_rows(answers: Answers, own: Samples) -> Tensor:
    """Return the positions of uploaded rows that can be matched: of classes that the attacker has images of.

    Raises:
        UserError: when there are fewer than eight.
    """
    device = own.images.device
    known = torch.arange(len(answers.features), device=device)
    if answers.labels is not None:
        known = known[torch.isin(answers.labels.to(device), own.labels.to(device))]
    if len(known) < LEAST_ROWS:
        raise UserError(
            f"a simulator of an extractor got {len(known)} uploaded representations of classes that the attacker has images "
            f"of; expected at least {LEAST_ROWS}"
        )
    return known


def simulator_network(answers: Answers, own: Samples, seed: int, number: int) -> SimulatorNetwork:
    """Return the untrained simulator of a number, on the device of the attacker's images; pooled where it is odd.

    Raises:
        UserError: as :func:`known_rows`.
    """
    known_rows(answers, own)
    channels, height, side = (int(size) for size in own.images.shape[1:])
    with global_seed(derive_seed(seed, "simulator", number)):
        network = SimulatorNetwork((channels, height, side), answers.features.cpu(), pooled=number % 2 == 1)
    return network.to(own.images.device)


def train_simulator(
    network: nn.Module,
    answers: Answers,
    own: Samples,
    training: SimulatorTraining,
    seed: int,
    tick: Callable[[int], None] | None = None,
) -> None:
    """Train a simulator in place, and leave it in evaluation mode without gradients for its weights.

    Where classes are known, images of the attacker's own are drawn in the proportions in which the uploaded rows have them,
    and rows of classes of which it has no image are left out.

    Args:
        network: from images ``(n, c, h, w)`` in [0, 1] to features of the shape of the uploaded ones.
        answers: what was seen.
        own: the attacker's images ``(p, c, h, w)`` in [0, 1] with labels.
        training: how.
        seed: of the order of images and rows.
        tick: called with the steps done.

    Raises:
        UserError: when fewer than eight uploaded rows are of classes that the attacker has images of.
    """
    device = own.images.device
    rows = answers.features.to(device)
    labels = None if answers.labels is None else answers.labels.to(device)
    known = known_rows(answers, own)
    draw = _Draws(
        len(known), own.labels.to(device), None if labels is None else labels[known], training.batch_size, seed
    )
    flat = rows[known].flatten(1)
    centre, spread = flat.mean(0), flat.std(0)
    spread = spread.clamp_min(0.05 * float(flat.std().clamp_min(1e-12)))
    flat, wanted = (flat - centre) / spread, None if labels is None else labels[known]
    network.train()
    optimiser = Adam(network.parameters(), training.learning_rate)
    for step in range(training.steps):
        theirs, ours = draw()
        features, classes = network(own.images[ours]), own.labels.to(device)[ours]
        apart = discrepancy(
            (features.flatten(1) - centre) / spread, flat[theirs], classes, None if wanted is None else wanted[theirs]
        )
        loss = training.matching * apart
        if answers.head is not None:
            loss = loss + functional.cross_entropy(answers.head(features), classes)
        optimiser.forget_gradients()
        loss.backward()
        optimiser.step()
        if tick is not None:
            tick(step + 1)
    network.eval().requires_grad_(False)


class _Draws:
    """Draws of uploaded rows and of the attacker's images, in equal proportions of classes where those are known."""

    def __init__(self, number: int, own: Tensor, labels: Tensor | None, batch_size: int, seed: int) -> None:
        self._rng = generator(seed, "simulator draws")
        self._number = number
        self._batch_size, self._labels, self._own = batch_size, labels, own
        self._places = {} if labels is None else {int(c): (own == c).nonzero().flatten() for c in labels.unique()}

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Return positions of uploaded rows, none twice, and of images."""
        device = self._own.device
        if self._labels is None:
            theirs = torch.randperm(self._number, generator=self._rng)[: self._batch_size]
            ours = torch.randint(len(self._own), (self._batch_size,), generator=self._rng)
            return theirs.to(device), ours.to(device)
        theirs = torch.randperm(self._number, generator=self._rng)[: self._batch_size].to(device)
        like = torch.randint(self._number, (self._batch_size,), generator=self._rng).to(device)
        at = torch.rand(self._batch_size, generator=self._rng).to(device)
        classes = self._labels[like]
        ours = torch.empty_like(like)
        for label, places in self._places.items():
            mine = classes == label
            ours[mine] = places[(at[mine] * len(places)).long().clamp_max(len(places) - 1)]
        return theirs, ours


Tick = Callable[[int], None]
Head = Callable[[Tensor], Tensor]

_BODY = DecoderTraining(2000, 2e-3, 32, 256)
"""The training of the decoder, as the attack ``decoder`` has it, with steps enough to end by its own rule."""


@dataclass(frozen=True)
class Substitutes:
    """Trained simulators of one client's extractor, and what decodes them.

    Attributes:
        simulators: from images ``(n, c, h, w)`` to representations ``(n, d)``.
        decoder: of as many extractors.
        means: ``(C, c, h, w)`` mean image of each class, over the attacker's images.
        worth: share in [0, 1] of the way from a class's mean image to the decoded one.
    """

    simulators: tuple[SimulatorNetwork, ...]
    decoder: Decoder
    means: Tensor
    worth: float

    def images(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Return images ``(n, c, h, w)`` in [0, 1] of uploaded vectors ``(n, d)`` of classes ``(n,)``."""
        return torch.lerp(self.means[labels], _decoded(self.decoder, vectors, range(len(self.simulators))), self.worth)

    def distance(self, images: Tensor, vectors: Tensor) -> Tensor:
        """Return the relative feature distance ``(n,)`` of images from vectors, the mean over the simulators."""
        with torch.no_grad():
            apart = [relative_feature_distance(one(images), vectors) for one in self.simulators]
        return torch.stack(apart).mean(0)


@dataclass(frozen=True, kw_only=True)
class SimulatedInversion(Attack):
    """Decode uploaded representations by what was learned of their extractor from them alone.

    Attributes:
        iterations: training steps of a simulator.
        simulators: simulators of each client's extractor; two at least, since each is held to what the others decode.
        learning_rate: Adam's step size.
        batch_size: uploaded vectors, and images of the attacker's own, a step.
        matching: weight of the discrepancy of distributions beside the cross-entropy of the head that was sent.
    """

    iterations: Annotated[int, Ge(1)] = 600
    simulators: Annotated[int, Ge(2)] = 3
    learning_rate: Annotated[float, Gt(0)] = 1e-3
    batch_size: Annotated[int, Ge(2)] = 128
    matching: Annotated[float, Ge(0)] = 100.0

    name = "simulator"
    summary = "an image by networks that learned to answer as a private extractor was seen to answer"
    targets = OF_IMAGES
    unit = "upload"
    budget = "iterations"
    needs = Needs(extractor=("none",), attacker_data=("same_domain",))

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Train each client's simulators and their decoder, and decode.

        Raises:
            UserError: when the attacker has too few labelled images of a client's classes, too few representations were
                uploaded, or a target is not there.
        """
        targets, device = problem.targets, problem.device
        images = torch.zeros(len(targets), *problem.knowledge.image_shape, device=device)
        vectors: list[Tensor] = []
        objective = torch.zeros(len(targets), 1, device=device)
        settled = torch.zeros(len(targets), dtype=torch.bool, device=device)
        labels = torch.zeros(len(targets), 1, dtype=torch.int64, device=device)
        for place, target in enumerate(targets):
            sent, there = self._sent(problem, place), self._trained(problem, place)
            if not 0 <= target.index < len(sent.features):
                raise UserError(f"attack {self.name!r}: client {target.client} uploaded no row {target.index}")
            vector, label = sent.features[target.index][None].to(device), sent.labels[target.index][None].to(device)
            images[place], labels[place] = there.images(vector, label)[0], label
            objective[place] = there.distance(images[place][None], vector)
            settled[place] = there.decoder.settled
            vectors.append(vector[0])
        return Reconstruction(
            targets=targets,
            images=images.unsqueeze(1),
            objective=objective,
            chosen=torch.zeros(len(targets), dtype=torch.int64, device=device),
            labels=labels,
            cost=Cost(iterations=self.iterations, rows=len(targets)),
            converged=settled,
            features=torch.stack(vectors),
        )

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the distance of images' simulated representations to the uploaded vectors, the mean over simulators."""

        def apart(images: Tensor) -> Tensor:
            found = []
            for place, (target, each) in enumerate(zip(problem.targets, images, strict=True)):
                vector = self._sent(problem, place).features[target.index][None].to(each.device)
                found.append(self._trained(problem, place).distance(each[:1], vector)[0])
            return torch.stack(found)

        return apart

    def caveat(self, problem: AttackProblem) -> str:
        """Return why the true images need not fit best."""
        return "what images are fitted through is learned, not the client's own extractor"

    def _sent(self, problem: AttackProblem, place: int) -> Representations:
        target = problem.targets[place]
        found = find_payload(observation_of(problem.observations, target).upload, Representations)
        if found is None:
            raise UserError(f"attack {self.name!r}: client {target.client} uploaded no representations of images")
        return found

    def _trained(self, problem: AttackProblem, place: int) -> Substitutes:
        """Return the simulators of a target's client, trained once for its upload."""
        target, sent, knowledge = problem.targets[place], self._sent(problem, place), problem.knowledge
        if knowledge.public_images is None or knowledge.public_labels is None:
            raise UserError(
                f"attack {self.name!r} needs labelled images of the clients' domain (train the run with "
                f"{argument('strangers', 0.5)})"
            )
        seed = derive_seed(problem.seed, "simulator", target.client)
        training = SimulatorTraining(self.iterations, self.batch_size, self.learning_rate, self.matching)
        key = ("simulators", self.simulators, training, seed, Same(sent.features), Same(knowledge.public_images))
        turn, all_turns = problem.clients.index(target.client), len(problem.clients)

        def tick(done: int) -> None:
            if problem.progress is not None:
                each = self.simulators * self.iterations
                problem.progress(turn * each + done, all_turns * each)

        def train() -> Substitutes:
            assert knowledge.public_images is not None
            assert knowledge.public_labels is not None
            own = Samples(knowledge.public_images.to(problem.device), knowledge.public_labels.to(problem.device))
            seen = observation_of(problem.observations, target)
            head = find_payload(seen.upload, Classifier) or find_payload(seen.broadcast, Classifier)
            answers = Answers(
                sent.features.to(problem.device),
                sent.labels.to(problem.device),
                _linear(head, sent.features.shape[1], problem.device),
            )
            return self._train(answers, own, knowledge.n_classes, training, seed, tick)

        return problem.trained.get(key, train)

    def _train(
        self, answers: Answers, own: Samples, n_classes: int, training: SimulatorTraining, seed: int, tick: Tick
    ) -> Substitutes:
        assert answers.labels is not None
        # Of other classes nothing was seen: what a simulator makes of their images, no decoder should learn from.
        alike = torch.isin(own.labels, answers.labels)
        if int(alike.sum()) < LEAST_IMAGES:
            raise UserError(
                f"attack {self.name!r}: the attacker has {int(alike.sum())} images of a client's classes; expected at "
                f"least {LEAST_IMAGES} (set more strangers aside)"
            )
        near = Samples(own.images[alike], own.labels[alike])
        simulators = tuple(simulator_network(answers, own, seed, number) for number in range(self.simulators))
        for number, network in enumerate(simulators):
            train_simulator(
                network, answers, own, training, derive_seed(seed, "draws", number), _after(number, tick, training)
            )
        inside, outside = pairs(simulators, near.images, seed)
        decoder = train_decoder(inside, outside, _BODY, seed)
        _, held_labels = divided(Pairs([], near.labels), seed)
        known_means = class_means(Samples(inside.images, divided(Pairs([], near.labels), seed)[0].images), n_classes)
        worth = worth_among(decoder, outside, known_means[held_labels.images])
        return Substitutes(simulators, decoder, class_means(near, n_classes), worth)


def class_means(samples: Samples, n_classes: int) -> Tensor:
    """Return the mean image ``(C, c, h, w)`` of each class; of a class without images, that of all."""
    member = functional.one_hot(samples.labels, n_classes).to(samples.images.dtype)
    sums, numbers = torch.tensordot(member.T, samples.images, 1), member.sum(0)
    means: Tensor = torch.where(
        (numbers > 0).view(-1, 1, 1, 1), sums / numbers.clamp_min(1).view(-1, 1, 1, 1), samples.images.mean(0)
    )
    return means


def worth_among(decoder: Decoder, held: Pairs, means: Tensor) -> float:
    """Return the share in [0, 1] of the way from mean images to decoded ones that brings held-out images nearest.

    Each extractor in turn is decoded as if it were each of the others, as a private one is.

    Args:
        decoder: of two or more extractors.
        held: held-out images and their representations by each.
        means: ``(n, c, h, w)`` mean image of each held-out image's class.
    """
    along, squares = 0.0, 0.0
    everyone = range(len(held.features))
    for number, features in enumerate(held.features):
        way = _decoded(decoder, features, [other for other in everyone if other != number]) - means
        along += float((way * (held.images - means)).sum())
        squares += float(way.square().sum())
    return min(1.0, max(0.0, along / squares)) if squares else 0.0


def _decoded(decoder: Decoder, vectors: Tensor, extractors: Sequence[int]) -> Tensor:
    return torch.stack([decoder(vectors, number) for number in extractors]).mean(0)


def _linear(head: Classifier | None, width: int, device: torch.device) -> Head | None:
    """Return a head as a function of representations; None for one of another width (that of a small model)."""
    if head is None or head.state["weight"].shape[1] != width:
        return None
    weight, bias = head.state["weight"].to(device), head.state["bias"].to(device)
    return lambda features: functional.linear(features, weight, bias)


def _after(number: int, tick: Tick, training: SimulatorTraining) -> Tick:
    """Return a tick that counts the steps of the simulators before."""
    return lambda step: tick(number * training.steps + step)
