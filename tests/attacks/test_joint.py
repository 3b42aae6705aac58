"""Joint inversion: both images of a prototype of two, its count from the objective, nothing from a strange upload."""

import pytest
import torch

from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.vector import DipInversion, JointInversion
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.attacks.priors.dip import Hourglass
from fedpriv.eval.metrics import assign, squared_errors
from fedpriv.uploads.payloads import Prototypes
from fedpriv.util.seeds import generator

SMALL = Hourglass(channels=(8, 16), input_channels=8)


@pytest.fixture(scope="module")
def extractor():
    """A wide random layer with ReLU: no image has the mean of two images' representations."""
    matrix = torch.randn(64, 512, generator=generator(0, "extractor")) / 8
    return lambda images: torch.relu((images.flatten(1) - 0.3) @ matrix)


def observed(extractor, groups, labels, counts):
    features = torch.stack([extractor(group).mean(0) for group in groups])
    upload = Prototypes(features, labels, counts)
    return (Observation(1, 0, (upload,), ()),)


def psnr(guesses, members):
    """Of each member with the guess assigned to it, in dB."""
    errors = squared_errors(guesses, members)
    return -10 * errors[assign(errors), torch.arange(len(members))].log10()


def invert(attack, seen, extractor):
    known = Knowledge(ThreatModel(), (1, 8, 8), 10, extractors={0: extractor})
    return attack(seen, known, list_targets(seen, "prototype"))


@pytest.mark.slow
def test_both_images_of_a_prototype_of_two_are_recovered_where_one_image_fails(digits, extractor):
    images, labels = digits
    groups = [images[labels == digit][:2] for digit in range(1, 4)]
    seen = observed(extractor, groups, torch.arange(1, 4), torch.full((3,), 2))
    joint = invert(JointInversion(iterations=1000, most=2, tolerance=5e-5), seen, extractor)
    single = invert(DipInversion(iterations=400), seen, extractor)
    of_joint = torch.stack([psnr(joint.images[t], group) for t, group in enumerate(groups)])
    of_single = torch.stack([psnr(single.images[t], group) for t, group in enumerate(groups)])
    assert of_joint.mean() > of_single.mean() + 6
    assert of_joint.median() > 18
    assert (joint.objective < 0.1 * single.objective).all()


def test_another_clients_upload_is_worth_no_more_than_a_flat_image(digits, extractor):
    images, labels = digits
    groups = [images[labels == digit][:2] for digit in (1, 2, 3)]
    strange = [images[labels == digit][5:7] for digit in (4, 5, 6)]
    seen = observed(extractor, strange, torch.arange(1, 4), torch.full((3,), 2))
    found = invert(JointInversion(iterations=300, most=2), seen, extractor)
    grey = images.mean().expand(2, 1, 8, 8)
    reached = torch.stack([psnr(found.images[t], group) for t, group in enumerate(groups)]).mean()
    floor = torch.stack([psnr(grey, group) for group in groups]).mean()
    assert reached < floor + 0.5


def test_a_count_beyond_the_most_uses_the_most(digits, extractor):
    images, labels = digits
    seen = observed(extractor, [images[labels == 0][:9]], torch.tensor([0]), torch.tensor([9]))
    found = invert(JointInversion(iterations=3, most=2, generator=SMALL), seen, extractor)
    assert found.images.shape == (1, 2, 1, 8, 8)
    assert found.cost.rows == 1
