"""Traits of kinds of payload: what has to be declared, and what follows from it."""

from dataclasses import dataclass, fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.defenses.signals import facts_in_clear, is_signal, signal
from fedpriv.uploads import PAYLOADS, payloads
from fedpriv.uploads import kinds as sets
from fedpriv.uploads.kinds import Kinds
from fedpriv.uploads.ledger import entries
from fedpriv.uploads.messages import load_message, message_bytes
from fedpriv.uploads.payload import DECLARED, TRAITS, Payload, find_payload, get_payload, tensor
from fedpriv.uploads.payloads import Prototypes, Representations, SampleCount
from fedpriv.util.errors import UserError

COMPLETE = {"kind": "wish", "computed_from": "class", "space": "representation", "aggregation": "none", "once": False}


KINDS = {name: PAYLOADS.load(name) for name in PAYLOADS.builtins}


@pytest.fixture(autouse=True)
def _no_kinds_left():
    before = dict(DECLARED)
    yield
    DECLARED.clear()
    DECLARED.update(before)


def declare(body=None, **traits):
    """Define a kind of payload of class means, or with other fields."""
    body = body or {
        "__annotations__": {"features": "Tensor", "classes": "Tensor"},
        "features": tensor("c d", private=True),
        "classes": tensor("c", private=True, integer=True, says="classes"),
    }
    return dataclass(frozen=True)(type(Payload)("Wish", (Payload,), {"__module__": __name__, **body}, **traits))


# ---------------------------------------------------------------- what has to be declared


def test_missing_wrong_or_contradictory_traits_are_refused():
    for change, complaint in (
        *(({name: None}, f"trait {name}=None; expected one of") for name in TRAITS),
        ({"space": "rows"}, "trait space='rows'; expected one of 'representation'"),
        ({"linear": True}, "unknown trait 'linear'; known: kind, network, computed_from"),
        ({"kind": "prototype"}, "kind 'prototype' is taken by fedpriv.uploads.payloads:Prototypes"),
        ({"kind": None}, "declares no kind"),
        ({"network": "head"}, "trait network='head'; expected one of None"),
        ({"space": "weights", "computed_from": "training"}, "trait network=None"),
        ({"computed_from": "mixture"}, "computed_from='mixture' takes a field that says='weights'"),
    ):
        with pytest.raises(UserError, match=complaint):
            declare(**(COMPLETE | change))
    assert "wish" not in DECLARED


def test_every_field_is_declared_and_one_is_the_values():
    for made, complaint in (
        (None, "field 'extra': declare it with tensor"),
        (tensor("c d", private=True), "takes 1 private field.s. of values, got features, extra"),
    ):
        body = {
            "__annotations__": {"features": "Tensor", "classes": "Tensor", "extra": "Tensor"},
            "features": tensor("c d", private=True),
            "classes": tensor("c", private=True, integer=True, says="classes"),
        }
        with pytest.raises(UserError, match=complaint):
            declare(body | ({} if made is None else {"extra": made}), **COMPLETE)


def test_a_heir_has_the_traits_and_fields_but_not_the_name_of_its_kind():
    @dataclass(frozen=True)
    class Half(Prototypes, kind="half"):
        """The first half of each prototype."""

    assert (Half.computed_from, Half.space, Half.values_field()) == ("class", "representation", "features")
    assert "half" in sets.CLASS_MEANS
    with pytest.raises(UserError, match="declares no kind"):

        class Nameless(Prototypes):
            pass


# ---------------------------------------------------------------- what follows


def test_the_table_of_names_is_that_of_the_classes():
    assert {kind: made for kind, made in DECLARED.items() if made.__module__ == payloads.__name__} == KINDS


SETS = {name: found for name, found in vars(sets).items() if isinstance(found, Kinds)}


def test_no_set_of_kinds_is_empty_and_none_takes_an_unknown_kind_for_something():
    for name, kinds in SETS.items():
        assert set(kinds) & set(KINDS), name
        with pytest.raises(UserError, match="unknown kind of payload 'wishes'"):
            assert "wishes" in kinds


WRITTEN = {
    "ROWS": "representation prototype entangled logits public-logits feature-mean",
    "UPDATES": "model small-model classifier extractor angle-matrix",
    "PLAIN": "kernel low-rank-model",
    "NETWORKS": "model small-model extractor low-rank-model",
    "WHOLE": "model small-model low-rank-model",
    "LAYERS": "classifier angle-matrix",
    "HEADED": "model small-model low-rank-model classifier",
    "BESIDE_A_HEAD": "angle-matrix logits extractor",
    "VECTORS": "representation prototype entangled",
    "SEPARATE": "representation prototype",
    "BY_CLASS": "representation prototype entangled logits",
    "TELLING": "representation prototype entangled logits label-counts",
    "IN_CLEAR": "label-counts",
    "PUBLIC_OUTPUTS": "public-logits",
    "ANSWERS": "kernel public-logits",
}


def test_traits_sort_the_kinds_as_whoever_wrote_them_meant():
    assert {name: set(SETS[name]) & set(KINDS) for name in WRITTEN} == {k: set(v.split()) for k, v in WRITTEN.items()}


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 4), min_size=9, max_size=9))
def test_every_kind_round_trips_and_its_signal_is_what_the_ledger_calls_one(lengths, tmp_path_factory):
    sizes = dict(zip("ncdCmbLhw", lengths, strict=True))
    for kind, made in KINDS.items():
        payload = example(made, sizes)
        path = tmp_path_factory.getbasetemp() / f"{kind}.safetensors"
        path.write_bytes(message_bytes((payload, SampleCount(torch.tensor([3]))), {"round": 7, "client": 2}))
        (found, count), header = load_message(path)
        assert (header["round"], header["client"], int(count.count)) == (7, 2, 3)
        assert type(found) is made
        assert {name: value.tolist() for name, value in found.tensors().items()} == {
            name: value.tolist() for name, value in payload.tensors().items()
        }
        changed = set(signal(payload, (payload,)))
        assert changed == {e.name.partition(".")[2] for e in entries((payload,), 1, 0, "upload") if is_signal(e)}
        assert bool(changed) == (kind in sets.SIGNALS)
        assert bool(facts_in_clear(kind)) == any(spec.metadata["says"] for spec in fields(made))


def example(made, sizes):
    """Return a payload of a kind whose axes have the given lengths; optional fields are left out for odd n."""
    values = {}
    for spec in fields(made):
        meta = spec.metadata
        if meta["optional"] and sizes["n"] % 2:
            continue
        shape = [int(one) if one.isdigit() else sizes[one] for one in meta["shape"].split() if one != "*"]
        if meta["shape"] == "*":
            values[spec.name] = {"weight": torch.randn(3, 2), "bias": torch.randn(3)}
        else:
            values[spec.name] = torch.randint(5, shape) if meta["integer"] else torch.randn(shape)
    return made(**values)


# ---------------------------------------------------------------- kinds of other packages are read as this one's


def test_a_kind_of_the_same_traits_is_read_as_the_one_that_is_asked_for():
    made = declare(**COMPLETE)
    sent = made(torch.randn(2, 3), torch.tensor([4, 7]))
    read = get_payload((sent,), Prototypes)
    assert torch.equal(read.features, sent.features)
    assert read.classes.tolist() == [4, 7]
    assert read.counts is None
    assert find_payload((sent,), Representations) is None
    own = Prototypes(torch.zeros(1, 3), torch.tensor([1]))
    assert get_payload((sent, own), Prototypes) is own
