"""The inner loops on a GPU: nothing waits for it, and it finds what a CPU finds. Skipped where there is none."""

import pytest
import torch
from torch import nn

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.invert.vector_distance import vector_distance
from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Observation
from fedpriv.attacks.optim.fitting import fit
from fedpriv.attacks.optim.schedule import Schedule
from fedpriv.attacks.priors.dip import DeepImagePrior, Hourglass
from fedpriv.attacks.priors.pixels import PixelPrior, PixelSettings
from fedpriv.attacks.read.target_features import list_targets
from fedpriv.util.last import Last
from fedpriv.util.numerics import Numerics
from fedpriv.util.seeds import global_seed
from fedpriv.wire.payloads import Representations

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

CLIENTS, SHAPE = 3, (3, 16, 16)
SLIM = Hourglass(channels=(6, 8, 10), skip=2, input_channels=5)


def distance_on(device):
    """Return the distance of six images from their representations by three clients' networks of one architecture."""
    with global_seed(0):
        bodies = [
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 64)) for _ in range(CLIENTS)
        ]
    shown = torch.rand(CLIENTS, 2, *SHAPE, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(2, dtype=torch.int64)
    seen = tuple(
        Observation(0, k, (Representations(body(own).detach(), labels),), ())
        for k, (body, own) in enumerate(zip(bodies, shown, strict=True))
    )
    networks = {k: body.eval().requires_grad_(False).to(device) for k, body in enumerate(bodies)}
    knowledge = Knowledge(KnowledgeCard(), SHAPE, 10, extractors=networks)
    problem = AttackProblem(seen, knowledge, list_targets(seen, "representation"), device=device)
    apart, places = vector_distance(problem), Last(lambda which: which.clone())
    return lambda images, which: apart(images.unsqueeze(1), places(which))


def prior_on(device, name):
    drawn = [torch.Generator().manual_seed(seed) for seed in range(2 * CLIENTS)]
    if name == "dip":
        return DeepImagePrior(drawn, SHAPE, SLIM, device)
    return PixelPrior(drawn, SHAPE, PixelSettings(jitter=1, jitter_until=1.0), device)


def fitted(device, name, iterations, tick=lambda step: None):
    schedule = Schedule(iterations, 1e-2, average=0.9, tolerance=0.0, look_every=1000)
    with Numerics().products(device):
        return fit(prior_on(device, name), distance_on(device), schedule, tick)


@pytest.mark.parametrize("name", ["dip", "pixels"])
def test_nothing_in_the_loop_waits_for_the_device(name):
    def tick(step):
        # What is made once is made in the first steps; the last one is followed by the end, which reads.
        torch.cuda.set_sync_debug_mode("error" if 3 <= step < 29 else "default")

    try:
        assert fitted(torch.device("cuda"), name, 30, tick).iterations == 30
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", ["dip", "pixels"])
def test_a_gpu_finds_what_a_cpu_finds(name):
    here, there = fitted(torch.device("cpu"), name, 8), fitted(torch.device("cuda"), name, 8)
    torch.testing.assert_close(there.images.cpu(), here.images, rtol=0, atol=2e-3)
    torch.testing.assert_close(there.objective.cpu(), here.objective, rtol=1e-2, atol=1e-6)


def test_rows_draw_the_same_numbers():
    moving = torch.ones(2 * CLIENTS, dtype=torch.bool)
    here = prior_on(torch.device("cpu"), "pixels").shown(0.0, moving)
    expected = prior_on(torch.device("cuda"), "pixels").shown(0.0, moving.cuda()).cpu()
    assert torch.equal(here, expected)
