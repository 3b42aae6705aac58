"""Trained decoders: they invert what they were trained on, get nothing from noise, and are fitted as far as that helps."""

import dataclasses

import pytest
import torch
from compare import expect_close, expect_same
from gradient_cases import psnr
from looped import each
from torch import nn

from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.decoder import (
    ClassMeans,
    DecoderInversion,
    LearnedFit,
    Pairs,
    divided,
    learned_fit,
    train_decoder,
)
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.attacks.priors.spectral import general_spectrum
from fedpriv.uploads.payloads import Prototypes, Representations
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator, global_seed

CARD = ThreatModel(attacker_data="same_domain")
FAST = DecoderInversion(iterations=200, width=64)


@pytest.fixture(scope="module")
def extractor():
    matrix = torch.randn(64, 128, generator=generator(0, "extractor")) / 8
    return lambda images: torch.relu((images.flatten(1) - 0.3) @ matrix)


@pytest.fixture(scope="module")
def known(digits, extractor):
    return Knowledge(CARD, (1, 8, 8), 10, extractors={0: extractor, 1: extractor}, public_images=digits[0][:400])


def raw(features, labels, client=0):
    return Observation(1, client, (Representations(features, labels),), ())


def invert(attack, seen, known, kind="representation"):
    return attack(seen, known, list_targets(seen, kind))


def test_private_images_come_back_and_those_of_a_strange_upload_do_not(digits, extractor, known):
    images, labels = digits[0][1000:1012], digits[1][1000:1012]
    found = invert(FAST, (raw(extractor(images), labels),), known)
    floor = psnr(digits[0][:400].mean(0).expand_as(images), images)
    assert psnr(found.images[:, 0], images).mean() > floor.mean() + 5
    strange = invert(FAST, (raw(extractor(images.roll(5, 0)), labels),), known)
    assert psnr(strange.images[:, 0], images).mean() < floor.mean()


def test_by_default_vectors_of_one_image_are_refined_through_the_clients_own_extractor(digits, extractor, known):
    images, labels = digits[0][1000:1004], digits[1][1000:1004]
    attack = DecoderInversion(iterations=20, width=16)
    decoded = dataclasses.replace(attack, refine_steps=0)

    def moved(seen, known, kind="representation"):
        apart = invert(attack, seen, known, kind).images - invert(decoded, seen, known, kind).images
        return (apart.flatten(1).abs().amax(1) > 0.01).tolist()

    vectors, classes = extractor(images), torch.arange(4)
    assert moved((raw(vectors, labels),), known) == [True] * 4
    counted = Observation(1, 0, (Prototypes(vectors, classes, torch.tensor([1, 2, 1, 9])),), ())
    assert moved((counted,), known, "prototype") == [True, False, True, False]
    assert moved((Observation(1, 0, (Prototypes(vectors, classes),), ()),), known, "prototype") == [False] * 4
    for access in ("query", "shadow"):
        card = dataclasses.replace(CARD, extractor=access)
        assert moved((raw(vectors, labels),), dataclasses.replace(known, card=card)) == [False] * 4


def test_a_mean_of_representations_becomes_the_mean_image(digits, extractor, known):
    images, labels = digits
    groups = [(labels[1000:] == digit).nonzero().flatten()[:6] + 1000 for digit in range(10)]
    means = torch.stack([extractor(images[group]).mean(0) for group in groups])
    pixel_means = torch.stack([images[group].mean(0) for group in groups])
    blind = torch.stack([images[:400][labels[:400] == digit].mean(0) for digit in range(10)])
    found = invert(FAST, (Observation(1, 0, (Prototypes(means, torch.arange(10)),), ()),), known, "prototype")
    assert psnr(found.images[:, 0], pixel_means).mean() > psnr(blind, pixel_means).mean() + 5


