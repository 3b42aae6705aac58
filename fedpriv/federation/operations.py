"""Operations of a client in a round, counted on real client steps.

A multiplication with the addition that follows it counts as two operations. Counted are convolutions, matrix products
and attention, forward and backward, of everything that a method's client step does: its second model, its regulariser,
the pass over the training set behind its prototypes. Element-wise operations, sums and decompositions of matrices are not.

A client step of one architecture is run three times on a few random images, one local step each, with different numbers
of images and sizes of batches. What it does grows with the images of local steps, with the steps, with the images that the
client holds, and with the batches of a pass over them, or is done once a round; three steps tell these apart, and a round
of any length follows to the operation. Before that the client goes through a round, so that what comes with a later
broadcast is there (two clients through two rounds where a method computes more from images than gradients: FedALA's first
merge is unlike all later ones). Exact for everything linear in these; a share of the training set that a method takes
counts as if it were never rounded, and what depends on values (ranks of truncated decompositions, numbers of clusters) as
in these steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedpriv.datasets.types import Samples
from fedpriv.federation.local_training import batch_sizes, has_batch_norm
from fedpriv.federation.method import ClientSetup, GuardedTraining, LocalTraining, Method, ServerSetup, State
from fedpriv.federation.operation_counter import OperationCounter
from fedpriv.federation.summary import Work
from fedpriv.federation.trace import Trace
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.util.seeds import generator, global_seed
from fedpriv.wire.payloads import Message

COUNTED_BATCH = 2
"""Operations grow in proportion to the batch, so a small one tells; batch normalisation needs two images."""
_FEW = 4
_SHARED = 20
"""Images of a client whose method computes on a share of them: of so many the usual shares, 0.05 and 0.8, are whole."""
_RATE = 1e-3  # counted steps must not diverge, whatever the run's own rate does


@dataclass(frozen=True)
class StepOperations:
    """Operations of one client step of an architecture, apart by what they grow with.

    Attributes:
        phases: of each phase of local training, operations per image of a local step and per local step.
        per_stored_image: per image that the client holds, once a round.
        per_batch_of_a_pass: per batch of one pass over the images that the client holds, once a round.
        per_round: whatever the client holds.
        prediction_per_image: of the method's own way to predict.
    """

    phases: tuple[tuple[Fraction, Fraction], ...]
    per_stored_image: Fraction
    per_batch_of_a_pass: Fraction
    per_round: Fraction
    prediction_per_image: int

    def of_round(self, method: Method, setup: ClientSetup) -> int:
        """Return the operations of one client's step in a settled round."""
        stored, training = len(setup.train), setup.training
        planned = method.local_phases(setup.options, training)
        joined = has_batch_norm(setup.model)
        passes = Fraction(stored, min(training.batch_size, max(1, stored)))
        total = self.per_round + self.per_stored_image * stored + self.per_batch_of_a_pass * passes
        for number, (per_image, per_step) in enumerate(self.phases):
            sizes = batch_sizes(stored, planned[min(number, len(planned) - 1)], join_single=joined)
            total += per_image * sum(sizes) + per_step * len(sizes)
        return round(total)


class _Meter(Trace):
    """Notes how far a counter stands where local training begins and where it ends."""

    def __init__(self, counter: OperationCounter) -> None:
        super().__init__()
        self._counter = counter
        self.began: list[int] = []
        self.ended: list[int] = []

    def local_steps(self, batches: Sequence[Tensor]) -> None:
        """Note the beginning of a phase."""
        super().local_steps(batches)
        self.began.append(self._counter.total)

    def local_steps_done(self) -> None:
        """Note the end of a phase."""
        self.ended.append(self._counter.total)


@dataclass(frozen=True)
class _Counted:
    """Operations of one counted client step: of each phase of local training, and of the rest."""

    phases: tuple[int, ...]
    rest: int


def step_operations(method: Method, setup: ClientSetup, server: ServerSetup) -> StepOperations:
    """Count a client step of one architecture.

    Random images and weights of its own: nothing of the run is touched but the scratch modules, which every function that
    uses them loads first.

    Args:
        method: whose step.
        setup: of a client of the architecture; its images are not looked at.
        server: of the federation; its public images and options are used.
    """
    shares = bool(method.non_sgd_computation(setup.options))
    few, rounds = (_SHARED, 2) if shares else (_FEW, 1)
    own = replace(server, n_clients=rounds, blueprint=setup.blueprint, blueprints=(setup.blueprint,) * rounds, rounds=1)
    less, more = (_warmed_up(method, _standing_for(setup, n), own, rounds) for n in (few, 2 * few))
    counted = [_count(method, *less, 2), _count(method, *more, 4), _count(method, *more, 2)]
    (small, wide, long) = counted
    per_image = [Fraction(w - n, 2) for w, n in zip(wide.phases, long.phases, strict=True)]  # 4 images against 2
    per_step = [n - 2 * image for n, image in zip(long.phases, per_image, strict=True)]
    # stored images and batches of a pass: (f, f/2), (2f, f/2), (2f, f)
    per_pass = Fraction(2 * (long.rest - wide.rest), few)
    per_stored = Fraction(wide.rest - small.rest, few)
    once = small.rest - per_stored * few - per_pass * Fraction(few, 2)
    setup_, state, _ = more
    return StepOperations(
        tuple(zip(per_image, per_step, strict=True)), per_stored, per_pass, once, _prediction(method, setup_, state)
    )


