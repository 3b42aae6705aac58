"""Membership from what training did to uploaded weights.

Two scores of a candidate (x, y), both from the broadcast and the upload alone:

- ``loss``: its cross-entropy at the broadcast weights less that at the uploaded ones. A member's falls more. Taking the
  difference instead of the loss after training (Yeom et al. 2018) calibrates by how hard the candidate is (Watson et al.
  2022), and costs the server nothing: it sent the one and received the other.
- ``gradient``: the cosine between the update and the candidate's own gradient at the broadcast weights (Nasr et al. 2019
  have a network judge such gradients). Of one step on one image it is exactly 1 for that image.

What the loss is computed with, by kind of upload: a whole, small or low-rank model is complete; a classifier takes the
client's representations; an extractor and an angle matrix take its private head.

Sources: Yeom et al., "Privacy risk in machine learning" (CSF 2018); Watson et al., "On the importance of difficulty
calibration in membership inference attacks" (ICLR 2022); Nasr et al., "Comprehensive privacy analysis of deep learning"
(IEEE S&P 2019).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, replace_all_batch_norm_modules_, vmap
from torch.nn.functional import cosine_similarity, cross_entropy

from fedpriv.algebra.angle_matrix import dense, diagonal_blocks
from fedpriv.attacks.gradients.local_step import private_head
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

_GRADIENT_VALUES = 2**26
"""Values of candidates' gradients held at a time."""

ClassEvaluator = Literal["gradient", "loss"]


@dataclass(frozen=True)
class Training:
    """A client's training as a loss that candidates can be put into.

    Attributes:
        before: broadcast weights by name.
        after: uploaded weights by the same names.
        inputs: candidates ``(n, ...)`` as the weights take them: images, or representations.
        logits: (weights, some inputs ``(b, ...)``) -> ``(b, C)``.
        project: what can be compared of an update; None for everything.
    """

    before: Weights
    after: Weights
    inputs: Tensor
    logits: Callable[[Weights, Tensor], Tensor]
    project: Callable[[Mapping[str, Tensor]], Weights] | None = None

    def loss_drops(self, labels: Tensor) -> Tensor:
        """Return the loss of each candidate before training less that after ``(n,)``."""
        with torch.no_grad():
            first, last = (
                torch.cat([self.logits(weights, some) for some in self.inputs.split(BATCH)]).double()
                for weights in (self.before, self.after)
            )
        return cross_entropy(first, labels, reduction="none") - cross_entropy(last, labels, reduction="none")

    def alignments(self, labels: Tensor) -> Tensor:
        """Return the cosine between the update and each candidate's gradient ``(n,)``."""

        def loss(weights: Weights, one: Tensor, label: Tensor) -> Tensor:
            return cross_entropy(self.logits(weights, one[None]), label[None])

        def compared(change: Mapping[str, Tensor]) -> Tensor:
            kept = change if self.project is None else self.project(change)
            return torch.cat([kept[name].flatten() for name in self.before]).double()

        update = compared({name: value - self.after[name] for name, value in self.before.items()})
        gradients = vmap(grad(loss), in_dims=(None, 0, 0))
        size = max(1, min(BATCH, _GRADIENT_VALUES // len(update)))
        found = []
        for some, own in zip(self.inputs.split(size), labels.split(size), strict=True):
            stack = gradients(self.before, some, own)
            found += [compared({name: value[i] for name, value in stack.items()}) for i in range(len(some))]
        return torch.stack([cosine_similarity(one, update, dim=0) for one in found])


def update_scores(
    seen: Observation,
    client: int,
    images: Tensor,
    labels: Tensor,
    knowledge: Knowledge,
    judge: ClassEvaluator = "gradient",
) -> Tensor:
    """Return the score of each candidate image ``(n, c, h, w)`` of class ``(n,)``: ``(n,)``, float64 on the CPU.

    The client's extractor and head are used where the upload is a part of a model.

    Raises:
        UserError: when a message holds no trained weights, or the rest of the model was not granted.
    """
    training = _training(seen, client, images, knowledge)
    labels = labels.to(training.inputs.device)
    scores = training.alignments(labels) if judge == "gradient" else training.loss_drops(labels)
    return scores.double().cpu()


def _training(seen: Observation, client: int, images: Tensor, knowledge: Knowledge) -> Training:
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
    return Training(before, after, features, lambda state, rows: rows @ state["weight"].T + state["bias"])


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

    return Training({"blocks": before}, {"blocks": after}, features, logits)


def _of_model(seen: Observation, client: int, images: Tensor, knowledge: Knowledge) -> Training:
    if knowledge.model is None:
        raise UserError(f"{upload_holds(seen)}; membership from training needs one of {', '.join(TRAINED)}")
    model = _without_statistics(knowledge.model, images.device)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    update = read_update(seen, shapes, images.device)
    rest: Weights = {}
    if update.before.keys() != shapes.keys():
        rest = private_head(_head(client, knowledge), update.before)

    def logits(weights: Weights, some: Tensor) -> Tensor:
        found: Tensor = functional_call(model, weights | rest, (some,))
        return found

    return Training(update.before, update.after, images, logits, update.project)


def _without_statistics(model: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy in evaluation mode whose batch norms, if any, take the statistics of what they are given.

    Running statistics stay with the client: they are no part of these uploads.
    """
    copied = copy.deepcopy(model).to(device).eval()
    replace_all_batch_norm_modules_(copied)
    return copied
