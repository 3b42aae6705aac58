"""Steps that are recorded and replayed: by a recorder of operations here, by the device's on a GPU (test_on_gpu)."""

from typing import NamedTuple

import pytest
import torch
from compare import expect_same
from gradient_cases import attack, images_and_labels, sigmoid_net
from lbfgs_cases import CASES, ROSENBROCK_STARTS, rosenbrock, with_gradient
from operation_recorder import OperationRecorder

from fedpriv.attacks.gradients import search
from fedpriv.attacks.gradients.inverting_gradients import InvertingGradients
from fedpriv.attacks.priors.dip import DeepImagePrior, Hourglass
from fedpriv.attacks.priors.pixels import PixelPrior, PixelSettings
from fedpriv.attacks.search import fit as adam
from fedpriv.attacks.search import fit as fitting
from fedpriv.attacks.search import lbfgs
from fedpriv.attacks.search import lbfgs as curvature
from fedpriv.attacks.search.cuda_graph import Reads, Replay
from fedpriv.attacks.search.fit import Schedule

CPU = torch.device("cpu")
SLIM = Hourglass(channels=(4, 6), skip=2, input_channels=3)


def generators(number):
    return [torch.Generator().manual_seed(seed) for seed in range(number)]


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Counter:
    """Something with numbers of all sorts: changed in place, put in another place, in pairs, twice the same, a view."""

    def __init__(self):
        self.taken = torch.zeros(())
        self.sum = self.same = torch.zeros(3)
        self.pair = Pair(torch.zeros(3), torch.ones(3))
        self.view = self.taken.view(1)
        self.name, self.nothing = "counter", ()
        self.weight = torch.full((3,), 2.0)

    def step(self):
        self.taken += 1
        self.sum = self.sum + self.weight * self.taken
        self.pair = Pair(self.pair.second, self.pair.first + self.sum)

    def numbers(self):
        return [one.clone() for one in (self.taken, self.sum, self.same, *self.pair, self.view)]


def side_by_side(change=lambda counter, number: None, steps=12, kind=lambda number: 0):
    """Let one counter be replayed and another not, both changed between steps; return what was recorded, and replayed."""
    plain, other, recorder = Counter(), Counter(), OperationRecorder()
    replay = Replay(other.step, (other,), recorder)
    for number in range(steps):
        change(plain, number)
        change(other, number)
        plain.step()
        replay(kind(number))
        for own, expected in zip(other.numbers(), plain.numbers(), strict=True):
            assert torch.equal(own, expected), number
    return recorder.recordings, replay.replays


def test_a_step_is_recorded_once_and_replayed():
    assert side_by_side() == (1, 9)


def test_what_is_put_in_another_place_between_steps_is_read_from_there():
    def change(counter, number):
        if number % 2:
            counter.sum = torch.where(counter.sum > 5, counter.sum, 1.0)
            counter.pair = counter.pair._replace(first=counter.pair.first * 0.5)

    assert side_by_side(change) == (1, 9)


def test_what_is_changed_in_place_between_steps_is_read_as_it_is():
    assert side_by_side(lambda counter, number: counter.taken.mul_(0.5)) == (1, 9)


def test_what_a_step_only_reads_is_recorded_anew_when_another_takes_its_place():
    def change(counter, number):
        if number == 6:
            counter.weight = torch.full((3,), -1.0)

    assert side_by_side(change) == (2, 3 + 3)


def test_other_shapes_are_recorded_anew():
    def change(counter, number):
        if number == 6:
            counter.sum, counter.weight = counter.sum[:2], counter.weight[:2]
            counter.pair = Pair(*(one[:2] for one in counter.pair))

    assert side_by_side(change) == (2, 3 + 3)


