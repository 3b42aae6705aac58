"""Registries: members of this package, of other distributions, and by reference."""

import sys

import pytest
from looped import each
from outside_cases import OUTSIDE, distribution

from fedpriv.attacks import ATTACKS, attacks_for
from fedpriv.datasets import DATASETS, load_dataset
from fedpriv.defenses import DEFENSES, build_defenses, parse_choice
from fedpriv.federation.run_directory import DefenseChoice
from fedpriv.methods import METHODS, default_method
from fedpriv.models import MODELS, default_width, family
from fedpriv.uploads import PAYLOADS
from fedpriv.uploads.kinds import CLASS_MEANS
from fedpriv.uploads.payload import DECLARED
from fedpriv.util.errors import UserError
from fedpriv.util.registry import VARIABLE, is_reference, split_reference

REGISTRIES = {table.noun: table for table in (ATTACKS, DATASETS, DEFENSES, METHODS, MODELS, PAYLOADS)}
MEMBERS = {
    "method": ("fed-direction", "outsider:FED_DIRECTION"),
    "attack": ("random-search", "outsider:RandomSearch"),
    "defense": ("jitter", "outsider:Jitter"),
    "data set": ("stripes", "outsider:load_stripes"),
    "model": ("one-layer", "outsider:one_layer"),
    "kind of payload": ("direction", "outsider:Directions"),
}


@pytest.fixture(autouse=True)
def _leave_nothing(monkeypatch):
    kinds, modules = dict(DECLARED), set(sys.modules)
    allowed = "outsider no.such.place member_wrong member_methods member_data fedpriv.attacks.features.base"
    monkeypatch.setenv(VARIABLE, allowed.replace(" ", ","))
    yield
    DECLARED.clear()
    DECLARED.update(kinds)
    for name in set(sys.modules) - modules:
        if name.startswith(("outsider", "member")):
            del sys.modules[name]
    for table in REGISTRIES.values():
        table._adopted.clear()


@pytest.fixture
def outside(monkeypatch):
    monkeypatch.syspath_prepend(str(OUTSIDE))


# ---------------------------------------------------------------- members of another distribution


@each("noun", MEMBERS)
def test_a_member_of_another_distribution_is_found_listed_and_marked(noun, outside):
    table, (name, target) = REGISTRIES[noun], MEMBERS[noun]
    assert name in table
    assert table[name] == target
    assert list(table)[-1] == name
    assert table.load(name) is table.load(target)
    assert table.origin(name) == "outsider 1.2"
    assert table.origin(next(iter(table))) == table.origin(target) == ""
    assert set(table.load_all()) == set(table)


def test_members_from_outside_take_their_place_among_the_others(outside):
    assert default_method("direction") == "fed-direction"
    assert "direction" in CLASS_MEANS
    assert {"dip", "decoder", "random-search", "membership"} <= set(attacks_for("direction"))
    assert "random-search" in attacks_for("entangled")
    (made,) = build_defenses([DefenseChoice("jitter", {"spread": "0.5"})])
    assert made.spread == 0.5
    assert load_dataset("stripes").n_classes == 4
    assert family("one-layer,small-cnn") == ("one-layer", "small-cnn")
    assert default_width("one-layer") == 512


# ---------------------------------------------------------------- clashes and breakage


@pytest.mark.parametrize("noun", ["method", "data set"])
def test_this_package_wins_and_a_clash_is_one_line(noun, tmp_path, monkeypatch, caplog):
    table = REGISTRIES[noun]
    name = next(iter(table.builtins))
    distribution(tmp_path, "usurper", {table.group: {name: "member_usurper:THING"}}, {"member_usurper": "THING = 1"})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert table.load(name) is not None
    assert table[name] == table.builtins[name]
    table.load(name)
    assert list(table).count(name) == 1
    line = f"warning: {noun} {name!r} of usurper is passed over: fedpriv has one of that name"
    assert [record.getMessage() for record in caplog.records] == [line]
    assert "member_usurper" not in sys.modules


BROKEN = {
    "import member_missing_part": "module 'member_broken' cannot be imported: ModuleNotFoundError: No module named",
    "raise RuntimeError('two\\nlines')": "module 'member_broken' cannot be imported: RuntimeError: two lines",
    "x = (": "module 'member_broken' cannot be imported: SyntaxError",
    "OTHER = 1": "module 'member_broken' has no 'THING'",
    "raise SystemExit(3)": "module 'member_broken' cannot be imported: SystemExit",
}


@pytest.mark.parametrize(
    ("noun", "text"),
    [("method", text) for text in BROKEN] + [(noun, "OTHER = 1") for noun in MEMBERS if noun != "method"],
)
def test_a_broken_module_is_one_line_and_hides_no_other_member(noun, text, tmp_path, monkeypatch, caplog):
    table = REGISTRIES[noun]
    distribution(tmp_path, "broken", {table.group: {"shard": "member_broken:THING"}}, {"member_broken": text})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError) as caught:
        table.load("shard")
    assert str(caught.value).startswith(f"{noun} 'shard' of broken 1.0: {BROKEN[text]}")
    assert "\n" not in str(caught.value)
    assert set(table.load_all()) == set(table.builtins)
    assert f"warning: left out: {noun} 'shard'" in caplog.text


@each(
    "noun, complaint",
    [
        ("method", "expected a fedpriv.federation.method.Method, got int"),
        ("attack", "expected a dataclass"),
        ("defense", "expected a dataclass that extends fedpriv.federation.defense.Defense, got 1"),
        ("data set", "expected a function, got 1"),
        ("model", "expected a function, got 1"),
        ("kind of payload", "expected a subclass of fedpriv.uploads.payload.Payload, got 1"),
    ],
)
def test_what_is_no_such_member_is_refused(noun, complaint, tmp_path, monkeypatch):
    (tmp_path / "member_wrong.py").write_text("THING = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=f"{noun} 'member_wrong:THING': {complaint}"):
        REGISTRIES[noun].load("member_wrong:THING")


# ---------------------------------------------------------------- references


def test_references_and_options_are_told_apart():
    assert is_reference("a.b:C")
    assert is_reference("outsider:Jitter")
    assert not any(map(is_reference, ("noise:scale=1", "fedavg", ":x", "a b:c", "folder:/data", "a:")))
    assert split_reference("my.own:Blur") == ("my.own:Blur", "")
    assert split_reference("mine:Blur") == ("mine:Blur", "")
    assert split_reference("folder:/data/set.v2:x") == ("folder", "/data/set.v2:x")
    assert split_reference("folder:data", DATASETS) == ("folder", "data")
    assert parse_choice("my.own:Blur:radius=2,kind=box") == DefenseChoice("my.own:Blur", {"radius": "2", "kind": "box"})


def test_an_attack_by_reference_is_known_by_its_own_name_from_then_on(outside, monkeypatch):
    assert ATTACKS.own_name("outsider:RandomSearch") == "random-search"
    assert ATTACKS.own_name("dip") == "dip"
    assert ATTACKS.load("random-search").name == "random-search"
    monkeypatch.setattr(ATTACKS.load("outsider:RandomSearch"), "name", "dip")
    with pytest.raises(
        UserError, match="attack 'outsider:RandomSearch': there is another attack named 'dip'; rename it"
    ):
        ATTACKS.own_name("outsider:RandomSearch")
