"""Updates of several steps: believed where the extractor stood still, not believed where it moved, or of somebody else."""

from dataclasses import replace

import pytest
import torch
from compare import expect_close, expect_same
from torch import nn
from torch.nn.functional import cross_entropy

from fedpriv.algebra.matrices import diagonal_blocks
from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.features.closed_form import AngleUpdate, HeadUpdate, recover_from_angle, recover_from_head
from fedpriv.attacks.features.multi_step import angle_steps, head_steps, simulate_clients, work_of
from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation, TargetId, ThreatModel
from fedpriv.attacks.trained import Trained
from fedpriv.wire.payloads import AngleMatrix, Classifier

CLASSES, SIDE, RATE = 10, 8, 0.1
WIDTH = SIDE**2
LABELS = torch.tensor([1, 4, 4, 7, 1, 7, 4, 1, 4, 4, 7, 7])
SIZES = (4, 4, 4)


def drawn(labels, seed):
    """Images of classes: a mean of each class, the same for everybody, and as much beside it that is an image's own."""
    middles = torch.rand(CLASSES, WIDTH, generator=torch.Generator().manual_seed(99))
    own = torch.rand(len(labels), WIDTH, generator=torch.Generator().manual_seed(seed + 1))
    return (middles[labels] + own) / 2


def weights(seed=0):
    rng = torch.Generator().manual_seed(seed)
    return 0.1 * torch.randn(CLASSES, WIDTH, generator=rng), 0.1 * torch.randn(CLASSES, generator=rng)


def angle(seed=0):
    return torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(seed)) / WIDTH**0.5


def trained(loss, start, features, labels, sizes=SIZES):
    """Parameters after plain SGD in batches, by autograd; ``features``: (n, d), or one such of each step."""
    moved = [value.clone() for value in start]
    rows = features if isinstance(features, list) else [features] * len(sizes)
    end = 0
    for size, known in zip(sizes, rows, strict=True):
        part, end = slice(end, end + size), end + size
        moved = [value.detach().requires_grad_() for value in moved]
        slopes = torch.autograd.grad(cross_entropy(loss(moved, known[part]), labels[part]), moved)
        moved = [value - RATE * slope for value, slope in zip(moved, slopes, strict=True)]
    return [value.detach() for value in moved]


def head_seen(features, labels, sizes=SIZES, client=0):
    start = weights()
    after = trained(lambda own, rows: rows @ own[0].T + own[1], start, features, labels, sizes)
    names = ("weight", "bias")
    return Observation(1, client, (Classifier(dict(zip(names, after, strict=True))),), (BROADCAST,))


BROADCAST = Classifier(dict(zip(("weight", "bias"), weights(), strict=True)))


def angle_logits(own, rows):
    weight, bias = weights()
    return (rows + rows @ own[0]) @ weight.T + bias


def angle_seen(features, labels, sizes=SIZES, n_blocks=8):
    (after,) = trained(angle_logits, [angle()], features, labels, sizes)
    return Observation(1, 0, (AngleMatrix(diagonal_blocks(after, n_blocks)),), (AngleMatrix(angle()[None]),))


OWN = torch.arange(CLASSES).repeat_interleave(30)
EXTRACTOR = nn.Flatten()
IMAGES = drawn(OWN, 1000).view(-1, 1, SIDE, SIDE)


def knowledge(labels=LABELS, sizes=SIZES, *, images=True, own=OWN):
    return Knowledge(
        card=ThreatModel(labels="inferred" if labels is None else "given", attacker_data="same_domain"),
        image_shape=(1, SIDE, SIDE),
        n_classes=CLASSES,
        extractors={0: EXTRACTOR},
        heads={0: weights()},
        batch=BatchFacts(max(sizes), RATE, len(sizes), sizes),
        labels={} if labels is None else {(1, 0): labels},
        public_images=IMAGES if images else None,
        public_labels=own if images else None,
    )


