"""Small truths and reconstructions that the tests of the evaluation share."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedpriv.attacks.observation import Cost, KnowledgeCard, Reconstruction, TargetId
from fedpriv.evidence.truth import Truth
from fedpriv.federation.run_directory import RunConfig
from fedpriv.scoring.score import score
from fedpriv.scoring.storage import AttackRecord, save_attack

ABOUT = {
    "target": "representation",
    "attack": "dip",
    "method": "fedallrep",
    "dataset": "digits",
    "knowledge": KnowledgeCard(),
    "seed": 0,
    "command": "fedpriv attack --target representation --seed 0",
}


def images(n, *, shape=(1, 8, 8), seed=0):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed))


def truths(sizes, *, shape=(1, 8, 8), seed=0, pool=120, classes=3):
    """One truth a size; target t is of class t mod ``classes``, and all share one pool."""
    everything = images(sum(sizes) + pool, shape=shape, seed=seed)
    outside, labels = everything[:pool], torch.arange(pool) % classes
    found, start = [], pool
    for position, size in enumerate(sizes):
        members = everything[start : start + size]
        found.append(Truth.equal(members, torch.full((size,), position % classes), outside, labels))
        start += size
    return tuple(found)


def reconstruction(pictures, *, per_client=2, features=None):
    """Wrap images ``(T, M, c, h, w)``; ``per_client`` targets a client, class t mod 3."""
    n_targets, n_guesses = pictures.shape[:2]
    return Reconstruction(
        targets=tuple(TargetId(1, t // per_client, t, t % 3) for t in range(n_targets)),
        images=pictures,
        objective=torch.stack([torch.arange(n_targets).float() + 1, torch.arange(n_targets).float()], dim=1),
        chosen=torch.ones(n_targets, dtype=torch.int64),
        labels=torch.full((n_targets, n_guesses), -1),
        cost=Cost(1.5, 100, 2 * n_targets, "cpu"),
        converged=torch.ones(n_targets, dtype=torch.bool),
        features=features,
    )


def firsts(found):
    """The first member of each truth as the single guess at it."""
    return torch.stack([truth.members[:1] for truth in found])


def cifar10_jpeg(per_class=200):
    """CIFAR-10 test JPEGs ``(n, 3, 32, 32)`` in [0, 1] with labels, or skip."""
    folder = os.environ.get("FEDPRIV_TEST_DATA")
    if not folder or not (Path(folder) / "cifar10-jpeg" / "test").is_dir():
        pytest.skip("FEDPRIV_TEST_DATA does not name a folder with cifar10-jpeg/")
    from PIL import Image

    pictures, labels = [], []
    for label, home in enumerate(sorted((Path(folder) / "cifar10-jpeg" / "test").iterdir())):
        for file in sorted(home.glob("*.jpg"))[:per_class]:
            pictures.append(torch.from_numpy(np.array(Image.open(file).convert("RGB"))).permute(2, 0, 1))
            labels.append(label)
    return torch.stack(pictures).float() / 255, torch.tensor(labels)


def stored_attack(home, pictures, secrets, *, permuted=None, **about):
    """Score an attack and store it as an attack directory."""
    found = reconstruction(pictures)
    about = {**ABOUT, **about}
    record = score(found, secrets, permuted, seed=0, about=about)
    save_attack(home, reconstruction=found, truths=secrets, about=about, permuted=permuted, metrics=record)
    return home


def result(method="fedre", gain=1.0, *, accuracy=0.9, scalars=100.0, seed=0, attack="dip", rounds_seen=1, **changed):
    """An attack's record with the fields that a point is made of."""
    target, budget = changed.pop("target", "prototype"), changed.pop("budget", None)
    bits = changed.pop("bits", 32)
    dataset = changed.get("dataset", "digits")
    run = dataclasses.asdict(dataclasses.replace(RunConfig(method=method, seed=seed, clients=10), **changed))
    card = dataclasses.asdict(dataclasses.replace(KnowledgeCard(), rounds_seen=rounds_seen))
    about = ABOUT | {"method": method, "target": target, "attack": attack, "dataset": dataset, "run": run, "seed": seed}
    about |= {
        "options": {} if budget is None else {"iterations": budget},
        "run_accuracy": {"after_training": {"pooled": accuracy}},
        "communication": {
            kind: {"upload_scalars_per_round": 10 * scalars, "upload_bytes_per_round": 10 * scalars * bits / 8}
            for kind in ("paper", "full")
        },
    }
    metrics = {
        "knowledge": card,
        "advantage_db": {"mean": gain, "ci95": [gain - 0.5, gain + 0.5], "share_3db": 0.0, "best_floor": "noise"},
        "metrics": {},
        "attack": attack,
        "budget": None if budget is None else {"field": "iterations", "value": budget},
    }
    return AttackRecord(Path(attack), None, None, None, about, metrics)
