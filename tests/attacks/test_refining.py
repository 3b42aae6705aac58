"""Fits of decoded images: coordinates of a spectrum lead nearer than pixels do, and small images keep to pixels."""

from dataclasses import replace

import pytest
import torch
from compare import expect_close
from torch import nn

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.decoder import DecoderInversion, LearnedFit, learned_fit
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.attacks.priors.spectral import general_spectrum
from fedpriv.util.seeds import generator, global_seed
from fedpriv.wire.payloads import Representations

SHAPE = (3, 16, 16)
QUICK = DecoderInversion(iterations=60, width=32, refine_steps=300)
DECODED = replace(QUICK, refine=0)


@pytest.fixture(scope="module")
def images():
    points = torch.randn(320, *SHAPE, generator=generator(3, "images"))
    return (0.5 + 0.7 * general_spectrum(SHAPE).images(points)).clamp(0, 1)


@pytest.fixture(scope="module")
def extractor():
    with global_seed(0):
        body = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16**2, 16**2), nn.ReLU())
    return body.requires_grad_(False)


@pytest.fixture(scope="module")
def known(images, extractor):
    card = ThreatModel(attacker_data="same_domain")
    return Knowledge(card, SHAPE, 10, extractors={0: extractor}, public_images=images[:300])


def invert(attack, features, known):
    seen = (Observation(1, 0, (Representations(features, torch.zeros(len(features), dtype=torch.int64)),), ()),)
    return attack(seen, known, list_targets(seen, "representation"), seed=0, device=torch.device("cpu")).images[:, 0]


def psnr(found, images):
    return -10 * (found - images).square().flatten(1).mean(1).log10()


def test_coordinates_of_a_spectrum_lead_nearer_and_a_strange_upload_leads_nowhere(images, extractor, known):
    private = images[300:312]
    decoded, fitted = (psnr(invert(made, extractor(private), known), private).mean() for made in (DECODED, QUICK))
    assert fitted > decoded + 0.5
    strange = psnr(invert(QUICK, extractor(private.roll(5, 0)), known), private).mean()
    assert strange < psnr(images[:300].mean(0).expand_as(private), private).mean()


def test_a_fit_that_stands_still_goes_on_until_its_step_size_has_fallen(images, extractor, known):
    unreachable = -extractor(images[300:304])  # a rectifier never gives it
    seen = (Observation(1, 0, (Representations(unreachable, torch.zeros(4, dtype=torch.int64)),), ()),)
    attack = replace(QUICK, iterations=10, refine=700)
    done = attack(seen, known, list_targets(seen, "representation"), seed=0, device=torch.device("cpu"))
    assert done.cost.evaluations == 700
    assert not done.converged.any()


def shortened(rows, seed):
    return torch.nn.functional.normalize(rows, dim=1)


def halved(rows, seed):
    return rows * (torch.arange(rows.shape[1]) % 2)


@pytest.mark.parametrize("defend", [shortened, halved])
def test_behind_a_rule_fits_believe_what_it_left(images, extractor, known, defend):
    private, quick = images[300:312], replace(QUICK, refine_steps=150)
    behind, sent = replace(known, defended={(1, 0): defend}), defend(extractor(private), 0)
    found = {
        match: psnr(invert(replace(quick, match=match), sent, behind), private).mean() for match in ("auto", "vector")
    }
    assert found["auto"] > found["vector"] + 0.5
    decoded = psnr(invert(replace(QUICK, refine=0), sent, behind), private).mean()
    assert found["auto"] > decoded + 0.5
    strange = psnr(invert(quick, sent.roll(5, 0), behind), private).mean()
    assert strange < psnr(images[:300].mean(0).expand_as(private), private).mean()


@pytest.mark.parametrize("defend", [shortened, halved])
def test_behind_a_rule_images_are_held_to_what_it_left(images, extractor, known, defend):
    private = images[300:306]
    sent = torch.cat([defend(extractor(private[:3]), 0), extractor(private[3:])])
    seen = tuple(
        Observation(1, client, (Representations(rows, torch.zeros(3, dtype=torch.int64)),), ())
        for client, rows in enumerate(sent.split(3))
    )
    both = replace(known, extractors=dict.fromkeys((0, 1), extractor), defended={(1, 0): defend})
    targets = list_targets(seen, "representation")
    problem = AttackProblem(seen, both, targets, 0, torch.device("cpu"))
    held, whole = (replace(QUICK, refine_steps=50, match=match).objective(problem) for match in ("auto", "vector"))
    shown = private.unsqueeze(1)
    assert held(shown).amax() < 1e-6
    assert whole(shown)[:3].amin() > 0.1
    expect_close(held(shown.roll(1, 0))[3:], whole(shown.roll(1, 0))[3:])
    assert held(shown.roll(1, 0))[:3].amin() > 1e-3


def test_the_match_and_the_share_that_come_nearest_are_learned():
    zeros, ones = torch.zeros(2, 1, 2, 2), torch.ones(2, 1, 2, 2)
    spoiled = ones.clone()
    spoiled[0] = -1
    assert learned_fit(zeros, {"vector": spoiled, "direction": ones}, 0.25 * ones) == LearnedFit("direction", 0.25)
    assert learned_fit(zeros, {"vector": -ones, "direction": -ones}, 0.25 * ones) == LearnedFit("vector", 0.0)
    assert learned_fit(zeros, {"vector": ones}, 0.04 * ones) == LearnedFit("vector", 0.0)
