"""Reports on damaged results: each is named and left out, refused when strict, and changes no figure of another."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from command_line import call
from federations import QUICK_DATA
from hostile_cases import Skeleton, Written

import fedpriv
from fedpriv.eval.storage import load_attack, load_scores
from fedpriv.federation.capture import load_trace
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.federation.states import load_state
from fedpriv.integrations.recorder import Recorder
from fedpriv.integrations.run import RecordedRun
from fedpriv.reports.study_files import read_cells, read_study
from fedpriv.util import files
from fedpriv.util.errors import UserError
from fedpriv.util.files import read_bytes

SMALL = {**QUICK_DATA, "per_class": 20, "clients": 3, "partition": "iid", "rounds": 2}
SUITE = {"target": "prototype", "attacks": ["pixels", "dip", "membership"], "targets": 3, "iterations": 4}
FIGURES = (
    "psnr_db",
    "psnr_db_median",
    "best_floor_psnr_db",
    "advantage_db",
    "ssim",
    "accuracy_after_training",
    "round",
)
"""Columns that are of one result alone; answers are of all that a page tests."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Two runs, a suite of two attacks and an inference on one of them, and a study of three cells, with their pages."""
    home = tmp_path_factory.mktemp("sound")
    for name in ("fedgh", "fedproto"):
        fedpriv.train(name, out=home / "runs" / name, **SMALL)
    fedpriv.attack(home / "runs" / "fedgh", **SUITE, out=home / "suite")
    attacks = [{"name": "pixels", "iterations": 2}, {"name": "membership"}]
    study = {"attacks": attacks, "targets": 2, "control": False, "federation": SMALL}
    fedpriv.audit(methods=["fedgh", "fedproto"], **study, out=home / "study")
    for name in ("suite", "study", "runs"):
        fedpriv.report([home / name], out=home / "pages" / name)
    return home


def figures(page):
    """The figures of each result, by the attack and what was attacked."""
    with (page / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {(row["method"], row["directory"], row["seed"]): [row[name] for name in FIGURES] for row in rows}


def run_figures(page):
    with (page / "runs.csv").open(newline="") as file:
        return {row.pop("directory"): row for row in csv.DictReader(file)}


def edit(name, **changes):
    def damage(folder):
        found = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(found | changes))

    return damage


def flip(name, where=0.5):
    """Flip one bit of a file."""

    def damage(folder):
        content = bytearray((folder / name).read_bytes())
        content[int(len(content) * where)] ^= 1
        (folder / name).write_bytes(content)

    return damage


def lines(name, change):
    def damage(folder):
        found = (folder / name).read_text().splitlines()
        (folder / name).write_text("".join(line + "\n" for line in change(found)))

    return damage


def cell(name):
    return lambda damage: lambda home: damage(sorted(home.glob(f"attacks/*fedgh*/{name}"))[0])


CASES = {
    "about.json is gone": ("suite", "pixels", lambda folder: (folder / "about.json").unlink()),
    "no figure": ("suite", "pixels", edit("metrics.json", n_clients="two")),
    "a bit of the truth": ("suite", "pixels", flip("truth.safetensors", 0.9)),
    "an inference": ("suite", "membership", edit("membership.json", n_clients="two")),
    "a line of a run twice": ("runs", "fedgh", lines("metrics.jsonl", lambda found: [found[0], *found])),
    "a run's summary is cut": ("runs", "fedgh", lambda folder: (folder / "summary.json").write_text('{"format": ')),
    "a cell's attack": ("study", ".", cell("pixels")(edit("metrics.json", n_clients="two"))),
    "a cell's attack is gone": ("study", ".", cell("pixels")(shutil.rmtree)),
}
"""What is damaged, and how."""


def named(page, err, words, sections):
    """The damage is named on the terminal and on every page."""
    assert any(words in line for line in err.splitlines() if line.startswith("warning: ")), err
    for reader, end in ((Skeleton, ".html"), (Written, ".md")):
        for file in page.glob(f"*{end}"):
            text = reader(file.read_text()).text
            assert any(f" {section} " in text for section in sections), file
            assert words in text, file


def reported(capsys, out, *folders):
    code, _, err = call(capsys, "report", *folders, "--out", out)
    assert code == 0, err
    code, _, why = call(capsys, "report", *folders, "--out", f"{out}-strict", "--strict")
    assert (code, len(why.strip().splitlines()), "strict" in why) == (2, 1, True)
    assert not Path(f"{out}-strict").exists()
    return err


