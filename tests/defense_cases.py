"""Uploads of every kind that a defense can meet, and the steps that all tests of defenses take."""

from dataclasses import replace

import pytest
import torch

from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.federation.defense import DefensePipeline, ProtectionPlan, Sender, Work
from fedpriv.federation.local_training import classification_loss
from fedpriv.methods.fedral import Options
from fedpriv.models.split import Blueprint
from fedpriv.uploads.kinds import payload_kind
from fedpriv.uploads.payloads import (
    AngleMatrix,
    Classifier,
    ClassLogits,
    Entangled,
    Extractor,
    Kernel,
    LowRankModel,
    Model,
    Prototypes,
    PublicLogits,
    PublicSamples,
    Representations,
    SampleCount,
    SmallModel,
)
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator, global_seed

C, D = 4, 8
LABELS = torch.tensor([0, 0, 0, 0, 0, 0, 2, 2, 3])


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def network(seed):
    return {"weight": draw(3, 5, seed=seed), "bias": draw(3, seed=seed)}


def mixture():
    weights = torch.tensor([0.5, 0.0, 0.3, 0.2])
    return Entangled(draw(D), weights)


CASES = {
    "representation": ((Representations(draw(9, D), LABELS),), ()),
    "prototype": ((Prototypes(draw(3, D), torch.tensor([0, 2, 3]), torch.tensor([6, 2, 1])),), ()),
    "entangled": ((mixture(),), ()),
    "logits": ((ClassLogits(draw(3, C), torch.tensor([0, 2, 3])),), ()),
    "angle-matrix": (
        (AngleMatrix(draw(2, D // 2, D // 2)), SampleCount(torch.tensor([9]))),
        (AngleMatrix(draw(1, D, D)),),
    ),
    "kernel": ((Kernel(draw(5, 5)),), ()),
    "public-logits": ((PublicLogits(draw(5, C), torch.arange(5)),), (PublicSamples(torch.arange(5)),)),
    "low-rank-model": ((LowRankModel(network(1)),), ()),
    **{
        kind.kind: ((kind(network(1)), SampleCount(torch.tensor([9]))), (kind(network(2)),))
        for kind in (Model, Classifier, Extractor, SmallModel)
    },
}
"""kind -> upload and broadcast of a client that holds ``LABELS``."""

OPTIONS = {
    "dp-noise": ("noise_multiplier=2", "epsilon=8"),
    "entangle": ("mechanism=RAP", "mechanism=VAR", "mechanism=RSP,weights=fixed", "mechanism=RAR"),
    "diagonal": ("blocks=2", "blocks=4,schedule=fixed"),
    "noise": ("scale=0.5", "kind=laplace,unit=absolute"),
    "count-floor": ("least=2", "least=7"),
    "upload-interval": ("k=2",),
    "local-dp": ("epsilon=0.5", "clipping_norm=0.1,sensitivity=0.2"),
    "percentile-privacy": ("percentile=30,gamma=0.5", "percentile=90,gamma=2,steps=3"),
    "svt-privacy": ("gamma=0.5,epsilon=8", "fraction=0.5,noise_var=9,replace=false,steps=3"),
}

UPLOAD_DEFENSES = (
    *("clip", "noise", "dp-noise", "prune", "quantise", "sign", "entangle", "diagonal", "count-floor", "hide-labels"),
    *("upload-interval", "secure-aggregation", "local-dp", "percentile-privacy", "svt-privacy"),
)


def build(*texts):
    return build_defenses([parse_choice(text) for text in texts])


def plan_for(kind, **changes):
    upload, broadcast = CASES[kind]
    plan = ProtectionPlan(
        method="a-method",
        uploads=tuple(p.kind for p in upload),
        accepted_substitutes=("entangled",),
        blueprints=(Blueprint("small-mlp", (1, 8, 8), C, D),),
        n_clients=4,
        rounds=6,
        train_sizes=(9,) * 4,
        batch_size=3,
        broadcasts=tuple(p.kind for p in broadcast),
        linear_aggregation=payload_kind(kind).aggregation == "mean",
    )
    if kind == "angle-matrix":
        changes = {"options": Options(blocks=(2,)), **changes}
    return replace(plan, **changes)


def send(defenses, kind, seed=0, round_=2, client=1, message=None, **changes):
    upload, broadcast = CASES[kind]
    facts = {"round": round_, "client": client, "labels": LABELS, "n_classes": C, "broadcast": broadcast} | changes
    return DefensePipeline(defenses).upload(message or upload, Sender(rounds=6, **facts), seed)


def fits(defenses, kind):
    try:
        DefensePipeline(defenses).check(plan_for(kind))
    except UserError as refusal:
        words = str(refusal)
        if "\n" in words or not any(defense.name in words for defense in defenses):
            pytest.fail(f"an unclear refusal: {words}")
        return False
    return True


def same(one, two):
    if len(one) != len(two):
        return False
    return all(
        a.kind == b.kind
        and a.tensors().keys() == b.tensors().keys()
        and all(torch.equal(v, b.tensors()[n]) for n, v in a.tensors().items())
        for a, b in zip(one, two, strict=True)
    )


TABLE = [
    (f"{name}:{options}" if options else name, kind)
    for name in UPLOAD_DEFENSES
    for options in OPTIONS.get(name, ("",))
    for kind in CASES
]

SHAPE, CLASSES, WIDTH = (1, 8, 8), 4, 24
OWN = Blueprint("small-cnn", SHAPE, CLASSES, WIDTH)


def batch(number, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(number, *SHAPE, generator=rng), torch.randint(CLASSES, (number,), generator=rng)


def worked(model, step, images, labels, loss=None):
    """Return the gradients that a step leaves, by name, and the loss it reports."""
    model.train().zero_grad()
    with global_seed(0):
        value = step(
            Work(model, loss or classification_loss(model), tuple(model.parameters()), None, generator(0)),
            images,
            labels,
        )
    return {name: p.grad.clone() for name, p in model.named_parameters()}, value
