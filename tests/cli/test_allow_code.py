"""A module that only a file names is not imported; one that is typed or allowed is, by workers too. Nothing is stored."""

import json
import shutil
import sys

import pytest
from federations import forged
from outside_cases import OUTSIDE

import fedpriv
from fedpriv.api.named_code import named_code
from fedpriv.cli.main import run as command
from fedpriv.sources.facts import read_facts
from fedpriv.uploads.payload import DECLARED
from fedpriv.util.errors import UserError
from fedpriv.util.registry import VARIABLE

SMALL = ["--clients", "3", "--rounds", "1", "--width", "8", "--quiet"]
OURS = ["--method", "mine:FED_DIRECTION", "--dataset", "mine:load_stripes", "--models", "mine:one_layer"]
QUICK = ["--attack", "dip", "--iterations", "2", "--targets", "2", "--no-control", "--quiet"]


@pytest.fixture(autouse=True)
def mark(tmp_path, monkeypatch):
    """Put a module ``mine`` on the path that leaves a mark where it is imported, and return the mark's path."""
    path = tmp_path / "modules" / "imported"
    path.parent.mkdir()
    text = (OUTSIDE / "outsider.py").read_text()
    first = f"open({str(path)!r}, 'a').write('x')\n"
    (path.parent / "mine.py").write_text(text.replace("from __future__ import annotations\n", "") + first)
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.delenv(VARIABLE, raising=False)
    kinds = dict(DECLARED)
    yield path
    DECLARED.clear()
    DECLARED.update(kinds)
    sys.modules.pop("mine", None)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "run"
    fedpriv.train(
        "fedproto", dataset="digits", per_class=10, clients=3, rounds=1, models="small-cnn", width=8, out=path
    )
    return path


