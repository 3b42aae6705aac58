"""Audits of claimed epsilons: contradicted where less noise is added than is claimed, never where it is as it should be."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from command_line import call

import fedpriv
from fedpriv.defenses.dp_sgd import DPSGD
from fedpriv.defenses.noise import DPNoise
from fedpriv.dp.audit import FAR_GRADIENT, MARK, canary_step
from fedpriv.eval.storage import load_privacy_audit
from fedpriv.federation.defense import Work, plain_step

DATA = {"dataset": "digits", "clients": 3, "partition": "iid", "rounds": 2, "per_class": 30}
WEIGHTS = {**DATA, "method": "fedavg", "models": "small-cnn"}


@dataclass(frozen=True)
class Feeble(DPNoise):
    """A tenth of the noise that it accounts for."""

    name: ClassVar[str] = "feeble"

    def upload(self, message, context):
        z = self.multiplier(context.rounds)
        return replace(self, epsilon=None, noise_multiplier=z / 10)._plain(message, context)

    def _plain(self, message, context):
        return DPNoise.upload(self, message, context)


@dataclass(frozen=True)
class FeebleTraining(DPSGD):
    """A tenth of the noise on gradients that it accounts for."""

    name: ClassVar[str] = "feeble-training"

    def guard(self, plan):
        z = self.multiplier(plan) / 10
        return DPSGD(clip=self.clip, noise_multiplier=z).guard(plan)


def bounds(found):
    return {one.name: one.epsilon for one in found.record.bounds}


def test_noise_for_another_sensitivity_than_the_clips_is_contradicted():
    found = fedpriv.audit_dp(**WEIGHTS, canaries=200, defense="local-dp:clipping_norm=1,sensitivity=0.05,epsilon=1")
    record = found.record
    assert record.verdict == "contradicted"
    assert record.claim.epsilon == 1
    assert record.claim.releases == 1
    assert record.claim.implied == pytest.approx(68.5, abs=0.1)  # clip and noise, by themselves
    assert all(one.epsilon <= record.claim.implied for one in record.bounds)
    assert bounds(found)["one run"] > 1  # without any assumption on the noise
    assert found.epsilon == max(bounds(found).values())
    assert "The claim is contradicted: local-dp claims epsilon 1" in found.verdict


@pytest.mark.parametrize(
    ("settings", "defense"),
    [
        (WEIGHTS, "local-dp:clipping_norm=1,sensitivity=2,epsilon=1"),
        (WEIGHTS, "dp-noise:epsilon=1"),
        ({**DATA, "method": "fedproto"}, "dp-noise:epsilon=1"),
        ({**WEIGHTS, "batch_size": 200}, "dp-sgd:epsilon=1"),
    ],
)
def test_claims_that_follow_are_not_contradicted(settings, defense):
    found = fedpriv.audit_dp(**settings, canaries=300, defense=defense)
    assert found.record.verdict == "not contradicted", found.verdict
    assert found.epsilon <= 1
    assert found.record.control > 1


@pytest.mark.parametrize(
    ("settings", "option", "releases"), [(WEIGHTS, "epsilon=1", 2), ({**DATA, "method": "fedre"}, "epsilon=1", 2)]
)
def test_a_tenth_of_the_claimed_noise_is_contradicted(settings, option, releases):
    found = fedpriv.audit_dp(**settings, canaries=200, defense=f"{__name__}:Feeble:{option}")
    assert found.record.verdict == "contradicted", found.verdict
    assert found.record.claim.releases == releases
    assert found.epsilon > found.record.claim.implied
    assert "more than clip and noise imply" in found.verdict


def test_a_tenth_of_the_claimed_noise_in_training_is_contradicted():
    settings = {**WEIGHTS, "batch_size": 200}
    found = fedpriv.audit_dp(**settings, canaries=400, defense=f"{__name__}:FeebleTraining:epsilon=1")
    assert found.record.verdict == "contradicted", found.verdict
    assert found.record.way == "training"
    assert bounds(found).keys() == {"one run"}  # batches are samples: no Gaussian mechanism, and one run


def test_a_bound_without_a_claim():
    found = fedpriv.audit_dp(**WEIGHTS, canaries=40, defense="clip", claim={"delta": 1e-3})
    assert found.record.verdict == "no claim"
    assert found.record.claim is None
    assert found.epsilon > 0  # nothing hides anything


def test_a_canarys_gradient_is_one_entry_beside_the_others():
    """Two true images and one canary: two thirds of the mean gradient, and a third of the canary's."""
    layer = torch.nn.Linear(4, 2, bias=False)
    work = Work(layer, lambda x, y: (layer(x.flatten(1)).sum(1) * y).mean(), tuple(layer.parameters()), None, None)
    images, labels = torch.rand(3, 1, 2, 2), torch.tensor([1.0, 2.0, 0.0])
    images[2] = MARK + 7
    expected = torch.autograd.grad(work.loss(images[:2], labels[:2]), layer.weight)[0] * 2 / 3
    expected[1, 2] += FAR_GRADIENT / 3
    layer.weight.grad = None
    seen = []
    canary_step(plain_step, lambda canary: seen.append(canary) or ("weight", 6))(work, images, labels)
    assert seen == [7]
    assert torch.allclose(layer.weight.grad, expected)


