"""Small truths and reconstructions that the tests of the evaluation share."""

import dataclasses
import functools
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedpriv.attacks.observation import Cost, Reconstruction, TargetId, ThreatModel
from fedpriv.defenses import build_defenses
from fedpriv.eval.answers import page_answers
from fedpriv.eval.intervals import compare
from fedpriv.eval.records import (
    About,
    Advantage,
    Comparison,
    ControlResult,
    Estimate,
    FiniteSummary,
    MembershipRecord,
    Planted,
    PropertyRecord,
    Rate,
    Rates,
    Seconds,
)
from fedpriv.eval.score import score
from fedpriv.eval.storage import StoredAttack, save_attack
from fedpriv.federation.defense import defense_facts
from fedpriv.federation.run_directory import DefenseChoice, RunConfig
from fedpriv.federation.summary import Communication, ReachedAccuracy, RunSummary, Traffic
from fedpriv.sources.truth import Pool, Truth

ABOUT = About(
    target="representation",
    attack="dip",
    method="fedallrep",
    dataset="digits",
    knowledge=ThreatModel(),
    seed=0,
    command="fedpriv attack --target representation --seed 0",
)


def but(record, **changes):
    """The same record with other values, checked as if it were made new."""
    return type(record)(**(dict(record) | changes))


def summary(mean, ci95=None, kind=FiniteSummary, **others):
    """A summary of one value."""
    known = {"mean": mean, "median": mean, "sd": None, "ci95": ci95, "per_target": (mean,), "n": 1}
    return kind(**(known | others))


def defended(name="noise", **options):
    """What a record says of a defense."""
    return defense_facts(build_defenses([DefenseChoice(name, options)])[0])


def images(n, *, shape=(1, 8, 8), seed=0):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed))


def truths(sizes, *, shape=(1, 8, 8), seed=0, pool=120, classes=3):
    """One truth a size; target t is of class t mod ``classes``, and all share one pool."""
    everything = images(sum(sizes) + pool, shape=shape, seed=seed)
    outside = Pool.divided(everything[:pool], torch.arange(pool) % classes, seed)
    found, start = [], pool
    for position, size in enumerate(sizes):
        members = everything[start : start + size]
        found.append(Truth.equal(members, torch.full((size,), position % classes), outside))
        start += size
    return tuple(found)