def with_config(plain, folder, **changes):
    """Return a copy of a run as somebody else may have written it."""
    shutil.copytree(plain, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return forged(folder)


def refused(arguments, capsys, module):
    """Check that a command ends with one line that names the module and the flag that would allow it."""
    assert command([str(one) for one in arguments]) == 2, arguments
    told = capsys.readouterr().err
    assert told.count("\n") == 1, told
    for part in (repr(module), f"allow_code='{module}'"):
        assert part in told, (part, told)


def test_a_run_that_names_a_module_has_it_imported_only_where_that_is_allowed(plain, tmp_path, mark, capsys):
    changes = [
        ("os", {"dataset": "os:system"}),
        ("mine", {"dataset": "mine:load_stripes"}),
        ("mine", {"method": "mine:FED_DIRECTION"}),
        ("mine", {"models": "small-cnn,mine:one_layer"}),
        ("mine", {"defenses": [{"name": "mine:Jitter", "options": {}}]}),
    ]
    for number, (module, change) in enumerate(changes):
        run = with_config(plain, tmp_path / f"run-{number}", **change)
        for before, after in (
            (["attack", "--target", "prototype", *QUICK, "--run"], ["--out", tmp_path / "result"]),
            (["train", "--resume", "--out"], []),
            (["audit-dp", "--run"], ["--out", tmp_path / "result"]),
        ):
            refused([*before, run, *after], capsys, module)
    assert not mark.exists()
    assert not (tmp_path / "result").exists()
    with pytest.raises(UserError, match=r"allow_code='mine'"):
        fedpriv.attack(tmp_path / "run-2", target="prototype", attacks="dip")
    run = with_config(plain, tmp_path / "parts", defenses=[{"name": "mine.part:Jitter", "options": {}}])
    refused(["attack", "--allow-code", "mine", "--target", "prototype", "--run", run], capsys, "mine.part")


def test_files_that_a_user_names_allow_no_module(tmp_path, mark, capsys):
    study = tmp_path / "study.toml"
    for module, text in (
        ("os", 'federation = { dataset = "os:system" }'),
        ("mine", 'methods = ["mine:FED_DIRECTION"]'),
        ("mine", 'methods = ["fedproto"]\ndefenses = ["mine:Jitter:spread=0.1/1"]'),
        ("mine", 'methods = ["fedproto"]\nattacks = ["mine:RandomSearch"]'),
    ):
        study.write_text(text + "\n")
        for flags in ([], ["--dry-run"], ["--shard", "1/1"]):
            refused(["audit", study, "--out", tmp_path / "out", *flags], capsys, module)
    facts = tmp_path / "mine.toml"
    facts.write_text('model = "mine:one_layer"\ndata = "other.part:data"\n')
    with pytest.raises(UserError, match=r"'mine', 'other.part': code that only .*mine.toml names") as error:
        read_facts(tmp_path / "mine", None)
    assert "allow_code=['mine', 'other.part']" in str(error.value)
    assert not mark.exists()
    assert not (tmp_path / "out").exists()


def test_typed_modules_are_imported_and_later_commands_say_what_they_need(tmp_path, mark, capsys, monkeypatch):
    def typed(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedpriv", *arguments])
        return command(list(arguments))

    assert typed("train", *OURS, "--defense", "mine:Jitter:spread=0.2", *SMALL, "--out", "run") == 0
    assert mark.exists()
    mark.unlink()
    del sys.modules["mine"]
    attack = ["attack", "--run", "run", "--target", "mine:Directions", *QUICK]
    assert typed(*attack, "--out", "first") == 0  # the target names the module
    del sys.modules["mine"]
    mark.unlink()
    attack[attack.index("mine:Directions")] = "direction"
    refused([*attack, "--out", "second"], capsys, "mine")
    assert not mark.exists()
    assert typed(*attack, "--out", "second", "--allow-code", "mine") == 0
    capsys.readouterr()
    assert typed("score", "second", "--quiet") == 0
    assert typed("report", "second", "run", "--out", "page", "--quiet") == 0
    assert typed("compare", "first", "second", "--quiet") == 0
    for name in ("run", "first", "second", "page"):
        assert_not_stored(tmp_path / name)


def test_workers_of_a_study_import_what_is_allowed_and_its_folder_does_not_say_so(tmp_path, mark, capsys, monkeypatch):
    (tmp_path / "study.toml").write_text(
        'methods = ["mine:FED_DIRECTION"]\nattacks = "none"\nseeds = [0, 1]\nlocal = false\n'
        '[federation]\ndataset = "mine:load_stripes"\nclients = 3\nrounds = 1\nmodels = "mine:one_layer"\nwidth = 8\n'
    )
    arguments = ["audit", "study.toml", "--out", "study", "--workers", "2", "--quiet", "--allow-code=mine"]
    monkeypatch.setattr(sys, "argv", ["fedpriv", *arguments])
    assert command(arguments) == 0
    assert 2 <= len(mark.read_text()) <= 3  # here and by workers
    rows = [json.loads(line) for line in (tmp_path / "study" / "cells.jsonl").read_text().splitlines()]
    assert [row["status"] for row in rows] == ["done", "done"]
    assert_not_stored(tmp_path / "study")
    capsys.readouterr()
    refused(["audit", "--resume", "--out", "study"], capsys, "mine")
    refused(["audit", "--resume", "--out", "study", "--shard", "1/2"], capsys, "mine")
    assert command(["audit", "--resume", "--out", "study", "--allow-code", "mine", "--quiet"]) == 0


def assert_not_stored(folder):
    for path in folder.rglob("*"):
        content = path.read_bytes().lower() if path.is_file() else b""
        assert not any(word in content for word in (b"allow-code", b"allow_code")), path


def test_what_a_call_names_counts_for_its_own_modules_alone():
    for arguments, modules in (
        ({"run": "runs/os:system", "out": "a:b", "study": "mine:STUDY", "facts": "mine:FACTS"}, set()),
        ({"defense": "noise:scale=1", "dataset": "folder:images"}, set()),
        ({"models": "mine:one_layer,small-cnn", "option": {"loss": "other:LOSS"}}, {"mine", "other"}),
        ({"defenses": ["mine:Jitter:spread=0.1+a.b:Clip"], "axes": ["dataset=digits,c:load"]}, {"mine", "a.b", "c"}),
        ({"study": {"methods": [{"name": "mine:METHOD"}]}, "facts": {"model": "other:Net"}}, {"mine", "other"}),
    ):
        assert named_code(arguments) == modules
    for wrong in ("mine:NAME", 3):
        with pytest.raises(UserError, match="allow_code"):
            fedpriv.score("nowhere", allow_code=wrong)
