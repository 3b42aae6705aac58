"""A small calibration: nothing is claimed of uploads that carry nothing, what leaks is found, and intervals cover."""

import dataclasses

import pytest
import torch

import fedpriv
from fedpriv import calibrate
from fedpriv.attacks.contract import Attack
from fedpriv.attacks.features.closed_form import HeadUpdate
from fedpriv.attacks.inference.membership import MembershipInference
from fedpriv.attacks.inference.property import PropertyInference
from fedpriv.attacks.observation import Cost, Reconstruction
from fedpriv.calibration.coverage import FAR_OFF, coverage, coverage_table, sizes
from fedpriv.calibration.own import RAW, rates_table
from fedpriv.calibration.pages import PAGE, by_measure, false_claims, page_of, power, verdicts
from fedpriv.calibration.rates import Rate, counted, table
from fedpriv.calibration.simulated import inverted
from fedpriv.calibration.world import NULLS, World, raw
from fedpriv.experiment.calibrated import CLASSES, DATA_SET, IMAGES
from fedpriv.scoring.judgement import judge


@pytest.fixture(scope="module")
def outcomes():
    return [one for number in range(4) for one in page_of(0, number)]


def test_nothing_is_claimed_of_nulls(outcomes):
    nulls = [one for one in outcomes if not one.leak]
    assert {one.attack for one in nulls} > {"same mean and covariance", "the class alone", "membership: noise", PAGE}
    # One false page of four would happen by chance once in 190 times at the rate of 5 % that is allowed.
    assert sum(bool(one.claims) for one in nulls if one.attack == PAGE) <= 1
    assert "any of them" in false_claims(outcomes)
    assert "none" in verdicts(outcomes)
    assert {"images", "identified", "membership", "members_found", "property"} <= set(by_measure(outcomes).split())


def test_what_leaks_is_found_beside_nulls(outcomes):
    leaks = {(one.attack, one.unit): one for one in outcomes if one.leak}
    assert {unit for _, unit in leaks} == {"representation", "prototype"}
    assert "images" in leaks["truth", "representation"].claims
    assert "vectors" in leaks["truth", "prototype"].claims
    assert leaks["members, three", "representation"].claims
    assert "truth + much noise" in power(outcomes)


def test_pages_follow_from_their_seed_and_number():
    assert page_of(3, 6) == page_of(3, 6)


@pytest.mark.parametrize("kind", ["representation", "prototype"])
def test_a_world_holds_what_it_says(kind):
    world = World(1, (2,) * 5, kind)
    assert len(world.targets) == 10
    assert world.evidence(raw(world)).targets == world.targets
    for target, truth in zip(world.targets, world.truths(world.evidence(raw(world))), strict=True):
        upload = raw(world)[target.client].upload[0].features[target.index]
        assert torch.allclose(world.represent(truth.members).mean(0), upload, atol=1e-6)
        assert set(truth.labels.tolist()) == {target.label}
    for make in NULLS.values():
        for own, seen in zip(raw(world), make(world, 0), strict=True):
            assert seen.upload[0].features.shape == own.upload[0].features.shape
            assert not torch.allclose(seen.upload[0].features, own.upload[0].features, atol=1e-2)


