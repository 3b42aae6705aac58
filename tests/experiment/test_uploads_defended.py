"""Uploads made elsewhere behind a defense that is told, and over several rounds with an extractor of each."""

import json
from dataclasses import replace

import pytest
import torch
from compare import expect_close
from fedpriv.experiment.uploads.protection import read_defense
from torch import nn
from upload_cases import (
    CLASSES,
    IMAGES,
    NETWORK,
    attack,
    extractor,
    smooth,
)

import fedpriv
from fedpriv.algebra.low_rank import compress, recover
from fedpriv.attacks.observation import Observation


def rough(rows, rng):
    return rows + rows.square().mean().sqrt() * torch.randn(rows.shape, generator=rng)


def defended(**changes):
    """Noisy representations of two clients, attacked by a decoder."""
    images = [smooth(12, 11), smooth(12, 12)]
    labels = [torch.arange(12) % 3] * 2
    draw = torch.Generator().manual_seed(9)
    sent = [
        fedpriv.Representations(rough(NETWORK(own).detach(), draw), known)
        for own, known in zip(images, labels, strict=True)
    ]
    usual = {
        **{"target": "representation", "images": images, "labels": labels, "attacks": "decoder", "iterations": 100},
        **{"public": smooth(200, 13), "public_labels": torch.arange(200) % 3, "control": False},
    }
    return attack(sent, **{**usual, **changes})


def test_attackers_learn_behind_a_defense_that_is_told():
    plain = defended().records["decoder"]
    for told, label in (("noise:scale=1", "noise scale=1.0"), (rough, "own-defense")):
        result = defended(defense=told)
        record, about = result.records["decoder"], json.loads((result.path / "decoder" / "about.json").read_text())
        assert record.metrics.psnr_db.mean > plain.metrics.psnr_db.mean + 2
        assert [one["label"] for one in about["defenses"]] == [label]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"defense": "noize"}, "unknown defense 'noize'; did you mean 'noise'"),
        ({"defense": "dp-sgd:noise_multiplier=1"}, "changes nothing of representation uploads"),
        ({"defense": "entangle"}, "would not have sent what client 0 sent in round 1"),
        ({"defense": 5}, "expected a text or a list of texts"),
        ({"defense": lambda rows, rng: rows[:1]}, r"^defense: the function returns \(1, 64\) for rows \(12, 64\)"),
        ({"defense": lambda rows, rng: None}, "the function returns NoneType"),
        ({"defense": lambda rows, rng: rows / 0}, "returns NaN or infinity"),
        ({"defense": lambda rows: rows}, r"^defense: the function fails on rows \(12, 64\)"),
        ({"attacks": "all-rounds"}, "attack 'all-rounds' uses 2; expected a list of rounds"),
        ({"earlier_extractors": [NETWORK]}, r"^earlier_extractors: 1 for 1 round"),
    ],
)
def test_what_is_no_defense_and_no_earlier_extractor_is_refused(given, told):
    with pytest.raises(fedpriv.UserError, match=told):
        defended(**given)


def test_defenses_that_are_not_about_rows_or_weights_are_refused():
    kernels = [fedpriv.Kernel(torch.eye(6))] * 2
    with pytest.raises(
        fedpriv.UserError, match=r"know defenses of representation, prototype, entangled, .* uploads alone"
    ):
        attack(kernels, target="kernel", extractor=None, attacks="membership", defense="noise:scale=1")


