"""Membership from what training did to uploaded weights.

Three scores of a candidate (x, y), all from the broadcast and the upload alone:

- ``span``: how nearly what goes into a fully connected layer lies in the row space of that layer's change
  (:mod:`fedpriv.attacks.infer.membership_span`); asks neither for the loss nor for the label.
- ``loss``: its cross-entropy at the broadcast weights less that at the uploaded ones. A member's falls more. Taking the
  difference instead of the loss after training (Yeom et al. 2018) calibrates by how hard the candidate is (Watson et al.
  2022), and costs the server nothing: it sent the one and received the other.
- ``gradient``: the cosine between the update and the candidate's own gradient at the broadcast weights (Nasr et al. 2019
  have a network judge such gradients). Of one step on one image it is exactly 1 for that image.

By default ``span`` judges where a fully connected layer before the head is uploaded, ``gradient`` elsewhere: a head has as
many rows as classes, which a few images fill.

What the loss is computed with, by kind of upload: a whole, small or low-rank model is complete; a classifier takes the
client's representations; an extractor and an angle matrix take its private head.

Sources: Yeom et al., "Privacy risk in machine learning" (CSF 2018); Watson et al., "On the importance of difficulty
calibration in membership inference attacks" (ICLR 2022); Nasr et al., "Comprehensive privacy analysis of deep learning"
(IEEE S&P 2019).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, replace_all_batch_norm_modules_, vmap
from torch.nn.functional import cross_entropy

from fedpriv.algebra.angle_matrix import dense, diagonal_blocks
from fedpriv.attacks.gradients.update import private_head
from fedpriv.attacks.infer.membership_span import Layer, chosen_layer, layer_of, nearness, rounding, with_ones
from fedpriv.attacks.observation import Knowledge, Observation
from fedpriv.attacks.read.extractors import represent
from fedpriv.attacks.read.target_features import upload_holds
from fedpriv.attacks.read.updates import Weights, read_update
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import TRAINED
from fedpriv.wire.payloads import AngleMatrix, Classifier, Payload, find_payload, get_payload

BATCH = 256
"""Candidates in a pass."""

_GRADIENT_VALUES = 2**24
"""Values of candidates' gradients held at a time."""

_TINY = 1e-12
"""Least length that is divided by."""

Judge = Literal["auto", "span", "gradient", "loss"]