def client_operations(method: Method, setups: Sequence[ClientSetup], server: ServerSetup) -> Work:
    """Return the operations of every client in a settled round, counting one client of every distinct architecture."""
    alone: dict[Blueprint, int] = {}
    each: dict[Blueprint, StepOperations] = {}
    reason = ""
    try:
        for setup in setups:
            if setup.blueprint not in each:
                each[setup.blueprint] = step_operations(method, setup, server)
    except (
        Exception
    ) as error:  # a method of another package may not stand so few images; the run is worth more than this
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    for setup in setups:
        if setup.blueprint not in alone:
            alone[setup.blueprint] = training_flops_per_image(setup.model, setup.blueprint)
    local = tuple(alone[setup.blueprint] * images_per_round(setup) for setup in setups)
    own = () if reason else tuple(each[setup.blueprint].of_round(method, setup) for setup in setups)
    predicted = () if reason else tuple(each[setup.blueprint].prediction_per_image for setup in setups)
    return Work(
        per_client_round=own,
        mean_per_client_round=sum(own) / len(own) if own else None,
        local_training_per_client_round=local,
        mean_local_training_per_client_round=sum(local) / len(local),
        prediction_per_image=predicted,
        not_counted=reason,
    )


def training_flops_per_image(model: SplitModel, blueprint: Blueprint) -> int:
    """Return the operations of one image's forward and backward pass, multiply-add counting two.

    Training the private model by cross-entropy alone, which is what methods are compared with. Runs one step on black
    images without an optimiser: weights stay, running statistics do not.
    """
    device = model.head.weight.device
    images = torch.zeros(COUNTED_BATCH, *blueprint.image_shape, device=device)
    labels = torch.zeros(COUNTED_BATCH, dtype=torch.int64, device=device)
    model.train()
    with global_seed(0), OperationCounter() as counter:
        torch.autograd.grad(cross_entropy(model(images), labels), list(model.parameters()), allow_unused=True)
    return counter.total // COUNTED_BATCH


def images_per_round(setup: ClientSetup) -> int:
    """Return the number of images that a client trains on in a round, every epoch counted."""
    return sum(batch_sizes(len(setup.train), setup.training, join_single=has_batch_norm(setup.model)))


# ---------------------------------------------------------------- counted steps


def random_images(number: int, blueprint: Blueprint, device: torch.device) -> Samples:
    """Return images of noise, one class after the other."""
    images = torch.rand(number, *blueprint.image_shape, generator=generator(0, "counted images", number))
    return Samples(images, torch.arange(number) % blueprint.n_classes).to(device)


def _standing_for(setup: ClientSetup, stored: int) -> ClientSetup:
    """Return the client with so many images of noise, and one small local step a phase."""
    return replace(
        setup,
        client=0,
        train=random_images(stored, setup.blueprint, setup.train.labels.device),
        training=_one_step(setup.training, 2),
        trace=Trace(),
    )


def _one_step(training: LocalTraining, batch: int) -> LocalTraining:
    changed = replace(
        training, batch_size=batch, epochs=1, max_steps=1, drop_last=False, learning_rate=_RATE, shuffle=False
    )
    # a Poisson sample has no size to count by
    return replace(changed, poisson=False) if isinstance(changed, GuardedTraining) else changed


def _warmed_up(
    method: Method, setup: ClientSetup, server: ServerSetup, rounds: int
) -> tuple[ClientSetup, State, Message]:
    """Return the client, its state and the broadcast after a round, or after two with another client."""
    pair = (setup, replace(setup, client=1, train=setup.train.subset(torch.arange(1, len(setup.train)))))[:rounds]
    state, broadcast = method.start(server, generator(0, "counted start"))
    states = [method.init(one, generator(0, "counted start")) for one in pair]
    device = setup.train.labels.device
    states = [{name: value.to(device) for name, value in one.items()} for one in states]
    for round_ in range(rounds):
        uploads: list[tuple[int, Message]] = []
        for one in pair:
            k = one.client
            rng = generator(0, "counted step", round_, k)
            states[k], sent = method.client_step(replace(one, trace=Trace()), states[k], broadcast, rng)
            uploads.append((k, sent))
        state, broadcast = method.server_step(server, state, uploads, generator(0, "counted server", round_))
    return setup, states[0], broadcast


def _count(method: Method, setup: ClientSetup, state: State, broadcast: Message, batch: int) -> _Counted:
    with OperationCounter() as counter:
        meter = _Meter(counter)
        own = replace(setup, training=_one_step(setup.training, batch), trace=meter)
        method.client_step(own, state, broadcast, generator(0, "counted step", "last"))
        total = counter.total
    phases = tuple(end - begin for begin, end in zip(meter.began, meter.ended, strict=False))
    return _Counted(phases, total - sum(phases))


def _prediction(method: Method, setup: ClientSetup, state: State) -> int:
    with OperationCounter() as counter:
        method.predict(setup, state, setup.train.images[:COUNTED_BATCH])
    return counter.total // COUNTED_BATCH
