"""Fits by Adam: steps are torch's to the last bit, looks change nothing, and rows whose target's others lead end early."""

from dataclasses import replace

import torch
from compare import expect_same
from looped import each
from torch import nn

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.observation import Knowledge, TargetId, ThreatModel
from fedpriv.attacks.priors.spectral import PixelPrior
from fedpriv.attacks.search.candidates import fit_rows, solve_rows
from fedpriv.attacks.search.fit import Adam, Schedule, fit


@each("fused, decay, paced", [(fused, decay, fused) for fused in (False, True) for decay in (0.0, 0.05)])
def test_steps_are_those_of_torch_to_the_last_bit(fused, decay, paced):
    def network():
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3), nn.Linear(3, 2))
        made[3].weight.requires_grad_(False)  # and so without a gradient
        return made

    ours, theirs = network(), network()
    own = Adam(ours.parameters(), 0.02, weight_decay=decay, betas=(0.8, 0.99), fused=fused)
    of_torch = torch.optim.AdamW if decay else torch.optim.Adam
    other = of_torch(theirs.parameters(), lr=0.02, weight_decay=decay, betas=(0.8, 0.99), fused=fused)
    for step in range(25):
        images = torch.randn(6, 7, generator=torch.Generator().manual_seed(step))
        if paced:
            own.pace(0.1 / (step + 1))
            other.param_groups[0]["lr"] = 0.1 / (step + 1)
        own.descend(ours(images).square().mean())
        other.zero_grad()
        theirs(images).square().mean().backward()
        other.step()
    for name, value in theirs.state_dict().items():
        expect_same(ours.state_dict()[name], value, name)
    assert not torch.equal(ours[0].weight, network()[0].weight)


def test_rows_that_are_kept_take_the_steps_of_an_ordinary_optimiser():
    start = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))
    ours, theirs = Adam([start.clone().requires_grad_()], 0.1, fused=True), start.clone().requires_grad_()
    other = torch.optim.Adam([theirs], lr=0.1, fused=True)
    for step in range(6):
        gradient = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(step))
        if step == 3:
            ours.keep(torch.tensor([2, 0]))
        ours.step([(gradient if step < 3 else gradient[[2, 0]]).mT.contiguous().mT])
        theirs.grad = gradient
        other.step()
    torch.testing.assert_close(ours.parameters[0].detach(), theirs.detach()[[2, 0]], rtol=1e-6, atol=1e-7)


SHAPE = (1, 4, 4)
WANTED = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(3))


def started(seed):
    return torch.rand(SHAPE, generator=torch.Generator().manual_seed(seed))


HARDER = torch.tensor([1.0, 3.0, 2.0, 4.0, 3.0, 1.0, 4.0, 2.0])
"""Factors of the distances of the eight rows of two targets."""


def harder(images, rows):
    return HARDER[rows] * (images - WANTED[rows // 4]).square().flatten(1).mean(1)


def test_of_four_rows_two_end_and_then_one():
    def searched(schedule, restarts=4):
        prior = PixelPrior(started(7).expand(len(HARDER), *SHAPE))  # alike, so that only the factors differ
        return fit(prior, harder, schedule, lambda step: None, restarts=restarts)

    halved = searched(Schedule(40, 1e-2, tolerance=0.0, halvings=(0.1, 0.25)))
    assert halved.steps.tolist() == [40, 4, 10, 4, 4, 40, 4, 10]
    whole = searched(Schedule(40, 1e-2, tolerance=0.0))
    assert whole.steps.tolist() == [40] * 8
    torch.testing.assert_close(halved.images[[0, 5]], whole.images[[0, 5]], rtol=0, atol=1e-6)
    assert halved.objective.view(2, 4).argmin(1).tolist() == [0, 1]
    assert searched(Schedule(40, 1e-2, tolerance=0.0, halvings=(0.1, 0.25)), restarts=1).steps.tolist() == [40] * 8


@each("chunk_rows", [1, 5, None])
def test_a_chunk_holds_all_rows_of_its_targets(chunk_rows):
    targets = tuple(TargetId(0, 0, place, 0) for place in range(2))
    problem = AttackProblem((), Knowledge(ThreatModel(), SHAPE, 10), targets, chunk_rows=chunk_rows)
    schedule, sizes = Schedule(20, 1e-2, tolerance=0.0, halvings=(0.25,)), []

    def solve(rows, tick):
        sizes.append(len(rows))
        prior = PixelPrior(torch.stack([started(row.restart) for row in rows]))
        places = torch.tensor([4 * row.position + row.restart for row in rows])
        return fit_rows(rows, prior, lambda images, which: harder(images, places[which]), schedule, tick, restarts=4)

    found = solve_rows(problem, solve, restarts=4, iterations=20, bytes_per_row=1, together=True)
    assert sizes == ([8] if chunk_rows is None else [4, 4])
    assert found.cost.evaluations == 2 * 5 + 2 * 20
    plain = replace(problem, chunk_rows=None)
    whole = solve_rows(plain, solve, restarts=4, iterations=20, bytes_per_row=1, together=True)
    torch.testing.assert_close(found.images, whole.images, rtol=0, atol=1e-6)
    assert found.objective.argmin(1).tolist() == whole.objective.argmin(1).tolist()