def reconstruction(pictures, *, per_client=2, features=None):
    """Wrap images ``(T, M, c, h, w)``; ``per_client`` targets a client, class t mod 3."""
    n_targets, n_guesses = pictures.shape[:2]
    return Reconstruction(
        targets=tuple(TargetId(1, t // per_client, t, t % 3) for t in range(n_targets)),
        images=pictures,
        objective=torch.stack([torch.arange(n_targets).float() + 1, torch.arange(n_targets).float()], dim=1),
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


def judge(found, secrets, shuffled=None, seed=0, **about):
    """Score a reconstruction; ``about`` changes what is said of it."""
    return score(found, secrets, shuffled, seed=seed, about=but(ABOUT, **about))


def stored_attack(home, pictures, secrets, *, shuffled=None, **about):
    """Score an attack and store it as an attack directory."""
    found = reconstruction(pictures, per_client=1)
    about = but(ABOUT, **about)
    record = score(found, secrets, shuffled, seed=0, about=about)
    save_attack(home, reconstruction=found, truths=secrets, about=about, shuffled=shuffled, metrics=record)
    return home


@functools.cache
def scored_once():
    """Some scored attack that tells no image from others."""
    secrets = truths([1, 1])
    record = score(reconstruction(firsts(secrets)), secrets, None, seed=0, about=ABOUT)
    nothing = but(record.metrics.identification_top1, mean=0.0, ci95=(0.0, 0.0))
    return but(record, metrics=but(record.metrics, identification_top1=nothing))


def communication(scalars, bits=32):
    """Traffic of ten clients of which each uploads so many numbers in each of twenty rounds."""
    total = int(10 * 20 * scalars)
    traffic = Traffic(upload_scalars=total, upload_bytes=total * bits // 8, broadcast_scalars=total, broadcast_bytes=0)
    return Communication(paper=traffic, full=traffic)


def finished(config=None, **changes):
    """The summary of a run that sent nothing; its time is 12.5 s."""
    config = config or RunConfig()
    known = {
        **{"method": config.method, "dataset": config.dataset, "rounds": config.rounds, "seed": config.seed},
        **{"accuracy": {}, "communication": communication(0), "privacy": (), "defenses": (), "seconds": 12.5},
    }
    return RunSummary(**(known | changes))


def federated(method, seed=0, accuracy=0.9, scalars=100.0, *, bits=32, **changed):
    """What ``about.json`` says of a run of ten clients."""
    run = dataclasses.replace(
        RunConfig(dataset="digits", auxiliary=0.0, method=method, seed=seed, clients=10), **changed
    )
    reached = ReachedAccuracy(
        best=accuracy,
        best_round=1,
        pooled=accuracy,
        mean_over_clients=accuracy,
        best_mean_over_clients=accuracy,
        best_mean_round=1,
    )
    return {
        "run": run,
        "defenses": tuple(defended(choice.name, **choice.options) for choice in run.defenses),
        "run_accuracy": {"after_training": reached, "after_broadcast": reached},
        "communication": communication(scalars, bits),
    }


def result(method="fedre", gain=1.0, *, accuracy=0.9, scalars=100.0, seed=0, attack="dip", rounds_seen=1, **changed):
    """An attack's record with the fields that a point is made of."""
    target = changed.pop("target", "prototype")
    federation = federated(method, seed, accuracy, scalars, **changed)
    shared = {
        "target": target,
        "attack": attack,
        "method": method,
        "dataset": federation["run"].dataset,
        "knowledge": ThreatModel(rounds_seen=rounds_seen),
        "seed": seed,
    }
    about = but(ABOUT, **shared, **federation)
    above = summary(gain, (gain - 0.5, gain + 0.5), Advantage, share_3db=0.0, best_floor="noise")
    clear = compared(mean=gain, p_value=1e-6 if gain - 0.5 > 0.5 else 0.9)
    record = attacked(clear, **shared, advantage_db=above)
    return StoredAttack(Path(attack), about, record)


def compared(measure="images", mean=None, p_value=0.5, **changes):
    """A comparison with the strongest guess over ten clients: beyond it where its p-value says so, else surely behind."""
    mean = (1.0 if p_value is not None and p_value < 0.1 else -1.0) if mean is None else mean
    known = {"stratum": "all", "against": "noise", "n": 2, "n_clients": 10, "least": 0.5, "degrees": 9.0}
    interval = (mean - 0.5, mean + 0.5)
    return Comparison(**(known | {"measure": measure, "mean": mean, "ci95": interval, "p_value": p_value} | changes))


def attacked(*comparisons, **changes):
    """The record of an able attack: ten clients, a shuffled control, and a positive control that it passes."""
    whole = {"n_clients": 10, "comparisons": comparisons, "control": CONTROLLED, "planted": FOUND}
    return but(scored_once(), **(whole | changes))


FOUND = Planted(mean=3.0, ci95=(2.0, 4.0), n=5, n_clients=5, least=0.5)
CONTROLLED = ControlResult(
    difference_db=Estimate(mean=0.0, ci95=None, n=2),
    passes=True,
    verdict="As it should be.",
)


def rates(auc, ci95=None):
    """An area under the curve, and the same for every rate."""
    rate = Rate(value=auc, ci95=ci95)
    return Rates(auc=rate, tpr_at_1_percent=rate)


def asked(kind="membership", auc=0.7, ci95=(0.6, 0.8), *, control=None, **changes):
    """A record of inference: of membership, or of a property."""
    own = {
        "membership": {"n_candidates": 20, "n_nonmembers": 10, "classes": None, "nonmembers": "held_out"},
        "property": {
            **{"question": "majority", "learned_from": "others", "n_pairs": 12, "n_yes": 3},
        },
    }[kind]
    shared = {
        **{"target": "prototype", "attack": kind, "method": "fedproto", "dataset": "digits", "seed": 0},
        **{"knowledge": ThreatModel(), "run": RunConfig(), "command": "fedpriv audit s.toml"},
        **{"round": 1, "n_clients": 6, "cost": Seconds(seconds=1.0)},
        "shuffled": None if control is None else rates(control),
    }
    made = {"membership": MembershipRecord, "property": PropertyRecord}[kind]
    return made(**(shared | own | dict(rates(auc, ci95)) | changes))


def answers(*records):
    """What a page of these results says of the endpoints that were asked."""
    return [one for one in page_answers(dict(enumerate(records))) if one.verdict != "not asked"]


def difference(values, clients, measure="images", least=0.5):
    """A comparison of an attack with the mean image, of differences by client."""
    return compare(values, clients, measure=measure, against="mean_image", least=least)
