import pytest
import torch
from compare import expect_same
from eval_cases import cifar10_jpeg, images, truths
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.attacks.observation import TargetId
from fedpriv.eval.floors import FLOORS, SHUFFLED, guess
from fedpriv.eval.identification import identification, identify
from fedpriv.eval.intervals import Means, clustered
from fedpriv.eval.metrics import assign, measure, psnr, score_guesses
from fedpriv.sources.truth import Pool, Truth, divide, psnr_optimal
from fedpriv.util.errors import UserError


def flat(*values):
    return torch.tensor(values)[:, None, None, None].expand(-1, 1, 8, 8).clone()


def a_truth(values, weights=None, labels=None, pool=(0.0, 1.0), pool_labels=None, decoys=()):
    """A truth of flat images; decoys are all of class 0."""
    members = flat(*values)
    shares = torch.tensor(weights) if weights else torch.full((len(values),), 1 / len(values))
    mine = torch.tensor(labels or [0] * len(values))
    others = flat(*pool), torch.tensor(pool_labels or [0] * len(pool))
    return Truth(members, shares, mine, Pool(*others, flat(*decoys), torch.zeros(len(decoys), dtype=torch.int64)))


def test_one_guess_at_two_members_by_hand():
    # Errors 0.01 and 0.0001: 20 and 40 dB.
    found = score_guesses(flat(0.5), a_truth([0.6, 0.51], weights=[0.75, 0.25]))
    assert found.psnr == pytest.approx(0.75 * 20 + 0.25 * 40, abs=1e-3)
    assert found.mse == pytest.approx(0.75 * 0.01 + 0.25 * 0.0001, rel=1e-4)


def test_assignment_undoes_a_permutation():
    truth = truths([5])[0]
    order = torch.tensor([3, 0, 4, 1, 2])
    found = score_guesses(truth.members[order], truth)
    assert found.psnr == 100
    assert found.assigned.tolist() == order.argsort().tolist()


def test_assignment_takes_the_least_total_not_the_nearest():
    # Guess 0 is nearest to both members; greed would cost 0.1 + 0.9, the best pairing 0.2 + 0.3.
    errors = torch.tensor([[0.1, 0.2], [0.3, 0.9]], dtype=torch.float64)
    assert assign(errors).tolist() == [1, 0]