def problem(seen, known, labels=LABELS, kept=None):
    targets = tuple(TargetId(1, 0, place, label) for place, label in enumerate(labels.unique().tolist()))
    return AttackProblem((seen,), known, targets, trained=kept or Trained())


def rows(found):
    (upload,) = found.uploads
    return torch.stack([upload.upload[0].rows()[place.index] for place in found.places])


def means(features, labels):
    return torch.stack([features[labels == label].mean(0) for label in labels.unique().tolist()])


def error(found, true):
    return float((found - true).norm(dim=1).mean())


GUESS = means(IMAGES.flatten(1), OWN)[LABELS.unique()]
UPLOADS = {"head": (HeadUpdate(), head_seen), "angle": (AngleUpdate(), angle_seen)}


# ---------------------------------------------------------------- simulated clients


def test_epochs_show_by_their_smaller_batches():
    labels = torch.tensor([3, 3, 5, 5, 3, 3])
    twice = work_of(BatchFacts(2, RATE, 4, (2, 1, 2, 1)), labels, torch.zeros(0))
    assert twice.labels.tolist() == [3, 3, 5]
    assert twice.passes.tolist() == [[3, 3, 5], [5, 3, 3]]
    assert twice.counts.tolist() == [2, 1]
    once = work_of(BatchFacts(2, RATE, 3), labels, torch.zeros(0))
    assert once.labels.tolist() == labels.tolist()
    # Other classes the second time: these are no two passes over the same images.
    other = work_of(BatchFacts(2, RATE, 4, (2, 1, 2, 1)), torch.tensor([3, 3, 5, 5, 5, 3]), torch.zeros(0))
    assert len(other.labels) == 6


def test_labels_that_are_inferred_are_allotted_by_shares():
    work = work_of(BatchFacts(5, RATE, 2), None, torch.tensor([0.0, 1.2, 0.0, 0.75, 0.01]))
    assert work.labels.tolist() == [1] * 6 + [3] * 3 + [4]
    assert work.passes is None


def test_simulated_clients_hold_the_classes_of_the_real_one_in_its_batches():
    work = work_of(BatchFacts(4, RATE, 3), LABELS, torch.zeros(0))
    some = simulate_clients(work, OWN, 5, torch.Generator().manual_seed(0))
    places = torch.cat([part for part, _ in some.batches(work)], 1)
    expect_same(OWN[places], LABELS.expand(5, -1))
    expect_same(places.sort(1).values, some.images.sort(1).values)  # each once a pass
    # Of a class with less than two images all of its own stand for it.
    few = torch.where(OWN == 4, 5, OWN)
    auxiliary = simulate_clients(work, few, 5, torch.Generator().manual_seed(0)).images[:, work.labels == 4]
    assert len(few[auxiliary].unique()) > 3


@pytest.mark.parametrize("part", ["head", "angle"])
def test_steps_of_simulated_clients_are_those_of_sgd(part):
    work = work_of(BatchFacts(4, RATE, 3), LABELS, torch.zeros(0))
    some = simulate_clients(work, OWN, 3, torch.Generator().manual_seed(0))
    features = IMAGES.flatten(1).double()
    start = [value.double() for value in weights()]
    places = torch.cat([part for part, _ in some.batches(work)], 1)
    if part == "head":
        found = head_steps(work, weights(), features)(some)
        after = trained(lambda own, rows: rows @ own[0].T + own[1], start, features[places[1]], LABELS)
        expect_close(found[1, 0], (start[0] - after[0]) / RATE, rtol=1e-6, atol=1e-9)
    else:
        turn = angle().double()
        found = angle_steps(work, turn, weights(), 8, features)(some)
        (after,) = trained(
            lambda own, rows: (rows + rows @ own[0]) @ start[0].T + start[1], [turn], features[places[1]], LABELS
        )
        expect_close(found[1].mT, diagonal_blocks((turn - after) / RATE, 8), rtol=1e-6, atol=1e-9)


# ---------------------------------------------------------------- what is believed


