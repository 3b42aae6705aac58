"""Steps that are recorded and replayed: by a recorder of operations here, by the device's on a GPU (test_on_gpu)."""

import contextlib

import pytest
import torch
from compare import expect_same
from lbfgs_cases import ROSENBROCK_STARTS, rosenbrock, with_gradient
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedpriv.attacks.gradients import inverting
from fedpriv.attacks.priors.dip import DeepImagePrior, Hourglass
from fedpriv.attacks.search import fit as fitting
from fedpriv.attacks.search import lbfgs
from fedpriv.attacks.search.cuda_graph import Replay
from fedpriv.attacks.search.fit import Schedule


def storage(tensor):
    return tensor.untyped_storage().data_ptr()


class Watching(TorchDispatchMode):
    """Does every operation, and notes those that compute something, with what they are given and what they give."""

    def __init__(self):
        super().__init__()
        self.operations, self.before, self.kept = [], {}, []

    def __torch_dispatch__(self, operation, types, given=(), named=None):
        named = named or {}
        read = [one for one in tree_leaves((given, named)) if isinstance(one, torch.Tensor)]
        if operation is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("the host asks for a number")
        if operation._schema.is_mutable:
            for one in read:
                own = one.untyped_storage()
                self.before.setdefault(own.data_ptr(), (own, own.clone()))
        found = operation(*given, **named)
        written = [one for one in tree_leaves(found) if isinstance(one, torch.Tensor)]
        views = {storage(one) for one in read} & {storage(one) for one in written}
        if operation._schema.is_mutable or not views:
            self.operations.append((operation, given, named, written))
        self.kept += written  # no memory is given out twice
        return found


class OperationRecorder:
    """A recorder that replays operations. What a recorded step changed is undone: recording computes nothing."""

    def __init__(self):
        self.recordings = 0

    def aside(self):
        return contextlib.nullcontext()

    def record(self, step):
        self.recordings += 1
        watching = Watching()
        try:
            with watching:
                step()
        except RuntimeError:
            return None
        finally:
            for own, numbers in watching.before.values():
                own.copy_(numbers)

        def replay():
            with torch.no_grad():
                for operation, given, named, written in watching.operations:
                    found = operation(*given, **named)
                    if not operation._schema.is_mutable:
                        again = [one for one in tree_leaves(found) if isinstance(one, torch.Tensor)]
                        for one, other in zip(written, again, strict=True):
                            one.detach().copy_(other)

        return replay


CPU = torch.device("cpu")
SLIM = Hourglass(channels=(4, 6), skip=2, input_channels=3)


class Counter:
    """Something with numbers of all sorts: changed in place, put in another place, in lists, twice the same, a view."""

    def __init__(self):
        self.taken = torch.zeros(())
        self.sum = self.same = torch.zeros(3)
        self.several = [torch.zeros(3), torch.ones(3)]
        self.view = self.taken.view(1)
        self.name, self.nothing = "counter", ()
        self.weight = torch.full((3,), 2.0)

    def step(self):
        self.taken += 1
        self.sum = self.sum + self.weight * self.taken
        self.several[1].add_(self.several[0] + self.sum)

    def numbers(self):
        return [one.clone() for one in (self.taken, self.sum, self.same, *self.several, self.view)]


def side_by_side(change=lambda counter, number: None, steps=12, kind=lambda number: 0, reset=()):
    """Let one counter be replayed and another not, both changed between steps; return what was recorded, and replayed."""
    plain, other, recorder = Counter(), Counter(), OperationRecorder()
    replay = Replay(other.step, (other,), recorder)
    for number in range(steps):
        change(plain, number)
        change(other, number)
        plain.step()
        if number in reset:
            replay.reset()
        replay(kind(number))
        for own, expected in zip(other.numbers(), plain.numbers(), strict=True):
            assert torch.equal(own, expected), number
    return recorder.recordings, replay.replays


def changed(counter, number):
    if number % 2:
        counter.sum = torch.where(counter.sum > 5, counter.sum, 1.0)


def other_weight(counter, number):
    if number == 6:
        counter.weight = torch.full((3,), -1.0)


def fewer(counter, number):
    if number == 6:
        counter.sum, counter.weight = counter.sum[:2], counter.weight[:2]
        counter.several = [one[:2] for one in counter.several]


def test_a_step_is_recorded_once_and_replayed_whatever_is_changed_in_between():
    assert side_by_side() == (1, 11)
    assert side_by_side(changed) == (1, 11)
    assert side_by_side(lambda counter, number: counter.taken.mul_(0.5)) == (1, 11)
    # What a step only reads is recorded anew when another takes its place, and so are other shapes, kinds, and by demand.
    assert side_by_side(other_weight) == side_by_side(fewer) == side_by_side(reset=(6,)) == (2, 10)
    assert side_by_side(kind=lambda number: number // 6) == (2, 10)
    assert side_by_side(kind=lambda number: number) == (0, 0)


@pytest.fixture
def recorders(monkeypatch):
    made = []

    def recorder_on(device, *, recorded=True):
        made.append(OperationRecorder())
        return made[-1] if recorded else None

    for module in (fitting, lbfgs, inverting):
        monkeypatch.setattr(module, "recorder_on", recorder_on)
    return made


def fitted():
    """Four rows: one ends by its tolerance, one by its patience, one is never finite, one goes on to the end."""
    wanted = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(7))

    def distance(images, rows):
        apart = (images - wanted[rows]).square().flatten(1).mean(1)
        return apart * torch.tensor([0.02, 0.0, torch.nan, 1.0])[rows] + torch.tensor([0.0, 1.0, 0.0, 0.0])[rows]

    schedule = Schedule(60, 2e-2, average=0.9, tolerance=1.4e-3, patience=12)
    prior = DeepImagePrior([torch.Generator().manual_seed(seed) for seed in range(4)], (3, 8, 8), SLIM, CPU)
    return fitting.fit(prior, distance, schedule, lambda step: None)


def test_a_fit_that_is_replayed_finds_the_same(request):
    plain = fitted()
    made = request.getfixturevalue("recorders")
    found = fitted()
    assert made[0].recordings >= 2  # rows were dropped
    expect_same(found.images, plain.images)
    expect_same(found.objective, plain.objective)
    assert torch.equal(found.steps, plain.steps)


@pytest.mark.parametrize("patience", [None, 2])
def test_a_descent_that_is_replayed_ends_where_it_would(patience, request):
    settings = lbfgs.LbfgsSettings(outer_steps=4, history=5, patience=patience)
    evaluate = with_gradient(rosenbrock)
    plain = lbfgs.minimise(evaluate, ROSENBROCK_STARTS, settings)
    made = request.getfixturevalue("recorders")
    found = lbfgs.minimise(evaluate, ROSENBROCK_STARTS, settings)
    assert 1 <= made[0].recordings <= len(ROSENBROCK_STARTS)  # anew when a row is dropped
    assert torch.equal(found.best, plain.best)
    assert torch.equal(found.evaluations, plain.evaluations)
