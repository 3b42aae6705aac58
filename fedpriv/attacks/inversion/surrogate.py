"""Surrogates of a private extractor or model: shadows of an architecture of the attacker's choice, and simulators.

In model-heterogeneous federations nobody sends an extractor, but uploads tie its output down. Where a head f that classifies
its representations is sent, and prototypes p_c, the means of its representations by class, a shadow g is trained on the
attacker's own labelled images to go with both,

    CE(f(g(a)), y) + mu ||g(a) - p_y||^2 / mean_c ||p_c||^2,

with f and p frozen. Means by class are all that prototypes tell, so what tells images of one class apart is a guess.
Where clients send mean outputs u_c of their classes (FD), a whole model h is trained to answer as the client's on average,

    CE(h(a), y) + mu D(h(a), u_y),

with D as in :func:`fedpriv.attacks.inputs.outputs.output_distance`. Classes that the client did not send keep the first
term only.

Where representations z_i = g(x_i) of private images with their classes y_i were uploaded, a simulator h is trained so that
on the attacker's own images a, of classes b, the pairs (h(a), b) are distributed as the pairs (z, y) are, and the known
head f classifies both alike:

    CE(f(h(a)), b) + mu MMD^2({(h(a), b)}, {(z, y)})

with a kernel over pairs, ``k = (1 + w [y = y']) / (1 + w) mean_s exp(-||z - z'||^2 / (s m))``: m is the mean squared
distance of uploaded representations, which are scaled to unit spread, s = 1/4, 1/2, 1, 2, 4. No pair of an image and its
representation is known. The first term is that of SDAR (Zhu et al. 2025, the simulator's loss), the second, without
classes, that of FORA (Xu et al. 2024, MK-MMD). Neither's discriminator is here: it took away from what came back through
vectors (``docs/attacks/simulator.md``).
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
from fedpriv.attacks.inversion.decoder import divided, pairs
from fedpriv.attacks.inversion.decoder_network import Decoder, DecoderTraining, Pairs, train_decoder
from fedpriv.attacks.observation import Cost, Needs, Observation, Reconstruction, TargetId
from fedpriv.attacks.priors.denoiser import LEAST_IMAGES
from fedpriv.attacks.search.fit import Adam
from fedpriv.attacks.search.objectives import relative_feature_distance
from fedpriv.attacks.trained import Same
from fedpriv.datasets.types import Samples
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator, global_seed
from fedpriv.wire.kinds import OF_IMAGES
from fedpriv.wire.payloads import Classifier, ClassLogits, Prototypes, Representations, find_payload

WIDTH = 64
"""Length of a shadow's representations where the client's own is not known and does not matter."""

LEAST_ROWS = 8
"""Uploaded representations below which a distribution is not worth fitting."""

_SCALES, _SAME_CLASS = (0.25, 0.5, 1.0, 2.0, 4.0), 3.0
"""Of the kernel: widths, in the mean squared distance of uploads, and how much more two vectors of one class weigh."""

_REACH = 3.0
"""Spreads of the uploaded representations that a unit of a simulator's last layer is worth: how fast it learns."""

_BODY = DecoderTraining(2000, 2e-3, 32, 256)
"""The training of the decoder, as the attack ``decoder`` has it, with steps enough to end by its own rule."""

Extractor = Callable[[Tensor], Tensor]
"""Images ``(n, c, h, w)`` to representations ``(n, d)``, differentiable, in evaluation mode."""

ShadowModel = tuple[Extractor, tuple[Tensor, Tensor]]
"""An extractor, and its head's weight ``(C, d)`` and bias ``(C,)``."""


