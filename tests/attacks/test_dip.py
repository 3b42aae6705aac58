"""The grouped generator against ordinary modules, one a row."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpriv.attacks.priors import dip
from fedpriv.attacks.priors.dip import DeepImagePrior, Hourglass, levels_that_fit
from fedpriv.attacks.search.fit import Schedule, fit
from fedpriv.util.errors import UserError

CPU = torch.device("cpu")
SLIM = Hourglass(channels=(6, 8, 10, 12), skip=2, input_channels=5)


def block(inputs, outputs, kernel):
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2))


class Level(nn.Module):
    """One level of the hourglass, as its description says, with skip and deeper map joined."""

    def __init__(self, inputs, channels, skip):
        super().__init__()
        here, deeper = channels[0], channels[min(1, len(channels) - 1)]
        self.skip = block(inputs, skip, 1)
        self.down = nn.Conv2d(inputs, here, 3, padding=1)
        self.after = nn.Sequential(nn.AvgPool2d(2, ceil_mode=True), nn.BatchNorm2d(here), nn.LeakyReLU(0.2))
        self.inner = block(here, here, 3)
        self.deeper = Level(here, channels[1:], skip) if len(channels) > 1 else nn.Identity()
        self.joined = nn.BatchNorm2d(deeper + skip)
        self.up = block(deeper + skip, here, 3)
        self.mix = block(here, here, 1)

    def forward(self, maps):
        deep = self.deeper(self.inner(self.after(self.down(maps))))
        deep = functional.interpolate(deep, scale_factor=2)[:, :, : maps.shape[2], : maps.shape[3]]
        return self.mix(self.up(self.joined(torch.cat([deep, self.skip(maps)], 1))))


def ordinary(prior, row, image_channels, shape, levels):
    """Return the ordinary module with the weights of one row."""
    network = nn.Sequential(
        Level(shape.input_channels, shape.channels[:levels], shape.skip),
        nn.Conv2d(shape.channels[0], image_channels, 1),
        nn.Sigmoid(),
    )
    weights = {name: values[row].detach() for name, values in prior.named_parameters().items()}
    level = network[0]
    with torch.no_grad():
        for bias in (module.bias for module in network.modules() if isinstance(module, nn.Conv2d)):
            bias.zero_()
        for number in range(levels):
            level.down.weight.copy_(weights[f"{number}.down.weight"])
            for name in ("skip", "inner", "mix"):
                getattr(level, name)[0].weight.copy_(weights[f"{number}.{name}.weight"])
            parts = [weights[f"{number}.up.weight"], weights[f"{number}.beside.weight"]]
            level.up[0].weight.copy_(torch.cat(parts, 1))
            level = level.deeper
        network[1].weight.copy_(weights["image.weight"])
        network[1].bias.copy_(weights["image.bias"])
    return network


def prior_of(seeds, side, shape=SLIM, channels=3):
    return DeepImagePrior([torch.Generator().manual_seed(seed) for seed in seeds], (channels, side, side), shape, CPU)


@pytest.fixture(params=["as on a CPU", "as on a GPU"])
def way(request, monkeypatch):
    """The way of convolving, of which a GPU has one of its own."""
    monkeypatch.setattr(dip, "as_products", lambda rows, device: request.param == "as on a GPU")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("side", [8, 13, 28, 32])
def test_every_row_is_an_ordinary_network(side):
    prior = prior_of((1, 2, 3), side)
    images = prior.clean()
    weights = dict(zip(prior.named_parameters(), prior.parameters, strict=True))
    direction = torch.randn(images.shape[1:], generator=torch.Generator().manual_seed(0))
    names = ["0.down.weight", "0.up.weight", "1.skip.weight"]
    gradients = torch.autograd.grad((images * direction).sum(), [weights[name] for name in names])
    for row in range(3):
        network = ordinary(prior, row, 3, SLIM, min(4, levels_that_fit(side, side)))
        expected = network(prior._input[row : row + 1])
        torch.testing.assert_close(images[row : row + 1], expected, rtol=1e-4, atol=1e-5)
        level = network[0]
        own = [level.down.weight, level.up[0].weight, level.deeper.skip[0].weight]
        down, up, skip = torch.autograd.grad((expected * direction).sum(), own)
        for gradient, wanted in zip(gradients, (down, up[:, : SLIM.channels[1]], skip), strict=True):
            # A LeakyReLU's slope may differ where rounding moves a value over zero: compare the whole, not each entry.
            assert (gradient[row, 0] - wanted).norm() < 1e-2 * wanted.norm()


def test_tiny_images_are_refused():
    with pytest.raises(UserError, match="2x2"):
        prior_of((1,), 2)


def mean_square(wanted):
    def distance(images, rows):
        return (images - wanted[rows]).square().flatten(1).mean(1)

    return distance


WANTED = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(4))


def run(rows, schedule, side=8):
    return fit(prior_of(rows, side, channels=1), mean_square(WANTED[list(rows)]), schedule, lambda step: None)


def test_the_first_steps_are_those_of_an_ordinary_loop():
    """The oracle for everything between gradient and weights, memory layout included."""
    shape = Hourglass(channels=(6, 8, 10, 12), skip=2, input_channels=5, input_noise=0.0)
    prior = prior_of((1, 2), 32, shape)
    networks = [ordinary(prior, row, 3, shape, 4) for row in range(2)]
    wanted = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    expected = []
    for row, network in enumerate(networks):
        optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)
        for _ in range(5):
            loss = (network(prior._input[row : row + 1]) - wanted[row]).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        expected.append(network(prior._input[row : row + 1])[0])
    before = prior.clean()
    fit(prior, mean_square(wanted), Schedule(5, 5e-3, tolerance=0.0), lambda step: None)
    moved = (torch.stack(expected) - before).norm()
    # Adam's first steps are signs, so entries whose gradient is rounding go either way.
    assert (prior.clean() - torch.stack(expected)).norm() < 0.3 * moved


def test_noise_is_the_same_by_any_number_of_threads():
    def generators():
        return [torch.Generator().manual_seed(number) for number in range(11)]

    alone, several = generators(), generators()
    for _ in range(2):  # generators go on
        expected = torch.stack([torch.randn(5, 6, 7, generator=each) for each in alone])
        assert torch.equal(dip.noise(several, (5, 6, 7), threads=4), expected)


def test_the_objective_is_that_of_the_images():
    fitted = run((0, 1, 2), Schedule(30, 5e-3, average=0.9, tolerance=0.0))
    torch.testing.assert_close(mean_square(WANTED)(fitted.images, torch.arange(3)), fitted.objective)
    start = mean_square(WANTED)(prior_of((0, 1, 2), 8, channels=1).clean(), torch.arange(3))
    assert (fitted.objective < 0.8 * start).all()


def test_rows_stop_without_gain_or_where_they_are_not_finite():
    def ended(change):
        return fit(
            prior_of((0,), 8, channels=1),
            lambda x, _: change(x.flatten(1).sum(1)),
            Schedule(50, 1e-2, patience=7),
            print,
        )

    flat, broken = ended(lambda sums: 0 * sums + 1), ended(lambda sums: sums * torch.nan)
    assert (flat.iterations, broken.iterations) == (8, 1)
    assert not flat.converged.any()
    assert broken.objective.isinf().all()
    assert broken.images.isfinite().all()