@each("shape", [(1, 8, 8), (3, 32, 32), (3, 7, 10), (1, 3, 3)])
def test_one_decoder_serves_extractors_of_different_widths_and_images_of_any_shape(shape):
    rng = generator(0)
    images = torch.rand(40, *shape, generator=rng)
    matrices = [torch.randn(images[0].numel(), width, generator=rng) for width in (12, 30)]
    features = [images.flatten(1) @ matrix for matrix in matrices]
    inside, outside = (Pairs([part[rows] for part in features], images[rows]) for rows in (slice(8, 40), slice(8)))
    done = train_decoder(inside, outside, 20, 16, 0)
    for place, part in enumerate(features):
        found = done(part[:3], place)
        assert found.shape == (3, *shape)
        assert bool(((found >= 0) & (found <= 1)).all())


def test_linear_extractors_that_lose_nothing_are_inverted_by_their_readouts():
    rng = generator(0)
    images = torch.rand(300, 1, 4, 4, generator=rng)
    matrix = torch.linalg.qr(torch.randn(16, 16, generator=rng)).Q
    features = images.flatten(1) @ matrix
    inside, outside = Pairs([features[20:]], images[20:]), Pairs([features[:20]], images[:20])
    done = train_decoder(inside, outside, 1, 16, 0)
    expect_close(done(features[:20], 0), images[:20], atol=2e-2)
    expect_close(done(features[:4].mean(0, keepdim=True), 0)[0], images[:4].mean(0), atol=2e-2)


def test_what_is_missing_is_refused(digits, extractor, known):
    seen = (raw(extractor(digits[0][:1]), digits[1][:1]),)
    with pytest.raises(UserError, match="got 3 images to train on; expected at least 16"):
        invert(FAST, seen, dataclasses.replace(known, public_images=digits[0][:3]))
    with pytest.raises(UserError, match="no extractor of client 0"):
        invert(FAST, seen, dataclasses.replace(known, extractors={}))


def noisy(rows, size, rng):
    return rows + size * rows.square().mean().sqrt() * torch.randn(rows.shape, generator=rng)


def test_behind_a_defense_that_draws_it_learns_how_little_is_left(digits, extractor, known):
    """Who ignores the noise takes it for an image; who learns behind it beats the mean image all the same."""
    images, labels = digits[0][1000:1048], digits[1][1000:1048]
    seen = (raw(noisy(extractor(images), 1, generator(0, "noise")), labels),)
    defended = {(1, 0): lambda rows, seed: noisy(rows, 1, generator(seed, "attacker"))}
    aware = dataclasses.replace(known, defended=defended)
    learned = psnr(invert(FAST, seen, aware).images[:, 0], images).mean()
    ignored = psnr(invert(FAST, seen, known).images[:, 0], images).mean()
    floor = psnr(digits[0][:400].mean(0).expand_as(images), images).mean()
    assert learned > floor + 1
    assert learned > ignored + 2
    # The control: the same noise on other people's rows.
    strange = (raw(noisy(extractor(images.roll(5, 0)), 1, generator(0, "noise")), labels),)
    assert psnr(invert(FAST, strange, aware).images[:, 0], images).mean() < floor


def test_wide_representations_are_read_by_their_leading_directions(digits):
    """Many extractors side by side: as good as one that says it all in few numbers, at a fraction of the numbers."""
    images, own = digits[0][1000:1020], digits[0][:400]
    matrix = torch.randn(64, 1500, generator=generator(0, "wide")) / 8
    inside, outside = divided(Pairs([own.flatten(1) @ matrix], own), 0)
    decoder = train_decoder(inside, outside, 60, 64, 0)
    assert decoder.readout.shape[1] == len(inside.images) < 1024
    assert psnr(decoder(images.flatten(1) @ matrix, 0), images).mean() > 25


