import pytest
import torch
from compare import expect_same
from eval_cases import cifar10_jpeg, images, truths

from fedpriv.attacks.observation import TargetId
from fedpriv.evidence.truth import Truth, stratum
from fedpriv.scoring.definitions import assign, comparison, one_to_one, score_guesses, squared_errors
from fedpriv.scoring.floors import FLOORS, guess
from fedpriv.scoring.identification import identify
from fedpriv.scoring.leakage import psnr
from fedpriv.util.errors import UserError


def flat(*values):
    return torch.tensor(values)[:, None, None, None].expand(-1, 1, 8, 8).clone()


def a_truth(values, weights=None, labels=None, pool=(0.0, 1.0), pool_labels=None):
    members = flat(*values)
    shares = torch.tensor(weights) if weights else torch.full((len(values),), 1 / len(values))
    mine = torch.tensor(labels or [0] * len(values))
    return Truth(members, shares, mine, flat(*pool), torch.tensor(pool_labels or [0] * len(pool)))


@pytest.mark.parametrize(
    ("n_c", "name"), [(1, "1"), (2, "2-3"), (3, "2-3"), (4, "4-10"), (10, "4-10"), (11, ">10"), (500, ">10")]
)
def test_strata(n_c, name):
    assert stratum(n_c) == name


def test_one_guess_at_two_members_by_hand():
    # Errors 0.01 and 0.0001: 20 and 40 dB. The mean image is 0.5 + 0.09 away by (0.1 * 0.75 + 0.01 * 0.25).
    found = score_guesses(flat(0.5), a_truth([0.6, 0.51], weights=[0.75, 0.25]), torch.tensor([0, 1]))
    assert found.t1 == pytest.approx(0.75 * 20 + 0.25 * 40, abs=1e-3)
    assert found.t2 == pytest.approx(40, abs=1e-3)
    assert found.t3 == pytest.approx(-20 * torch.tensor(0.0775).log10().item(), abs=1e-3)
    assert found.t2_nonmembers == pytest.approx(6.0206, abs=1e-3)
    assert found.mse == pytest.approx(0.75 * 0.01 + 0.25 * 0.0001, rel=1e-4)


def test_definitions_coincide_for_one_image():
    truth = truths([1])[0]
    guesses = images(1, seed=9)
    found = score_guesses(guesses, truth, None)
    expected = psnr(guesses, truth.members).item()
    assert [found.t1, found.t2, found.t3, found.t5] == pytest.approx([expected] * 4)
    assert found.t2_nonmembers is None


def test_assignment_undoes_a_permutation():
    truth = truths([5])[0]
    order = torch.tensor([3, 0, 4, 1, 2])
    found = score_guesses(truth.members[order], truth, None)
    assert found.t1 == found.t5 == 100
    assert found.assigned.tolist() == order.argsort().tolist()


def test_assignment_takes_the_least_total_not_the_nearest():
    # Guess 0 is nearest to both members; greed would cost 0.1 + 0.9, the best pairing 0.2 + 0.3.
    errors = torch.tensor([[0.1, 0.2], [0.3, 0.9]], dtype=torch.float64)
    assert assign(errors).tolist() == [1, 0]
    assert one_to_one(torch.tensor([[0.01, 1.0], [1.0, 0.0001]], dtype=torch.float64)) == pytest.approx(30)


def test_fewer_guesses_than_members_share_the_load():
    assigned = assign(squared_errors(flat(0.1, 0.9), flat(0.0, 0.05, 0.1, 0.15, 1.0)))
    assert assigned.tolist().count(0) == 3
    assert assigned[4] == 1


def test_comparison_matches_the_classes():
    truth = a_truth([0.1, 0.2, 0.3], labels=[0, 0, 1], pool=[0.5] * 6, pool_labels=[0, 1, 0, 1, 2, 2])
    found = comparison(truth, 1)
    assert found.labels == "same"
    assert sorted(truth.nonmember_labels[found.index].tolist()) == [0, 0, 1]
    scarce = a_truth([0.1, 0.2], labels=[4, 4], pool=[0.5] * 3)
    assert comparison(scarce, 1).labels == "any"
    assert len(comparison(scarce, 1).index) == 2
    assert comparison(a_truth([0.1] * 5, pool=[0.5] * 3), 1).index is None


def test_truth_refuses_what_cannot_be():
    good = a_truth([0.1, 0.2])
    with pytest.raises(UserError, match="sum of 1"):
        Truth(good.members, torch.tensor([0.9, 0.9]), good.labels, good.nonmembers, good.nonmember_labels)
    with pytest.raises(UserError, match=r"truth\.members: expected values in \[0, 1\]"):
        Truth(good.members * 255, good.weights, good.labels, good.nonmembers, good.nonmember_labels)
    with pytest.raises(UserError, match=r"truth\.labels"):
        Truth(good.members, good.weights, good.labels[:1], good.nonmembers, good.nonmember_labels)
    colour = images(2, shape=(3, 8, 8))
    with pytest.raises(UserError, match="differ in shape"):
        Truth(good.members, good.weights, good.labels, colour, good.nonmember_labels)


# ---------------------------------------------------------------- floors


def floor(name, truth, n_guesses=1, seed=0, index=0):
    return guess(name, truth, TargetId(0, 0, index), n_guesses, seed)


