"""A denoiser of the attacker's own: trained once, holds pixels back, and leads to images only where the upload does."""

from dataclasses import replace

import pytest
import torch
from compare import expect_same
from gradient_cases import SHAPE, clients, knowledge_of, psnr
from torch import nn

from fedpriv.attacks.contract import Trained
from fedpriv.attacks.gradients.inverting import InvertingGradients
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.decoder import DecoderInversion
from fedpriv.attacks.inversion.learned import LearnedInversion, strangeness, train_denoiser
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.uploads.payloads import Representations
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator, global_seed

CARD = ThreatModel(attacker_data="same_domain")
FAST = LearnedInversion(iterations=120)


@pytest.fixture(scope="module")
def extractor():
    """Fewer outputs than pixels, half of them zero: what is left open is up to the prior."""
    matrix = torch.randn(64, 56, generator=generator(0, "extractor")) / 8
    return lambda images: torch.relu((images.flatten(1) - 0.3) @ matrix)


def granted(extractor, digits):
    return Knowledge(CARD, (1, 8, 8), 10, extractors={0: extractor}, public_images=digits[0][:400])


def raw(features, labels):
    return (Observation(1, 0, (Representations(features, labels),), ()),)


def invert(attack, seen, known, kind="representation", **how):
    return attack(seen, known, list_targets(seen, kind), **how)


def test_a_denoiser_takes_noise_off_images_it_has_not_seen(digits):
    images = digits[0]
    denoiser = train_denoiser(images[:400], 200, seed=0)
    noisy = images[1000:1100] + 0.03 * torch.randn(100, *SHAPE, generator=generator(0, "noise"))
    assert psnr(denoiser(noisy), images[1000:1100]).mean() > psnr(noisy, images[1000:1100]).mean() + 0.5
    assert strangeness(images[1000:1100], denoiser).mean() < 0.7 * strangeness(noisy, denoiser).mean()


def test_private_images_come_back_better_than_decoded_and_those_of_a_strange_upload_do_not(digits, extractor):
    images, labels = digits[0][1000:1012], digits[1][1000:1012]
    known, trained = granted(extractor, digits), Trained()
    found = invert(FAST, raw(extractor(images), labels), known, trained=trained)
    decoded = invert(DecoderInversion(refine_steps=0), raw(extractor(images), labels), known, trained=trained)
    floor = psnr(digits[0][:400].mean(0).expand_as(images), images)
    assert psnr(found.images[:, 0], images).mean() > psnr(decoded.images[:, 0], images).mean() > floor.mean() + 5
    strange = invert(FAST, raw(extractor(images.roll(5, 0)), labels), known, trained=trained)
    assert psnr(strange.images[:, 0], images).mean() < floor.mean()


def test_it_is_trained_once_for_a_run_and_needs_images(digits, extractor, monkeypatch):
    images, labels = digits[0][1000:1002], digits[1][1000:1002]
    known, trained = granted(extractor, digits), Trained()
    attack = LearnedInversion(iterations=2)
    first = invert(attack, raw(extractor(images), labels), known, trained=trained)
    monkeypatch.setattr("fedpriv.attacks.inversion.learned.train_denoiser", None)
    monkeypatch.setattr("fedpriv.attacks.inversion.decoder.train_decoder", None)
    again = invert(attack, raw(extractor(images), labels), known, trained=trained)
    expect_same(first.images, again.images)
    with pytest.raises(UserError, match="got 3 images to train on; expected at least 16"):
        invert(attack, raw(extractor(images), labels), replace(known, public_images=images.repeat(2, 1, 1, 1)[:3]))


def kinked_net():
    """Fewer numbers before the fully connected layer than an image has pixels."""
    with global_seed(1):
        layers = nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 10)
        return nn.Sequential(*layers)


def test_a_prior_that_gradients_learn_brings_images_nearer_than_total_variation(digits):
    images, labels = digits[0][:6], digits[1][:6]
    model = kinked_net()
    plain = knowledge_of(model, labels)
    card = replace(plain.card, attacker_data="same_domain")
    granting = replace(plain, card=card, public_images=digits[0][600:1000])
    seen = clients(model, images, labels)

    def found(attack, known):
        return attack(seen, known, list_targets(seen, "model")).images[:, 0]

    learned = found(InvertingGradients(iterations=150, prior="learned"), granting)
    without = found(InvertingGradients(iterations=150, prior="variation"), plain)
    expect_same(without, found(InvertingGradients(iterations=150, prior="variation"), granting))
    assert psnr(learned, images).mean() > psnr(without, images).mean() + 0.3
