import dataclasses
import math
import typing
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
from annotated_types import Gt
from compare import expect_same
from looped import each

from fedpriv.attacks import ATTACKS
from fedpriv.defenses import DEFENSES
from fedpriv.methods import METHODS
from fedpriv.util.config import parse, plain
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator, global_seed


@dataclass(frozen=True)
class Inner:
    rate: Annotated[float, Gt(0)] = 0.5


@dataclass(frozen=True)
class Outer:
    name: Literal["a", "b"] = "a"
    inner: Inner = field(default_factory=Inner)
    limit: int | None = None
    steps: tuple[float, ...] = (1.0,)


def test_mappings_become_dataclasses_and_back():
    made = parse(Outer, {"name": "b", "inner": {"rate": "0.25"}}, "here")
    assert made == Outer("b", Inner(0.25))
    assert parse(Outer, plain(made), "here") == made
    assert parse(ATTACKS.load("dip"), {"generator": {"skip": 2}}, "here").generator.input_channels == 16


def every_number():
    """Every option of every registered thing that takes a floating-point number."""
    for kind, registry in (("defense", DEFENSES), ("attack", ATTACKS), ("method", METHODS)):
        for name in registry:
            found = registry.load(name)
            target = found.options if kind == "method" else found
            for key, hint in typing.get_type_hints(target).items():
                if key in {spec.name for spec in dataclasses.fields(target)} and "float" in str(hint):
                    yield name, target, key


@each("name, target, key", list(every_number()))
def test_no_option_takes_infinities_or_nan(name, target, key):
    needed = {"epsilon": 8} if name in ("dp-noise", "dp-sgd") and key not in ("epsilon", "noise_multiplier") else {}
    for value in (math.inf, -math.inf, math.nan, "inf", "nan"):
        with pytest.raises(UserError, match=rf"^here: {key}\b"):
            parse(target, needed | {key: value}, "here")


@each(
    "values, complaint",
    [
        ({"nam": "a"}, "study.toml: unknown key 'nam'; did you mean 'name'"),
        ({"inner": {"rat": 1}}, "study.toml: unknown key 'inner.rat'; did you mean 'inner.rate'"),
        ({"inner": {"rate": -1}}, "study.toml: inner.rate: input should be greater than 0, got -1"),
        ({"name": "c"}, "study.toml: name: input should be 'a' or 'b', got 'c'"),
        ({"limit": "many"}, "study.toml: limit"),
        ({"inner": {"rate": math.inf}}, "study.toml: inner.rate: input should be a finite number, got inf"),
        ({"inner": {"rate": "inf"}}, "study.toml: inner.rate: input should be a finite number, got 'inf'"),
        ({"steps": [1, math.inf]}, "study.toml: steps.1: input should be a finite number, got inf"),
    ],
)
def test_what_does_not_fit_is_named(values, complaint):
    with pytest.raises(UserError) as caught:
        parse(Outer, values, "study.toml")
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


def test_seeds_depend_on_every_part_and_on_types():
    import torch

    seeds = {
        derive_seed(*parts) for parts in [(0,), (1,), ("0",), (0, 1), (1, 0), (0, "1"), ("0", 1), ("a", "b"), ("ab",)]
    }
    assert len(seeds) == 9
    expect_same(torch.rand(3, generator=generator(5)), torch.rand(3, generator=generator(5)))
    before = torch.random.get_rng_state()
    with global_seed(3):
        first = torch.rand(2)
    with global_seed(3):
        expect_same(torch.rand(2), first)
    expect_same(torch.random.get_rng_state(), before)
