"""The same attack on every round of a run: what is attacked, and what the curve on the page says of it."""

import csv
import json

import pytest
from command_line import words
from federations import DIGITS

from fedpriv.cli.main import run
from fedpriv.pages.round_curve import round_curve_svg, round_curves
from fedpriv.pages.stage_table import stage_tables
from fedpriv.scoring.storage import load_attack

SMALL = [*DIGITS, "--per-class", "20", "--clients", "3", "--partition", "iid", "--models", "small-mlp"]
ATTACK = words("attack --target prototype --attack pixels --iterations 3 --targets 3 --workers 1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("rounds") / "run"
    keep = [flag for number in (2, 4) for flag in ("--keep", str(number))]
    command = ["train", "--method", "fedproto", *SMALL, "--rounds", "4", *keep]
    assert run([*command, "--out", str(path), "--quiet"]) == 0
    return path


@pytest.fixture(scope="module")
def attacked(trained):
    path = trained.parent / "attacked"
    assert run([*ATTACK, "--run", str(trained), "--by-round", "--out", str(path), "--quiet"]) == 0
    return path


def test_every_round_that_can_be_is_attacked(attacked):
    names = sorted(folder.name for folder in attacked.iterdir() if folder.is_dir())
    assert names == ["pixels-round-0002", "pixels-round-0004"]  # of the others no checkpoint was kept
    for name in names:
        about = json.loads((attacked / name / "metrics.json").read_text())
        assert about["stage"]["name"] == name.removeprefix("pixels-")
        assert {row["round"] for row in about["targets"]} == {about["stage"]["round"]}


def test_the_curve_says_what_the_records_of_each_round_say(attacked):
    found = [load_attack(attacked / f"pixels-round-{number:04d}") for number in (4, 2)]
    (curve,) = round_curves(found)
    assert [point.round for point in curve.points] == [2, 4]
    assert curve.of == 4
    for point in curve.points:
        record = next(one.metrics for one in found if one.metrics.stage.round == point.round)
        assert point.psnr == record.metrics.psnr_db.mean
        assert point.floor[0] == record.image_floors[record.advantage_db.best_floor].psnr_db
        assert (point.advantage, point.interval) == (record.advantage_db.mean, record.advantage_db.ci95)
        assert point.permuted == record.image_floors["permuted"].psnr_db
        assert point.accuracy == record.stage.accuracy["after_training"]
    assert stage_tables(found) == []
    assert round_curves(found[:1]) == []


def test_page_picture_and_table_hold_the_curve(attacked):
    (curve,) = round_curves([load_attack(attacked / f"pixels-round-{number:04d}") for number in (2, 4)])
    text, page = (attacked / "report.md").read_text(), (attacked / "report.html").read_text()
    assert "## Leakage by round" in text
    assert 'href="#rounds"' in page
    for point in curve.points:
        assert f"| {point.round} |" in text
        assert f"{point.advantage:+.2f}" in text.partition("## Leakage by round")[2]
        assert f"{point.advantage:+.2f} dB in round {point.round}" in page
    picture = attacked / "rounds-1-pixels-on-prototype-uploads-of-fedproto-digits.svg"
    assert picture.read_text() == round_curve_svg(curve)
    with (attacked / "results.csv").open() as file:
        rows = {int(row["round"]): row for row in csv.DictReader(file)}
    assert {number: float(row["advantage_db"]) for number, row in rows.items()} == {
        point.round: pytest.approx(point.advantage) for point in curve.points
    }
