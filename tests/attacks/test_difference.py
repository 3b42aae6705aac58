"""Differencing: exact for a constant extractor, noisy under drift, and silent where nothing changed."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from federations import DIGITS
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from fedpriv.attacks.features.rounds import Differencing, change_of_class, change_of_target, changed_targets, drift
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.observation import Knowledge, Observation, TargetId, ThreatModel
from fedpriv.cli.main import run
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.sources.case import choose_targets
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import Prototypes, get_payload

CPU = torch.device("cpu")
SHAPE, N_CLASSES = (1, 8, 8), 10


@pytest.fixture(scope="module")
def digits():
    source = load_digits()
    return torch.tensor(source.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(source.target)


@pytest.fixture(scope="module")
def extractor():
    """A fixed random extractor, wide enough for one image to come out of its representation."""
    rng = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 256, generator=rng) / 8
    return lambda images: (images.flatten(1) @ weight).relu()


def means_of(features, labels, *, counts=True):
    classes, number = labels.unique(return_counts=True)
    rows = torch.stack([features[labels == label].mean(0) for label in classes])
    return Prototypes(rows, classes, number if counts else None)


def seen(before, after):
    return Observation(4, 0, (before,), ()), Observation(5, 0, (after,), ())


def knowledge_of(extractor):
    return Knowledge(ThreatModel(rounds_seen=2), SHAPE, N_CLASSES, extractors={0: extractor})


def psnr(guess, truth):
    return float(-10 * (guess - truth).square().mean().log10())


# ---------------------------------------------------------------- algebra


@given(st.integers(0, 999), st.integers(1, 500), st.integers(-3, 5).filter(bool))
def test_what_was_added_or_removed_comes_out(seed, size, number):
    rng = torch.Generator().manual_seed(seed)
    most = size + max(number, 0)
    rows, labels = torch.rand(most, 6, generator=rng), torch.zeros(most, dtype=torch.int64)
    if number < 0 and size + number < 1:
        return
    small = size + min(number, 0)
    before, after = (rows[:small], rows[:most]) if number > 0 else (rows[:size], rows[:small])
    found = change_of_class(*(means_of(some, labels[: len(some)]) for some in (before, after)), 0)
    assert found.number == number
    changed = rows[small:most] if number > 0 else rows[small:size]
    torch.testing.assert_close(found.vector, changed.mean(0), rtol=1e-3, atol=1e-3)
    assert found.noise == math.inf  # a single class: nothing here tells of drift


def test_the_first_image_of_a_class_is_its_prototype():
    before, after = (
        Prototypes(torch.ones(1, 2), torch.tensor([3]), torch.tensor([5])),
        Prototypes(torch.tensor([[1.0, 1.0], [4.0, 6.0]]), torch.tensor([3, 7]), torch.tensor([5, 1])),
    )
    found = change_of_class(before, after, 7)
    assert found.vector.tolist() == [4.0, 6.0]
    assert found.noise == 0  # no earlier prototype goes into it
    assert change_of_class(before, after, 3) is None


def prototypes(*rows, counts=None):
    return Prototypes(torch.tensor(rows), torch.arange(len(rows)), None if counts is None else torch.tensor(counts))


def test_drift_by_hand_where_every_class_changed():
    before, after = prototypes([3.0, 4.0], counts=[2]), prototypes([3.0, 4.0], counts=[3])
    earlier = prototypes([3.3, 4.4], counts=[2])
    assert drift(earlier, before) == pytest.approx(0.1)
    assert drift(before, after) is None
    assert change_of_class(before, after, 0).noise == math.inf
    # Two prototypes of norm 5, moved by a tenth each, over one image of norm 5; the rounds before tell the tenth.
    sent = [Observation(t, 0, (one,), ()) for t, one in enumerate((earlier, before, after))]
    assert change_of_target(sent, TargetId(2, 0, 0, 0)).noise == pytest.approx(0.2)


# ---------------------------------------------------------------- the attack


def test_positive_control_an_image_added_to_a_large_class_is_recovered(digits, extractor):
    images, labels = digits[0][:400], digits[1][:400]
    features = extractor(images)
    observations = seen(means_of(features[:-1], labels[:-1]), means_of(features, labels))
    targets = changed_targets(observations, "prototype")
    assert [t.label for t in targets] == [int(labels[-1])]
    found = Differencing(iterations=600)(observations, knowledge_of(extractor), targets, seed=0, device=CPU)
    torch.testing.assert_close(found.features[0], features[-1], rtol=1e-2, atol=1e-2)
    floor = psnr(images[labels == labels[-1]].mean(0), images[-1])
    assert psnr(found.images[0, 0], images[-1]) > floor + 5
    assert found.labels.tolist() == [[int(labels[-1])]]


def test_negative_control_another_extractor_between_the_rounds_leaves_noise(digits, extractor):
    images, labels = digits[0][:400], digits[1][:400]
    rng = torch.Generator().manual_seed(3)
    other = extractor(images) + 0.3 * torch.randn(400, 256, generator=rng).abs()
    observations = seen(means_of(extractor(images)[:-1], labels[:-1]), means_of(other, labels))
    targets = changed_targets(observations, "prototype")
    found = Differencing(iterations=60)(observations, knowledge_of(extractor), targets, seed=0, device=CPU)
    assert float((found.features[0] - other[-1]).norm() / other[-1].norm()) > 1
    assert not found.converged.any()


def test_nothing_to_find_is_said(digits, extractor):
    features, labels = extractor(digits[0][:50]), digits[1][:50]
    same = means_of(features, labels)
    observations = seen(same, same)
    assert changed_targets(observations, "prototype") == ()
    with pytest.raises(UserError, match="no change found in the upload of class 0 of client 0 between rounds 4 and 5"):
        Differencing()(
            observations, knowledge_of(extractor), list_targets(observations[1:], "prototype"), seed=0, device=CPU
        )
    silent = seen(*[means_of(features, labels, counts=False)] * 2)
    with pytest.raises(UserError, match="carries no counts"):
        Differencing()(silent, knowledge_of(extractor), (TargetId(5, 0, 0, 0),), seed=0, device=CPU)
    with pytest.raises(UserError, match="two uploads are needed"):
        Differencing()(observations[1:], knowledge_of(extractor), (TargetId(5, 0, 0, 0),), seed=0, device=CPU)


def test_the_changed_ones_are_selected_and_attacked_among_many():
    classes = torch.arange(3)
    before = Prototypes(torch.eye(3), classes, torch.tensor([2, 2, 2]))
    after = Prototypes(torch.eye(3) + 1, classes, torch.tensor([2, 3, 2]))
    observations = seen(before, after)
    targets = list_targets(observations[1:], "prototype")
    assert Differencing().select(observations, targets) == (targets[1],)
    chosen = choose_targets(observations[1:], "prototype", 9, 0, partial(Differencing().select, observations))
    assert chosen == (targets[1],)
    with pytest.raises(UserError, match="no change found"):
        Differencing().select(observations, (targets[0], targets[2]))


def test_the_command_line_attacks_what_changed_and_nothing_else(tmp_path, monkeypatch):
    """One client's upload is read with the count of one image more: a federation whose client gained one."""
    monkeypatch.chdir(tmp_path)
    train = ["--method", "fedproto", "--option", "averaging=counts", *DIGITS, "--per-class", "20", "--clients", "3"]
    assert run(["train", *train, "--rounds", "2", "--capture", "all", "--out", "run", "--quiet"]) == 0
    read = RunDirectory.message

    def grown(directory, path):
        message = read(directory, path)
        if path != directory.upload_path(2, 1):
            return message
        sent = get_payload(message, Prototypes)
        return (replace(sent, counts=sent.counts + (torch.arange(len(sent.counts)) == 0)),)

    monkeypatch.setattr(RunDirectory, "message", grown)
    attack = ["attack", "--target", "prototype", "--run", "run", "--attack", "difference", "--out", "out", "--quiet"]
    assert run([*attack, "--iterations", "2"]) == 0
    targets = json.loads(Path("out/difference/metrics.json").read_text())["targets"]
    assert [(t["client"], t["index"]) for t in targets] == [(1, 0)]
