"""The inner loops of fits: what they ask of a device, and that neither blocks of draws nor looks change what they find."""

from dataclasses import dataclass, replace

import kernel_count
import pytest
import torch
from compare import expect_same
from torch import nn

from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.vector import DipInversion, PixelInversion
from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Observation
from fedpriv.attacks.priors import grouped
from fedpriv.attacks.priors.dip import DeepImagePrior, Hourglass
from fedpriv.attacks.priors.grouped import RowDraws, normal, shifts
from fedpriv.attacks.priors.pixels import PixelPrior, PixelSettings, total_variation
from fedpriv.attacks.search.fit import Adam, Schedule, fit
from fedpriv.util.seeds import global_seed
from fedpriv.wire.payloads import Representations

CPU = torch.device("cpu")
SLIM = Hourglass(channels=(4, 6), skip=2, input_channels=3)
SHAPE = (3, 32, 32)


def generators(number):
    return [torch.Generator().manual_seed(seed) for seed in range(number)]


@pytest.fixture(scope="module")
def asked():
    """Three representations by a convolutional network as published ones are, and the attack's call."""
    with global_seed(0):
        body = nn.Sequential(
            *(nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(1600, 512), nn.ReLU()),
        )
    body.requires_grad_(False)
    images = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(0))
    seen = (Observation(0, 0, (Representations(body(images), torch.zeros(3, dtype=torch.int64)),), ()),)
    knowledge = Knowledge(KnowledgeCard(), SHAPE, 10, extractors={0: body})
    return lambda attack: attack(seen, knowledge, list_targets(seen, "representation"), seed=0)


class BlindDip(DipInversion):
    """Without looks: rows that end are looked for every ten steps, which is where the host may read."""

    @property
    def schedule(self):
        return replace(super().schedule, look_every=10**6)


class BlindSpectrum(PixelInversion):
    @property
    def schedule(self):
        return replace(super().schedule, look_every=10**6)


@dataclass(frozen=True, kw_only=True)
class BlindPixels(BlindSpectrum):
    coordinates: str = "pixels"


@pytest.mark.parametrize(("attack", "most"), [(BlindDip, 270), (BlindPixels, 64), (BlindSpectrum, 110)])
def test_an_iteration_is_few_kernels_and_the_host_reads_nothing(asked, attack, most, monkeypatch):
    """One row after the other, with an optimiser step a weight, it was 553 and 129 kernels, and 83 and 2 reads."""
    monkeypatch.setattr(grouped, "faster_transposed", lambda columns, device: False)  # as on a GPU

    def work(iterations):
        return asked(attack(iterations=iterations, restarts=1, tolerance=0.0, patience=1000))

    found = kernel_count.counts(work, short=1, long=2)
    assert found["item"] == 0
    assert kernel_count.kernels(found) <= most


@pytest.mark.parametrize("draw", [normal(5), normal(2, 8), shifts(3, 4, 2)])
def test_rows_that_are_kept_go_on_with_their_draws(draw):
    alone, draws = generators(3), RowDraws(generators(3), draw, CPU)
    for kept in ([0, 1, 2], [2, 0]):
        if len(kept) < 3:
            draws.keep(torch.tensor(kept))
        for _ in range(3):
            expected = [draw(generator) for generator in alone]
            expect_same(draws.advance(), torch.stack([expected[row] for row in kept]))
    assert draws.present.data_ptr() == draws.advance().data_ptr()  # recorded steps read it there


@pytest.mark.parametrize("number", [16, 32 * 8 * 8])
def test_the_noise_of_common_sizes_is_what_single_draws_give(number):
    draws = RowDraws(generators(2), normal(number), CPU)
    alone = generators(2)
    for _ in range(3):
        expect_same(draws.advance(), torch.stack([torch.randn(number, generator=one) for one in alone]))


def test_a_shift_takes_each_value_where_rolling_does():
    prior = PixelPrior(generators(3), (2, 4, 5), PixelSettings(jitter=2), CPU)
    alone = generators(3)
    for generator in alone:
        torch.randn(2, 4, 5, generator=generator)  # the start
    for _ in range(4):
        moves = [torch.randint(-2, 3, (2,), generator=generator).tolist() for generator in alone]
        rolled = [image.roll(move, (1, 2)) for image, move in zip(prior.clean(), moves, strict=True)]
        assert prior.prepare(0.0)
        expect_same(prior.shown(torch.ones(3, dtype=torch.bool)), torch.stack(rolled))


def fitted(look_every, make):
    """Four rows: one ends by its tolerance, one by its patience, one is never finite, one goes on to the end."""
    wanted = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(7))

    def distance(images, rows):
        apart = (images - wanted[rows]).square().flatten(1).mean(1)
        return apart * torch.tensor([0.02, 0.0, torch.nan, 1.0])[rows] + torch.tensor([0.0, 1.0, 0.0, 0.0])[rows]

    schedule = Schedule(47, 2e-2, average=0.9, tolerance=1.2e-3, patience=12, look_every=look_every)
    return fit(make(generators(4)), distance, schedule, lambda step: None)


@pytest.mark.parametrize("prior", ["dip", "pixels"])
def test_results_do_not_depend_on_how_often_the_host_looks(prior):
    def make(drawn):
        if prior == "dip":
            return DeepImagePrior(drawn, (3, 8, 8), SLIM, CPU)
        return PixelPrior(drawn, (3, 8, 8), PixelSettings(jitter=1, total_variation=1e-4), CPU)

    every = fitted(1, make)
    assert every.objective[0] < 1.2e-3
    assert every.iterations > 20
    assert every.objective[2].isinf()
    assert bool(every.images.isfinite().all())
    for steps in (4, 13, 100):
        seldom = fitted(steps, make)
        assert seldom.iterations == every.iterations
        expect_same(seldom.converged, every.converged)
        torch.testing.assert_close(seldom.images, every.images, rtol=0, atol=1e-5)
        torch.testing.assert_close(seldom.objective, every.objective, rtol=1e-4, atol=1e-7)


def test_the_optimiser_of_rows_takes_the_steps_of_an_ordinary_one():
    shapes = [(3, 4, 2), (3, 5), (3, 1, 2, 3)]
    drawn = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=drawn) for shape in shapes]
    rows, ordinary = (
        Adam([values.clone().requires_grad_() for values in start], 0.3, fused=True),
        [values.clone().requires_grad_() for values in start],
    )
    rows.pace(0.1)
    optimiser = torch.optim.Adam(ordinary, lr=0.1, fused=True)
    for step in range(6):
        gradients = [torch.randn(shape, generator=drawn) for shape in shapes]
        if step == 3:
            rows.keep(torch.tensor([2, 0]))
        own = [values[[2, 0]] if step >= 3 else values for values in gradients]
        rows.step([values.transpose(1, -1).contiguous().transpose(1, -1) for values in own])
        for values, gradient in zip(ordinary, gradients, strict=True):
            values.grad = gradient
        optimiser.step()
    for values, expected in zip(rows.parameters, ordinary, strict=True):
        torch.testing.assert_close(values.detach(), expected.detach()[[2, 0]], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("beta", [1.0, 1.5, 2.0])
def test_the_derivative_of_total_variation_is_that_of_its_values(beta):
    images = torch.rand(2, 2, 4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: total_variation(x, beta, 0.3), images)
