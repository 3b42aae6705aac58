"""Unmixing from own images and many rounds: by hand, better than either alone, and a guess where uploads are another's."""

import pytest
import torch
from compare import expect_close

from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Observation
from fedpriv.attacks.recover.unmixing import UnmixedInversion, unmix
from fedpriv.attacks.recover.unmixing_prior import (
    Variances,
    class_prior,
    likeliest,
    posterior_shift,
    unmix_with_prior,
)
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import Entangled

WIDTH, ROUNDS = 48, 12
COUNTS = (1, 1, 40, 200)


def client(seed, centres, walk=0.01):
    """Uploads, weights and last prototypes of a client whose classes have one image, one, forty and two hundred.

    Strangers are shown by the last extractor, around the centres; it is earlier prototypes that stand elsewhere.
    """
    rng = torch.Generator().manual_seed(seed)
    spread = torch.tensor(COUNTS, dtype=torch.float64).rsqrt()[:, None]
    prototypes = centres + spread * torch.randn(len(COUNTS), WIDTH, generator=rng, dtype=torch.float64)
    draws = torch.rand(ROUNDS, len(COUNTS), generator=rng, dtype=torch.float64)
    weights, uploads = draws / draws.sum(1, keepdim=True), []
    earlier = prototypes
    for mixing in weights.flip(0):
        uploads.append(mixing @ earlier)
        earlier = earlier + walk**0.5 * torch.randn(prototypes.shape, generator=rng, dtype=torch.float64)
    return torch.stack(uploads[::-1]), weights, prototypes


def strangers(seed, centres, number=30):
    rng = torch.Generator().manual_seed(1000 + seed)
    labels = torch.arange(len(COUNTS)).repeat_interleave(number)
    return centres[labels] + torch.randn(len(labels), WIDTH, generator=rng, dtype=torch.float64), labels


def domain(seed):
    rng = torch.Generator().manual_seed(2000 + seed)
    return 2 * torch.randn(len(COUNTS), WIDTH, generator=rng, dtype=torch.float64)


def errors(found, truth):
    return (found.double() - truth).norm(dim=1) / truth.norm(dim=1)


def test_two_rounds_of_one_class_by_hand():
    # With S, e and v all 1 the uploads' covariance is (3 1; 1 2); S (1 1) times its inverse is (1/5 2/5).
    weights = torch.ones(2, 1, dtype=torch.float64)
    surprise = torch.tensor([[5.0, 0.0], [0.0, 10.0]], dtype=torch.float64)
    known = Variances((1.0,), noise=1.0, walk=1.0)
    shift = posterior_shift(surprise, weights, torch.zeros(1, dtype=torch.float64), known)
    expect_close(shift, torch.tensor([[1.0, 4.0]], dtype=torch.float64))


def test_without_noise_two_rounds_of_two_classes_are_solved():
    weights = torch.tensor([[0.75, 0.25], [0.5, 0.5]], dtype=torch.float64)
    off = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    known = Variances((1.0, 1.0), noise=1e-9, walk=0.0)
    shift = posterior_shift(weights @ off, weights, torch.zeros(2, dtype=torch.float64), known)
    expect_close(shift, off, atol=1e-6)


def test_the_prior_of_own_images_by_hand():
    features = torch.tensor([[0.0, 0.0], [2.0, 8.0], [5.0, 1.0], [5.0, 1.0]])
    prior = class_prior(features, torch.tensor([0, 0, 1, 1]), 3, torch.tensor([1, 2]))
    expect_close(prior.means, torch.tensor([[5.0, 1.0], [3.0, 2.5]], dtype=torch.float64))
    expect_close(prior.spread, torch.tensor([1.0, 4.0], dtype=torch.float64))
    # Class 2 has none: its doubt is the variance between classes, (4 + (3 / 2 / 4)^2) / 2.
    expect_close(prior.doubt, torch.tensor([0.5, (4 + 0.375**2) / 2], dtype=torch.float64))


def test_the_likelihood_tells_a_class_of_one_image_from_a_class_of_many():
    apart = []
    for seed in range(6):
        uploads, weights, _ = client(seed, torch.zeros(len(COUNTS), WIDTH, dtype=torch.float64))
        apart.append(likeliest(uploads, weights, torch.zeros(len(COUNTS), dtype=torch.float64)).images)
    few, many = ([n for one in apart for n in one[part]] for part in (slice(2), slice(2, 4)))
    assert max(few) <= 3
    assert min(many) >= 5


def test_positive_control_classes_of_one_image_stand_far_from_the_blind_guess_and_no_class_loses():
    found, blind, plain = [], [], []
    for seed in range(8):
        centres = domain(seed)
        uploads, weights, truth = client(seed, centres, walk=0.05)
        prior = class_prior(*strangers(seed, centres), len(COUNTS), torch.arange(len(COUNTS)))
        found.append(errors(unmix_with_prior(uploads, weights, prior), truth))
        blind.append(errors(prior.means, truth))
        plain.append(errors(unmix(uploads, weights).prototypes, truth))
    found, blind, plain = (torch.stack(values).mean(0) for values in (found, blind, plain))
    assert (found[:2] < 0.6 * blind[:2]).all()
    assert (found[2:] < 1.05 * blind[2:]).all()
    assert found.mean() < 0.9 * plain.mean()


def test_negative_control_from_another_clients_uploads_it_is_no_nearer_than_the_blind_guess():
    found, blind = [], []
    for seed in range(8):
        centres = domain(seed)
        _, _, truth = client(seed, centres)
        others, weights, _ = client(100 + seed, centres)
        prior = class_prior(*strangers(seed, centres), len(COUNTS), torch.arange(len(COUNTS)))
        found.append(errors(unmix_with_prior(others, weights, prior), truth))
        blind.append(errors(prior.means, truth))
    assert (torch.stack(found).mean(0)[:2] > torch.stack(blind).mean(0)[:2]).all()


def test_weights_that_stay_leave_the_guess_where_a_single_round_would():
    """However many rounds, fixed weights are one equation: its direction is learned, no prototype is."""
    centres = domain(0)
    uploads, weights, truth = client(0, centres, walk=0.0)
    same = weights[:1].expand_as(weights)
    prior = class_prior(*strangers(0, centres), len(COUNTS), torch.arange(len(COUNTS)))
    fixed = unmix_with_prior(same @ truth, same, prior)
    fresh = unmix_with_prior(uploads, weights, prior)
    assert errors(fresh, truth)[:2].mean() < 0.2 * errors(fixed, truth)[:2].mean()


def test_images_are_asked_for_only_where_the_card_grants_them():
    knowledge = Knowledge(KnowledgeCard(), (1, 8, 8), 4)
    with pytest.raises(UserError, match="prior=images needs images of the attacker's own"):
        UnmixedInversion(prior="images").unmixed(observed(), 0, knowledge)
    for family in ("posterior", "auto"):
        alone = UnmixedInversion(family=family).unmixed(observed(), 0, knowledge)
        without = UnmixedInversion(family=family, prior="none").unmixed(observed(), 0, knowledge)
        expect_close(alone.prototypes, without.prototypes)
        assert alone.classes.tolist() == list(range(len(COUNTS)))


def observed():
    uploads, weights, _ = client(0, domain(0))
    pairs = zip(uploads.float(), weights.float(), strict=True)
    return tuple(Observation(number, 0, (Entangled(*pair),), ()) for number, pair in enumerate(pairs))