def test_truth_refuses_what_cannot_be():
    good = a_truth([0.1, 0.2])
    with pytest.raises(UserError, match="sum of 1"):
        Truth(good.members, torch.tensor([0.9, 0.9]), good.labels, good.pool)
    with pytest.raises(UserError, match=r"truth\.members: expected values in \[0, 1\]"):
        Truth(good.members * 255, good.weights, good.labels, good.pool)
    with pytest.raises(UserError, match=r"truth\.members: expected 2 labels"):
        Truth(good.members, good.weights, good.labels[:1], good.pool)
    colour = Pool.divided(images(2, shape=(3, 8, 8)), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(UserError, match="differ in shape"):
        Truth(good.members, good.weights, good.labels, colour)
    with pytest.raises(UserError, match=r"pool\.decoys: expected 2 labels"):
        Pool(images(2), torch.zeros(2), images(2), torch.zeros(3))
    with pytest.raises(UserError, match=r"pool\.guesses: expected float images \(n >= 1"):
        Pool(images(0), torch.zeros(0), images(2), torch.zeros(2))


# ---------------------------------------------------------------- floors


def floor(name, truth, n_guesses=1, seed=0, index=0):
    return guess(name, truth, TargetId(0, 0, index), n_guesses, seed)


def test_floors_on_hand_made_images():
    truth = a_truth([0.9], labels=[1], pool=[0.0, 0.2, 0.7], pool_labels=[0, 1, 1], decoys=[1.0] * 10)
    assert floor("mean_colour", truth).unique().tolist() == pytest.approx([0.3])
    assert floor("mean_image", truth).unique().tolist() == pytest.approx([0.3])
    assert floor("class_mean_image", truth).unique().tolist() == pytest.approx([0.45])
    assert floor("mid_grey", truth).unique().tolist() == [0.5]
    noise = floor("noise", truth)
    assert noise.std() > 0.2
    assert noise.min() >= 0
    assert noise.max() <= 1


def test_class_mean_of_an_entangled_target_is_mixed_by_its_weights():
    truth = a_truth([0.9, 0.8], weights=[0.25, 0.75], labels=[0, 1], pool=[0.2, 0.6], pool_labels=[0, 1])
    assert floor("class_mean_image", truth).unique().tolist() == pytest.approx([0.25 * 0.2 + 0.75 * 0.6])
    both = floor("class_mean_image", truth, n_guesses=2)
    assert both[:, 0, 0, 0].tolist() == pytest.approx([0.2, 0.6])


@pytest.mark.parametrize("name", FLOORS)
def test_floors_never_look_at_the_members_pixels(name):
    truth, other = truths([2])[0], truths([2])[0]
    object.__setattr__(other, "members", 1 - truth.members)
    for n_guesses in (1, 2, 3):
        left, right = floor(name, truth, n_guesses), floor(name, other, n_guesses)
        expect_same(left, right)
        assert left.shape == (n_guesses, 1, 8, 8)
        expect_same(left, floor(name, truth, n_guesses))


def test_floors_of_cifar10_are_the_known_ones():
    pictures, labels = cifar10_jpeg()
    order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(0))
    targets, pool = order[:300], order[1000:]
    outside = Pool.divided(pictures[pool], labels[pool], 0)
    expected = {"mean_colour": 12.67, "mid_grey": 12.55, "noise": 8.44}
    for name, value in expected.items():
        scores = []
        for position, index in enumerate(targets.tolist()):
            truth = Truth.equal(pictures[index : index + 1], labels[index : index + 1], outside)
            scores.append(psnr(floor(name, truth, index=position), truth.members).item())
        assert sum(scores) / len(scores) == pytest.approx(value, abs=0.3), name
    others = outside.guesses[torch.arange(300) * 3 % len(outside.guesses)]
    assert psnr(others, pictures[targets]).mean().item() == pytest.approx(9.6, abs=0.3)


# ---------------------------------------------------------------- identification


def test_identification_by_hand():
    decoys = [0.0, 0.1, 0.9, *[1.0] * 7]
    truth = a_truth([0.5], decoys=decoys)
    assert identify(flat(0.45), truth) == (1.0, 10)
    assert identify(flat(0.05), truth) == (0.0, 10)
    both = a_truth([0.5, 0.3], weights=[0.25, 0.75], decoys=decoys)
    assert identify(flat(0.45, 0.16), both)[0] == 0.25


def test_members_with_fewer_than_ten_decoys_of_their_class_are_left_out():
    assert identify(flat(0.5), a_truth([0.5], decoys=[0.1] * 9)) is None
    assert identify(flat(0.5), a_truth([0.5], labels=[1], decoys=[0.1] * 10)) is None
    mixed = a_truth([0.5, 0.7], weights=[0.2, 0.8], labels=[0, 1], decoys=[0.1] * 10)
    assert [identify(flat(value), mixed)[0] for value in (0.5, 0.05)] == [1, 0]


def hidden(value, n_decoys=10):
    """One image, and decoys of its class at 0.1 and below."""
    return a_truth([value], pool=[0.3], decoys=[0.1 - 0.001 * place for place in range(n_decoys)])


HIDDEN = (hidden(0.9), hidden(0.8, 12), hidden(0.7, 9))  # the last one has too few decoys


def panel(*values, of=HIDDEN):
    return measure([flat(value) for value in values], of)


RIGHT, HALF, WRONG = panel(0.9, 0.8, 0.7), panel(0.9, 0.1, 0.7), panel(0.0, 0.1, 0.1)


