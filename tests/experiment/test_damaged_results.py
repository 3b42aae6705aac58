"""Reports on damaged results: each is named and left out, refused when strict, and changes no figure of another."""

import csv
import json
import shutil
from pathlib import Path

import pytest
from command_line import call
from federations import QUICK_DATA
from hostile_cases import Skeleton, Written

import fedpriv

SMALL = {**QUICK_DATA, "per_class": 20, "clients": 3, "partition": "iid", "rounds": 2}
FIGURES = (
    "psnr_db",
    "psnr_db_median",
    "best_floor_psnr_db",
    "advantage_db",
    "ssim",
    "accuracy_after_training",
    "round",
)
"""Columns that are of one result alone; p-values and verdicts are of all that a page compares."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Two runs, a suite of two attacks and an inference on one of them, and a study of three cells."""
    home = tmp_path_factory.mktemp("sound")
    for name in ("fedgh", "fedproto"):
        fedpriv.train(name, out=home / "runs" / name, **SMALL)
    quick = {"targets": 3, "iterations": 4, "out": home / "suite"}
    fedpriv.attack(home / "runs" / "fedgh", target="prototype", attacks=["pixels", "dip", "membership"], **quick)
    attacks = [{"name": "pixels", "iterations": 2}, {"name": "membership"}]
    study = {"attacks": attacks, "targets": 2, "control": False, "federation": SMALL}
    fedpriv.audit(methods=["fedgh", "fedproto"], **study, out=home / "study")
    return home


@pytest.fixture
def damaged(sound, tmp_path):
    """A copy to be damaged."""
    shutil.copytree(sound, tmp_path / "copy")
    return tmp_path / "copy"


def figures(page):
    """The figures of each result, by the attack and what was attacked."""
    with (page / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {(row["method"], row["directory"], row["seed"]): [row[name] for name in FIGURES] for row in rows}


def run_figures(page):
    with (page / "runs.csv").open(newline="") as file:
        return {row.pop("directory"): row for row in csv.DictReader(file)}


def reported(capsys, home, out, *folders):
    code, said, err = call(capsys, "report", *(home / name for name in folders), "--out", out)
    strict, _, why = call(capsys, "report", *(home / name for name in folders), "--out", f"{out}-strict", "--strict")
    assert code == 0, err
    assert not said or said.startswith("report: ")
    return err, (strict, why, Path(f"{out}-strict"))


@pytest.fixture(scope="module")
def known(sound, tmp_path_factory):
    """The pages over what is not damaged."""
    out = tmp_path_factory.mktemp("known")
    fedpriv.report([sound / "suite"], out=out / "suite")
    fedpriv.report([sound / "study"], out=out / "study")
    fedpriv.report([sound / "runs"], out=out / "runs")
    return out


def check(page, err, strict, words, *, sections):
    """The damage is named on the terminal and on every page, and refused when strict."""
    lines = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert any(words in line for line in lines), err
    code, why, folder = strict
    assert code == 2
    assert len(why.strip().splitlines()) == 1
    assert "strict" in why
    assert not folder.exists()
    html, markdown = (Skeleton, ".html"), (Written, ".md")
    for reader, end in (html, markdown):
        for file in (one for one in page.iterdir() if one.suffix == end):
            text = reader(file.read_text()).text
            assert any(f" {section} " in text for section in sections), file
            assert words in text, file


# ---------------------------------------------------------------- a suite


def overwrite(name, text):
    return lambda folder: (folder / name).write_text(text)


def flip(name, where=0.5):
    """Flip one bit of a file."""

    def damage(folder):
        content = bytearray((folder / name).read_bytes())
        content[int(len(content) * where)] ^= 1
        (folder / name).write_bytes(content)

    return damage


def swap(name, other):
    return lambda folder: shutil.copyfile(folder.parent / other / name, folder / name)


def remove(name):
    return lambda folder: (folder / name).unlink()


def edit(name, **changes):
    def damage(folder):
        found = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(found | changes))

    return damage


def cases(table, *quick):
    """The names of a table of damages, all but some of them slow: a federation and a study are made once for all."""
    return [pytest.param(what, marks=[] if what in quick else [pytest.mark.slow]) for what in table]


ATTACK = {
    "about.json is gone": remove("about.json"),
    "about.json is the other attack's": swap("about.json", "dip"),
    "metrics.json has a better figure": edit("metrics.json", n_clients=2),
    "the reconstruction has a bit flipped": flip("reconstruction.safetensors", 0.9),
    "the reconstruction is gone": remove("reconstruction.safetensors"),
    "the truth has a bit flipped": flip("truth.safetensors", 0.9),
    "the marker is damaged": lambda folder: damage_marker(folder),
}


def damage_marker(folder):
    """Overwrite the nearest marker that lists the files of a folder."""
    places = [place for place in (folder, *folder.parents) if (place / ".fedpriv.jsonl").is_file()]
    lines = (places[0] / ".fedpriv.jsonl").read_text().splitlines()
    (places[0] / ".fedpriv.jsonl").write_text("\n".join([lines[0], *(line[::-1] for line in lines[1:])]) + "\n")