@dataclass(frozen=True)
class ShadowTraining:
    """The training of a shadow, by Adam.

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


@dataclass(frozen=True)
class Anchors:
    """A head, weight ``(C, d)`` and bias ``(C,)``, and class means that a private extractor goes with; None if unknown."""

    head: tuple[Tensor, Tensor] | None
    means: Prototypes | None

    @property
    def width(self) -> int:
        """Length d of a representation."""
        known = self.head[0] if self.head is not None else self.means.features if self.means is not None else None
        assert known is not None
        return known.shape[1]


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
        means = means if means is not None and len(means.classes) else None
        if head is not None or means is not None:
            return Anchors(None if head is None else (head.state["weight"], head.state["bias"]), means)
    raise UserError(
        f"knowledge extractor=shadow: neither upload nor broadcast of client {client} in round {round_} holds a classifier, "
        "prototypes or representations to align a shadow extractor with"
    )


def shadow_extractor(
    observations: Sequence[Observation],
    client: int,
    round_: int,
    samples: Samples,
    n_classes: int,
    seed: int,
    training: ShadowTraining | None = None,
) -> Extractor:
    """Train a shadow of a client's extractor.

    Args:
        observations: what the server saw.
        client: whose extractor to stand in for.
        round_: whose uploads it should fit.
        samples: the attacker's images ``(p, c, h, w)`` in [0, 1] with labels.
        n_classes: C.
        seed: of the initial weights and the order of images.
        training: default :class:`ShadowTraining`.

    Raises:
        UserError: when there is nothing to align with.
    """
    how, device = training or ShadowTraining(), samples.images.device
    anchors = find_anchors(observations, client, round_)
    model = substitute(samples.images, n_classes, anchors.width, derive_seed(seed, "shadow", client), how.architecture)
    head = None if anchors.head is None else tuple(part.to(device) for part in anchors.head)
    means, scale = None, 1.0
    if anchors.means is not None:
        means = by_class(anchors.means.features, anchors.means.classes, n_classes, device)
        scale = float(anchors.means.features.to(device).square().sum(1).mean().clamp_min(1e-12))

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        features = model.represent(images)
        total = features.new_zeros(())
        if head is not None:
            total = total + functional.cross_entropy(functional.linear(features, *head), labels)
        if means is not None:
            table, known = means
            distance = (features - table[labels]).square().sum(1) * known[labels]
            total = total + how.alignment * distance.mean() / scale
        return total

    parameters = [*model.extractor.parameters(), *model.mapping.parameters()]
    # Batch norm, where the architecture has it, needs two images.
    train_substitute(parameters, samples, loss, how, generator(seed, "shadow order", client), least=2)
    model.eval().requires_grad_(False)
    return model.represent


def shadow_model(
    observations: Sequence[Observation],
    client: int,
    round_: int,
    auxiliary: Samples,
    n_classes: int,
    seed: int,
    training: ShadowTraining | None = None,
) -> ShadowModel:
    """Train a shadow of a client's whole model by its class outputs; arguments as of :func:`shadow_extractor`.

    Raises:
        UserError: when the client sent no class outputs.
    """
    how = training or ShadowTraining()
    sent = find_payload(observation_of(observations, TargetId(round_, client)).upload, ClassLogits)
    if sent is None:
        raise UserError(f"knowledge extractor=shadow: client {client} sent no class outputs in round {round_}")
    values, softmax = read_outputs(sent.values)
    table, known = by_class(values, sent.classes, n_classes, auxiliary.images.device)
    model = substitute(auxiliary.images, n_classes, WIDTH, derive_seed(seed, "shadow", client), how.architecture)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        logits = model(images)
        apart = output_distance(logits, table[labels], softmax=softmax) * known[labels]
        return functional.cross_entropy(logits, labels) + how.alignment * apart.mean()

    samples = Samples(auxiliary.images, auxiliary.labels.to(auxiliary.images.device))
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
    samples: Samples,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    how: ShadowTraining,
    rng: torch.Generator,
    *,
    least: int = 1,
) -> None:
    """Minimise a loss of (images, labels) over batches of at least ``least`` images, in an order that ``rng`` draws."""
    optimiser = Adam(parameters, how.learning_rate)
    orders = (torch.randperm(len(samples.labels), generator=rng).to(samples.images.device) for _ in range(how.epochs))
    batches = (index for order in orders for index in order.split(how.batch_size) if len(index) >= least)
    for index in islice(batches, how.steps):
        optimiser.descend(loss_of(samples.images[index], samples.labels[index]))


def by_class(rows: Tensor, classes: Tensor, n_classes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return rows ``(c, k)`` as a table ``(C, k)`` with zeros for other classes, and 1 for each class that is there."""
    rows, classes = rows.to(device), classes.to(device)
    table = rows.new_zeros(n_classes, rows.shape[1]).index_copy(0, classes, rows)
    return table, rows.new_zeros(n_classes).index_fill(0, classes, 1.0)


