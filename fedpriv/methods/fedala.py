"""FedALA: FedAvg whose clients learn, weight by weight, how much of the global model to take.

Source: Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for Personalized Federated
Learning, AAAI 2023, algorithm 1. The last ``layer_idx`` parameter tensors of what a client received are merged with
its own, the others are overwritten:

    w = w_local + (w_global - w_local) * W,    W in [0, 1] of the shape of w, at first 1,

and at the beginning of its step, on a random contiguous part (80 %) of its training samples, a client learns

    W <- clip(W - eta * dCE/dw * (w_global - w_local), 0, 1),

one step a batch, in evaluation mode: the first time for passes until the standard deviation of the last ten passes' mean
losses is below 0.1 (``first_passes`` bounds them), later for one pass; nothing where global and local tensors are equal.
Accuracy *after broadcast* is that of a merge with the W of the client's step before.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import classification_loss, represent, train
from fedpriv.federation.method import ClientSetup, Plan
from fedpriv.federation.states import Outcome, State, inner, outer, parameters, put, take
from fedpriv.methods import fedavg, weights
from fedpriv.models.build import build_model
from fedpriv.uploads.payloads import Message, Model, PublicLoss, get_payload
from fedpriv.util.errors import UserError

SHARES = "ala"  # prefix of W in a client's state; there is none before the first time
LOSSES_COMPARED = 10


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedALA.

    Attributes:
        layer_idx: how many parameter tensors, from the head downwards, are merged; 2 is the head, 0 all.
        rate: eta, the step size of W; 0 keeps W at 1, which is FedAvg.
        share: of the training samples that W is learned on.
        threshold: the first time ends when the standard deviation of the last ten losses is below it.
        first_passes: the most passes of the first time.
    """

    layer_idx: Annotated[int, Ge(0)] = 2
    rate: Annotated[float, Ge(0)] = 1.0
    share: Annotated[float, Gt(0), Le(1)] = 0.8
    threshold: Annotated[float, Gt(0)] = 0.1
    first_passes: Annotated[int, Ge(1)] = 50


def check(plan: Plan) -> None:
    """Refuse to merge more tensors than the model has."""
    blueprint, options = plan.blueprints[0], plan.options
    tensors = len(parameters(build_model(blueprint, 0)))
    if options.layer_idx > tensors:
        raise UserError(
            f"method 'fedala': layer_idx is {options.layer_idx}, but {blueprint.name} has {tensors} parameter tensors; "
            f"choose 1 to {tensors}, or 0 for all"
        )


def merge(local: State, received: Mapping[str, torch.Tensor], shares: State) -> State:
    """Return ``local + (received - local) * W`` where there is a W, exactly ``received`` where it is 1 or none."""
    return {
        name: torch.lerp(local[name], value, shares[name]) if name in shares else value.clone()
        for name, value in received.items()
    }


def step_shares(shares: State, slopes: State, local: State, received: Mapping[str, torch.Tensor], rate: float) -> State:
    """Return W after one step: ``clip(W - eta * slope * (received - local), 0, 1)``."""
    return {
        name: (share - rate * slopes[name] * (received[name] - local[name])).clamp(0, 1)
        for name, share in shares.items()
    }


def apply_broadcast(setup: ClientSetup, state: State, broadcast: Message) -> State:
    """Merge the global model into the client's with the W learned so far, at first 1."""
    received = get_payload(broadcast, Model).state
    return state | outer(merge(inner(state, "model"), received, inner(state, SHARES)), "model")


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Learn W, merge, train; upload the model with the number of samples."""
    shares = outer(learn_shares(setup, state, broadcast, weights.side_generator(rng)), SHARES)
    put(setup.model, apply_broadcast(setup, state | shares, broadcast), "model")
    train(setup.model, setup.train, setup.training, rng, classification_loss(setup.model), setup.trace)
    return shares | take(setup.model, "model"), weights.weighed(Model, setup)


def learn_shares(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> State:
    """Return the learned W by parameter name, or the old W where there is nothing to learn."""
    options: Options = setup.options
    model, received, before = setup.model, get_payload(broadcast, Model).state, inner(state, SHARES)
    names = [name for name, _ in model.named_parameters()][-options.layer_idx :]  # 0: all
    local = {name: state[f"model.{name}"] for name in names}
    if all(torch.equal(local[name], received[name]) for name in names):
        return before
    shares = before or {name: torch.ones_like(value) for name, value in local.items()}
    put(model, state | outer(dict(received), "model"), "model")
    length = max(1, int(options.share * len(setup.train)))
    first = int(torch.randint(len(setup.train) - length + 1, (1,), generator=rng))
    samples = setup.train.subset(torch.arange(first, first + length))
    model.eval()
    scores: Callable[[torch.Tensor], torch.Tensor]
    if all(name.startswith("head.") for name in names):  # nothing below the head changes
        inputs, labels, scores = represent(model, samples.images), samples.labels, model.head
    else:
        inputs, labels = samples.batch(torch.arange(len(samples), device=samples.labels.device))
        scores = model
    moved = {name: value for name, value in model.named_parameters() if name in names}
    losses: list[float] = []
    while True:
        total = 0.0
        batches = torch.randperm(len(labels), generator=rng).to(labels.device).split(setup.training.batch_size)
        for index in batches:
            with torch.no_grad():
                for name, share in shares.items():
                    moved[name].copy_(torch.lerp(local[name], received[name], share))
            loss = cross_entropy(scores(inputs[index]), labels[index])
            slopes = torch.autograd.grad(loss, list(moved.values()))
            shares = step_shares(shares, dict(zip(moved, slopes, strict=True)), local, received, options.rate)
            total += float(loss.detach())
        losses.append(total / len(batches))
        newest = losses[-LOSSES_COMPARED:]
        settled = len(newest) == LOSSES_COMPARED and statistics.pstdev(newest) < options.threshold
        if before or settled or len(losses) >= options.first_passes:
            return shares


def public_loss(options: Options, round_: int) -> PublicLoss:
    """From the second round on a client starts from a merge; the head it starts with is its own by default."""
    if round_ == 1 or options.rate == 0:
        return PublicLoss()
    if options.layer_idx in (1, 2):  # the head's bias, and its weight
        return PublicLoss(through="representation", head_apart=True)
    return PublicLoss(disturbed=True)


METHOD = replace(
    fedavg.METHOD,
    name="fedala",
    source="Zhang et al., AAAI 2023",
    options=Options,
    apply_broadcast=apply_broadcast,
    client_step=client_step,
    check=check,
    non_sgd_computation=lambda options: "the shares by which local and received weights are merged, learned on images",
    public_loss=public_loss,
)