def test_known_classes_help_where_little_else_is(digits, extractor, known):
    """Behind much noise what is left is the mean image of the class: not below it, where one without classes is."""
    images, labels = digits[0][1000:1048], digits[1][1000:1048]
    seen = (raw(noisy(extractor(images), 3, generator(0, "noise")), labels),)
    defended = {(1, 0): lambda rows, seed: noisy(rows, 3, generator(seed, "attacker"))}
    bare = dataclasses.replace(known, defended=defended)
    labelled = dataclasses.replace(bare, public_labels=digits[1][:400])
    means = torch.stack([digits[0][:400][digits[1][:400] == label].mean(0) for label in range(10)])[labels]
    found, without = (invert(FAST, seen, granted).images for granted in (labelled, bare))
    assert psnr(found[:, 0], images).mean() > psnr(means, images).mean() - 0.2
    assert psnr(found[:, 0], images).mean() > psnr(without[:, 0], images).mean() + 0.5
    unknown = tuple(dataclasses.replace(one, label=-1) for one in list_targets(seen, "representation"))
    expect_same(FAST(seen, labelled, unknown).images, without)


def test_class_means_by_hand():
    wanted, known = torch.tensor([[2.0], [4.0], [9.0]]), torch.tensor([[[1.0], [1.0], [6.0]]])
    means = ClassMeans.of(torch.tensor([0, 0, 2]), wanted, known)
    expect_close(means.images.flatten(), torch.tensor([6 / 4, 0.0, 9 / 3, 0.0]))  # each with two images of no class
    expect_close(means.codes.flatten(), torch.tensor([2 / 4, 0.0, 6 / 3, 0.0]))
    assert means.rows(torch.tensor([-1, 0, 2, 3, 9]), 5).tolist() == [3, 0, 2, 3, 3]


SHAPE = (3, 16, 16)
QUICK = DecoderInversion(iterations=60, width=32, refine_steps=150)


@pytest.fixture(scope="module")
def drawn():
    """320 images with the spectrum of natural ones, and what an attacker with the first 300 knows."""
    points = torch.randn(320, *SHAPE, generator=generator(3, "images"))
    images = (0.5 + 0.7 * general_spectrum(SHAPE).images(points)).clamp(0, 1)
    with global_seed(0):
        body = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16**2, 16**2), nn.ReLU()).requires_grad_(False)
    return images, body, Knowledge(CARD, SHAPE, 10, extractors={0: body}, public_images=images[:300])


def of_rows(rows, granted, attack=QUICK):
    seen = (raw(rows, torch.zeros(len(rows), dtype=torch.int64)),)
    return invert(attack, seen, granted).images[:, 0]


def shortened(rows, seed):
    return nn.functional.normalize(rows, dim=1)


def halved(rows, seed):
    return rows * (torch.arange(rows.shape[1]) % 2)


def whole(rows, seed):
    return rows


@each("defend", [whole, shortened, halved])
def test_fits_believe_what_a_defense_left_and_a_strange_upload_leads_nowhere(drawn, defend):
    images, body, granted = drawn
    private, behind = images[300:312], dataclasses.replace(granted, defended={(1, 0): defend})
    sent = defend(body(private), 0)
    decoded = psnr(of_rows(sent, behind, dataclasses.replace(QUICK, refine_steps=0)), private).mean()
    assert psnr(of_rows(sent, behind), private).mean() > decoded + 0.5
    strange = psnr(of_rows(sent.roll(5, 0), behind), private).mean()
    assert strange < psnr(images[:300].mean(0).expand_as(private), private).mean()


def test_the_match_and_the_share_that_come_nearest_are_learned():
    zeros, ones = torch.zeros(2, 1, 2, 2), torch.ones(2, 1, 2, 2)
    spoiled = ones.clone()
    spoiled[0] = -1
    assert learned_fit(zeros, {"vector": spoiled, "direction": ones}, 0.25 * ones) == LearnedFit("direction", 0.25)
    assert learned_fit(zeros, {"vector": -ones, "direction": -ones}, 0.25 * ones) == LearnedFit("vector", 0.0)
    assert learned_fit(zeros, {"vector": ones}, 0.04 * ones) == LearnedFit("vector", 0.0)
