"""Shadow clients: simulated from the attacker's own labelled images, trained as the broadcast suggests, and uploading.

:func:`shadow_clients` trains private models, from the broadcast classifier where there is one, and pulled towards
broadcast prototypes and class outputs. :func:`train_shadow_updates` trains the weights that travel, by plain SGD in
batches of a client's sizes, behind its defenses; momentum, weight decay and further terms of a method's loss are not
followed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn.functional import cross_entropy

from fedpriv.algebra.entanglement import Mechanism, entangle, sample_weights
from fedpriv.attacks.inference.update_scores import Training
from fedpriv.attacks.inputs.outputs import output_distance, read_outputs
from fedpriv.attacks.inputs.targets import kinds_in
from fedpriv.attacks.inputs.updates import Tangent, Weights
from fedpriv.attacks.inversion.surrogate import WIDTH, ShadowTraining, by_class, substitute, train_substitute
from fedpriv.attacks.observation import BatchFacts, LocalGradient, Observation, WeightRehearsal
from fedpriv.datasets.types import Samples
from fedpriv.models.split import SplitModel
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator, global_seed
from fedpriv.wire.kinds import CLASS_MEANS, CLASS_OUTPUTS, HEADS, MIXTURES, VECTORS
from fedpriv.wire.payloads import Classifier, ClassLogits, Entangled, Message, Payload, Prototypes, find_payload

_CONCENTRATIONS = (0.1, 0.3, 1.0)

BATCH, RATE = 16, 2e-3
"""Images a step, and Adam's step size, of a client's training."""

LEAST_IMAGES = 40
"""Fewest images of its own of which the attacker simulates clients."""


# ---------------------------------------------------------------- clients with private models


def shadow_clients(
    like: Observation,
    auxiliary: Samples,
    n_classes: int,
    number: int,
    seed: int,
    *,
    training: ShadowTraining,
    mechanism: Mechanism,
) -> Iterator[tuple[Observation, Tensor]]:
    """Yield what simulated clients upload, of the kind and width of ``like``, and their images of each class ``(C,)``.

    Args:
        like: an upload of a real client.
        auxiliary: the attacker's images ``(p, c, h, w)`` in [0, 1] with labels.
        n_classes: C.
        number: of clients.
        seed: of all random draws.
        training: of each client's model.
        mechanism: of entangled uploads.
    """
    widths = [
        payload.rows().shape[1] if payload.kind in VECTORS else payload.parameters()["weight"].shape[1]
        for payload in (*like.upload, *like.broadcast)
        if payload.kind in VECTORS | HEADS
    ]
    for position in range(number):
        rng = generator(seed, "shadow client", position)
        index = _draw_images(auxiliary.labels.cpu(), n_classes, position, rng)
        samples = Samples(auxiliary.images[index], auxiliary.labels[index].to(auxiliary.images.device))
        drawn = derive_seed(seed, "shadow client", position)
        model = substitute(samples.images, n_classes, widths[0] if widths else WIDTH, drawn)
        sent = find_payload(like.broadcast, Classifier)
        if sent is not None:
            with torch.no_grad():
                model.head.weight.copy_(sent.state["weight"])
                model.head.bias.copy_(sent.state["bias"])
        loss = _loss(model, like.broadcast, n_classes, samples.images.device)
        train_substitute(list(model.parameters()), samples, loss, training, rng)
        upload = _means(model.eval(), samples, n_classes, like, mechanism, rng)
        counts = torch.bincount(samples.labels.cpu(), minlength=n_classes)
        yield Observation(like.round, -1 - position, (upload,), like.broadcast), counts


def _draw_images(labels: Tensor, n_classes: int, number: int, rng: torch.Generator) -> Tensor:
    """Draw a client's images, half of all where they last, with class shares from a Dirichlet distribution."""
    alpha = _CONCENTRATIONS[number % len(_CONCENTRATIONS)]
    seed = int(torch.randint(2**31, (1,), generator=rng))
    wanted = np.round(np.random.default_rng(seed).dirichlet([alpha] * n_classes) * len(labels) / 2).astype(int)
    chosen = []
    for label in range(n_classes):
        places = (labels == label).nonzero().flatten()
        chosen.append(places[torch.randperm(len(places), generator=rng)[: int(wanted[label])]])
    index = torch.cat(chosen)
    return index if len(index) > 1 else torch.randperm(len(labels), generator=rng)[:2]