def test_a_defense_of_weights_is_told_by_name_and_known_of_other_weights():
    head = {"weight": torch.ones(3, 4), "bias": torch.zeros(3)}
    start = {name: torch.zeros_like(value) for name, value in head.items()}
    seen = Observation(2, 1, (fedpriv.Classifier(head),), (fedpriv.Classifier(start),))
    short = {name: value / 12**0.5 for name, value in head.items()}
    sent = replace(seen, upload=(fedpriv.Classifier(short),))
    told = read_defense("clip:bound=1", "classifier", [sent], 3)
    assert not told.rows
    found = told.weights[2, 1]({name: 5 * value for name, value in head.items()}, 0)
    expect_close(found["weight"], short["weight"])
    with pytest.raises(fedpriv.UserError, match="a function is for uploads of rows; name what was done to weights"):
        read_defense(lambda rows, rng: rows, "classifier", [sent], 3)
    with pytest.raises(fedpriv.UserError, match="changes nothing of classifier uploads"):
        read_defense("dp-sgd:noise_multiplier=1", "classifier", [sent], 3)


def test_matrices_are_truncated_before_whatever_is_told():
    weights = {"weight": torch.diag(torch.arange(20.0)) + 0.1, "bias": torch.zeros(3)}
    factors = compress(weights, 0.6)
    seen = Observation(1, 0, (fedpriv.LowRankModel(factors),), (fedpriv.LowRankModel(factors),))
    truncated = read_defense(None, "low-rank-model", [seen], 3).weights[1, 0](weights, 0)
    expect_close(truncated["weight"], recover(factors)["weight"])
    assert float((truncated["weight"] - weights["weight"]).norm()) > 1
    noisy = read_defense("noise:scale=0.1", "low-rank-model", [seen], 3).weights[1, 0](weights, 0)
    assert float((noisy["weight"] - truncated["weight"]).norm()) > 0.1
    with pytest.raises(fedpriv.UserError, match="changes nothing of low-rank-model uploads"):
        read_defense("dp-sgd:noise_multiplier=1", "low-rank-model", [seen], 3)


def short(rows, rng):
    return 0.01 * rows / rows.norm(dim=1, keepdim=True)


def mixtures(**changes):
    """Clipped mixtures of two clients' images, whose members are asked for."""
    images, labels = [smooth(9, 21), smooth(9, 22)], [torch.arange(9) % 3] * 2
    weights = torch.tensor([0.2, 0.5, 0.3])
    sent = []
    for own in images:
        means = torch.stack([NETWORK(own).detach()[labels[0] == label].mean(0) for label in range(3)])
        sent.append(fedpriv.Entangled(short((weights @ means)[None], None)[0], weights))
    usual = {
        **{"target": "entangled", "images": images, "labels": labels, "attacks": "membership"},
        **{"public": smooth(200, 23), "public_labels": torch.arange(200) % 3, "iterations": None},
        **{"stranger_labels": torch.arange(60) % 3},
        **{"weights": [torch.ones(9) / 9] * 2},
    }
    return attack(sent, **{**usual, **changes})


def test_members_of_mixtures_are_told_behind_a_defense_that_is_told():
    areas = {
        str(told): mixtures(defense=told).scores["membership"].auc.value for told in (None, "clip:bound=0.01", short)
    }
    plain, *told = areas.values()
    assert min(told) > max(plain, 0.6)
    expect_close(torch.tensor(told[0]), torch.tensor(told[1]), atol=1e-6)


def test_all_rounds_take_the_extractor_of_each():
    networks = [extractor(seed) for seed in (3, 4)] + [NETWORK]
    rounds = [[fedpriv.Prototypes(one(images).detach(), CLASSES) for images in IMAGES] for one in networks]
    found = attack(rounds, attacks="all-rounds", earlier_extractors=networks[:2], iterations=150)
    alone = attack(attacks="dip", iterations=150)
    record = found.records["all-rounds"]
    assert record.metrics.psnr_db.mean > alone.records["dip"].metrics.psnr_db.mean
    assert record.knowledge.rounds_seen == 3
    with pytest.raises(
        fedpriv.UserError, match="earlier_extractors: missing; attack 'all-rounds' takes the extractor behind"
    ):
        attack(rounds, attacks="all-rounds")
    narrow = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
    with pytest.raises(fedpriv.UserError, match=r"^earlier_extractors: returns vectors of width 8"):
        attack(rounds, attacks="all-rounds", earlier_extractors=[NETWORK, narrow])