def test_the_same_seed_gives_the_same_audit():
    settings = {**WEIGHTS, "canaries": 60, "defense": "local-dp:sensitivity=0.2"}
    first, again, other = (fedpriv.audit_dp(**settings, seed=seed).record for seed in (3, 3, 4))
    assert first == again
    assert first.included != other.included or first.bounds != other.bounds


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "no defense claims an epsilon here"),
        ({"defense": "clip", "claim": {"epsilom": 1}}, "unknown key 'epsilom'"),
        ({"defense": "local-dp", "canaries": 8}, "canaries=8: expected at least 16"),
        ({"defense": "local-dp", "confidence": 1.0}, "between 0.5 and 1"),
        ({"defense": ["dp-noise:epsilon=1", "local-dp"]}, "dp-noise, local-dp claim an epsilon each"),
        ({"defense": "dp-sgd:epsilon=1", "canaries": 10_000_000}, "need an uploaded weight each"),
        ({"defense": "clip", "claim": {"epsilon": 1, "unit": "image"}}, "audited within local training"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(given, told, tmp_path):
    with pytest.raises(fedpriv.UserError, match=told) as caught:
        fedpriv.audit_dp(**{**WEIGHTS, "canaries": 50, **given}, out=tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_run_is_audited_with_its_own_settings(tmp_path):
    run = fedpriv.train(**WEIGHTS, defense="local-dp:sensitivity=0.05", out=tmp_path / "run")
    found = fedpriv.audit_dp(run, canaries=100)
    stated = run.summary.privacy[0]
    assert found.record.claim.epsilon == stated["epsilon_claimed_of_each_upload"]
    assert found.record.claim.implied == pytest.approx(stated["epsilon_implied_of_each_upload"])
    assert found.record.verdict == "contradicted"
    with pytest.raises(fedpriv.UserError, match="says how the federation is made; drop clients"):
        fedpriv.audit_dp(run, clients=4)


def test_the_command_tells_the_claim_and_the_verdict(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["fedpriv", "audit-dp", "--canaries", "100"])
    flags = ["--dataset", "digits", "--clients", 3, "--partition", "iid", "--per-class", 30, "--models", "small-cnn"]
    defense = ["--defense", "local-dp:sensitivity=0.05"]
    code, out, _ = call(capsys, "audit-dp", *flags, "--canaries", 100, *defense, "--out", tmp_path / "out")
    assert code == 0
    shown = " ".join(out.split())
    assert "The claim is contradicted: local-dp claims epsilon 1 (delta 1e-05) of one upload" in shown
    assert "clip and noise imply" in shown
    assert load_privacy_audit(tmp_path / "out").command == "fedpriv audit-dp --canaries 100"  # as it was typed
