"""Uploads made elsewhere behind a defense that is told, and over several rounds with an extractor of each."""

import json

import pytest
import torch
from torch import nn
from upload_cases import CLASSES, IMAGES, NETWORK, attack, extractor, smooth

import fedpriv


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
    result = defended(defense="noise:scale=1")
    record, about = result.records["decoder"], json.loads((result.path / "decoder" / "about.json").read_text())
    assert record.metrics.psnr_db.mean > plain.metrics.psnr_db.mean + 2
    assert [one["label"] for one in about["defenses"]] == ["noise scale=1.0"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"defense": "noize"}, "unknown defense 'noize'; did you mean 'noise'"),
        ({"defense": "dp-sgd:noise_multiplier=1"}, "changes nothing of representation uploads"),
        ({"defense": "entangle"}, "would not have sent what client 0 sent in round 1"),
        ({"defense": 5}, "expected a text or a list of texts"),
        ({"attacks": "all-rounds"}, "attack 'all-rounds' uses 2; expected a list of rounds"),
        ({"earlier_extractors": [NETWORK]}, r"^earlier_extractors: 1 for 1 round"),
    ],
)
def test_what_is_no_defense_and_no_earlier_extractor_is_refused(given, told):
    with pytest.raises(fedpriv.UserError, match=told):
        defended(**given)


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
