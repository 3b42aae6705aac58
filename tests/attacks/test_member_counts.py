"""Deviations of means and mixtures tell how many images they are of."""

from dataclasses import replace

import pytest
import torch
from deviation_cases import CLASSES, WIDTH, drawn

from fedpriv.attacks.inference.base import InferenceProblem, Moment
from fedpriv.attacks.inference.means import MeanRound, estimate_member_counts
from fedpriv.attacks.inference.property import (
    BY_DEVIATION,
    PropertyInference,
    can_count_members,
    shares_by_counts,
)
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.wire.payloads import Entangled, Prototypes

HELD = (2, 8, 60)
"""Images of each class."""


def members(seed, held=HELD):
    """Class means ``(CLASSES, WIDTH)`` of so many images."""
    rows, labels = drawn(3 * max(held), seed)
    return torch.stack([rows[labels == label][:number].mean(0) for label, number in enumerate(held)])


def mixtures(rounds, seed, own, labels, held=HELD, alike=False):
    """Mixtures of the same means by other weights in each round, under an extractor that turns, and a little noise."""
    draw, found = torch.Generator().manual_seed(seed), []
    middles, turned = members(seed, held), torch.eye(WIDTH, dtype=torch.float64)
    for _ in range(rounds):
        skew = torch.randn(WIDTH, WIDTH, generator=draw, dtype=torch.float64)
        turned = turned @ torch.linalg.matrix_exp(0.003 * (skew - skew.T))
        weights = torch.rand(CLASSES, generator=draw, dtype=torch.float64)
        weights = torch.full_like(weights, 1 / CLASSES) if alike else weights / weights.sum()
        mixture = (weights @ middles) @ turned + 1e-3 * torch.randn(WIDTH, generator=draw, dtype=torch.float64)
        sent = mixture.expand(CLASSES, -1), torch.arange(CLASSES), weights
        found.append(MeanRound(*sent, own[:0] @ turned, own @ turned, labels))
    return found


def one_round(rows, own, labels, weights=None):
    return MeanRound(rows, torch.arange(CLASSES), weights, own[:0], own, labels)


@pytest.mark.parametrize("seed", range(4))
def test_a_mean_tells_the_number_of_its_images(seed):
    own, labels = drawn(400, 30 + seed)
    rows = members(40 + seed)
    found = estimate_member_counts([one_round(rows, own, labels)]).numbers
    assert list(found) == [0, 1, 2]
    for label, number in enumerate(HELD):
        assert number / 3 < found[label] < 3 * number
    assert found[0] < found[1] < found[2]


@pytest.mark.parametrize("seed", range(3))
def test_mixtures_of_several_rounds_tell_it_of_every_class(seed):
    own, labels = drawn(400, 50 + seed)
    found = estimate_member_counts(mixtures(15, 60 + seed, own, labels)).numbers
    assert found[0] < found[1] < found[2]
    for label, number in enumerate(HELD):
        assert number / 4 < found[label] < 4 * number


def granted_to(own, labels, **more):
    """Own images whose representations are their pixels."""
    card, pictures = ThreatModel(attacker_data="same_domain"), own.view(-1, 1, 6, 6).float()
    extractors = {0: lambda x: x.flatten(1)}
    return Knowledge(card, (1, 6, 6), CLASSES, extractors, public_images=pictures, public_labels=labels, **more)


def seen_of(kind, rows, round_, weights=None):
    if kind == "prototype":
        return Observation(round_, 0, (Prototypes(rows.float(), torch.arange(CLASSES)),), ())
    return Observation(round_, 0, (Entangled((weights @ rows).float(), weights.float()),), ())


@pytest.mark.parametrize("kind", ["prototype", "entangled"])
def test_it_answers_the_question_where_images_and_extractors_are_granted(kind):
    own, labels = drawn(400, 80)
    granted, draw, rows = granted_to(own, labels), torch.Generator().manual_seed(82), members(81)
    rounds = [seen_of(kind, rows, t, torch.rand(3, generator=draw, dtype=torch.float64)) for t in range(1, 13)]
    earlier = tuple(Moment((one,), granted) for one in rounds[:-1])
    problem = InferenceProblem((rounds[-1],), granted, kind, earlier=earlier)
    found = PropertyInference(question="majority")(problem)
    assert found.source == BY_DEVIATION
    assert found.asked.classes[0].tolist() == [0, 1, 2]
    assert int(found.values[0].argmax()) == 2
    assert torch.equal(found.shares[0], shares_by_counts(problem)[0])
    wanted = torch.tensor(HELD, dtype=torch.float64) / sum(HELD)
    assert float((found.shares[0] - wanted).abs().sum() / 2) < 0.2
    alone = InferenceProblem((rounds[-1],), granted, kind)
    assert can_count_members(alone) == (kind == "prototype")  # the weights of one round take nothing apart
    shares = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    same = tuple(Moment((seen_of(kind, rows, t, shares),), granted) for t in range(1, 13))
    assert can_count_members(InferenceProblem((seen_of(kind, rows, 13, shares),), granted, kind, earlier=same)) == (
        kind == "prototype"
    )


@pytest.mark.parametrize("kind", ["noise", "shrunk"])
def test_what_a_named_defense_does_is_reckoned_with(kind):
    own, labels = drawn(400, 90)
    rows = members(91)

    def defend(given, seed):
        draw = torch.Generator().manual_seed(seed)
        return given + 0.3 * torch.randn(given.shape, generator=draw) if kind == "noise" else given / 2

    granted = granted_to(own, labels)
    seen = seen_of("prototype", defend(rows.float(), 1234), 1)
    told = replace(granted, defended={(1, 0): defend})
    wanted = torch.tensor(HELD, dtype=torch.float64) / sum(HELD)
    apart = [
        float((shares_by_counts(InferenceProblem((seen,), one, "prototype"))[0] - wanted).abs().sum() / 2)
        for one in (granted, told)
    ]
    assert apart[1] < 0.35
    assert apart[1] < apart[0] - 0.1


@pytest.mark.parametrize(("noise", "counted"), [(1.0, False), (0.01, True)])
def test_mixtures_that_differ_too_much_over_rounds_are_not_taken_apart(noise, counted):
    own, labels = drawn(400, 95)
    granted = granted_to(own, labels)
    draw, rows, seen = torch.Generator().manual_seed(96), members(97), []
    for t in range(1, 9):
        noisy = rows + noise * torch.randn(1, WIDTH, generator=draw, dtype=torch.float64)
        seen.append(seen_of("entangled", noisy, t, torch.rand(3, generator=draw, dtype=torch.float64)))
    problem = InferenceProblem(
        (seen[-1],), granted, "entangled", earlier=tuple(Moment((one,), granted) for one in seen[:-1])
    )
    assert can_count_members(problem)
    assert (shares_by_counts(problem) is not None) == counted
    found = PropertyInference(question="majority", shadow_clients=2, steps=2)(problem)
    assert found.source == (BY_DEVIATION if counted else "2 shadow clients")