def test_floors_on_hand_made_images():
    truth = a_truth([0.9], labels=[1], pool=[0.0, 0.2, 0.7], pool_labels=[0, 1, 1])
    assert floor("mean_colour", truth).unique().tolist() == pytest.approx([0.3])
    assert floor("mean_image", truth).unique().tolist() == pytest.approx([0.3])
    assert floor("class_mean_image", truth).unique().tolist() == pytest.approx([0.45])
    assert floor("mid_grey", truth).unique().tolist() == [0.5]
    assert floor("random_same_class", truth).unique().item() in [pytest.approx(0.2), pytest.approx(0.7)]
    noise = floor("noise", truth)
    assert noise.std() > 0.2
    assert noise.min() >= 0
    assert noise.max() <= 1


def test_class_mean_of_an_entangled_target_is_mixed_by_its_weights():
    truth = a_truth([0.9, 0.8], weights=[0.25, 0.75], labels=[0, 1], pool=[0.2, 0.6], pool_labels=[0, 1])
    assert floor("class_mean_image", truth).unique().tolist() == pytest.approx([0.25 * 0.2 + 0.75 * 0.6])
    both = floor("class_mean_image", truth, n_guesses=2)
    assert both[:, 0, 0, 0].tolist() == pytest.approx([0.2, 0.6])


def test_a_class_without_nonmembers_falls_back_to_all():
    truth = a_truth([0.9], labels=[7], pool=[0.2, 0.6])
    assert floor("class_mean_image", truth).unique().tolist() == pytest.approx([0.4])
    assert floor("random_same_class", truth).unique().item() in [pytest.approx(0.2), pytest.approx(0.6)]


@pytest.mark.parametrize("name", FLOORS)
def test_floors_never_look_at_the_members_pixels(name):
    truth, other = truths([2])[0], truths([2])[0]
    object.__setattr__(other, "members", 1 - truth.members)
    for n_guesses in (1, 2, 3):
        left, right = floor(name, truth, n_guesses), floor(name, other, n_guesses)
        expect_same(left, right)
        assert left.shape == (n_guesses, 1, 8, 8)
        expect_same(left, floor(name, truth, n_guesses))


def test_random_guesses_differ_between_targets_and_within_one():
    truth = truths([3])[0]
    assert not torch.equal(floor("noise", truth, index=0), floor("noise", truth, index=1))
    drawn = floor("random_same_class", truth, n_guesses=3)
    assert len(torch.unique(drawn.flatten(1), dim=0)) == 3


def test_floors_of_cifar10_are_the_known_ones():
    pictures, labels = cifar10_jpeg()
    order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(0))
    targets, pool = order[:300], order[1000:]
    outside, classes = pictures[pool], labels[pool]
    expected = {"mean_colour": 12.67, "mid_grey": 12.55, "noise": 8.44}
    for name, value in expected.items():
        scores = []
        for position, index in enumerate(targets.tolist()):
            truth = Truth.equal(pictures[index : index + 1], labels[index : index + 1], outside, classes)
            scores.append(psnr(floor(name, truth, index=position), truth.members).item())
        assert sum(scores) / len(scores) == pytest.approx(value, abs=0.3), name
    others = outside[torch.arange(300) * 3 % len(outside)]
    assert psnr(others, pictures[targets]).mean().item() == pytest.approx(9.6, abs=0.3)


# ---------------------------------------------------------------- identification


def test_identification_by_hand():
    truth = a_truth([0.5], pool=[0.0, 0.1, 0.9])
    near = identify(flat(0.45), truth, torch.tensor([0]), 0)
    assert (near.top1, near.mean_rank, near.chance, near.decoys) == (1.0, 1.0, 0.25, 3)
    far = identify(flat(0.05), truth, torch.tensor([0]), 0)
    assert (far.top1, far.mean_rank) == (0.0, 3.0)


def test_a_tie_is_no_success():
    truth = a_truth([0.5], pool=[0.5, 0.5, 0.9])
    assert identify(flat(0.5), truth, torch.tensor([0]), 0).top1 == pytest.approx(1 / 3)


def test_decoys_are_of_the_class_where_there_are_enough():
    many = truths([1], pool=90)[0]  # thirty of each class
    found = identify(images(1), many, torch.tensor([0]), 0)
    assert (found.same_class, found.decoys) == (True, 30)
    few = truths([1], pool=30)[0]
    found = identify(images(1), few, torch.tensor([0]), 0)
    assert (found.same_class, found.decoys) == (False, 30)
    assert identify(images(1), many, torch.tensor([0]), 0, decoys=12).decoys == 12


def test_blind_guesses_identify_at_chance():
    hits, chance = 0.0, 0.0
    pool = images(420, seed=3)
    for position in range(400):
        order = torch.randperm(420, generator=torch.Generator().manual_seed(position))[:10]
        truth = Truth.equal(pool[order[:1]], torch.tensor([0]), pool[order[1:]], torch.zeros(9, dtype=torch.int64))
        found = identify(images(1, seed=1000 + position), truth, torch.tensor([0]), 0)
        hits, chance = hits + found.top1 / 400, chance + found.chance / 400
    assert chance == pytest.approx(0.1)
    assert hits == pytest.approx(0.1, abs=0.05)


def test_a_blind_guess_from_the_pool_is_no_decoy_of_itself():
    truth = a_truth([0.5], pool=[0.45, 0.0, 0.9])
    own = truth.nonmembers[:1]
    assert identify(own, truth, torch.tensor([0]), 0).top1 == 0
    found = identify(own, truth, torch.tensor([0]), 0, from_pool=True)
    assert (found.top1, found.decoys, found.chance) == (1.0, 2, pytest.approx(1 / 3))
