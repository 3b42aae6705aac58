from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
from annotated_types import Gt

from fedpriv.config import parse, plain
from fedpriv.errors import UserError
from fedpriv.registry import resolve
from fedpriv.seeds import derive_seed, generator, global_seed


@dataclass(frozen=True)
class Inner:
    rate: Annotated[float, Gt(0)] = 0.5


@dataclass(frozen=True)
class Outer:
    name: Literal["a", "b"] = "a"
    inner: Inner = field(default_factory=Inner)
    limit: int | None = None


def test_mappings_become_dataclasses_and_back():
    made = parse(Outer, {"name": "b", "inner": {"rate": "0.25"}}, "here")
    assert made == Outer("b", Inner(0.25))
    assert parse(Outer, plain(made), "here") == made


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"nam": "a"}, "study.toml: unknown key 'nam'; did you mean 'name'"),
        ({"inner": {"rat": 1}}, "study.toml: unknown key 'inner.rat'; did you mean 'inner.rate'"),
        ({"inner": {"rate": -1}}, "study.toml: inner.rate: input should be greater than 0, got -1"),
        ({"name": "c"}, "study.toml: name: input should be 'a' or 'b', got 'c'"),
        ({"limit": "many"}, "study.toml: limit"),
    ],
)
def test_what_does_not_fit_is_named(values, complaint):
    with pytest.raises(UserError) as caught:
        parse(Outer, values, "study.toml")
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


def test_registries_resolve_lazily_and_name_what_they_know():
    assert resolve("thing", "seed", {"seed": "fedpriv.seeds:derive_seed"}) is derive_seed
    with pytest.raises(UserError, match=r"unknown thing .sed.; did you mean .seed.\? known: seed"):
        resolve("thing", "sed", {"seed": "fedpriv.seeds:derive_seed"})


def test_seeds_depend_on_every_part_and_on_types():
    import torch

    seeds = {
        derive_seed(*parts) for parts in [(0,), (1,), ("0",), (0, 1), (1, 0), (0, "1"), ("0", 1), ("a", "b"), ("ab",)]
    }
    assert len(seeds) == 9
    assert torch.equal(torch.rand(3, generator=generator(5)), torch.rand(3, generator=generator(5)))
    before = torch.random.get_rng_state()
    with global_seed(3):
        first = torch.rand(2)
    with global_seed(3):
        assert torch.equal(torch.rand(2), first)
    assert torch.equal(torch.random.get_rng_state(), before)
