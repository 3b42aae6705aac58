"""Gradients of a batch behind defenses of local training, as shadow clients compute them."""

from pathlib import Path

import pytest
import torch
from compare import expect_close
from defense_cases import build
from federations import DIGITS
from torch import nn
from torch.nn.functional import cross_entropy

from fedpriv.cli.main import run
from fedpriv.federation.defense import guarded
from fedpriv.scoring.storage import load_scores
from fedpriv.sources.rehearsal import RehearsedWeights
from fedpriv.sources.run import GuardedGradient


def gradient_of(guards, expected=None):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    images, labels = torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 1])
    GuardedGradient(guards, expected)(network, images, labels, torch.Generator().manual_seed(2))
    found = network[1].weight.grad.clone()
    network.zero_grad()
    cross_entropy(network(images), labels).backward()
    return found, network[1].weight.grad


def test_without_guards_it_is_the_gradient_of_the_loss():
    found, plain = gradient_of(())
    expect_close(found, plain)
    assert guarded(()).__name__ == "plain_step"


def test_a_bound_on_single_gradients_holds_and_an_expected_number_divides():
    (defense,) = build("dp-sgd:noise_multiplier=0,clip=0.01")
    guard = defense.guard(None)
    bounded, plain = gradient_of((guard,))
    assert float(bounded.norm()) <= 0.01
    assert float(plain.norm()) > 0.05
    half, _ = gradient_of((guard,), expected=8.0)
    expect_close(half, bounded / 2)
    loose, plain = gradient_of((build("dp-sgd:noise_multiplier=0,clip=1000")[0].guard(None),))
    expect_close(loose, plain, atol=1e-6)


def test_what_requires_no_gradient_counts_in_no_bound():
    (defense,) = build("dp-sgd:noise_multiplier=0,clip=0.01")
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Linear(5, 3))
    network[2].requires_grad_(False)
    images, labels = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([2])
    GuardedGradient((defense.guard(None),), None)(network, images, labels, torch.Generator())
    assert network[2].weight.grad is None
    bounded = torch.cat([network[1].weight.grad.flatten(), network[1].bias.grad])
    expect_close(bounded.norm(), torch.tensor(0.01))


@pytest.mark.parametrize(
    ("method", "kind", "second"),
    [
        ("fedavg", "model", "clip:bound=1"),
        ("fedrep", "extractor", "clip:bound=1"),
        ("fedkd", "low-rank-model", "quantise"),
    ],
)
def test_shadow_clients_of_a_run_train_and_upload_behind_its_defenses(tmp_path, monkeypatch, method, kind, second):
    monkeypatch.chdir(tmp_path)
    wanted = ["--auxiliary", "0.5", "--per-class", "40", "--clients", "3", "--rounds", "1", "--local-steps", "2"]
    kept = ["--capture", "all", "--keep", "all", "--models", "small-cnn"]
    train = ["train", "--method", method, *DIGITS, *wanted, *kept, "--out", "run", "--quiet"]
    assert run([*train, "--defense", "mixup:images=2", "--defense", second]) == 0
    steps, sent = [], []
    compute, defend = GuardedGradient.__call__, RehearsedWeights.__call__
    monkeypatch.setattr(
        GuardedGradient, "__call__", lambda self, *given: (steps.append(len(given[1])), compute(self, *given))
    )
    monkeypatch.setattr(
        RehearsedWeights, "__call__", lambda self, *given: (sent.append(given), defend(self, *given))[1]
    )
    options = ["--attack-option", "candidates=4", "--attack-option", "shadows=8"]
    asked = ["attack", "--run", "run", "--target", kind, "--attack", "likelihood-ratio", *options]
    assert run([*asked, "--out", "out", "--quiet"]) == 0
    assert len(steps) >= 3 * 8 * 2  # steps of each shadow of each client
    assert len(sent) >= 3 * 8
    assert 0 <= load_scores(Path("out/likelihood-ratio")).auc.value <= 1