def test_attack_and_guesses_by_one_rule():
    guesses = {"noise": WRONG, "mean_image": HALF, SHUFFLED: WRONG}
    own, rows, gains = identification(HIDDEN, RIGHT, guesses, Means((0, 1, 2)))
    assert own.per_target == (1, 1, None)
    assert (own.mean, own.n, own.n_left_out, own.decoys) == (1, 2, 1, (10, 12))
    assert own.ci95 == clustered([1.0, 1.0], [0, 1], "share").interval()
    assert own.guesses == {"noise": 0, "mean_image": 0.5, SHUFFLED: 0}
    assert (own.chance, own.chance_of, own.not_measured) == (0.5, "mean_image", "")
    assert rows == [0, 1]
    assert {name: gain.tolist() for name, gain in gains.items()} == {
        **{"noise": [1, 1], "mean_image": [0, 1], SHUFFLED: [1, 1]}
    }


def test_where_nobody_has_enough_decoys_nothing_is_measured():
    poor = tuple(hidden(*one) for one in ((0.9, 9), (0.8, 3), (0.7, 0)))
    own, *nothing = identification(
        poor, panel(0.9, 0.8, 0.7, of=poor), {"noise": panel(0, 0, 0, of=poor)}, Means((0, 1, 2))
    )
    assert own.per_target == (None, None, None)
    assert (own.mean, own.ci95, own.n, own.n_left_out, own.decoys) == (None, None, 0, 3, ())
    assert (own.chance, own.chance_of, own.guesses) == (None, None, {})
    assert own.not_measured == "not measured: no target has 10 auxiliary images of its class as decoys"
    assert nothing == [[], {}]


@pytest.mark.parametrize("number", [1, 5])
def test_whoever_knows_nothing_tells_one_image_in_as_many_as_there_are(number):
    rng = torch.Generator().manual_seed(number)
    wins = []
    for _ in range(3000):
        values = torch.randn(12, generator=rng)  # one member and eleven decoys, drawn alike
        guesses = 0.5 * torch.randn(number, generator=rng)
        pixels = flat(*(0.5 + 0.1 * values).clamp(0, 1).tolist())
        pool = Pool(flat(0.3), torch.tensor([0]), pixels[1:], torch.zeros(11, dtype=torch.int64))
        truth = Truth.equal(pixels[:1], torch.tensor([0]), pool)
        shots = flat(*(0.5 + 0.1 * guesses).tolist())
        wins.append(identify(shots, truth)[0])
    assert abs(sum(wins) / len(wins) - 1 / 12) < 3 * (1 / 12 * 11 / 12 / len(wins)) ** 0.5


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-1, 3), min_size=1, max_size=300), st.integers(0, 100))
def test_guesses_and_decoys_share_no_image(labels, seed):
    labels = torch.tensor(labels)
    guesses, decoys = divide(labels, seed)
    assert sorted([*guesses.tolist(), *decoys.tolist()]) == list(range(len(labels)))
    assert (divide(labels, seed)[1] == decoys).all()
    assert -1 not in labels[decoys]
    for label in set(labels.tolist()) - {-1}:
        count, told = int((labels == label).sum()), int((labels[decoys] == label).sum())
        assert told == min(100, max(count // 2, min(10, count - 1)))
        assert (labels[guesses] == label).any()


# ---------------------------------------------------------------- the PSNR-optimal image


def test_the_optimal_image_by_hand():
    # Squared distances 0, 0.01 and 0.49 of a pixel each: by hand the weights 1 / MSE move the guess to the near pair.
    values = torch.tensor([0.2, 0.3, 0.9], dtype=torch.float64)[:, None, None, None].expand(-1, 1, 1, 2).clone()
    values[0, 0, 0, 1], values[1, 0, 0, 1] = 0.3, 0.2  # a pair at distance, so that no single image is the optimum
    found = psnr_optimal(values)
    errors = (values - found).square().mean(dim=(1, 2, 3))
    weights = 1 / errors
    again = (weights[:, None, None, None] * values).sum(0) / weights.sum()
    assert (found - again).abs().max() < 1e-3
    score = psnr(found[None].expand(3, -1, -1, -1), values).mean()
    assert score > psnr(values.mean(0, keepdim=True).expand(3, -1, -1, -1), values).mean() + 1
    assert psnr_optimal(values[:1]).tolist() == values[0].tolist()