def run_of(folder):
    run = RunDirectory.open(folder)
    for part in ("uploads", "broadcasts"):
        for path in (folder / part).rglob("*.safetensors"):
            run.message(path)
    for round_, clients in run.captured_rounds().items():
        for client in clients:
            load_trace(run, round_, client)
    return run.load_checkpoint(2), *map(load_state, run.state_paths(2)), run.summary, *map(run.lines, LINES)


LINES = ("metrics", "timings", "ledger")
READ = {
    "runs/fedgh": run_of,
    "suite/pixels": lambda folder: (load_attack(folder), read_bytes(folder / "grid.png")),
    "suite/membership": load_scores,
    "suite": lambda folder: fedpriv.attack(folder.parent / "runs/fedgh", **SUITE, out=folder, resume=True),
    "study": lambda folder: (read_study(folder), read_cells(folder)),
    "recording": lambda folder: [[run.arrays(one) for one in run.messages(1)] for run in [RecordedRun.open(folder)]],
}
"""Folders, and who reads all that is in them."""


def number(content):
    """Make a digit another."""
    place = next(place for place in range(len(content) // 2, len(content)) if chr(content[place]) in "0123456789")
    content[place] ^= 1


def test_no_edit_of_any_file_is_silent(sound, tmp_path):
    recorder = Recorder(sound / "recording", "by hand 1.0")
    recorder.broadcast(1, ["a"], {"arrays": {"weight": torch.ones(3)}})
    recorder.upload(1, "a", {"arrays": {"weight": torch.rand(3)}})
    recorder.close()
    tried = 0
    for folder, read in READ.items():
        shutil.copytree(sound, tmp_path / "copy")
        names = list(files.listed(sound / folder))
        assert names
        for name in names:
            path = tmp_path / "copy" / folder / name
            content = path.read_bytes()
            flipped, edited = bytearray(content), bytearray(content)
            flipped[len(content) // 2] ^= 1
            number(edited)
            for change in (flipped, edited, content[:-1], b"", None):
                path.unlink()
                if change is not None:
                    path.write_bytes(change)
                elif name.startswith("truth") or name == "grid.png":
                    continue  # may be taken away, or is drawn again
                with pytest.raises(UserError, match=rf"{path.name}:? "):
                    read(tmp_path / "copy" / folder)
                tried += 1
            path.write_bytes(content)
        read(tmp_path / "copy" / folder)
        shutil.rmtree(tmp_path / "copy")
    assert tried > 150


@pytest.mark.parametrize("what", CASES)
def test_what_is_damaged_is_named_and_left_out(what, sound, tmp_path, capsys):
    kind, name, damage = CASES[what]
    home, page = tmp_path / kind, tmp_path / "page"
    shutil.copytree(sound / kind, home)
    damage(home / name)
    err = reported(capsys, page, home)
    words = "fedgh" if kind == "study" else f"{kind}/{name}"
    named(page, err, words, ("What did not come to its end", "lost") if kind == "study" else ("Left out",))
    if kind == "runs":
        assert run_figures(page) == {"fedproto": run_figures(sound / "pages" / kind)["fedproto"]}
        return
    expected, found = figures(sound / "pages" / kind), figures(page)
    gone = {key for key in expected if (key[0] == "fedgh" if kind == "study" else key[1] == name)}
    assert found == {key: row for key, row in expected.items() if key not in gone}
    assert name in ("membership", ".") or gone


@pytest.mark.parametrize("what", ["a field is changed", "the study is changed"])
def test_a_study_that_is_damaged_itself_is_left_out_beside_others(what, sound, tmp_path, capsys):
    for kind in ("study", "suite"):
        shutil.copytree(sound / kind, tmp_path / kind)
    if what == "a field is changed":
        change = lines("cells.jsonl", lambda found: [json.dumps(json.loads(found[0]) | {"seed": "x"}), *found[1:]])
    else:
        change = edit("study.json", command=7)
    change(tmp_path / "study")
    err = reported(capsys, tmp_path / "page", tmp_path / "study", tmp_path / "suite")
    named(tmp_path / "page", err, "study", ("Left out",))
    assert figures(sound / "pages" / "suite") == figures(tmp_path / "page")
    code, _, err = call(capsys, "report", tmp_path / "study", "--out", tmp_path / "alone")
    assert (code, len(err.strip().splitlines())) == (2, 1)