def test_more_noise_is_found_less():
    world = World(2, (2,) * 8, "representation")
    gains = [
        inverted(world, name).advantage_db.mean for name in ("truth", "truth + little noise", "truth + much noise")
    ]
    assert gains == sorted(gains, reverse=True)
    assert judge(inverted(world, "truth")).kind == "leaks"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lookup(Attack):
    """Finds the representation among those of images that it was given: the truth leaks to it, and nothing else."""

    world_images: torch.Tensor | None = None
    name = "lookup"
    summary = "a look"
    unit = "upload"
    targets = ("representation",)

    def run(self, problem):
        images = torch.full((len(problem.targets), 1, *problem.knowledge.image_shape), 0.5)
        for row, target in enumerate(problem.targets):
            upload = problem.observations[target.client].upload[0].features[target.index]
            images[row] = self.inverse(problem.knowledge.extractors[target.client], upload)
        number = len(images)
        return Reconstruction(
            problem.targets,
            images,
            torch.zeros(number, 1),
            torch.zeros(number, dtype=torch.int64),
            torch.full((number, 1), -1),
            Cost(),
            torch.ones(number, dtype=torch.bool),
        )

    def inverse(self, extractor, upload):
        """Least squares through the extractor's inverse: the image of least norm that gives this representation."""
        columns = (
            torch.atanh((extractor(0.5 + 1e-3 * torch.eye(36).reshape(36, 1, 6, 6)) - 0.1).clamp(-0.99, 0.99)) / 1e-3
        )
        wanted = torch.atanh((upload - 0.1).clamp(-0.99, 0.99))
        return (0.5 + torch.linalg.pinv(columns.T) @ wanted).clamp(0, 1).reshape(1, 6, 6)


def test_an_attack_of_ones_own_is_calibrated():
    found = fedpriv.calibrate(Lookup(), pages=3, clients=6, seed=1)
    assert isinstance(found, fedpriv.Calibration)
    assert set(found.false) == set(NULLS)
    assert sum(rate.hits for rate in found.false.values()) <= 1
    assert str(found) == rates_table([found])
    assert f"| lookup | representation | {RAW} | 3 |" in str(found)


def test_membership_of_raw_representations_is_found_and_of_nulls_is_not():
    found = calibrate(MembershipInference(), pages=3, clients=6)
    assert found.power == Rate(3, 3)
    assert sum(rate.hits for rate in found.false.values()) <= 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"clients": 4}, "at least 5"),
        ({"pages": 0}, "at least 1"),
        ({"targets": 5}, "1 to 4"),
        ({"clients": "8"}, "at least 5"),
        ({"kind": "labels"}, "kind"),
        ({"dataset": "fashion"}, "images of its own"),
        ({"round": 3}, "unknown argument"),
        ({"kind": "kernel", "lr": -1.0}, "lr"),
    ],
)
def test_settings_that_fit_nothing_are_refused(wrong, says):
    with pytest.raises(fedpriv.UserError, match=says):
        calibrate(MembershipInference(), **wrong)


def test_coverage_of_few_repetitions():
    found = coverage(40, 0, (6,))
    assert {one.skewed for one in found} == {False, True}
    assert all(one.rates[6].trials == (4 if one.skewed else 40) for one in found)
    promised = [one.rates[6] for one in found if one.what != FAR_OFF]
    assert sum(rate.hits for rate in promised) / sum(rate.trials for rate in promised) > 0.92
    assert "| mean | equal |" in coverage_table(found)
    assert sizes(4, skewed=True).tolist() == [10, 5, 3, 2]


def test_rates_and_tables():
    assert counted([True, False]) == Rate(1, 2)
    assert Rate(0, 1000).interval == (0, pytest.approx(0.00368, abs=1e-5))
    assert table([{"a": 1, "b": Rate(0, 2)}]) == "| a | b |\n| --- | --- |\n| 1 | 0.0 (0.0 to 84.2) |\n"
    assert table([]) == ""


@pytest.mark.slow
def test_federations_are_trained_and_their_images_exchanged():
    found = calibrate(HeadUpdate(iterations=60), kind="classifier", pages=2, targets=1, seed=3)
    assert found.power == Rate(2, 2)
    assert found.false == {IMAGES: Rate(0, 2), DATA_SET: Rate(0, 2)}
    assert f"| head-update | classifier | {RAW} | 2 |" in str(found)


def test_questions_about_classes_are_held_to_other_divisions():
    asked = PropertyInference(shadow_clients=4, epochs=2, steps=5)
    found = calibrate(asked, kind="representation", pages=1, rounds=1, seed=1)
    assert set(found.false) == {CLASSES}
    assert found.false[CLASSES] == Rate(0, 1)
    assert found.power == Rate(1, 1)