@dataclass(frozen=True)
class Answers:
    """Uploads by a private extractor, and the head that classifies them.

    Attributes:
        features: ``(n, d)``, or maps ``(n, c, h, w)``, of n private images.
        labels: ``(n,)`` int64, their classes.
        head: from features to logits ``(n, C)``, held fixed; None where none was sent.
    """

    features: Tensor
    labels: Tensor
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


def discrepancy(ours: Tensor, theirs: Tensor, our_labels: Tensor, their_labels: Tensor) -> Tensor:
    """Return the squared maximum mean discrepancy of samples ``(n, d)`` and ``(m, d)`` with classes.

    The biased estimate, which is never below zero; gradients go through the first sample.
    """
    both, labels, number = torch.cat([ours, theirs]), torch.cat([our_labels, their_labels]), len(ours)
    squares = both.square().sum(1)
    apart = (squares[:, None] + squares - 2 * both @ both.T).clamp_min(0)
    unit = apart[number:, number:].detach().mean().clamp_min(1e-12)
    kernel = torch.stack([torch.exp(-apart / (scale * unit)) for scale in _SCALES]).mean(0)
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

    def __init__(self, image_shape: Sequence[int], like: Tensor, *, pooled: bool) -> None:
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
        features: Tensor = self.centre + _REACH * self.unit * self.layers(images)
        return features.relu() if self.rectified else features


def simulator_network(answers: Answers, samples: Samples, seed: int, number: int) -> SimulatorNetwork:
    """Return the untrained simulator of a number, on the device of the attacker's images; pooled where it is odd."""
    with global_seed(derive_seed(seed, "simulator", number)):
        network = SimulatorNetwork(samples.images.shape[1:], answers.features.cpu(), pooled=number % 2 == 1)
    return network.to(samples.images.device)


def train_simulator(
    network: nn.Module,
    answers: Answers,
    samples: Samples,
    training: SimulatorTraining,
    seed: int,
    tick: Callable[[int], None] = lambda _: None,
) -> None:
    """Train a simulator in place, and leave it in evaluation mode without gradients for its weights.

    Images of the attacker's own are drawn in the proportions in which the uploaded rows have their classes, and rows of
    classes of which it has no image are left out.

    Args:
        network: from images ``(n, c, h, w)`` in [0, 1] to features of the shape of the uploaded ones.
        answers: what was seen.
        samples: the attacker's images ``(p, c, h, w)`` in [0, 1] with labels.
        training: its settings.
        seed: of the order of images and rows.
        tick: called with the steps done.

    Raises:
        UserError: when fewer than eight uploaded rows are of classes that the attacker has images of.
    """
    device = samples.images.device
    labels, classes = answers.labels.to(device), samples.labels.to(device)
    known = torch.isin(labels, classes)
    rows, labels = answers.features.to(device)[known].flatten(1), labels[known]
    if len(rows) < LEAST_ROWS:
        raise UserError(
            f"a simulator of an extractor got {len(rows)} uploaded representations of classes that the attacker has images "
            f"of; expected at least {LEAST_ROWS}"
        )
    centre, spread = rows.mean(0), rows.std(0)
    spread = spread.clamp_min(0.05 * float(rows.std().clamp_min(1e-12)))
    rows = (rows - centre) / spread
    draw = _Draws(labels, classes, training.batch_size, seed)
    network.train()
    optimiser = Adam(network.parameters(), training.learning_rate)
    for step in range(training.steps):
        theirs, ours = draw()
        features = network(samples.images[ours])
        apart = discrepancy((features.flatten(1) - centre) / spread, rows[theirs], classes[ours], labels[theirs])
        loss = training.matching * apart
        if answers.head is not None:
            loss = loss + functional.cross_entropy(answers.head(features), classes[ours])
        optimiser.descend(loss)
        tick(step + 1)
    network.eval().requires_grad_(False)


