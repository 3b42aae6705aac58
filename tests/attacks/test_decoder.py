"""Trained decoders: they invert what they were trained on, need images of their own, and get nothing from noise."""

import dataclasses

import pytest
import torch
from compare import expect_close, expect_same

from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.decoder import DecoderInversion, pairs
from fedpriv.attacks.inversion.decoder_network import ClassMeans, DecoderTraining, Pairs, train_decoder
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.datasets import SourceOptions, load_dataset
from fedpriv.datasets.types import as_unit
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator
from fedpriv.wire.payloads import Prototypes, Representations

CPU = torch.device("cpu")
CARD = ThreatModel(attacker_data="same_domain")
FAST = DecoderInversion(iterations=200, width=64)


@pytest.fixture(scope="module")
def digits():
    samples = load_dataset("digits", SourceOptions(None, False, None, None)).samples
    order = torch.randperm(len(samples), generator=generator(0, "shuffle"))
    return as_unit(samples.images)[order], samples.labels[order]


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
    return attack(seen, known, list_targets(seen, kind), seed=0, device=CPU)


def psnr(found, images):
    return -10 * (found - images).square().flatten(1).mean(1).log10()


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
    decoded = dataclasses.replace(attack, refine=0)

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


def test_refining_brings_the_images_nearer_and_those_of_a_strange_upload_stay_below_the_floor(digits, extractor, known):
    images, labels = digits[0][1000:1008], digits[1][1000:1008]
    seen, strange = (raw(extractor(images), labels),), (raw(extractor(images.roll(3, 0)), labels),)
    decoded, fitted = (invert(dataclasses.replace(FAST, refine=steps), seen, known) for steps in (0, "auto"))
    assert psnr(fitted.images[:, 0], images).mean() > psnr(decoded.images[:, 0], images).mean() + 1
    floor = psnr(digits[0][:400].mean(0).expand_as(images), images)
    assert psnr(invert(FAST, strange, known).images[:, 0], images).mean() < floor.mean()


def test_a_target_is_decoded_alike_whoever_else_is_attacked(digits, extractor, known):
    images, labels = digits[0][1000:1004], digits[1][1000:1004]
    seen = (raw(extractor(images[:2]), labels[:2]), raw(extractor(images[2:]), labels[2:], client=1))
    attack = DecoderInversion(iterations=30, width=16)
    both = invert(attack, seen, known)
    alone = invert(attack, seen[1:], known)
    expect_close(both.images[2:], alone.images, atol=1e-5)


def test_a_mean_of_representations_becomes_the_mean_image(digits, extractor, known):
    images, labels = digits
    groups = [(labels[1000:] == digit).nonzero().flatten()[:6] + 1000 for digit in range(10)]
    means = torch.stack([extractor(images[group]).mean(0) for group in groups])
    pixel_means = torch.stack([images[group].mean(0) for group in groups])
    blind = torch.stack([images[:400][labels[:400] == digit].mean(0) for digit in range(10)])
    found = invert(FAST, (Observation(1, 0, (Prototypes(means, torch.arange(10)),), ()),), known, "prototype")
    assert psnr(found.images[:, 0], pixel_means).mean() > psnr(blind, pixel_means).mean() + 5


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (3, 7, 10), (1, 3, 3)])
def test_one_decoder_serves_extractors_of_different_widths_and_images_of_any_shape(shape):
    rng = generator(0)
    images = torch.rand(40, *shape, generator=rng)
    matrices = [torch.randn(images[0].numel(), width, generator=rng) for width in (12, 30)]
    features = [images.flatten(1) @ matrix for matrix in matrices]
    inside, outside = (Pairs([part[rows] for part in features], images[rows]) for rows in (slice(8, 40), slice(8)))
    done = train_decoder(inside, outside, DecoderTraining(20, 1e-3, 8, 16), 0)
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
    done = train_decoder(inside, outside, DecoderTraining(1, 1e-3, 8, 16), 0)
    expect_close(done(features[:20], 0), images[:20], atol=2e-2)
    expect_close(done(features[:4].mean(0, keepdim=True), 0)[0], images[:4].mean(0), atol=2e-2)


