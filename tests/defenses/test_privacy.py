"""What noise guarantees: its size, and the library that accounts for it."""

import pytest
import torch
from defense_cases import CASES, build, plan_for, send

from fedpriv.defenses.accounting import epsilon
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