@dataclass(frozen=True)
class Training:
    """A client's training as a loss that candidates can be put into.

    Attributes:
        before: broadcast weights by name.
        after: uploaded weights by the same names.
        inputs: candidates ``(n, ...)`` as the weights take them: images, or representations.
        logits: (weights, some inputs ``(b, ...)``) -> ``(b, C)``.
        project: what can be compared of an update; None for everything.
        complete: whether the weights are all there is, so that two trainings from the same ones have the same loss.
        layers: fully connected layers that the span of their changes is asked for: one of a network, blocks of a mapping.
        hidden: whether that is a layer before a head.
        network: takes the weights and images, with the private head in it where one is; None of a single layer.
    """

    before: Weights
    after: Weights
    inputs: Tensor
    logits: Callable[[Weights, Tensor], Tensor]
    project: Callable[[Mapping[str, Tensor]], Weights] | None = None
    complete: bool = False
    layers: tuple[Layer, ...] = ()
    hidden: bool = False
    network: nn.Module | None = None

    def starts_like(self, other: Training) -> bool:
        """True if a candidate has the same loss, and the same gradient, at the start of both."""
        return (
            self.complete and other.complete and all(torch.equal(self.before[k], other.before[k]) for k in self.before)
        )

    def losses(self, weights: Weights, labels: Tensor) -> Tensor:
        """Return the loss of each candidate ``(n,)``, float64."""
        with torch.no_grad():
            found = torch.cat([self.logits(weights, some) for some in self.inputs.split(BATCH)]).double()
        return cross_entropy(found, labels, reduction="none")

    def log_odds(self, weights: Weights, labels: Tensor) -> Tensor:
        """Return the log odds of each candidate's class ``(n,)``, float64."""
        with torch.no_grad():
            found = torch.cat([self.logits(weights, some) for some in self.inputs.split(BATCH)]).double()
        own = found.gather(1, labels[:, None])
        return (own - found.scatter(1, labels[:, None], -torch.inf).logsumexp(1, keepdim=True))[:, 0]

    def first(self, number: int) -> Training:
        """Return the same for the first so many inputs."""
        return replace(self, inputs=self.inputs[:number])

    def comparable(self, changes: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the comparable part of changes of the weights, stacked along a first axis: ``(n, p)`` a parameter."""
        kept = changes if self.project is None else self.project(changes)
        return [kept[name].flatten(1) for name in self.before]

    @property
    def update(self) -> list[Tensor]:
        """The part of the update that can be compared, ``(1, p)`` a parameter, of length one altogether."""
        parts = self.comparable({name: (value - self.after[name])[None] for name, value in self.before.items()})
        length = torch.stack([part.double().square().sum() for part in parts]).sum().sqrt().clamp_min(_TINY)
        return [(part.double() / length).to(part.dtype) for part in parts]


def loss_drops(trainings: Sequence[Training], labels: Tensor) -> Tensor:
    """Return the loss of each candidate before trainings that start alike, less that after each ``(k, n)``."""
    first = trainings[0].losses(trainings[0].before, labels)
    return torch.stack([first - one.losses(one.after, labels) for one in trainings])


def alignments(trainings: Sequence[Training], labels: Tensor) -> Tensor:
    """Return the cosine between each candidate's gradient and the updates of trainings that start alike ``(k, n)``."""
    first = trainings[0]

    def loss(weights: Weights, one: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(first.logits(weights, one[None]), label[None])

    updates = [one.update for one in trainings]
    gradients = vmap(grad(loss), in_dims=(None, 0, 0))
    size = max(1, min(BATCH, _GRADIENT_VALUES // sum(part.shape[1] for part in updates[0])))
    alike = all(one.project is first.project for one in trainings)
    together = [torch.cat(parts) for parts in zip(*updates, strict=True)]
    found = []
    for some, own in zip(first.inputs.split(size), labels.split(size), strict=True):
        stack = gradients(first.before, some, own)
        if alike:
            found.append(_cosines(together, first.comparable(stack)))
        else:
            each = zip(trainings, updates, strict=True)
            found.append(torch.cat([_cosines(update, one.comparable(stack)) for one, update in each]))
    return torch.cat(found, 1)


def spans(trainings: Sequence[Training]) -> Tensor:
    """Return -log of the share of each candidate's inputs outside of what layers were changed by ``(k, n)``, on the CPU.

    Raises:
        UserError: when the weights have no fully connected layer.
    """
    if not all(one.layers for one in trainings):
        raise UserError(
            "attack 'membership': judge='span' needs a fully connected layer among the uploaded weights; got none; use "
            "judge='gradient'"
        )
    found: list[Tensor] = []
    known: list[tuple[Training, list[Tensor]]] = []
    for one in trainings:
        inputs = next((rows for other, rows in known if _same_inputs(one, other)), None)
        if inputs is None:
            inputs = [layer.inputs() for layer in one.layers]
            known.append((one, inputs))
        found.append(nearness(one.layers, one.after, inputs))
    return torch.stack(found)


def _same_inputs(one: Training, other: Training) -> bool:
    """True where candidates come to the layers alike: with the same weights before them, from the same images."""
    return one.inputs is other.inputs and all(torch.equal(one.before[name], other.before[name]) for name in one.before)


def _cosines(updates: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """Return the cosines ``(k, n)``, float64, of updates of length one and gradients, ``(k, p)`` and ``(n, p)`` a parameter.

    Parameter by parameter, in the type they come in: a stack of gradients is the largest thing there is, and copies of it
    would take most of the time.
    """
    pairs = list(zip(updates, gradients, strict=True))
    inner = torch.stack([(update @ gradient.T).double() for update, gradient in pairs]).sum(0)
    squares = torch.stack([torch.linalg.vecdot(gradient, gradient).double() for gradient in gradients]).sum(0)
    return inner / squares.sqrt().clamp_min(_TINY)


def update_signals(
    seen: Sequence[Observation],
    images: Tensor,
    labels: Tensor,
    knowledge: Knowledge,
    judge: Judge = "auto",
) -> Tensor:
    """Return the signal of each upload for each candidate image ``(n, c, h, w)`` of class ``(n,)``: ``(k, n)``, float64.

    On the CPU. A client's extractor and head are used where its upload is a part of a model.

    Args:
        seen: k observations.
        images: of the candidates.
        labels: of the candidates.
        knowledge: with the rest of each client's model, where that is private.
        judge: which of the scores.

    Raises:
        UserError: when a message holds no trained weights, or the rest of the model was not granted.
    """
    trainings = [training_of(one, one.client, images, knowledge) for one in seen]
    if judge == "span" or (judge == "auto" and all(one.hidden for one in trainings)):
        return spans(trainings)
    alike: list[list[int]] = []
    for place, one in enumerate(trainings):
        started = next((places for places in alike if trainings[places[0]].starts_like(one)), None)
        if started is None:
            alike.append([place])
        else:
            started.append(place)
    found = torch.empty(len(seen), len(labels), dtype=torch.float64)
    compare = loss_drops if judge == "loss" else alignments
    for places in alike:
        group = [trainings[place] for place in places]
        found[places] = compare(group, labels.to(group[0].inputs.device)).double().cpu()
    return found


def training_of(seen: Observation, client: int, images: Tensor, knowledge: Knowledge) -> Training:
    """Return a client's training as a loss of images ``(n, c, h, w)``.

    Raises:
        UserError: when a message holds no trained weights, or the rest of the model was not granted.
    """
    if find_payload(seen.upload, Classifier) is not None:
        return _of_classifier(seen, represent(knowledge, client, images).double())
    if find_payload(seen.upload, AngleMatrix) is not None:
        return _of_angle_matrix(seen, represent(knowledge, client, images).double(), _head(client, knowledge))
    return _of_model(seen, client, images, knowledge)


def _head(client: int, knowledge: Knowledge) -> tuple[Tensor, Tensor]:
    if client not in knowledge.heads:
        raise UserError(
            f"no head of client {client} was handed over; pass {argument('knowledge', {'extractor': 'white_box'})}"
        )
    return knowledge.heads[client]


def _answered(seen: Observation, kind: type[Payload]) -> None:
    if find_payload(seen.broadcast, kind) is None:
        raise UserError(f"broadcast of round {seen.round}: holds no {kind.kind} to compare the upload with")


def _of_classifier(seen: Observation, features: Tensor) -> Training:
    _answered(seen, Classifier)
    before, after = (
        {name: get_payload(message, Classifier).state[name].double().cpu() for name in ("weight", "bias")}
        for message in (seen.broadcast, seen.upload)
    )

    def change(found: Weights) -> Tensor:
        return torch.cat([before["weight"] - found["weight"], (before["bias"] - found["bias"])[:, None]], 1)

    layer = Layer(change, rounding(before["weight"]), lambda: with_ones(features))
    return Training(
        before, after, features, lambda state, rows: rows @ state["weight"].T + state["bias"], layers=(layer,)
    )


def _of_angle_matrix(seen: Observation, features: Tensor, head: tuple[Tensor, Tensor]) -> Training:
    _answered(seen, AngleMatrix)
    whole = dense(get_payload(seen.broadcast, AngleMatrix).blocks.cpu()).double()
    after = get_payload(seen.upload, AngleMatrix).blocks.cpu().double()
    before = diagonal_blocks(whole, len(after))
    beside = whole - dense(before)  # what is not uploaded is unknown, not zero: the client had it from the broadcast
    weight, bias = (value.double().cpu() for value in head)

    def logits(state: Weights, rows: Tensor) -> Tensor:
        in_blocks = rows.unflatten(1, before.shape[:2])
        turned = torch.einsum("nmi,mij->nmj", in_blocks, state["blocks"]).flatten(1)
        return (rows + turned + rows @ beside) @ weight.T + bias

    error, in_blocks = rounding(before), features.unflatten(1, before.shape[:2])
    layers = tuple(
        Layer(partial(_block_change, before, place), error, partial(in_blocks.select, 1, place))
        for place in range(len(before))
    )
    return Training({"blocks": before}, {"blocks": after}, features, logits, layers=layers)


def _block_change(before: Tensor, place: int, after: Weights) -> Tensor:
    return (before[place] - after["blocks"][place]).T


def _of_model(seen: Observation, client: int, images: Tensor, knowledge: Knowledge) -> Training:
    if knowledge.model is None:
        raise UserError(f"{upload_holds(seen)}; membership from training needs one of {', '.join(TRAINED)}")
    model = _without_statistics(knowledge.model, images.device)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    update = read_update(seen, shapes, images.device)
    rest: Weights = {}
    if update.before.keys() != shapes.keys():
        rest = private_head(_head(client, knowledge), update.before)
        model.load_state_dict(rest, strict=False)

    def logits(weights: Weights, some: Tensor) -> Tensor:
        found: Tensor = functional_call(model, weights | rest, (some,))
        return found

    name, hidden = chosen_layer(model, update.before)
    return Training(
        update.before,
        update.after,
        images,
        logits,
        update.project,
        complete=not rest,
        layers=() if name is None else (layer_of(model, name, update, images),),
        hidden=hidden,
        network=model,
    )


def _without_statistics(model: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy in evaluation mode whose batch norms, if any, take the statistics of what they are given.

    Running statistics stay with the client: they are no part of these uploads.
    """
    copied = copy.deepcopy(model).to(device).eval()
    replace_all_batch_norm_modules_(copied)
    return copied
