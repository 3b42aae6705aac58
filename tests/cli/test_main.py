"""The command line as a person meets it: what it writes, what it says, how it exits; every setting has its words."""

import contextlib
import csv
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import call, done, refused, words
from federations import DIGITS
from looped import each

import fedpriv
from fedpriv.api import cataloguing
from fedpriv.api.attacking import AttackSettings
from fedpriv.attacks.observation import ThreatModel
from fedpriv.cli.main import COMMANDS, entry, main, run
from fedpriv.study.settings import Circumstances, FederationSettings

SMALL = [*DIGITS, "--per-class", "20", "--clients", "4", "--partition", "iid", "--rounds", "2"]
QUICK_ATTACK = [*SMALL, "--targets", "4", "--iterations", "20"]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "result"
    assert run(["attack", "--target", "entangled", *QUICK_ATTACK, "--out", str(path), "--quiet"]) == 0
    return path


# ---------------------------------------------------------------- help


def test_help_and_words_come_without_torch():
    """Of all commands at most 15 options in --help; words of the field lead somewhere, as names and as targets."""
    code = """
import sys
from fedpriv.cli.main import run
for name in sys.argv[1:]:
    run([name, "--help"])
    print(end="\\f")
run(["attack", "--help-all"])
run(["explain", "TPR at 1 % FPR"])
for kind in ("datasets", "models", "payloads", "claims"):
    run(["list", kind])
for target in ("gradient", "weights", "embeddings", "entangeld"):
    assert run(["attack", "--target", target]) == 2
assert run(["explain", "gradint"]) == 2
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code, *COMMANDS], capture_output=True, text=True, check=True)
    *pages, rest = done.stdout.split("\f")
    for name, page in zip(COMMANDS, pages, strict=True):
        assert f"fedpriv {name} " in page
        assert "--json" in page
        assert page.count("\n│ --") + page.count("\n│    --") + page.count("\n│ *") <= 15, name
    assert not [words for words in ("None for", "default False", "default True", " in out") if words in done.stdout]
    assert "Replace --out if it exists" in rest
    assert "--weight-decay" in rest
    assert "Share of members" in rest
    assert "embedded, 1,797 images of 8x8" in rest
    hints = [line.partition("did you mean ")[2].partition("?")[0] for line in done.stderr.splitlines()]
    assert hints[:4] == ["'model'", "'model'", "'representation'", "'entangled'"]
    assert hints[4].startswith("'gradient'")


# ---------------------------------------------------------------- list


@each("kind", ["methods", "attacks", "defenses", "datasets", "models", "targets"])
def test_lists_are_tables_and_json(kind, capsys):
    out = done(capsys, "list", kind, "--json")
    names = [row["name"] for row in json.loads(out)]
    assert len(names) == len(set(names))
    out = done(capsys, "list", kind)
    assert all(name in out for name in names)


# ---------------------------------------------------------------- train


def test_an_interrupted_training_is_resumed_by_the_printed_command_and_says_what_it_reached(
    capsys, monkeypatch, tmp_path
):
    from fedpriv.federation import rounds as engine

    original, steps = engine.client_part, iter(range(100))

    def interrupted(*arguments):
        if next(steps) == 5:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(engine, "client_part", interrupted)
    code, _, err = call(capsys, "train", "--method", "local", *SMALL, "--out", "run")
    assert code == 130
    assert "interrupted; go on with: fedpriv train --resume --out run" in err
    err = refused(capsys, "attack", "--target", "prototype", "--run", "run")
    assert "unfinished run (1 of 2 rounds, no summary.json)" in err
    monkeypatch.setattr(engine, "client_part", original)
    out = done(capsys, "train", "--resume", "--out", "run", "--json")
    result = json.loads(out)
    assert (result["run"], result["rounds"]) == ("run", 2)
    assert 0 <= result["accuracy"]["after_training"]["pooled"] <= 1
    assert result["communication"]["full"]["upload_scalars"] == 0


def test_an_interrupt_that_an_import_turns_into_another_error_is_still_an_interrupt(capfd, monkeypatch):
    def half_imported(**_):
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        raise RuntimeError("already initialised")

    monkeypatch.setattr(main, "main", half_imported)
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.default_int_handler)
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(SystemExit) as ending:
            entry()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert ending.value.code == 130
    assert capfd.readouterr().err.strip() == "fedpriv: interrupted"


# ---------------------------------------------------------------- attack, score, report


def test_an_attack_leaves_grid_table_report_and_records(attacked):
    for name in ("report.html", "report.md", "results.csv", "request.json", "dip/grid.png", "dip/metrics.json"):
        assert (attacked / name).stat().st_size > 0
    record = json.loads((attacked / "dip" / "metrics.json").read_text())
    for key in ("target", "attack", "method", "dataset", "knowledge", "n_targets", "metrics", "floors", "advantage_db"):
        assert key in record
    assert {"mean", "median", "sd", "ci95", "per_target"} <= set(record["metrics"]["psnr_db"])
    assert record["n_targets"] == 4
    assert "mean_image" in record["floors"]
    with open(attacked / "results.csv") as file:
        assert {row["attack"] for row in csv.DictReader(file)} >= {"dip", "unmix"}


def test_scoring_again_gives_the_same_record(attacked, capsys):
    before = json.loads((attacked / "dip" / "metrics.json").read_text())
    out = done(capsys, "score", attacked / "dip", "--json")
    assert json.loads((attacked / "dip" / "metrics.json").read_text()) == before
    told = json.loads(out)
    assert told["attacks"][str(attacked / "dip")] == before
    assert "dip" in {answer["attack"] for answer in told["answers"]}


def test_a_report_over_runs_and_attacks_links_its_pages(attacked, trained, capsys, tmp_path):
    out = done(capsys, "report", trained, attacked, attacked / "dip", "--out", "page", "--json")
    answer = json.loads(out)
    # the result folder holds the run that was attacked too
    assert answer["runs"] == [str(trained), str(attacked / "run")]
    assert answer["attacks"].count(str(attacked / "dip")) == 1
    assert 'href="runs.html"' in (tmp_path / "page" / "report.html").read_text()
    assert 'href="report.html"' in (tmp_path / "page" / "runs.html").read_text()
    out = done(capsys, "report", trained, "--out", "page", "--force")
    assert out.strip().endswith("runs.html")
    assert not (tmp_path / "page" / "report.html").exists()
    assert "report.html" not in (tmp_path / "page" / "runs.html").read_text()
    with open(tmp_path / "page" / "runs.csv") as file:
        (row,) = csv.DictReader(file)
    assert row["method"] == "fedgh"


# ---------------------------------------------------------------- what is there is left alone, what is not there is said


@each(
    "typed, expected",
    [
        ("fedpriv expl", ["explain"]),
        ("fedpriv attack --targ", ["--target", "--targets"]),
        ("fedpriv list me", ["methods"]),
    ],
)
def test_the_shell_completes_commands_flags_and_names_without_torch(typed, expected):
    code = """