def _loss(
    model: SplitModel, broadcast: Message, n_classes: int, device: torch.device
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the cross-entropy with the distances from broadcast prototypes and class outputs."""
    means, outputs = find_payload(broadcast, Prototypes), find_payload(broadcast, ClassLogits)
    near = None if means is None else by_class(means.features, means.classes, n_classes, device)
    alike, softmax = None, False
    if outputs is not None:
        values, softmax = read_outputs(outputs.values)
        alike = by_class(values, outputs.classes, n_classes, device)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        features = model.represent(images)
        logits = model.head(features)
        total = cross_entropy(logits, labels)
        if near is not None:
            table, known = near
            total = total + ((features - table[labels]).square().mean(1) * known[labels]).mean()
        if alike is not None:
            table, known = alike
            total = total + (output_distance(logits, table[labels], softmax=softmax) * known[labels]).mean()
        return total

    return loss


def _means(
    model: SplitModel, samples: Samples, n_classes: int, like: Observation, mechanism: Mechanism, rng: torch.Generator
) -> Payload:
    """Return means or a mixture of a client with this model and these images."""
    with torch.no_grad():
        features = torch.cat([model.represent(part) for part in samples.images.split(256)])
        logits = model.head(features)
    labels, classes = samples.labels, samples.labels.unique()

    def means(rows: Tensor) -> Tensor:
        return torch.stack([rows[labels == label].mean(0) for label in classes]).cpu()

    for payload in like.upload:
        if payload.kind in MIXTURES:
            weights = sample_weights(labels, mechanism, rng)
            return Entangled(*(value.cpu() for value in entangle(features, labels, weights, n_classes)))
        if payload.kind in CLASS_MEANS:
            return Prototypes(means(features), classes.cpu())
        if payload.kind in CLASS_OUTPUTS:
            outputs = logits.softmax(1) if read_outputs(payload.rows())[1] else logits
            return ClassLogits(means(outputs), classes.cpu())
    raise UserError(f"attack 'property': no client can be made up that uploads {kinds_in(like.upload)}")


# ---------------------------------------------------------------- clients that train what travels


def train_shadow_updates(
    training: Training,
    labels: Tensor,
    client_images: Sequence[Tensor],
    facts: BatchFacts,
    seed: Sequence[int | str],
    compute: LocalGradient | None = None,
    defend: WeightRehearsal | None = None,
) -> list[Training]:
    """Return trainings that start like a client's and end where other images lead.

    Args:
        training: the client's, with all images of the attacker as inputs.
        labels: ``(n,)`` their classes.
        client_images: of each simulated client, the places ``(m,)`` of its images among them, at least one.
        facts: of the client's local steps.
        seed: parts of the seed of batches, and of what defenses draw.
        compute: the gradient of a batch where defenses change it; None for that of the loss alone.
        defend: the client's defenses of its upload, or None.
    """
    results = []
    for number, client_image in enumerate(client_images):
        batches = _batches(client_image, facts, generator(*seed, "shadow update", number))
        if compute is None or training.network is None:
            after = _trained(training, labels, batches, facts.learning_rate)
        else:
            drawn = derive_seed(*seed, "shadow guards", number)
            after = _guarded(training, training.network, labels, batches, facts.learning_rate, compute, drawn)
        if defend is not None:
            after = defend(after, derive_seed(*seed, "shadow defenses", number))
        project = training.project.at(after) if isinstance(training.project, Tangent) else training.project
        results.append(replace(training, after=after, project=project))
    return results


def _trained(training: Training, labels: Tensor, batches: Sequence[Tensor], learning_rate: float) -> Weights:
    slope = grad(lambda weights, some, answers: cross_entropy(training.logits(weights, some), answers))
    weights = dict(training.before)
    for batch in batches:
        gradient = slope(weights, training.inputs[batch], labels[batch])
        weights = {name: value - learning_rate * gradient[name] for name, value in weights.items()}
    return {name: value.detach() for name, value in weights.items()}


def _guarded(
    training: Training,
    network: nn.Module,
    labels: Tensor,
    batches: Sequence[Tensor],
    learning_rate: float,
    compute: LocalGradient,
    seed: int,
) -> Weights:
    copied, rng = copy.deepcopy(network).train(), generator(seed)
    copied.load_state_dict(training.before, strict=False)
    for name, parameter in copied.named_parameters():
        parameter.requires_grad_(name in training.before)
    with global_seed(seed):
        for batch in batches:
            copied.zero_grad(set_to_none=True)
            compute(copied, training.inputs[batch], labels[batch], rng)
            with torch.no_grad():
                for parameter in copied.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(parameter.grad, alpha=learning_rate)
    return {name: value.detach() for name, value in copied.named_parameters() if value.requires_grad}


def _batches(values: Tensor, facts: BatchFacts, rng: torch.Generator) -> list[Tensor]:
    """Draw batches of the sizes of the client's steps from consecutive random orders of its images."""
    left, results = values[:0], []
    for size in facts.sizes or (facts.batch_size,) * facts.steps:
        while len(left) < min(size, len(values)):
            left = torch.cat([left, values[torch.randperm(len(values), generator=rng)]])
        results.append(left[:size])
        left = left[size:]
    return results


def draw_halves(values: Tensor, spare: Tensor, number: int, wanted: int, rng: torch.Generator) -> list[Tensor]:
    """Return places of the images of an even number of simulated clients, of which each candidate is in half.

    They hold half of the candidates of each class, so that shares of classes are right, and as many of the attacker's own
    images that ``wanted`` are reached. Candidates are of classes ``values`` ``(n,)``, own images, which follow them, of
    ``spare`` ``(m,)``.
    """
    first = [_half_of_each_class(values, rng) for _ in range(number // 2)]
    chosen = [item for inside in first for item in (inside, ~inside)]
    return [_filled(inside.nonzero().squeeze(1), values, spare, wanted, rng) for inside in chosen]


def _half_of_each_class(labels: Tensor, rng: torch.Generator) -> Tensor:
    inside = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        places = (labels == label).nonzero().squeeze(1)
        order = places[torch.randperm(len(places), generator=rng)]
        odd = int(torch.randint(2, (1,), generator=rng)) if len(places) % 2 else 0
        inside[order[: len(places) // 2 + odd]] = True
    return inside


def _filled(current: Tensor, values: Tensor, spare: Tensor, wanted: int, rng: torch.Generator) -> Tensor:
    """Fill up with the attacker's own images, by the candidates' shares of classes."""
    missing = wanted - len(current)
    if missing <= 0 or not len(spare):
        return current
    shares = torch.bincount(values, minlength=int(max(values.max(), spare.max())) + 1).double()[spare]
    if not bool((shares > 0).any()):
        return current
    chances = shares / torch.bincount(spare).double()[spare]
    drawn = torch.multinomial(chances, min(missing, int((chances > 0).sum())), generator=rng)
    return torch.cat([current, len(values) + drawn])
