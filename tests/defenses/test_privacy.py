"""What noise guarantees: its size, its accounting against second libraries, claims beside what clip and noise imply."""

import math

import pytest
import torch
from defense_cases import CASES, build, plan_for, send
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.defenses.accounting import epsilon, gaussian_epsilon, implied_epsilon
from fedpriv.federation.defense import DefensePipeline
from fedpriv.util.errors import UserError


def test_the_noise_is_the_multiplier_times_twice_the_bound():
    z, bound = 3.0, 0.5
    made = build(f"dp-noise:noise_multiplier={z},bound={bound}")
    for kind, name in (("model", "state/weight"), ("prototype", "features")):
        sent = [send(made, kind, message=CASES[kind][0], seed=seed)[0].tensors()[name] for seed in range(300)]
        deviation = float(torch.stack(sent).std(0).square().mean().sqrt())
        assert deviation == pytest.approx(z * 2 * bound, rel=0.05)


def test_without_opacus_one_line_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    epsilon.cache_clear()
    with pytest.raises(UserError, match=r"pip install 'fedpriv\[dp\]'"):
        DefensePipeline(build("dp-noise:noise_multiplier=1.2345")).check(plan_for("prototype"))
    epsilon.cache_clear()


def phi(point):
    return math.erfc(-point / math.sqrt(2)) / 2  # exact in the tail, where 1 + erf has no digit left


def spent(moved, epsilon):
    return phi(moved / 2 - epsilon / moved) - math.exp(epsilon) * phi(-moved / 2 - epsilon / moved)


@given(st.floats(0.2, 20), st.floats(1e-6, 0.1), st.integers(1, 50))
def test_the_least_epsilon_spends_delta_and_no_less(z, delta, releases):
    found = gaussian_epsilon(z, delta, releases)
    moved = math.sqrt(releases) / z
    if found == 0:
        assert 2 * phi(moved / 2) - 1 <= delta * (1 + 1e-9)
    elif found < 300:  # beyond, the textbook form overflows
        assert spent(moved, found) == pytest.approx(delta, rel=1e-4)
        assert spent(moved, found * 0.99) > delta


@pytest.mark.parametrize(("z", "releases"), [(0.5, 1), (1, 1), (4.84, 1), (10, 100), (1, 30)])
def test_epsilon_equals_a_second_library(z, releases):
    accounting = pytest.importorskip("dp_accounting", reason="the second accountant is not installed")
    exact = accounting.get_epsilon_gaussian(z / math.sqrt(releases), 1e-5)
    assert gaussian_epsilon(z, 1e-5, releases) == pytest.approx(exact, rel=1e-6)


def test_a_claim_by_hand():
    """C = 1, D = 1, epsilon = 0.5, delta = 1e-5: s = sqrt(2 ln 125000) / 0.5 = 9.6896, moved by 2 / s = 0.20641."""
    found = implied_epsilon(clipping_norm=1, sensitivity=1, epsilon=0.5, delta=1e-5)
    assert found.deviation == pytest.approx(9.68962, rel=1e-5)
    assert (found.sensitivity, found.assumed_sensitivity) == (2, 1)
    assert spent(2 / 9.689622, found.once) == pytest.approx(1e-5, rel=1e-4)
    assert found.once == pytest.approx(0.751, abs=0.001)
    assert not found.follows


@pytest.mark.parametrize(
    ("clip", "sensitivity", "epsilon", "follows"),
    [
        (1.0, 2.0, 0.5, True),  # noise for what a clip to 1 lets through
        (0.5, 1.0, 0.9, True),
        (1.0, 1.0, 0.5, False),  # half of it
        (100.0, 1.0, 0.5, False),  # the clip was loosened, and nothing else
        (1.0, 0.0, 0.5, False),  # no noise
        (1.0, 2.0, 200.0, False),  # the old formula says nothing of claims this large
    ],
)
def test_claims_follow_only_where_noise_fits_the_clip(clip, sensitivity, epsilon, follows):
    found = implied_epsilon(clip, sensitivity, epsilon, 1e-5)
    assert found.follows is follows
    assert f"epsilon {epsilon:.4g} is claimed of each upload" in found.words