import atexit, sys
from fedpriv.cli.main import main
atexit.register(lambda: print("torch" in sys.modules))
main(prog_name="fedpriv")
"""
    told = {"_FEDPRIV_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | told, check=False
    )
    assert done.stdout.splitlines() == [*(f"plain,{name}" for name in expected), "False"], done.stderr


def test_all_attacks_go_on_from_a_first_look(capsys, tmp_path):
    flags = words(
        "--target prototype --dataset digits --per-class 20 --clients 3 --rounds 1 --iterations 2 --targets 3"
    )
    done(capsys, "attack", *flags, "--out", "r", "--quiet")
    first = {path.parent.name: path.stat().st_mtime_ns for path in tmp_path.glob("r/*/metrics.json")}
    assert {"decoder", "dip"} <= set(first)
    assert "pixels" not in first
    done(capsys, "attack", *flags, "--out", "r", "--full", "--resume", "--quiet")
    assert (tmp_path / "r" / "pixels" / "metrics.json").is_file()
    assert all((tmp_path / "r" / name / "metrics.json").stat().st_mtime_ns == then for name, then in first.items())
    code, _, err = call(capsys, "attack", *flags[:-2], "--targets", "4", "--out", "r", "--full", "--resume", "--quiet")
    assert (code, "n_targets" in err) == (2, True)


# ---------------------------------------------------------------- knowledge

KNOWN = [*SMALL, "--targets", "3", "--iterations", "5", "--no-control"]
OWN = ["--public", "40", "--knowledge", "attacker_data=same_domain"]


def test_by_default_the_attacker_owns_some_of_the_auxiliary(capsys):
    few = [*DIGITS, "--auxiliary", "0.5", "--per-class", "20", "--clients", "3", "--partition", "iid", "--rounds", "1"]
    command = ["attack", "--target", "prototype", "--attack", "pixels", *few, "--iterations", "2", "--json"]
    cards = []
    for more in ([], ["--knowledge", "attacker_data=none"], ["--auxiliary", "0"]):
        out = done(capsys, *command, *more, "--out", f"r{len(cards)}")
        cards.append(json.loads(out)["attacks"]["pixels"]["knowledge"]["attacker_data"])
    assert cards == ["same_domain", "none", "none"]


def test_inversions_run_through_a_shadow_extractor(capsys):
    arguments = ["attack", "--target", "prototype", *KNOWN, *OWN, "--knowledge", "extractor=shadow"]
    out = done(capsys, *arguments, "--attack", "pixels", "--attack", "decoder", "--json", "--out", "r")
    records = json.loads(out)["attacks"]
    assert set(records) == {"pixels", "decoder"}
    assert all(record["knowledge"]["extractor"] == "shadow" for record in records.values())


# ---------------------------------------------------------------- doctor, and the page of settings


def test_lines_can_be_pasted(capsys):
    out = done(capsys, "doctor", "--device", "cpu")
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["ok", f"{name}:"] for name in ("packages", "computing", "speed", "guard")
    ]
    for version in (fedpriv.__version__, platform.python_version(), f"torch {importlib.metadata.version('torch')}"):
        assert version in out
    assert str(Path.home()) + "/" not in out


def test_a_failure_exits_with_one(capsys):
    code, out, _ = call(capsys, "doctor", "--device", "cuda:99", "--json")
    told = json.loads(out)
    assert (code, told["failed"]) == (1, True)
    assert [one["name"] for one in told["findings"] if one["status"] == "failed"] == ["computing", "guard"]
    code, out, _ = call(capsys, "doctor", "--device", "cuda:99", "--quiet")
    assert (code, len(out.splitlines())) == (1, 2)


def test_a_device_that_computes_otherwise_has_failed(monkeypatch):
    """The second convolution is the device's: wrong by 5 % or not a number it fails."""
    exact = torch.conv2d
    for factor, good in ((1.0, True), (1.05, False), (float("nan"), False)):
        factors = iter([1.0, factor])
        monkeypatch.setattr(torch, "conv2d", lambda x, w, factors=factors: next(factors) * exact(x, w))
        assert cataloguing._computing("cpu")[0] == good


PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_names_every_setting_and_grant():
    text = PAGE.read_text()
    names = {*FederationSettings.__annotations__, *AttackSettings.__annotations__} - {*Circumstances.__annotations__}
    assert {name for name in names if f"`{name.replace('_', '-')}`" not in text} == set()
    assert [name for name in ThreatModel.__annotations__.keys() - {"rounds_seen"} if f"| `{name}` |" not in text] == []