@pytest.mark.parametrize(
    "what", cases(ATTACK, "about.json is gone", "metrics.json has a better figure", "the marker is damaged")
)
def test_a_damaged_attack_is_named_and_left_out(what, damaged, known, tmp_path, capsys):
    ATTACK[what](damaged / "suite" / "pixels")
    err, strict = reported(capsys, damaged, tmp_path / "page", "suite")
    check(tmp_path / "page", err, strict, "suite/pixels", sections=("Left out",))
    expected, found = figures(known / "suite"), figures(tmp_path / "page")
    assert found == {key: row for key, row in expected.items() if key[1] != "pixels"}
    assert len(found) == len(expected) - 1


@pytest.mark.parametrize("what", cases(["flipped", "empty", "renamed field"], "flipped"))
def test_a_damaged_inference_is_named_and_left_out(what, damaged, known, tmp_path, capsys):
    home = damaged / "suite" / "membership"
    {"flipped": edit("membership.json", n_clients=2), "empty": overwrite("membership.json", "")}.get(
        what, edit("membership.json", extra=1)
    )(home)
    err, strict = reported(capsys, damaged, tmp_path / "page", "suite")
    check(tmp_path / "page", err, strict, "suite/membership", sections=("Left out",))
    assert figures(known / "suite") == figures(tmp_path / "page")
    assert 'id="membership"' not in (tmp_path / "page" / "report.html").read_text()


# ---------------------------------------------------------------- runs


def lines(name, change):
    def damage(folder):
        found = (folder / name).read_text().splitlines()
        (folder / name).write_text("".join(line + "\n" for line in change(found)))

    return damage


def with_field(line, **changes):
    return json.dumps(json.loads(line) | changes)


COUNTED_TRUE = {"after_training": [[True, 9]], "after_broadcast": [[1, 9]]}

RUN = {
    "metrics.jsonl has a line twice": lines("metrics.jsonl", lambda found: [found[0], *found]),
    "metrics.jsonl lacks a line": lines("metrics.jsonl", lambda found: found[:-1]),
    "summary.json is cut": overwrite("summary.json", '{"format": '),
}


@pytest.mark.parametrize("what", cases(RUN, "metrics.jsonl has a line twice", "config.json has another seed"))
def test_a_damaged_run_is_named_and_left_out(what, damaged, known, tmp_path, capsys):
    RUN[what](damaged / "runs" / "fedgh")
    err, strict = reported(capsys, damaged, tmp_path / "page", "runs")
    check(tmp_path / "page", err, strict, "runs/fedgh", sections=("Left out",))
    expected, found = run_figures(known / "runs"), run_figures(tmp_path / "page")
    assert set(found) == {"fedproto"}
    assert found["fedproto"] == expected["fedproto"]


# ---------------------------------------------------------------- a study


def some(home, pattern):
    return sorted(home.glob(pattern))[0]


STUDY = {
    "a cell's attack is altered": lambda home: edit("metrics.json", n_clients=2)(some(home, "attacks/*fedgh*/pixels")),
    "a cell's attack is gone": lambda home: shutil.rmtree(some(home, "attacks/*fedgh*/pixels")),
    "a cell's inference is altered": lambda home: edit("membership.json", n_clients=2)(
        some(home, "attacks/*fedgh*/membership")
    ),
}


@pytest.mark.parametrize("what", cases(STUDY, "a cell's attack is altered"))
def test_a_damaged_cell_of_a_study_is_named(what, damaged, known, tmp_path, capsys):
    STUDY[what](damaged / "study")
    err, strict = reported(capsys, damaged, tmp_path / "page", "study")
    check(tmp_path / "page", err, strict, "fedgh", sections=("What did not come to its end", "lost"))
    assert "lost" in err
    expected, found = figures(known / "study"), figures(tmp_path / "page")
    assert found == {key: row for key, row in expected.items() if "inference" in what or key[0] != "fedgh"}


CELLS = {
    "a line is cut": lambda home: lines("cells.jsonl", lambda found: [found[0], found[1][:40], *found[2:]])(home),
    "a field is changed": lambda home: lines("cells.jsonl", lambda found: [with_field(found[0], seed=7), *found[1:]])(
        home
    ),
    "the study is gone": lambda home: remove("study.json")(home),
    "the study is changed": lambda home: edit("study.json", targets=7)(home),
}


@pytest.mark.parametrize("what", cases(CELLS, "a field is changed"))
def test_a_study_that_is_damaged_itself_is_left_out_beside_others(what, damaged, known, tmp_path, capsys):
    CELLS[what](damaged / "study")
    err, strict = reported(capsys, damaged, tmp_path / "page", "study", "suite")
    check(tmp_path / "page", err, strict, "study", sections=("Left out",))
    assert figures(known / "suite") == figures(tmp_path / "page")
    code, _, err = call(capsys, "report", damaged / "study", "--out", tmp_path / "alone")
    assert (code, len(err.strip().splitlines())) == (2, 1)