class _Draws:
    """Draws of uploaded rows, by their classes, and of the attacker's images, in the same proportions of classes."""

    def __init__(self, labels: Tensor, own: Tensor, batch_size: int, seed: int) -> None:
        self._rng = generator(seed, "simulator draws")
        self._labels, self._batch_size = labels, batch_size
        self._places = {int(c): (own == c).nonzero().flatten() for c in labels.unique()}

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Return positions of uploaded rows, none twice, and of images."""
        number, device = len(self._labels), self._labels.device
        theirs = torch.randperm(number, generator=self._rng)[: self._batch_size].to(device)
        like = torch.randint(number, (self._batch_size,), generator=self._rng).to(device)
        at = torch.rand(self._batch_size, generator=self._rng).to(device)
        ours = torch.empty_like(like)
        for label, places in self._places.items():
            mine = self._labels[like] == label
            ours[mine] = places[(at[mine] * len(places)).long().clamp_max(len(places) - 1)]
        return theirs, ours


@dataclass(frozen=True)
class Substitutes:
    """Trained simulators of one client's extractor, and their decoder.

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

    @torch.no_grad()
    def distance(self, images: Tensor, vectors: Tensor) -> Tensor:
        """Return the relative feature distance ``(n,)`` of images from vectors, the mean over the simulators."""
        return torch.stack(
            [relative_feature_distance(simulator(images), vectors) for simulator in self.simulators]
        ).mean(0)


@dataclass(frozen=True, kw_only=True)
class SimulatedInversion(Attack):
    """Decode uploaded representations by what was learned of their extractor from them alone.

    Several simulators are trained on what a client uploaded, and a decoder for all of them. An image is the mean of what the
    uploaded vector decodes to as each one's. How far it may be trusted is learned from the simulators alone: each in turn
    plays the private extractor on held-out images, the others' decoders answer, and least squares gives the share of the way
    from the mean image of the class to the decoded one that is worth going.

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
        images, objective, labels, settled, vectors = [], [], [], [], []
        for target in problem.targets:
            sent, substitutes = self._sent(problem, target), self._trained(problem, target)
            if not 0 <= target.index < len(sent.features):
                raise UserError(f"attack {self.name!r}: client {target.client} uploaded no row {target.index}")
            row = slice(target.index, target.index + 1)
            vector, label = sent.features[row].to(problem.device), sent.labels[row].to(problem.device)
            image = substitutes.images(vector, label)
            images.append(image)
            objective.append(substitutes.distance(image, vector))
            labels.append(label)
            settled.append(substitutes.decoder.settled)
            vectors.append(vector)
        return Reconstruction(
            targets=problem.targets,
            images=torch.stack(images),
            objective=torch.stack(objective),
            chosen=torch.zeros(len(images), dtype=torch.int64, device=problem.device),
            labels=torch.stack(labels),
            cost=Cost(iterations=self.iterations, rows=len(images)),
            converged=torch.tensor(settled, device=problem.device),
            features=torch.cat(vectors),
        )

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the distance of images' simulated representations to the uploaded vectors, the mean over simulators."""

        def apart(images: Tensor) -> Tensor:
            values = []
            for target, each in zip(problem.targets, images, strict=True):
                vector = self._sent(problem, target).features[target.index][None].to(each.device)
                values.append(self._trained(problem, target).distance(each[:1], vector)[0])
            return torch.stack(values)

        return apart

    def caveat(self, problem: AttackProblem) -> str:
        """Return why the true images need not fit best."""
        return "what images are fitted through is learned, not the client's own extractor"

    def _sent(self, problem: AttackProblem, target: TargetId) -> Representations:
        sent = find_payload(observation_of(problem.observations, target).upload, Representations)
        if sent is None:
            raise UserError(f"attack {self.name!r}: client {target.client} uploaded no representations of images")
        return sent

    def _trained(self, problem: AttackProblem, target: TargetId) -> Substitutes:
        """Return the simulators of a target's client, trained once for its upload."""
        sent, knowledge, device = self._sent(problem, target), problem.knowledge, problem.device
        images, labels = knowledge.public_images, knowledge.public_labels
        if images is None or labels is None:
            raise UserError(
                f"attack {self.name!r} needs labelled images of the clients' domain (train the run with auxiliary=0.5)"
            )
        seed = derive_seed(problem.seed, "simulator", target.client)
        training = SimulatorTraining(self.iterations, self.batch_size, self.learning_rate, self.matching)
        key = ("simulators", self.simulators, training, seed, Same(sent.features), Same(images))

        def train() -> Substitutes:
            samples, seen = Samples(images.to(device), labels.to(device)), observation_of(problem.observations, target)
            classifier = find_payload(seen.upload, Classifier) or find_payload(seen.broadcast, Classifier)
            head = _linear(classifier, sent.features.shape[1], device)
            answers = Answers(sent.features.to(device), sent.labels.to(device), head)
            return self._train(problem, answers, samples, training, seed, problem.clients.index(target.client))

        return problem.trained.get(key, train)

    def _train(
        self,
        problem: AttackProblem,
        answers: Answers,
        samples: Samples,
        training: SimulatorTraining,
        seed: int,
        turn: int,
    ) -> Substitutes:
        # Of other classes nothing was seen: what a simulator makes of their images, no decoder should learn from.
        alike = torch.isin(samples.labels, answers.labels)
        if int(alike.sum()) < LEAST_IMAGES:
            raise UserError(
                f"attack {self.name!r}: the attacker has {int(alike.sum())} images of a client's classes; expected at "
                f"least {LEAST_IMAGES} (set more auxiliary images aside)"
            )
        near, n_classes = Samples(samples.images[alike], samples.labels[alike]), problem.knowledge.n_classes
        simulators = tuple(simulator_network(answers, samples, seed, number) for number in range(self.simulators))
        for number, network in enumerate(simulators):
            before = (turn * self.simulators + number) * self.iterations

            def tick(done: int, before: int = before) -> None:
                if problem.progress is not None:
                    problem.progress(before + done, len(problem.clients) * self.simulators * self.iterations)

            train_simulator(network, answers, samples, training, derive_seed(seed, "draws", number), tick)
        inside, outside = pairs(simulators, near.images, seed)
        decoder = train_decoder(inside, outside, _BODY, seed)
        labels, held_labels = (part.images for part in divided(Pairs([], near.labels), seed))
        means = class_means(Samples(inside.images, labels), n_classes)
        share = worth_among(decoder, outside, means[held_labels])
        return Substitutes(simulators, decoder, class_means(near, n_classes), share)


