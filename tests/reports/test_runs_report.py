import json
import re
import shutil
from importlib import resources

import numpy as np
import pytest
from page_cases import Page
from run_cases import entangled, make_run
from table_cases import told

from fedpriv.reports.run_records import load_runs
from fedpriv.reports.runs_report import write_runs_report
from fedpriv.util.errors import UserError
from fedpriv.util.files import write_text


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    return [make_run(home / "a", models="small <b>&|x"), make_run(home / "b", "fedre", entangled, seed=1)]


@pytest.fixture(scope="module")
def out(two):
    """Their page, which every test here reads."""
    write_runs_report(two, two[0].parent / "out", attacks="report.html")
    return two[0].parent / "out"


def test_accuracy_by_hand(two):
    one = load_runs(two)[0].at("after_training")
    assert one.pooled.tolist() == [0.25, 0.7, 0.9]
    assert np.allclose(one.mean, [(1 / 2 + 1 / 6) / 2, (0.4 + 0.8) / 2, 0.9])
    assert np.allclose(one.spread, [(1 / 2 - 1 / 6) / 2, 0.2, 0])


def test_cumulative_scalars_by_hand(two):
    run = load_runs(two)[0]
    # Two clients send 3 prototypes of 5 numbers a round; the full count adds 3 class ids and 3 counts of 8 bytes each.
    assert run.cumulative("paper", "scalars").tolist() == [30, 60, 90]
    assert run.cumulative("full", "scalars").tolist() == [42, 84, 126]
    assert run.cumulative("paper", "bytes").tolist() == [120, 240, 360]
    assert run.cumulative("full", "bytes").tolist() == [216, 432, 648]


def test_the_page_and_its_table_name_every_accuracy(two, tmp_path):
    write_runs_report(two, tmp_path / "out")
    row = told(tmp_path / "out" / "runs.csv")[0]
    figures = ("final", "best", "best_round", "mean_over_clients")
    assert [float(row[f"after_training_{name}"]) for name in figures] == pytest.approx([0.9, 0.9, 3, 0.9])
    # After the broadcast: 8, 8 and 9 of 40 pooled; (0.2 + 0.2) / 2 twice, then (0.3 + 0.2) / 2.
    assert [float(row[f"after_broadcast_{name}"]) for name in figures] == pytest.approx([0.225, 0.225, 3, 0.25])


def test_the_page_is_whole_and_needs_nothing_from_outside(out):
    text = (out / "runs.html").read_text()
    page = Page(text)
    pictures = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(pictures) == 3
    assert all(len(p["alt"]) > 40 and p["src"].startswith("data:image/svg+xml;base64,") for p in pictures)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe"}
    assert not re.search(r"https?://|@import|url\(", text)
    for file in resources.files("fedpriv.reports").joinpath("templates").glob("*.html.j2"):
        assert ("<head>" in file.read_text()) == ("Content-Security-Policy" in file.read_text()), file
    links = {attrs["href"] for tag, attrs in page.tags if tag == "a"}
    assert links == {"#" + attrs["id"] for _, attrs in page.tags if "id" in attrs} | {"report.html"}
    assert "small &lt;b&gt;&amp;|x" in text
    assert "differ in seed" in " ".join(page.text.split())
    for svg in out.glob("*.svg"):
        assert not re.search(r'(href|src)="(?!#)', svg.read_text()), svg


def test_the_table_for_spreadsheets(out):
    rows = told(out / "runs.csv")
    assert [row["method"] for row in rows] == ["fedgh", "fedre"]
    found = float(rows[1]["paper_scalars_per_round"]), float(rows[1]["full_scalars_per_round"])
    assert (found, float(rows[0]["seconds"])) == ((10, 16), 12.5)


def test_what_cannot_be_reported_is_named(two, tmp_path):
    with pytest.raises(UserError, match=r"unfinished run .* finish it with"):
        write_runs_report([make_run(tmp_path / "half", finish=False)], tmp_path / "out")
    home = shutil.copytree(two[0], tmp_path / "a")
    line = json.loads((home / "metrics.jsonl").read_text().splitlines()[0])
    summary = json.loads((home / "summary.json").read_text()) | {"seconds": "long"}
    for name, text, complaint in (
        ("metrics.jsonl", "", r"metrics\.jsonl: expected a line for each round from 1 to 3"),
        (
            "metrics.jsonl",
            json.dumps(line | {"clients": None}) + "\n",
            r"metrics\.jsonl:1: field 'clients': input should",
        ),
        ("summary.json", json.dumps(summary), r"summary\.json: field 'seconds': input should be a valid number; train"),
    ):
        before = (home / name).read_text()
        write_text(home / name, text)
        with pytest.raises(UserError, match=complaint):
            write_runs_report([home], tmp_path / "out")
        write_text(home / name, before)
    assert not (tmp_path / "out").exists()
