"""The constants of FedRE's convergence proof, estimated along a run.

Source: Rethinking Client Knowledge for Federated Learning (the preprint of FedRE), section 4.4, assumptions 1 to 3 and
theorem 1. L_k(theta) is the mean cross-entropy of client k's private model over all its training images, in evaluation
mode (no dropout, running batch-norm statistics), as a function of the model's learnable parameters; whatever a method adds
to its loss is not in it. Of a client in a measured round, theta_0 is where it starts (the broadcast taken up), theta_E
where local training ends, omega its classifier:

    smoothness               ||grad L_k(theta_E) - grad L_k(theta_0)|| / ||theta_E - theta_0||
                             assumption 1 wants L_1 at least as large, for all pairs: a lower bound of L_1
    variance                 mean over the batches B of one division of ||grad L_k(theta_0; B) - grad L_k(theta_0)||^2, each
                             batch counting by its images: a plug-in of the left side of assumption 2, at one point; sigma^2
                             bounds it everywhere, so the largest of a run is a lower bound of sigma^2
    trained_divergence       ||omega_k^(t+1) - omega^t||^2: the trained classifier less the broadcast one it replaced;
                             assumption 3 wants epsilon^2 at least as large: a lower bound
    aggregated_divergence    ||omega_k^t - omega^t||^2: the trained classifier less the server's next one; a lower bound of
                             delta^2
    gradient                 ||grad L_k(theta_0)||^2, which theorem 2 drives below xi on average
    rate_bound               2 g / (L_1 E sigma^2 + L_1 g), theorem 1's bound of the learning rate in the first step
                             (e' = 0), with g = ``gradient``, E local steps and the client's own estimates of this round in
                             place of L_1 and sigma^2. Both are too small, so the true bound is lower still.

Batches are divided by a generator of their own; training draws the same numbers with and without. A measured round costs
each of its clients two passes forward and backward over its training images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import has_batch_norm, local_batches, steps
from fedpriv.federation.method import ClientSetup, GuardedTraining, Method, State
from fedpriv.federation.states import put
from fedpriv.federation.summary import ClientConvergence, Convergence, ConvergenceLine
from fedpriv.util.seeds import generator
from fedpriv.wire.payloads import Classifier, Message, Model, find_payload

MAXIMA = ("smoothness", "variance", "trained_divergence", "aggregated_divergence")


@dataclass(frozen=True)
class MeasuredStep:
    """A client's part in a measured round.

    Attributes:
        setup: of the client.
        before: its state when the round began.
        after: its state after local training.
    """

    setup: ClientSetup
    before: State
    after: State


def measure(
    method: Method, measured: Sequence[MeasuredStep], broadcast: Message, answer: Message, *, seed: int, round_: int
) -> ConvergenceLine:
    """Return the estimates of one round, of every client of the round that has a private model.

    Args:
        method: of the run.
        measured: the clients of the round.
        broadcast: what they answered.
        answer: the next broadcast.
        seed: of the run.
        round_: from 1.
    """
    each = tuple(
        _client(method, one, broadcast, answer, generator(seed, "convergence", round_, one.setup.client))
        for one in measured
        if any(name.startswith("model.") for name in one.after)
    )
    return ConvergenceLine(round=round_, clients=each)


def _client(
    method: Method, one: MeasuredStep, broadcast: Message, answer: Message, rng: torch.Generator
) -> ClientConvergence:
    setup = one.setup
    batches = _division(setup, rng)
    started = method.apply_broadcast(setup, one.before, broadcast)
    begin, variance = full_gradient(setup, started, batches)
    end, _ = full_gradient(setup, one.after, batches)
    names = [f"model.{name}" for name, _ in setup.model.named_parameters()]
    moved = float(_squared(_flat(one.after, names) - _flat(started, names))) ** 0.5
    smoothness = float(_squared(end - begin)) ** 0.5 / moved if moved else None
    gradient = float(_squared(begin))
    planned = method.local_phases(setup.options, setup.training)
    local_steps = sum(steps(len(setup.train), phase) for phase in planned)
    return ClientConvergence(
        client=setup.client,
        smoothness=smoothness,
        variance=variance,
        gradient=gradient,
        trained_divergence=_divergence(one.after, broadcast),
        aggregated_divergence=_divergence(one.after, answer),
        rate_bound=rate_bound(gradient, variance, smoothness, local_steps),
    )


def _division(setup: ClientSetup, rng: torch.Generator) -> list[Tensor]:
    training = replace(setup.training, epochs=1, max_steps=None, drop_last=False)
    if isinstance(training, GuardedTraining):
        training = replace(training, poisson=False)
    return local_batches(len(setup.train), training, rng, join_single=has_batch_norm(setup.model))


def full_gradient(setup: ClientSetup, state: State, batches: Sequence[Tensor]) -> tuple[Tensor, float]:
    """Return the gradient ``(p,)`` of the mean cross-entropy over all batches, and the variance of the batches' own.

    Args:
        setup: of the client; its scratch model is loaded from the state.
        state: holds the private model.
        batches: a division of the training images, indices ``(b,)`` each.

    Returns:
        grad L in float64, and sum_B (|B| / n) ||grad L_B - grad L||^2.
    """
    model, n = setup.model, len(setup.train)
    put(model, state, "model")
    model.eval()
    weights = list(model.parameters())
    mean = torch.zeros(sum(weight.numel() for weight in weights), dtype=torch.float64, device=setup.train.labels.device)
    squares = 0.0
    for index in batches:
        images, labels = setup.train.batch(index.to(setup.train.labels.device))
        slopes = torch.autograd.grad(cross_entropy(model(images), labels), weights, allow_unused=True)
        flat = torch.cat(
            [
                (torch.zeros_like(weight) if slope is None else slope).double().flatten()
                for weight, slope in zip(weights, slopes, strict=True)
            ]
        )
        share = len(index) / n
        mean += share * flat
        squares += share * float(_squared(flat))
    return mean, max(0.0, squares - float(_squared(mean)))


def rate_bound(gradient: float, variance: float, smoothness: float | None, local_steps: int) -> float | None:
    """Return 2 g / (L_1 E sigma^2 + L_1 g); None where nothing moved or the gradient vanishes.

    >>> rate_bound(gradient=2.0, variance=1.0, smoothness=4.0, local_steps=6)
    0.125
    """
    divisor = (smoothness or 0.0) * (local_steps * variance + gradient)
    return 2 * gradient / divisor if divisor else None


def overall(lines: Sequence[ConvergenceLine]) -> Convergence | None:
    """Return the constants of a run: the largest of all lower bounds, and the smallest bound of the rate."""
    each = [client for line in lines for client in line.clients]
    if not each:
        return None
    largest = {
        name: max((value for one in each if (value := getattr(one, name)) is not None), default=None) for name in MAXIMA
    }
    rates = [one.rate_bound for one in each if one.rate_bound is not None]
    return Convergence(
        rounds=tuple(line.round for line in lines),
        **largest,
        gradient=sum(one.gradient for one in each) / len(each),
        rate_bound=min(rates, default=None),
    )


def _divergence(state: State, message: Message) -> float | None:
    """Return the squared distance of a client's classifier to the one in a message; None where there is none like it."""
    sent = _classifier(message)
    if sent is None:
        return None
    total = 0.0
    for name in ("weight", "bias"):
        own = state.get(f"model.head.{name}")
        if own is None or name not in sent or own.shape != sent[name].shape:
            return None
        total += float(_squared(own.double() - sent[name].to(own.device).double()))
    return total


def _classifier(message: Message) -> Mapping[str, Tensor] | None:
    head = find_payload(message, Classifier)
    if head is not None:
        return head.state
    model = find_payload(message, Model)
    if model is None:
        return None
    return {name.removeprefix("head."): value for name, value in model.state.items() if name.startswith("head.")}


def _flat(state: State, names: Sequence[str]) -> Tensor:
    return torch.cat([state[name].double().flatten() for name in names])


def _squared(values: Tensor) -> Tensor:
    return values.square().sum()