def class_means(samples: Samples, n_classes: int) -> Tensor:
    """Return the mean image ``(C, c, h, w)`` of each class; of a class without images, that of all."""
    member = functional.one_hot(samples.labels, n_classes).to(samples.images.dtype)
    sums, numbers = torch.tensordot(member.T, samples.images, 1), member.sum(0).view(-1, 1, 1, 1)
    means: Tensor = torch.where(numbers > 0, sums / numbers.clamp_min(1), samples.images.mean(0))
    return means


def worth_among(decoder: Decoder, kept: Pairs, means: Tensor) -> float:
    """Return the share in [0, 1] of the way from mean images to decoded ones that brings held-out images nearest.

    Each extractor in turn is decoded as if it were each of the others, as a private one is.

    Args:
        decoder: of two or more extractors.
        kept: held-out images and their representations by each.
        means: ``(n, c, h, w)`` mean image of each held-out image's class.
    """
    along, squares = 0.0, 0.0
    for number, features in enumerate(kept.features):
        others = [other for other in range(len(kept.features)) if other != number]
        way = _decoded(decoder, features, others) - means
        along += float((way * (kept.images - means)).sum())
        squares += float(way.square().sum())
    return min(1.0, max(0.0, along / squares)) if squares else 0.0


def _decoded(decoder: Decoder, vectors: Tensor, extractors: Sequence[int]) -> Tensor:
    return torch.stack([decoder(vectors, number) for number in extractors]).mean(0)


def _linear(head: Classifier | None, width: int, device: torch.device) -> Callable[[Tensor], Tensor] | None:
    """Return a head as a function of representations; None for one of another width (that of a small model)."""
    if head is None or head.state["weight"].shape[1] != width:
        return None
    weight, bias = head.state["weight"].to(device), head.state["bias"].to(device)
    return lambda features: functional.linear(features, weight, bias)
