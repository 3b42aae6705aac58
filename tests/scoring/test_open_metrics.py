"""Measures of other packages: of every guesser, and no hindrance when they fail."""

import sys
from dataclasses import replace

import pytest
import torch
from eval_cases import ABOUT, firsts, reconstruction, truths
from outside_cases import distribution

from fedpriv.scoring.definitions import comparison
from fedpriv.scoring.leakage import METRICS, Metric
from fedpriv.scoring.open_metrics import image_measures, refuse_no_metric
from fedpriv.scoring.panel import measure, own_guesses
from fedpriv.scoring.score import score
from fedpriv.scoring.sections import Means
from fedpriv.util.code import VARIABLE
from fedpriv.util.errors import UserError

MODULE = """
import torch
from fedpriv.scoring.leakage import Metric, mse
ERROR = Metric("error", "", False, "squared error", mse)
SPACE = Metric("space", "", False, "squared distance", lambda v, t: (v - t).square().sum(1), "vectors")
BROKEN = Metric("broken", "", True, "fails", lambda images, truth: 1 / 0)
SCALAR = Metric("scalar", "", True, "one number for all", lambda images, truth: images.mean())
OTHER = Metric("error", "", True, "another of that name", mse)
OURS = Metric("ssim", "", True, "a name that is taken", mse)
NUMBER = 3
"""


@pytest.fixture(autouse=True)
def outside(tmp_path, monkeypatch):
    distribution(tmp_path, "gauges", {METRICS.group: {"error": "gauges:ERROR"}}, {"gauges": MODULE})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(VARIABLE, "gauges")
    yield
    sys.modules.pop("gauges", None)


def scored(*metrics, features=None, shuffled=None):
    secrets = truths([1, 1, 2, 2])
    images = 0.5 * firsts(secrets)
    found = reconstruction(images, features=features)
    return score(found, secrets, shuffled, seed=0, about=ABOUT, metrics=metrics)


def test_an_installed_measure_is_taken_of_attack_and_floors_alike():
    record = scored()
    own = record.metrics.others["error"]
    assert own.mean * 255**2 == pytest.approx(record.metrics.mse_255.mean)
    for detail in record.floor_details.values():
        assert detail.others["error"].mean * 255**2 == pytest.approx(detail.mse_255.mean)
    assert record.metrics.measured["error"] is own
    assert own.ci95 is not None


def test_the_other_numbers_of_a_record_are_the_same_with_and_without_it(monkeypatch, tmp_path):
    within = scored()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    without = scored()
    assert not without.metrics.others
    assert without.metrics.measured == {k: v for k, v in within.metrics.measured.items() if k != "error"}
    assert without.floors == within.floors


def test_a_measure_of_vectors_is_beside_the_control():
    secrets = tuple(replace(one, feature=torch.full((5,), float(n))) for n, one in enumerate(truths([1, 1, 1])))
    true = torch.stack([one.feature for one in secrets])
    found = reconstruction(firsts(secrets), features=true + 1)
    control = reconstruction(firsts(secrets), features=true + 2)
    other = score(found, secrets, control, seed=0, about=ABOUT, metrics=["gauges:SPACE"]).metrics.others["space"]
    assert (other.mean, other.shuffled.mean, other.shuffled.difference.mean) == (5, 20, -15)


@pytest.mark.parametrize(("name", "why"), [("BROKEN", "ZeroDivisionError"), ("SCALAR", "gave (), expected")])
def test_a_measure_that_fails_costs_nothing_but_itself(name, why):
    record = scored(f"gauges:{name}")
    other = record.metrics.others[name.lower()]
    assert other.mean is None
    assert why in other.not_measured
    assert record.metrics.others["error"].mean is not None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gauges:OTHER", "another metric named 'error'"),
        ("gauges:OURS", "'ssim', which is a measure of fedpriv"),
        ("gauges:NUMBER", "expected a fedpriv.scoring.leakage.Metric"),
        ("gauges:NOWHERE", "has no 'NOWHERE'"),
        ("gauge", "unknown metric 'gauge'"),
    ],
)
def test_what_is_no_measure_is_refused_before_anything_is_scored(name, why):
    with pytest.raises(UserError, match=why):
        scored(name)


def test_the_facts_of_a_measure_are_told_even_where_it_fails():
    record = scored("gauges:BROKEN", "gauges:SCALAR")
    fine, broken, scalar = (record.metrics.others[name] for name in ("error", "broken", "scalar"))
    assert (fine.unit, fine.higher_is_better, fine.description) == ("", False, "squared error")
    assert (broken.unit, broken.higher_is_better, broken.description) == ("", True, "fails")
    assert broken.not_measured == "not measured: ZeroDivisionError: division by zero"
    assert scalar.not_measured == "not measured: gave (), expected a tensor of shape (1,)"  # target by target
    assert (broken.n, broken.shuffled, fine.not_measured) == (0, None, "")


def test_a_measure_of_something_else_is_not_taken_of_images():
    assert set(scored("gauges:SPACE").metrics.others) == {"error"}
    control = reconstruction(firsts(truths([1, 1, 2, 2])), features=None)
    assert set(scored(shuffled=control).metrics.others) == {"error"}


def test_messages_about_measures():
    with pytest.raises(UserError) as refused:
        scored("gauges:OTHER")
    assert "metric 'gauges:OTHER': there is another metric named 'error'; rename it" in str(refused.value)
    with pytest.raises(UserError) as refused:
        scored("gauges:NUMBER")
    assert "expected a fedpriv.scoring.leakage.Metric of images or of vectors, got 3" in str(refused.value)


@pytest.mark.parametrize(("changes", "right"), [({}, True), ({"of": "words"}, False), ({"function": 3}, False)])
def test_what_is_a_measure(changes, right):
    metric = replace(Metric("own", "", True, "own", lambda one, two: one, "vectors"), **changes)
    if right:
        refuse_no_metric("own", metric)
    else:
        with pytest.raises(UserError, match="expected a fedpriv"):
            refuse_no_metric("own", metric)


def test_values_of_a_measure_carry_no_slopes():
    slope = torch.ones((), requires_grad=True)
    secrets = truths([1, 1])
    metric = Metric("own", "", True, "own", lambda one, two: (one - two).flatten(1).mean(1) * slope)
    panel = measure(own_guesses(0.5 * firsts(secrets), secrets), secrets, [comparison(truth, 0) for truth in secrets])
    found = image_measures({"own": metric}, panel, secrets, Means((0, 1)))["own"]
    expected = [float(-0.5 * truth.members.mean()) for truth in secrets]
    assert found.per_target == pytest.approx(expected, abs=1e-6)
