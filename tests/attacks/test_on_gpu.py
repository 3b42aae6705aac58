"""The inner loops on a GPU: nothing waits for it, and it finds what a CPU finds. Skipped where there is none."""

import pytest
import torch
from gradient_cases import attack, images_and_labels, psnr, sigmoid_net
from torch import nn

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients import inverting
from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.gradients.inverting import InvertingGradients
from fedpriv.attacks.gradients.linear_layer import LinearLayer
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.vector import vector_distance
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.attacks.priors import dip
from fedpriv.attacks.priors.dip import DeepImagePrior, Hourglass
from fedpriv.attacks.priors.spectral import Frame, PixelPrior, SpectralPrior, drawn_points, general_spectrum
from fedpriv.attacks.search import fit as fitting
from fedpriv.attacks.search import lbfgs
from fedpriv.attacks.search.cuda_graph import Replay, recorder_on
from fedpriv.attacks.search.fit import Schedule, fit
from fedpriv.uploads.payloads import Representations
from fedpriv.util.compute import full_float32
from fedpriv.util.seeds import Last, global_seed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

CUDA = torch.device("cuda")
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
    knowledge = Knowledge(ThreatModel(), SHAPE, 10, extractors=networks)
    problem = AttackProblem(seen, knowledge, list_targets(seen, "representation"), device=device)
    apart, places = vector_distance(problem), Last(lambda which: which.clone())
    return lambda images, which: apart(images.unsqueeze(1), places(which))


def prior_on(device, name):
    drawn = [torch.Generator().manual_seed(seed) for seed in range(2 * CLIENTS)]
    if name == "dip":
        return DeepImagePrior(drawn, SHAPE, SLIM, device)
    if name == "spectrum":
        centres = torch.full((len(drawn), 1, *SHAPE), 0.5, device=device)
        frame = Frame(centres, general_spectrum(SHAPE).to(device))
        return SpectralPrior(drawn_points(drawn, frame), frame)
    start = torch.stack([torch.rand(SHAPE, generator=draw) for draw in drawn]).to(device)
    return PixelPrior(start)


def fitted(device, name, iterations, tick=lambda step: None, recorded=True):
    schedule = Schedule(iterations, 1e-2, anneal=True, average=0.9, tolerance=0.0)
    recorder = recorder_on if recorded else lambda device: None
    with full_float32(device), pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "recorder_on", recorder)
        return fit(prior_on(device, name), distance_on(device), schedule, tick)


@pytest.mark.parametrize(
    ("name", "recorded"), [("dip", False), ("dip", True), ("pixels", False), ("pixels", True), ("spectrum", False)]
)
def test_nothing_in_the_loop_waits_for_the_device(name, recorded):
    def tick(step):
        # What is made once is made in the first steps, as a recording is; the last one is followed by the end, which reads.
        torch.cuda.set_sync_debug_mode("error" if 2 + recorded <= step < 29 else "default")

    try:
        assert fitted(CUDA, name, 30, tick, recorded).iterations == 30
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("ways", ["a product a row", "a group a row"])
@pytest.mark.parametrize("name", ["dip", "pixels", "spectrum"])
def test_a_gpu_finds_what_a_cpu_finds(name, ways, monkeypatch):
    """In three steps: where a value passes the kink of a LeakyReLU, rounding decides what becomes of a row."""
    here = fitted(torch.device("cpu"), name, 3)
    monkeypatch.setattr(dip, "as_products", lambda rows, device: ways == "a product a row")
    there = fitted(CUDA, name, 3)
    torch.testing.assert_close(there.images.cpu(), here.images, rtol=0, atol=2e-3)
    torch.testing.assert_close(there.objective.cpu(), here.objective, rtol=1e-2, atol=1e-6)


GRADIENT_ATTACKS = [
    DeepLeakage(outer_steps=40),
    InvertingGradients(iterations=400, total_variation=1e-3),
    InvertingGradients(iterations=400),
    LinearLayer(),
]


@pytest.mark.parametrize("made", GRADIENT_ATTACKS, ids=lambda made: made.name)
def test_gradients_are_inverted_on_a_gpu_as_on_a_cpu_and_again_in_every_bit(made):
    images, labels = images_and_labels(4)
    here = attack(made, sigmoid_net(), images, labels)
    there, again = (attack(made, sigmoid_net(), images, labels, device=CUDA) for _ in range(2))
    assert torch.equal(there.images, again.images)
    own, other = (psnr(found.images[:, 0].cpu(), images).mean() for found in (here, there))
    assert abs(own - other) < 3.0 or min(own, other) > 30.0


@pytest.fixture
def replays(monkeypatch):
    """Numbers of replayed steps, one of each loop that was begun."""
    loops, begin = [], Replay.__init__

    def begun(loop, *given, **named):
        begin(loop, *given, **named)
        loops.append(loop)

    monkeypatch.setattr(Replay, "__init__", begun)
    return lambda: [loop.replays for loop in loops]


@pytest.mark.parametrize(("name", "number"), [("dip", 39), ("pixels", 39), ("spectrum", 36)])
def test_a_search_that_is_replayed_finds_the_same_in_every_bit(name, number, replays):
    """A step of a kind comes first; in a spectrum there are four kinds, by the weight of penalties."""
    found, plain = fitted(CUDA, name, 40), fitted(CUDA, name, 40, recorded=False)
    assert replays() == [number, 0]
    assert torch.equal(found.images, plain.images)
    assert torch.equal(found.objective, plain.objective)


@pytest.mark.parametrize(
    "made", [one for one in GRADIENT_ATTACKS if one.name != "linear-layer"], ids=lambda made: made.name
)
def test_gradient_attacks_that_are_replayed_find_the_same_in_every_bit(made, replays, monkeypatch):
    images, labels = images_and_labels(4)
    found = attack(made, sigmoid_net(), images, labels, device=CUDA)
    assert sum(replays()) > 0
    for module in (fitting, lbfgs, inverting):
        monkeypatch.setattr(module, "recorder_on", lambda device: None)
    assert torch.equal(found.images, attack(made, sigmoid_net(), images, labels, device=CUDA).images)
