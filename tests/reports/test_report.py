import base64
import hashlib
import io
import itertools
import re
from html import escape

import numpy as np
import pytest
import torch
from eval_cases import ABOUT, firsts, reconstruction, truths
from eval_cases import stored_attack as attack
from fedpriv.eval.verdict import TOGETHER, words
from fedpriv.reports.entries import comparison_rows
from page_cases import Page
from PIL import Image
from table_cases import told

from fedpriv.attacks.observation import ThreatModel
from fedpriv.eval.storage import load_attack, save_attack
from fedpriv.reports.grid import at_quantiles
from fedpriv.reports.labels import judge_results
from fedpriv.reports.report import StudyFacts, UnfinishedCell, write_report, write_results
from fedpriv.util.errors import UserError
from fedpriv.util.escape import markdown as as_markdown


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A leak, a failing attack (both white box) and a leak under another card; the prototype one has several strata."""
    home, secrets, single = tmp_path_factory.mktemp("report"), truths([1, 2, 5, 12] * 3), truths([1] * 6)
    seen, control = firsts(single), reconstruction(firsts(single).roll(2, 0))
    means = torch.stack([truth.mean_image()[None].float() for truth in secrets])
    card = ThreatModel(extractor="shadow", attacker_data="same_domain")
    return [
        attack(home / "weak", 1 - seen, single, attack="weak <b>&|name"),
        attack(home / "strong", seen * 0.9, single, attack="strong", shuffled=control),
        attack(home / "seen", means, secrets, attack="seen", target="prototype", knowledge=card),
    ]


@pytest.fixture(scope="module")
def out(three):
    """Their page, which every test here reads."""
    write_report(three, three[0].parent / "out")
    return three[0].parent / "out"


@pytest.fixture(scope="module")
def html(out):
    return (out / "report.html").read_text()


@pytest.fixture(scope="module")
def markdown(out):
    return (out / "report.md").read_text()


def judged(homes):
    """The verdicts of a page on some results, in their order."""
    found = judge_results({home: load_attack(home) for home in homes})
    return [found[home,] for home in homes]


def test_the_page_holds_every_verdict_and_card(three, html, markdown):
    flat = " ".join(Page(html).text.split())
    for home, verdict in zip(three, judged(three), strict=True):
        assert load_attack(home).metrics.control.verdict in flat
        for text in (flat, markdown):
            assert all(part in text for part in (words(verdict), TOGETHER, ABOUT.command))
    assert "shadow" in flat
    assert "same domain" in flat
    table = markdown.partition("## What was attacked")[2].partition("## ")[0].splitlines()
    found = {line.split("|")[2].strip(): line.split("|")[5].strip() for line in table if " digits" in line}
    assert found["representation"] == "images leak"  # by the stronger of two attacks
    rows = [row for verdict in judged(three) for row in comparison_rows(verdict)]
    assert {row["images"] for row in rows} == {"all", "1", "2-3", "4-10", ">10"}
    for row in rows:
        shown = [escape(value) for value in (row["images"], row["over"], row["attack"])]
        assert "".join(f"<td>{value}</td>" for value in shown) in html
        assert f"| {as_markdown(row['images'])} | {row['over']} | {row['attack']} |" in markdown


def test_the_page_needs_nothing_from_outside_and_allows_its_own_script_alone(html):
    page = Page(html)
    pictures = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(pictures) > 20
    for picture in pictures:
        kind, _, data = picture["src"].partition(",")
        assert (kind, len(picture["alt"]) > 20) == ("data:image/png;base64", True)
        assert Image.open(io.BytesIO(base64.b64decode(data))).size == (8, 8)
    assert not {tag for tag, _ in page.tags} & {"link", "iframe", "object", "base"}
    assert [attrs for tag, attrs in page.tags if tag == "script"] == [{}]
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["href"] for tag, attrs in page.tags if tag == "a"} <= {f"#{name}" for name in ids}
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html).group(1).replace("&#39;", "'")
    script = re.search(r"<script>(.*)</script>", html, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_names_are_escaped_and_tables_of_markdown_whole(html, markdown):
    assert "weak &lt;b&gt;&amp;|name" in html
    assert "weak &lt;b>&amp;\\|name" in markdown
    assert "weak <b>" not in html + markdown
    width = None
    for line in markdown.splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else None
        assert None in (cells, width) or cells == width, line
        width = cells


def test_ranking_is_within_a_card_and_strongest_first(html):
    first, second = html.split('<dl class="card">')[1:]
    assert re.findall(r'<a href="#attack-[\d-]+">(\w+)', second) == ["strong", "weak"]
    assert re.findall(r'<a href="#attack-[\d-]+">(\w+)', first) == ["seen"]


def test_the_table_for_spreadsheets(three, out):
    rows = told(out / "results.csv")
    weak, strong, seen = zip(three, judged(three), strict=True)
    assert [row["directory"] for row in rows] == ["seen", "strong", "weak"]  # by card, strongest first
    assert [row["verdict_reasons"] for row in rows] == ["no_control", "", "no_control"]
    for row, (home, one) in zip(rows, (seen, strong, weak), strict=True):
        record = load_attack(home).metrics
        assert float(row["advantage_db"]) == record.advantage_db.mean
        assert float(row["psnr_db"]) == record.metrics.psnr_db.mean
        assert (row["lpips"], row["verdict_kind"], row["verdict"]) == ("", one.kind, words(one))
    assert rows[1]["control_passes"] == "True"
    assert "batch=known" in rows[0]["knowledge"]


def test_a_study_says_what_did_not_finish_and_writing_twice_gives_the_same_bytes(three, tmp_path):
    failed = UnfinishedCell("fedre--none--s1", "fedre", "none", "entangled", 1, "failed", "ran <out> of memory")
    study = StudyFacts(4, (failed,), commands=("fedpriv audit study.toml",))
    for name in ("one", "two"):
        write_results([load_attack(home) for home in three], {}, tmp_path / name, study=study)
    for name in ("report.html", "report.md", "results.csv"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    flat = " ".join(Page((tmp_path / "one" / "report.html").read_text()).text.split())
    assert all(part in flat for part in ("3 of 4 cells done", "ran <out> of memory", "fedpriv audit study.toml"))
    assert "ran &lt;out> of memory" in (tmp_path / "one" / "report.md").read_text()
    write_results([], {}, tmp_path / "empty", study=study)
    assert "fedre--none--s1" in (tmp_path / "empty" / "report.html").read_text()


def test_what_cannot_be_reported_is_named(tmp_path):
    with pytest.raises(UserError, match="no attack directories"):
        write_report([], tmp_path)
    secrets = truths([1, 1])
    save_attack(tmp_path / "raw", reconstruction=reconstruction(firsts(secrets)), truths=secrets, about=ABOUT)
    with pytest.raises(UserError, match=r"metrics\.json: no such file; run fedpriv score"):
        write_report([tmp_path / "raw"], tmp_path / "report")


# ---------------------------------------------------------------- grid


def test_quantiles_are_ranks_and_never_the_best():
    values = [float(v) for v in np.random.default_rng(0).permutation(101)]
    picked = at_quantiles(values, (0.1, 0.5, 0.9))
    assert [values[p] for p in picked] == [10.0, 50.0, 90.0]
