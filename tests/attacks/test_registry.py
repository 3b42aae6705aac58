"""The table of attacks: what it promises is what the classes do."""

import dataclasses
import subprocess
import sys
import typing

import pytest
from annotated_types import Ge, Gt

from fedpriv.attacks import ATTACKS, TARGETS, attacks_for, default_suite, target_names, targets_of, told_in_clear
from fedpriv.methods import METHODS, default_method
from fedpriv.uploads import PAYLOADS
from fedpriv.util.config import parse
from fedpriv.util.errors import UserError


@pytest.mark.parametrize("name", ATTACKS)
def test_a_budget_is_a_positive_number_of_the_attacks_own(name):
    kind = ATTACKS.load(name)
    if kind.budget is None:
        return
    assert kind.budget in {spec.name for spec in dataclasses.fields(kind)}
    assert getattr(parse(kind, {kind.budget: 7}, name), kind.budget) == 7
    for wrong in (0, -1, 1.5):
        with pytest.raises(UserError, match=kind.budget):
            parse(kind, {kind.budget: wrong}, name)


def loose(hint, name):
    """Names of numbers within a type that any value would fit."""
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        return [bad for spec in dataclasses.fields(hint) for bad in loose(hints[spec.name], f"{name}.{spec.name}")]
    if hint in (int, float):
        return [name]
    if typing.get_origin(hint) is typing.Annotated:
        inner, *bounds = typing.get_args(hint)
        bounded = inner in (int, float) and any(isinstance(bound, (Ge, Gt)) for bound in bounds)
        return [] if bounded else loose(inner, name)
    if typing.get_origin(hint) is typing.Literal:
        return []
    return [bad for inner in typing.get_args(hint) for bad in loose(inner, name)]


@pytest.mark.parametrize("name", ATTACKS)
def test_every_number_has_a_least_value(name):
    assert not loose(ATTACKS.load(name), name)


VECTORS = ("representation", "prototype", "entangled")
NETWORKS = ("extractor", "model", "small-model", "low-rank-model")
FITS = {
    **dict.fromkeys(("dip", "pixels"), VECTORS),
    **dict.fromkeys(("decoder", "all-rounds"), ("representation", "prototype")),
    "unmix": ("entangled",),
    **dict.fromkeys(("linear-layer", "dlg", "inverting-gradients"), NETWORKS),
    "pooled": ("model", "small-model"),
    "head-update": ("classifier",),
    "angle-update": ("angle-matrix",),
    "class-inversion": ("logits",),
    "paired-logits": ("public-logits",),
    "membership": (*VECTORS, "logits", "kernel", "public-logits", *NETWORKS, "classifier", "angle-matrix"),
    "property": (*VECTORS, "logits", "kernel", "public-logits", *NETWORKS, "classifier", "angle-matrix"),
    "labels": (*VECTORS, "logits", "kernel", "public-logits", *NETWORKS, "classifier", "angle-matrix"),
}
"""What each attack is on; the package derives it from traits, so that it is written out here alone."""


def test_traits_give_the_kinds_that_attacks_are_written_for():
    assert {name: set(targets_of(name)) & set(PAYLOADS) for name in ATTACKS} == {
        name: set(k) for name, k in FITS.items()
    }


def test_every_kind_is_a_target_once_and_needs_an_attack_or_says_why_not():
    names = target_names()
    assert names == TARGETS
    assert len(set(names)) == len(names)
    assert set(names) <= set(PAYLOADS)
    for kind in names:
        assert bool(attacks_for(kind)) != bool(told_in_clear(kind)), kind
        assert kind in METHODS.load(default_method(kind)).uploads
    sent = {name for method in METHODS for name in METHODS.load(method).uploads}
    # One number, and one vector sent once before training: no target of their own.
    assert sent - {"sample-count", "feature-mean"} == set(names)


def test_the_default_suite_leaves_out_what_runs_only_by_name():
    assert default_suite("representation") == ("dip", "decoder", "pixels", "membership", "property", "labels")
    assert "all-rounds" in attacks_for("representation")


def test_names_are_listed_without_torch():
    tables = "ATTACKS, METHODS, DEFENSES, DATASETS, MODELS"
    code = (
        "import sys; from fedpriv.attacks import ATTACKS; from fedpriv.methods import METHODS; "
        "from fedpriv.defenses import DEFENSES; from fedpriv.datasets import DATASETS; from fedpriv.models import MODELS; "
        f"assert all(len(list(table)) > 6 for table in ({tables})); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
