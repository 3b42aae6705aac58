"""Entries of a leaderboard: what is wrong with one is told, and one that is right has no fault."""

import json
import re

import pytest
from entry_cases import entry, judged
from eval_cases import but, compared
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.experiment.leaderboard.checking import check_file, check_folder, place_of, without_folders
from fedpriv.util.errors import UserError


def stored(home, made, place=None):
    path = home / (place or place_of(made))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(made.model_dump_json(indent=1))
    return path


def test_an_entry_that_is_right_has_no_fault_and_reads_back_equal(tmp_path):
    made = entry(gain=2.0, p_value=1e-6)
    (found,) = check_folder(stored(tmp_path, made).parents[1])
    assert found.faults == ()
    assert found.entry == made
    assert any("not attacked by" in remark and "pixels" in remark for remark in found.remarks)


def changed(made, **changes):
    """The entry with fields of its only attack's verdict changed."""
    (attack,) = made.attacks
    return but(made, attacks=(but(attack, verdict=but(attack.verdict, **changes)),))


RIGHT = entry(gain=2.0, p_value=1e-6)
(CLAIM,) = RIGHT.attacks[0].verdict.compared
NOTHING = entry(gain=0.0)

WRONG = {
    "finding hidden": (changed(RIGHT, kind="none"), "its finding is 'none', but .* follows 'leaks'"),
    "finding made up": (changed(NOTHING, kind="leaks"), "its finding is 'leaks', but .* follows 'none'"),
    "untested passed off": (
        changed(entry(gain=0.0, clients=3), kind="none"),
        "its finding is 'none', but .* follows 'untested'",
    ),
    "reason left out": (
        changed(entry(gain=1.0), kind="none", reasons=()),
        "gives no reason 'not_excluded', which follows from its comparisons",
    ),
    "claim taken back": (changed(RIGHT, compared=(but(CLAIM, stands=False),), kind="none"), "'stands' is false"),
    "mean outside": (changed(RIGHT, compared=(but(CLAIM, mean=9.0),)), "mean 9 lies outside its interval"),
    "p-value": (changed(RIGHT, compared=(but(CLAIM, p_value=0.04),)), "adjusted p-value 1e-06 is below"),
    "no probability": (changed(RIGHT, compared=(but(CLAIM, p_value=-1.0),)), "is not between 0 and 1"),
    "other upload": (changed(RIGHT, target="model"), "its verdict is on model uploads"),
    "clients": (changed(RIGHT, n_clients=99), "99 clients of 10"),
    "twice": (but(RIGHT, attacks=RIGHT.attacks * 2), "twice under one card"),
    "accuracy": (but(RIGHT, accuracy={"after_training": 3.0}), "field 'accuracy.after_training': 3 is not between"),
    "size": (but(RIGHT, upload_bytes=-1.0), "field 'upload_bytes': -1 is below 0"),
    "no share": (changed(RIGHT, compared=(but(CLAIM, measure="membership", value=7.0),)), "value 7 is not between"),
    "no attack": (but(RIGHT, attacks=()), "field 'attacks': none"),
    "no command": (but(RIGHT, commands=()), "nobody can make again"),
    "a machine": (but(RIGHT, commands=("fedpriv attack --data-dir /home/me/data",)), "names a folder of a machine"),
    "unknown method": (but(RIGHT, method="mine"), "say where 'mine' is described"),
    "unknown upload": (but(RIGHT, target="thoughts"), "unknown kind of upload 'thoughts'"),
    "old rules": (but(RIGHT, scoring_version=1), "scored by version 1"),
    "wrong attack": (
        but(RIGHT, attacks=(but(RIGHT.attacks[0], name="dlg"),)),
        "attack 'dlg': is not on prototype uploads",
    ),
    "too many rounds": (
        entry(gain=2.0, p_value=1e-6, rounds_seen=99),
        "saw 99 rounds of",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_follow_from_its_figures_is_told(name, tmp_path):
    made, told = WRONG[name]
    found = check_file(stored(tmp_path, made))
    assert any(re.search(told, fault) for fault in found.faults), found.faults


def test_a_method_of_ones_own_needs_a_source(tmp_path):
    made = but(RIGHT, method="mine", source="doi:10.1/xyz")
    assert check_file(stored(tmp_path, made)).faults == ()


def test_an_entry_lies_where_its_upload_and_method_say(tmp_path):
    assert any("lies under 'model'" in one for one in check_file(stored(tmp_path, RIGHT, "model/fedproto.json")).faults)
    assert any("is called 'x'" in one for one in check_file(stored(tmp_path, RIGHT, "prototype/x.json")).faults)
    assert check_file(stored(tmp_path, RIGHT, "prototype/fedproto-ours.json")).faults == ()
    assert str(place_of(but(RIGHT, dataset="cifar10 jpeg"))) == "prototype/fedproto-cifar10-jpeg.json"


@pytest.mark.parametrize(
    ("text", "told"),
    [("{", "line 1"), ("[]", "expected an object"), ('{"kind": "claim", "version": 3}', "missing"), ("{}", "format 1")],
)
def test_a_file_that_is_no_entry_is_told(text, told, tmp_path):
    path = tmp_path / "prototype" / "fedproto.json"
    path.parent.mkdir()
    path.write_text(text)
    found = check_file(path)
    assert found.entry is None
    assert told in found.faults[0]


def test_an_unknown_field_is_told_by_its_name(tmp_path):
    path = stored(tmp_path, RIGHT)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rank": 1}))
    assert "field 'rank' is unknown" in check_file(path).faults[0]


def test_a_folder_without_entries_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no entry"):
        check_folder(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        check_folder(tmp_path / "nothing")


@given(st.lists(st.text("abc-_. ", min_size=1, max_size=8), min_size=1, max_size=4))
def test_no_folder_of_a_machine_stays_in_a_command(parts):
    folder = "/" + "/".join(part.strip(" .") or "x" for part in parts)
    kept = without_folders(f"fedpriv attack --data-dir {folder} --out results/mine")
    assert " /" not in kept
    assert kept.startswith("fedpriv attack --data-dir DIR/")
    assert kept.endswith("--out results/mine")
    assert without_folders(kept) == kept


def test_windows_and_home_folders_go_too():
    assert without_folders(r"fedpriv score C:\Users\me\r") == "fedpriv score DIR/r"
    assert (
        without_folders("fedpriv score ~/r --url https://a.example/b")
        == "fedpriv score DIR/r --url https://a.example/b"
    )


def test_judged_is_what_a_page_makes_of_a_comparison():
    assert judged(compared(mean=2.0, p_value=1e-6)).kind == "leaks"
