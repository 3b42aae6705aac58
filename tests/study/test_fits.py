"""Images are compared with their own upload beside images found without it: a search that any image ends is not specific."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional

import fedpriv
from fedpriv.eval.records import SPECIFIC, Fit
from fedpriv.pipeline.execute import COMPARED, pool_images
from fedpriv.sources.truth import Pool, Truth

CLASSES = torch.arange(3)


def smooth(number, seed):
    draw = torch.Generator().manual_seed(seed)
    return functional.interpolate(torch.rand(number, 1, 4, 4, generator=draw), scale_factor=2, mode="bilinear")


def untrained_sigmoid():
    """A network whose representations differ by a millionth of their length, whatever the image."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 12, 5, stride=2, padding=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, padding=2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(192, 64),
        nn.Sigmoid(),
    )


def telling():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.LeakyReLU(), nn.Flatten(), nn.Linear(512, 64))


def attacked(network, **changes):
    images = [smooth(3, 1), smooth(3, 2)]
    uploads = [fedpriv.Prototypes(network(own).detach(), CLASSES) for own in images]
    usual = {"attacks": "dip", "iterations": 150, "extractor": network, "auxiliary": smooth(60, 3)}
    others = {"images": images, "labels": [CLASSES, CLASSES], "target": "prototype"}
    return fedpriv.attack_uploads(uploads, **usual | others | changes)


def test_images_found_from_an_upload_fit_it_better_than_others_also_when_scored_again(tmp_path):
    found = attacked(telling())
    rows = found.records["dip"].targets
    assert all(row.specific for row in rows)
    for row in rows:
        assert row.fit.own == pytest.approx(row.objective, rel=1e-3)
        assert row.fit.own < min(row.fit.shuffled, SPECIFIC * row.fit.auxiliary)
    saved = found.save(tmp_path / "kept")
    again = fedpriv.score(saved)[saved.path / "dip"].targets
    assert [(row.fit, row.specific) for row in again] == [(row.fit, row.specific) for row in rows]


@pytest.mark.parametrize(
    ("own", "shuffled", "lowest", "specific"),
    [
        (0.1, 1.1, 1.1, True),
        (0.1, 0.2, 1.1, True),
        (0.1, 0.1, 1.1, False),
        (0.1, 0.09, 1.1, False),
        (0.1, 1.1, 0.5, False),
        (0.0, 0.0, 1.0, False),
        (0.0, 1e-9, 1e-9, True),
        (None, 1.0, 1.0, False),
        (0.1, None, None, True),
    ],
)
def test_specific_is_far_below_auxiliary_and_below_what_shuffled_uploads_give(own, shuffled, lowest, specific):
    assert Fit(own=own, shuffled=shuffled, auxiliary=lowest).specific is specific


def test_auxiliary_are_of_the_classes_that_are_told():
    pool, classes = smooth(40, 4), torch.arange(40) % 4
    known = Pool(pool, classes, pool[:0], classes[:0])
    truth = Truth.equal(smooth(2, 5), torch.tensor([1, 2]), known)

    def classes_of(images):
        flat = images.flatten(0, 1)
        return classes[torch.cdist(flat.flatten(1), pool.flatten(1)).argmin(1)].view(images.shape[:2])

    def drawn(labels, seed=0):
        return pool_images(truth, torch.tensor(labels), torch.Generator().manual_seed(seed))

    told = drawn([3, 1, 1])
    assert told.shape == (COMPARED, 3, 1, 8, 8)
    assert classes_of(told).tolist() == [[3, 1, 1]] * COMPARED
    assert all(not torch.equal(one[1], one[2]) for one in told)
    assert set(classes_of(drawn([-1, 9])).flatten().tolist()) == {0, 1, 2, 3}
    assert torch.equal(drawn([0]), drawn([0]))
    hidden = dataclasses.replace(truth, labels=torch.tensor([0, 0]))
    assert torch.equal(drawn([-1]), pool_images(hidden, torch.tensor([-1]), torch.Generator().manual_seed(0)))
