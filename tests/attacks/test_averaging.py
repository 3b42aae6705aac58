"""Averaging over rounds: noise falls with the rounds, drift is followed, and what was never sent stays unknown."""

from dataclasses import replace

import pytest
import torch
from compare import expect_close
from defense_cases import build
from federations import CPU

from fedpriv.attacks.features.rounds import AveragedInversion, average_rows
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.federation.defense import DefensePipeline, Sender
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import Model, Prototypes, Representations

WIDTH = 32
LABELS = torch.arange(6).repeat_interleave(2)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rounds(*texts, number=16, drift=0.0, kind="representation"):
    """What a server sees of one client that uploads the same rows every round, moving by ``drift`` of their size."""
    clean, step = draw(12, WIDTH), draw(12, WIDTH, seed=1)
    pipeline = DefensePipeline(build(*texts))
    seen = []
    for t in range(1, number + 1):
        rows = clean + drift * (t - number) * step
        held = Representations(rows, LABELS) if kind == "representation" else Prototypes(rows, torch.arange(12))
        sent = pipeline.upload((held,), Sender(t, 0, 12, LABELS, (), number), 0)
        seen.append(Observation(t, 0, sent, ()))
    return tuple(seen), clean


def error(found, clean):
    return float((found - clean).norm() / clean.norm())


@pytest.mark.parametrize("kind", ["representation", "prototype"])
@pytest.mark.parametrize(
    ("text", "remaining"),
    [
        ("noise:scale=1", 0.3),
        ("noise:scale=1,kind=laplace", 0.3),
        ("quantise:bits=2", 0.3),
        ("dp-noise:noise_multiplier=1,bound=100", 0.3),
    ],
)
def test_what_is_disturbed_anew_every_round_averages_out(text, remaining, kind):
    """Sixteen rounds leave a quarter of the disturbance, by the standard deviation of a mean."""
    seen, clean = rounds(text, kind=kind)
    if text.startswith("dp-noise"):  # the whole upload is clipped to 100, which it is shorter than
        assert clean.norm() < 100
    once = error(seen[-1].upload[0].features, clean)
    assert error(average_rows(seen, seen[-1]), clean) < remaining * once


def test_exact_uploads_stay_exact_even_when_they_move():
    for drift in (0.0, 0.02):
        seen, clean = rounds(drift=drift)
        assert error(average_rows(seen, seen[-1]), clean) < 1e-5
    # A jump in the last rounds: older versions must not be believed.
    seen, clean = rounds()
    old = tuple(replace(o, upload=(Representations(draw(12, WIDTH, seed=9), LABELS),)) for o in seen[:8])
    assert error(average_rows((*old, *seen[8:]), seen[-1]), clean) < 1e-3


def test_drift_is_followed_where_a_plain_mean_fails():
    seen, clean = rounds("noise:scale=0.3", drift=0.05)
    features = torch.stack([o.upload[0].features for o in seen])
    found = average_rows(seen, seen[-1])
    assert error(found, clean) < 0.7 * error(features[-1], clean)
    assert error(found, clean) < 0.7 * error(features.mean(0), clean)


def test_negative_control_noise_that_lasts_does_not_average_out():
    clean = draw(12, WIDTH)
    same = clean + draw(12, WIDTH, seed=4)
    seen = tuple(Observation(t, 0, (Representations(same, LABELS),), ()) for t in range(1, 17))
    assert error(average_rows(seen, seen[-1]), clean) == pytest.approx(error(same, clean), rel=1e-4)


def test_rotating_blocks_are_put_together_and_fixed_ones_are_not():
    seen, clean = rounds("diagonal:blocks=4", number=8)
    once = error(seen[-1].upload[0].features, clean)
    assert error(average_rows(seen, seen[-1], missing=True), clean) < 1e-5
    assert error(average_rows(seen[-3:], seen[-1], missing=True), clean) > 0.3  # a block was never shown
    fixed, _ = rounds("diagonal:blocks=4,schedule=fixed", number=8)
    assert error(average_rows(fixed, fixed[-1], missing=True), clean) == pytest.approx(once, rel=0.2)


@pytest.mark.parametrize("inversion", ["dip", "joint"])
def test_the_attack_recovers_the_rows_and_reports_them(inversion):
    """Through a linear extractor: images of noisy rows are wrong, images of averaged rows are nearly right."""
    images = torch.nn.functional.interpolate(
        torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(3)), scale_factor=2, mode="bilinear"
    )
    matrix = draw(64, 48, seed=5) / 8
    pipeline = DefensePipeline(build("noise:scale=1"))
    seen = []
    for t in range(1, 25):
        clean = Prototypes(images.flatten(1) @ matrix, torch.arange(3), torch.ones(3, dtype=torch.int64))
        sent = pipeline.upload((clean,), Sender(t, 0, 3, torch.arange(3), (), 24), 0)
        seen.append(Observation(t, 0, sent, ()))
    knowledge = Knowledge(
        ThreatModel(rounds_seen=24), (1, 8, 8), 3, extractors={0: lambda shown: shown.flatten(1) @ matrix}
    )
    targets = list_targets(seen[-1:], "prototype")
    attack = AveragedInversion(iterations=120, inversion=inversion)
    found = attack(tuple(seen), knowledge, targets, seed=0, device=CPU)
    rows = average_rows(seen, seen[-1])
    expect_close(found.features, rows)
    assert error(rows, images.flatten(1) @ matrix) < 0.3
    once = attack.inverter(knowledge)(tuple(seen[-1:]), knowledge, targets, seed=0, device=CPU)
    mistakes = [float((one.images[:, 0] - images).square().mean()) for one in (found, once)]
    assert mistakes[0] < 0.6 * mistakes[1]


def test_what_is_missing_is_said():
    seen, _ = rounds(number=2)
    targets = list_targets(seen[-1:], "representation")
    knowledge = Knowledge(ThreatModel(), (1, 8, 8), 6, extractors={})
    with pytest.raises(UserError, match="at least 2 rounds"):
        AveragedInversion()(seen, knowledge, targets, seed=0, device=CPU)
    wrong = Observation(1, 0, (Model({"weight": draw(2, 2)}),), ())
    with pytest.raises(UserError, match="holds model"):
        average_rows((wrong,), wrong)