@pytest.mark.parametrize("part", UPLOADS)
@pytest.mark.parametrize("seed", range(3))
def test_through_an_extractor_that_stands_still_the_update_tells_far_more_than_a_guess(part, seed):
    attack, seen = UPLOADS[part]
    features = drawn(LABELS, seed)
    found = attack.recover(problem(seen(features, LABELS), knowledge()))
    true = means(features, LABELS)
    assert error(rows(found), true) < (0.4 if part == "head" else 0.8) * error(GUESS, true)
    assert 0.5 < float(found.distance.mean()) / error(rows(found), true) < 2
    assert bool(found.sound.all())


@pytest.mark.parametrize("part", UPLOADS)
@pytest.mark.parametrize("seed", range(3))
def test_an_extractor_that_moved_leaves_the_guess_and_an_honest_distance(part, seed):
    attack, seen = UPLOADS[part]
    features = drawn(LABELS, seed)
    away = [3 * drawn(LABELS, 50 + seed).flip(1), 2 * drawn(LABELS, 60 + seed).roll(9, 1), features]
    found = attack.recover(problem(seen(away, LABELS), knowledge()))
    true = means(features, LABELS)
    assert error(rows(found), true) < 1.05 * error(GUESS, true)
    assert 0.7 < float(found.distance.mean()) / error(rows(found), true) < 1.4
    # The equations alone lead far away.
    alone = attack.recover(problem(seen(away, LABELS), knowledge(images=False)))
    assert error(rows(alone), true) > 2 * error(GUESS, true)


@pytest.mark.parametrize("part", UPLOADS)
@pytest.mark.parametrize("seed", range(3))
def test_the_upload_of_somebody_else_does_not_lead_nearer(part, seed):
    attack, seen = UPLOADS[part]
    features, other = drawn(LABELS, seed), drawn(LABELS, 20 + seed)
    found = attack.recover(problem(seen(other, LABELS), knowledge()))
    true = means(features, LABELS)
    assert error(rows(found), true) > error(GUESS, true)


def test_columns_that_a_defense_left_out_tell_nothing():
    features = drawn(LABELS, 3)
    seen = head_seen(features, LABELS)
    state = dict(seen.upload[0].state)
    state["weight"] = state["weight"].clone()
    state["weight"][:, :20] = BROADCAST.state["weight"][:, :20]
    found = rows(HeadUpdate().recover(problem(replace(seen, upload=(Classifier(state),)), knowledge())))
    true = means(features, LABELS)
    assert error(found[:, :20], true[:, :20]) < 1.2 * error(GUESS[:, :20], true[:, :20])
    assert error(found[:, 20:], true[:, 20:]) < 0.6 * error(GUESS[:, 20:], true[:, 20:])


# ---------------------------------------------------------------- where nothing changes


def test_one_step_and_an_attacker_without_images_are_solved_as_ever():
    labels = torch.tensor([1, 4, 7])
    features = drawn(labels, 5)
    for sizes, images in (((3,), True), ((2, 1), False)):
        known = knowledge(labels, sizes, images=images)
        seen = head_seen(features, labels, sizes)
        solved = recover_from_head(seen, known)
        found = HeadUpdate().recover(problem(seen, known, labels))
        expect_same(rows(found), solved.means)
        assert found.distance is None
        turned = angle_seen(features, labels, sizes)
        solved = recover_from_angle(turned, known)
        expect_same(rows(AngleUpdate().recover(problem(turned, known, labels))), solved.means)


def test_clients_are_simulated_once_and_the_same_again():
    kept, known = Trained(), knowledge()
    seen, other = head_seen(drawn(LABELS, 1), LABELS), head_seen(drawn(LABELS, 2), LABELS)
    other = replace(other, broadcast=seen.broadcast)
    first = HeadUpdate().recover(problem(seen, known, kept=kept))
    number = len(kept._kept)
    HeadUpdate().recover(problem(other, known, kept=kept))
    assert len(kept._kept) == number
    expect_same(rows(HeadUpdate().recover(problem(seen, known))), rows(first))
