"""Answers that are attacks as they stand: they cope with the defense at its default strength, and find nothing in noise."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedpriv.attacks.features.posterior import UnmixedInversion
from fedpriv.attacks.inference.update_scores import update_signals
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.federation.defense import DefensePipeline, Sender
from fedpriv.uploads.payloads import AngleMatrix, Classifier, Entangled

WIDTH, N_CLASSES, MEMBERS = 64, 6, 8


def build(text):
    return DefensePipeline(build_defenses([parse_choice(text)]))


def defended(text, message, broadcast, *, round_=1, client=0):
    sender = Sender(round_, client, N_CLASSES, torch.arange(N_CLASSES), broadcast, rounds=20)
    return build(text).upload(message, sender, seed=0)


# ---------------------------------------------------------------- membership by the direction of a layer's update


def candidates(seed):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(2 * MEMBERS, 1, 1, WIDTH, generator=rng), torch.randint(N_CLASSES, (2 * MEMBERS,), generator=rng)


def step(kind, images, labels, seed=0):
    """One step of a client on its members, on a head or on an angle matrix under a private head."""
    rng = torch.Generator().manual_seed(100 + seed)
    head = (0.3 * torch.randn(N_CLASSES, WIDTH, generator=rng), torch.zeros(N_CLASSES))
    rows = images.flatten(1)
    if kind == "classifier":
        before = Classifier({"weight": head[0], "bias": head[1]})
        weight, bias = (value.clone().requires_grad_() for value in head)
        gradients = torch.autograd.grad(cross_entropy(rows @ weight.T + bias, labels), (weight, bias))
        moved = [value - 0.5 * gradient for value, gradient in zip(head, gradients, strict=True)]
        return Classifier(dict(zip(("weight", "bias"), moved, strict=True))), before, head
    before = AngleMatrix(torch.zeros(1, WIDTH, WIDTH))
    turn = torch.zeros(WIDTH, WIDTH, requires_grad=True)
    loss = cross_entropy((rows + rows @ turn) @ head[0].T + head[1], labels)
    (gradient,) = torch.autograd.grad(loss, turn)
    return AngleMatrix(-0.5 * gradient[None]), before, head


def area(text, kind, seed, *, own=True):
    images, labels = candidates(seed)
    upload, before, head = step(
        kind, *((images[:MEMBERS], labels[:MEMBERS]) if own else candidates(seed + 50)), seed=seed
    )
    message = defended(text, (upload,), (before,))
    knowledge = Knowledge(
        ThreatModel(), (1, 1, WIDTH), N_CLASSES, extractors={0: lambda x: x.flatten(1)}, heads={0: head}
    )
    scores = update_signals([Observation(1, 0, message, (before,))], images, labels, knowledge)[0]
    return float((scores[:MEMBERS, None] > scores[None, MEMBERS:]).double().mean())


LAYERED = [
    "clip",
    "noise",
    "percentile-privacy",
    "prune",
    "sign",
    "quantise",
    "local-dp:epsilon=1000",
    "dp-noise:epsilon=5000",
]


@pytest.mark.parametrize("kind", ["classifier", "angle-matrix"])
@pytest.mark.parametrize("text", LAYERED)
def test_members_are_told_by_the_direction_of_a_defended_update(text, kind):
    areas = [area(text, kind, seed) for seed in range(4)]
    others = [area(text, kind, seed, own=False) for seed in range(4)]
    assert sum(areas) / 4 > 0.85
    assert 0.3 < sum(others) / 4 < 0.7


# ---------------------------------------------------------------- mixtures of which each round shows some coordinates


def mixtures(schedule, rounds=24):
    rng = torch.Generator().manual_seed(0)
    prototypes = torch.rand(3, 16, generator=rng) + 1
    seen = []
    for number in range(1, rounds + 1):
        weights = torch.rand(3, generator=rng)
        weights = weights / weights.sum()
        whole = Entangled(weights @ prototypes, torch.cat([weights, torch.zeros(N_CLASSES - 3)]))
        message = defended(f"diagonal:blocks=4,schedule={schedule}", (whole,), (), round_=number)
        seen.append(Observation(number, 0, message, ()))
    return tuple(seen), prototypes


def error(attack, seen, prototypes):
    found = attack.unmixed(seen, 0, Knowledge(ThreatModel(), (1, 4, 4), N_CLASSES))[0].prototypes
    return float((found - prototypes).norm() / prototypes.norm())


def test_blocks_of_mixtures_are_put_together_over_rounds():
    seen, prototypes = mixtures("rotating")
    assert error(UnmixedInversion(zeros="missing"), seen, prototypes) < 0.05
    assert error(UnmixedInversion(), seen, prototypes) > 0.5