def test_what_is_missing_is_refused(digits, extractor, known):
    seen = (raw(extractor(digits[0][:1]), digits[1][:1]),)
    with pytest.raises(UserError, match="needs attacker_data=same_domain"):
        invert(FAST, seen, dataclasses.replace(known, card=ThreatModel()))
    with pytest.raises(UserError, match="got 3 images to train on; expected at least 16"):
        invert(FAST, seen, dataclasses.replace(known, public_images=digits[0][:3]))
    with pytest.raises(UserError, match="no extractor of client 0"):
        invert(FAST, seen, dataclasses.replace(known, extractors={}))


def test_behind_a_defense_that_draws_it_learns_how_little_is_left(digits, extractor, known):
    """Who ignores the noise takes it for an image; who learns behind it beats the mean image all the same."""
    images, labels = digits[0][1000:1048], digits[1][1000:1048]
    rng = generator(0, "noise")

    def noisy(rows, rng):
        return rows + rows.square().mean().sqrt() * torch.randn(rows.shape, generator=rng)

    seen = (raw(noisy(extractor(images), rng), labels),)
    defended = {(1, 0): lambda rows, seed: noisy(rows, generator(seed, "attacker"))}
    aware = dataclasses.replace(known, defended=defended)
    learned = psnr(invert(FAST, seen, aware).images[:, 0], images).mean()
    ignored = psnr(invert(dataclasses.replace(FAST, defenses="ignored"), seen, aware).images[:, 0], images).mean()
    floor = psnr(digits[0][:400].mean(0).expand_as(images), images).mean()
    assert learned > floor + 1
    assert learned > ignored + 2
    expect_same(
        invert(dataclasses.replace(FAST, defenses="ignored"), seen, aware).images, invert(FAST, seen, known).images
    )
    # The control: the same noise on other people's rows.
    strange = (raw(noisy(extractor(images.roll(5, 0)), generator(0, "noise")), labels),)
    assert psnr(invert(FAST, strange, aware).images[:, 0], images).mean() < floor


def test_wide_representations_are_read_by_their_leading_directions(digits):
    """Many extractors side by side: as good as one that says it all in few numbers, at a fraction of the numbers."""
    images, own = digits[0][1000:1020], digits[0][:400]
    matrix = torch.randn(64, 1500, generator=generator(0, "wide")) / 8
    inside, outside = pairs([lambda shown: shown.flatten(1) @ matrix], own, 0)
    decoder = train_decoder(inside, outside, DecoderTraining(60, 2e-3, 32, 64), 0)
    assert decoder.readout.shape[1] == len(inside.images) < 1024
    assert psnr(decoder(images.flatten(1) @ matrix, 0), images).mean() > 25


def test_classes_that_are_told_help_where_little_else_is(digits, extractor, known):
    """Behind much noise what is left is the mean image of the class: not below it, where one without classes is."""
    images, labels = digits[0][1000:1048], digits[1][1000:1048]

    def noisy(rows, rng):
        return rows + 3 * rows.square().mean().sqrt() * torch.randn(rows.shape, generator=rng)

    seen = (raw(noisy(extractor(images), generator(0, "noise")), labels),)
    defended = {(1, 0): lambda rows, seed: noisy(rows, generator(seed, "attacker"))}
    told = dataclasses.replace(known, defended=defended, public_labels=digits[1][:400])
    means = torch.stack([digits[0][:400][digits[1][:400] == label].mean(0) for label in range(10)])[labels]
    floor = psnr(means, images).mean()
    found = psnr(invert(FAST, seen, told).images[:, 0], images).mean()
    assert found > floor - 0.2
    assert (
        found > psnr(invert(dataclasses.replace(FAST, classes="ignored"), seen, told).images[:, 0], images).mean() + 0.5
    )
    untold = tuple(dataclasses.replace(one, label=-1) for one in list_targets(seen, "representation"))
    same = FAST(seen, told, untold, seed=0, device=CPU)
    expect_same(same.images, invert(FAST, seen, dataclasses.replace(told, public_labels=None)).images)


def test_class_means_by_hand():
    wanted, known = torch.tensor([[2.0], [4.0], [9.0]]), torch.tensor([[[1.0], [1.0], [6.0]]])
    means = ClassMeans.of(torch.tensor([0, 0, 2]), wanted, known)
    expect_close(means.images.flatten(), torch.tensor([6 / 4, 0.0, 9 / 3, 0.0]))  # each with two images of no class
    expect_close(means.codes.flatten(), torch.tensor([2 / 4, 0.0, 6 / 3, 0.0]))
    assert means.rows(torch.tensor([-1, 0, 2, 3, 9])).tolist() == [3, 0, 2, 3, 3]
