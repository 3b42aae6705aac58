"""Precision of searches: what each changes, and what is refused."""

import pytest
import torch
from compare import expect_same
from torch import nn

from fedpriv.attacks.inputs.outputs import relative_feature_distance
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.vector import DipInversion, PixelInversion
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.attacks.priors.dip import Hourglass
from fedpriv.uploads.payloads import Representations
from fedpriv.util.compute import FLOAT32, Numerics
from fedpriv.util.seeds import global_seed

CPU = torch.device("cpu")
SLIM = Hourglass(channels=(4, 6), skip=2, input_channels=3)
DIP = DipInversion(iterations=30, generator=SLIM, tolerance=0.0)
PIXELS = PixelInversion(iterations=120, restarts=1, tolerance=0.0)


@pytest.fixture(scope="module")
def body():
    with global_seed(0):
        made = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 64))
    return made.eval().requires_grad_(False)


def attacked(attack, body, numerics):
    shown = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    seen = (Observation(0, 0, (Representations(body(shown), torch.zeros(3, dtype=torch.int64)),), ()),)
    knowledge = Knowledge(ThreatModel(), (3, 16, 16), 10, extractors={0: body})
    return attack(seen, knowledge, list_targets(seen, "representation"), seed=0, device=CPU, numerics=numerics)


@pytest.mark.parametrize("attack", [DIP, PIXELS], ids=["dip", "pixels"])
def test_bfloat16_searches_elsewhere_and_is_judged_in_float32(attack, body):
    exact = attacked(attack, body, FLOAT32)
    coarse = attacked(attack, body, Numerics("bfloat16"))
    assert not torch.equal(coarse.images, exact.images)
    assert coarse.images.dtype == coarse.objective.dtype == torch.float32
    distance = relative_feature_distance(body(coarse.images[:, 0]), coarse.features)
    if attack is DIP:  # whose objective has no penalty
        lowest = coarse.objective.min(1).values
        torch.testing.assert_close(distance, lowest, rtol=1e-4, atol=1e-7)
    # Seven bits of mantissa are about enough: the search ends within a factor of two of where it ends in float32.
    assert (coarse.objective.min(1).values < 2 * exact.objective.min(1).values).all()
    expect_same(attacked(attack, body, Numerics("bfloat16")).images, coarse.images)
