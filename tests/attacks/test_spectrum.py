"""Coordinates of images' spectrum: what they are by hand, and that searches in them find images in fewer steps."""

from dataclasses import replace

import pytest
import torch
from compare import expect_close, expect_same
from gradient_cases import psnr
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.vector import PixelInversion
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.attacks.priors.spectral import (
    DECAY,
    PIXEL,
    Frame,
    SpectralPrior,
    centres_of,
    cosines,
    general_spectrum,
    spectrum_of,
)
from fedpriv.uploads.payloads import Representations
from fedpriv.util.seeds import global_seed

SIZE = 16


def drawn_images(count, seed=0, size=SIZE):
    """Images of a general spectrum around grey: what a generic prior thinks of them is true."""
    spectrum = general_spectrum((3, size, size))
    points = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))
    return (0.5 + 0.5 * spectrum.images(points)).clamp(0, 1)


@given(st.integers(1, 40))
def test_cosines_are_orthonormal_and_the_first_is_constant(size):
    found = cosines(size)
    torch.testing.assert_close(found @ found.T, torch.eye(size), atol=1e-5, rtol=0)
    torch.testing.assert_close(found[0], torch.full((size,), size**-0.5))


@given(st.sampled_from([1, 3, 4]), st.integers(2, 12), st.integers(2, 12))
def test_points_give_their_images_back_and_pixels_in_general_have_their_deviation(channels, height, width):
    spectrum = general_spectrum((channels, height, width))
    offsets = torch.randn(2, channels, height, width, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(spectrum.images(spectrum.points(offsets)), offsets, atol=1e-4, rtol=1e-4)
    variance = spectrum.deviations.square().sum() / (channels * height * width)
    assert variance.item() == pytest.approx(PIXEL**2, rel=1e-4)
    assert spectrum.deviations[0, 0, 0] == spectrum.deviations.max()


def test_coordinates_of_the_images_that_they_were_learned_on_have_unit_variance():
    images, labels = torch.rand(200, 3, 6, 5, generator=torch.Generator().manual_seed(2)), torch.arange(200) % 4
    spectrum = spectrum_of(images, labels)
    points = spectrum.points(images - centres_of(images, labels, labels))
    torch.testing.assert_close(points.square().mean(0), torch.ones(3, 6, 5), atol=1e-3, rtol=0)


def test_squared_points_are_the_distance_under_the_covariance_of_the_spectrum():
    spectrum = general_spectrum((1, 3, 4))
    basis = spectrum.images(torch.eye(12).view(12, 1, 3, 4)).flatten(1)  # each coordinate's image: covariance is B^T B
    covariance = basis.T @ basis
    offset = torch.randn(12, generator=torch.Generator().manual_seed(3))
    expected = offset @ torch.linalg.solve(covariance, offset)
    torch.testing.assert_close(spectrum.points(offset.view(1, 3, 4)).square().sum(), expected, rtol=1e-3, atol=1e-3)


def test_centres_are_class_means_and_that_of_all_where_a_class_is_not_known():
    images, labels = torch.tensor([0.0, 0.2, 0.9]).view(3, 1, 1, 1), torch.tensor([4, 4, 7])
    found = centres_of(images, labels, torch.tensor([[4, 7], [5, -1]]))
    torch.testing.assert_close(found.flatten(), torch.tensor([0.1, 0.9, 1.1 / 3, 1.1 / 3]))
    torch.testing.assert_close(centres_of(images, None, torch.tensor([4])).flatten(), torch.tensor([1.1 / 3]))


def test_a_frame_clamps_what_it_shows_and_lets_derivatives_through():
    frame = Frame(torch.full((1, 1, 1, 2, 2), 0.9), general_spectrum((1, 2, 2)))
    points = torch.full((1, 1, 1, 2, 2), 3.0, requires_grad=True)
    shown, drawn = frame.images(points), frame.drawn(points)
    expect_close(shown.detach(), drawn.detach().clamp(0, 1), atol=1e-6)
    assert drawn.max() > 1
    (through,), (plain,) = (torch.autograd.grad(found.sum(), points) for found in (shown, drawn))
    expect_same(through, plain)


def test_a_rows_penalty_is_of_its_own_centre_whatever_rows_are_left_and_falls():
    centres = torch.stack([torch.full((1, 1, 4, 4), grey) for grey in (0.2, 0.5, 0.8)])
    frame = Frame(centres, general_spectrum((1, 4, 4)))
    prior = SpectralPrior(torch.zeros(3, 1, 4, 4), frame)
    prior.prepare(0.0)
    images = torch.full((3, 1, 4, 4), 0.5)
    first = prior.penalty(images, torch.arange(3))
    assert first[1] < 1e-9 * first[0]  # but for rounding
    assert first[0].item() == pytest.approx(first[2].item(), rel=1e-4)
    prior.keep(torch.tensor([2]))
    prior.parameters = [prior.parameters[0].detach()[[2]]]
    expect_close(prior.penalty(images[:1], torch.tensor([2])), first[2:])
    assert len(prior.clean()) == 1
    assert [prior.prepare(progress) for progress in (0.0, 0.4, 0.7, 0.9)] == [0, 1, 2, 3]
    expect_close(prior.penalty(images[:1], torch.tensor([2])), DECAY**3 * first[2:])


@pytest.fixture(scope="module")
def seen():
    """Twelve images, an extractor that tells a third as many numbers as they have pixels, and what a server sees."""
    images = drawn_images(12, seed=5)
    with global_seed(0):
        body = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE**2, SIZE**2), nn.ReLU())
    body.requires_grad_(False)
    labels = torch.arange(12) % 3
    upload = (Observation(0, 0, (Representations(body(images), labels),), ()),)
    return images, upload, Knowledge(ThreatModel(), (3, SIZE, SIZE), 3, extractors={0: body})


def found_by(made, upload, known):
    return made(upload, known, list_targets(upload, "representation"), seed=0).images[:, 0]


def test_images_of_a_spectrum_are_found_nearer_in_its_coordinates_than_over_pixels(seen):
    images, upload, known = seen
    ours, pixels = (
        psnr(found_by(PixelInversion(iterations=200, coordinates=name), upload, known), images).mean()
        for name in ("auto", "pixels")
    )
    floor = psnr(drawn_images(400, seed=9).mean(0).expand_as(images), images).mean()
    assert ours > pixels + 1
    assert ours > floor + 3


def test_own_images_bring_pixels_nearer_than_a_general_spectrum(seen):
    images, upload, known = seen
    offset = 0.3 * torch.sin(torch.arange(SIZE) / 2.0).view(1, 1, 1, SIZE)  # of which a general spectrum knows nothing
    body = known.extractors[0]
    shifted = (images + offset).clamp(0, 1)
    upload = (Observation(0, 0, (Representations(body(shifted), upload[0].upload[0].labels),), ()),)
    own = (drawn_images(60, seed=11) + offset).clamp(0, 1)
    granting = replace(known, card=ThreatModel(attacker_data="same_domain"), public_images=own)
    with_own, without = (
        psnr(found_by(PixelInversion(iterations=200), upload, which), shifted).mean() for which in (granting, known)
    )
    assert with_own > without + 1