def test_steps_of_other_kinds_are_not_mixed_up():
    assert side_by_side(kind=lambda number: number // 6) == (2, 3 + 3)
    assert side_by_side(kind=lambda number: number) == (0, 0)
    assert side_by_side(kind=lambda number: None) == (0, 0)
    assert side_by_side(kind=lambda number: None if number % 4 == 3 else 0)[0] == 1


@pytest.mark.parametrize("fault", ["asks", "counts"])
def test_a_step_that_cannot_be_replayed_is_done(fault):
    """One asks for a number in between; what the other does hangs on something that is no tensor."""

    class Faulty(Counter):
        calls = 0

        def step(self):
            self.calls += 1
            if fault == "asks" and self.taken.item() > 1e9:
                raise AssertionError
            super().step()
            if fault == "counts":
                self.sum = self.sum + self.calls

    def counted(recorder):
        faulty = Faulty()
        replay = Replay(faulty.step, (faulty,), recorder)
        found = []
        for _ in range(8):
            replay()
            found.append(torch.stack([one.sum() for one in faulty.numbers()]))
        assert replay.replays == 0
        return torch.stack(found)

    recorder = OperationRecorder()
    recorded, plain = counted(recorder), counted(None)
    assert recorder.recordings == 1
    if fault == "asks":
        assert torch.equal(recorded, plain)
    else:  # it has counted one call more; all numbers are those of steps that were done
        assert torch.equal(recorded[:2], plain[:2])


def test_tensors_that_work_reads_are_those_that_others_made():
    weight, wanted, unused = (torch.rand(3, requires_grad=number == 0) for number in range(3))
    kept = {"scale": torch.full((3,), 2.0)}
    with Reads() as reads:
        scaled = weight * kept["scale"]
        (slope,) = torch.autograd.grad((scaled - wanted).square().sum(), weight)
        weight.detach().sub_(slope)
    addresses = {one.data_ptr() for one in reads.tensors}
    assert addresses == {one.data_ptr() for one in (weight, kept["scale"], wanted)}
    assert unused.data_ptr() not in addresses
    old = kept.pop("scale").data_ptr()
    assert any(one.data_ptr() == old and one.tolist() == [2.0] * 3 for one in reads.tensors)


@pytest.fixture
def recorders(monkeypatch):
    made = []

    def recorder_on(device, *, recorded=True):
        made.append(OperationRecorder())
        return made[-1] if recorded else None

    for module in (fitting, lbfgs, search):
        monkeypatch.setattr(module, "recorder_on", recorder_on)
    return made


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Step sizes as tensors, as they are on a GPU."""

    monkeypatch.setattr(adam, "rate_stays_in_place", lambda device: True)


def fitted(make):
    """Four rows: one ends by its tolerance, one by its patience, one is never finite, one goes on to the end."""
    wanted = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(7))

    def distance(images, rows):
        apart = (images - wanted[rows]).square().flatten(1).mean(1)
        return apart * torch.tensor([0.02, 0.0, torch.nan, 1.0])[rows] + torch.tensor([0.0, 1.0, 0.0, 0.0])[rows]

    schedule = Schedule(60, 2e-2, anneal=True, average=0.9, tolerance=1.4e-3, patience=12)
    return fitting.fit(make(generators(4)), distance, schedule, lambda step: None)


PRIORS = {
    "dip": lambda drawn: DeepImagePrior(drawn, (3, 8, 8), SLIM, CPU),
    "pixels": lambda drawn: PixelPrior(drawn, (3, 8, 8), PixelSettings(jitter=1, total_variation=1e-4), CPU),
}


@pytest.mark.parametrize("prior", PRIORS)
def test_a_fit_that_is_replayed_finds_the_same(prior, request, as_on_a_gpu):
    plain = fitted(PRIORS[prior])
    made = request.getfixturevalue("recorders")
    found = fitted(PRIORS[prior])
    assert made[0].recordings >= 2  # rows were dropped, or jitter ended
    expect_same(found.images, plain.images)
    expect_same(found.objective, plain.objective)
    assert torch.equal(found.steps, plain.steps)


@pytest.mark.parametrize("patience", [None, 2])
@pytest.mark.parametrize("line_search", [None, "strong-wolfe"])
def test_a_descent_that_is_replayed_ends_where_it_would(line_search, patience, request):
    settings = lbfgs.LbfgsSettings(outer_steps=4, history=5, line_search=line_search, patience=patience)
    evaluate = with_gradient(rosenbrock)
    plain = lbfgs.minimise(evaluate, ROSENBROCK_STARTS, settings)
    made = request.getfixturevalue("recorders")
    found = lbfgs.minimise(evaluate, ROSENBROCK_STARTS, settings)
    assert 1 <= made[0].recordings <= len(ROSENBROCK_STARTS)  # anew when a row is dropped
    assert torch.equal(found.best, plain.best)
    assert torch.equal(found.evaluations, plain.evaluations)


@pytest.mark.parametrize("name", ["quadratic", "rosenbrock"])
@pytest.mark.parametrize("history", [3, 100])
def test_places_without_a_pair_change_nothing(name, history, monkeypatch):
    function, start, learning_rate = CASES[name]
    settings = lbfgs.LbfgsSettings(outer_steps=4, learning_rate=learning_rate, history=history)
    expected = lbfgs.minimise(with_gradient(function), start, settings)
    monkeypatch.setattr(curvature, "whole_ring", lambda device: True)
    found = lbfgs.minimise(with_gradient(function), start, settings)
    torch.testing.assert_close(found.best, expected.best, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("every", [0, 9])
def test_pixels_whose_search_is_replayed_are_the_same(every, request):
    images, labels = images_and_labels(3)
    made = InvertingGradients(iterations=40, total_variation=0.1, signed=True, median_every=every)
    request.getfixturevalue("as_on_a_gpu")
    plain = attack(made, sigmoid_net(), images, labels)
    recorders = request.getfixturevalue("recorders")
    found = attack(made, sigmoid_net(), images, labels)
    assert sum(one.recordings for one in recorders) == 4  # the weight of total variation changes three times
    assert torch.equal(found.images, plain.images)
