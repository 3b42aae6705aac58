"""Functions that the tests of L-BFGS and of its line search minimise, a row of points at a time."""

import torch
from torch.nn import functional

ROSENBROCK_STARTS = torch.tensor([[-1.2, 1.0], [0.0, 0.0], [2.0, 2.0], [0.5, -0.5]], dtype=torch.float64)


def rosenbrock(points, rows):
    first, second = points[:, 0], points[:, 1]
    return (1 - first).square() + 100 * (second - first.square()).square()


def quadratic(points, rows):
    scales = torch.logspace(-1, 2, points.shape[1], dtype=points.dtype)
    return (points.square() * scales).sum(1) * (rows + 1)


def gradient_matching(points, rows):
    """Each row looks for the input whose weight gradient under a small sigmoid network is the wanted one."""
    draw = torch.Generator().manual_seed(0)
    first = torch.randn(7, 6, generator=draw, dtype=torch.float64)
    second = torch.randn(3, 7, generator=draw, dtype=torch.float64)
    truth = torch.rand(8, 6, generator=draw, dtype=torch.float64)

    def gradient(x):
        hidden = torch.sigmoid(first @ x)
        delta = functional.softmax(second @ hidden, 0) - functional.one_hot(torch.tensor(1), 3)
        return torch.cat([torch.outer(delta, hidden).flatten(), torch.outer(second.T @ delta, x).flatten()])

    return torch.stack(
        [(gradient(x) - gradient(truth[row])).square().sum() for x, row in zip(points, rows.tolist(), strict=True)]
    )


def with_gradient(function):
    def evaluate(points, rows):
        points = points.detach().requires_grad_()
        losses = function(points, rows)
        (gradients,) = torch.autograd.grad(losses.sum(), points)
        return losses.detach(), gradients

    return evaluate


CASES = {
    "rosenbrock": (rosenbrock, ROSENBROCK_STARTS),
    "quadratic": (quadratic, torch.linspace(-1, 2, 30, dtype=torch.float64).view(3, 10)),
    "gradient matching": (gradient_matching, torch.linspace(0, 1, 24, dtype=torch.float64).view(4, 6).sin()),
}
