import base64
import hashlib
import io
import itertools
import re
from html import escape
from pathlib import Path

import numpy as np
import pytest
import torch
from eval_cases import ABOUT, firsts, reconstruction, truths
from eval_cases import stored_attack as attack
from looped import each
from page_cases import Page
from PIL import Image
from table_cases import told

from fedpriv.attacks.observation import ThreatModel
from fedpriv.eval.score import score
from fedpriv.eval.storage import AttackRecord, load_attack, save_attack
from fedpriv.eval.verdict import TOGETHER, words
from fedpriv.reports.entries import comparison_rows
from fedpriv.reports.grid import Column, at_quantiles, draw_columns, grid_figure, picture_table
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


def test_pictures_keep_to_their_room():
    truth = truths([1] * 30, shape=(3, 64, 64))
    found = reconstruction(firsts(truth))
    record = AttackRecord(Path("x"), found, None, truth, ABOUT, score(found, truth, None, seed=0, about=ABOUT))
    whole, small = picture_table(record, 10**9), picture_table(record, 60_000)
    assert whole.remark == ""
    assert "of their side" in small.remark
    size = sum(len(cell.source) for _, cells in small.rows for cell in cells)
    assert size <= 60_000 < sum(len(cell.source) for _, cells in whole.rows for cell in cells)
    # What is shown without a remark is what was scored, to the last grey level.
    shown = Image.open(io.BytesIO(base64.b64decode(whole.rows[1][1][0].source.partition(",")[2])))
    true = Image.open(io.BytesIO(base64.b64decode(whole.rows[0][1][0].source.partition(",")[2])))
    assert np.array_equal(np.asarray(shown), np.asarray(true))


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


def test_small_images_stay_crisp():
    # A black and white chequerboard must come out black and white: any smoothing would leave large grey areas.
    board = (torch.arange(8)[:, None] + torch.arange(8)[None]).remainder(2).float()[None, None, None]
    secrets = tuple(type(t).equal(board[0], t.labels, t.pool) for t in truths([1, 1]))
    found = reconstruction(board.expand(2, -1, -1, -1, -1).clone())
    record = AttackRecord(Path("x"), found, None, secrets, ABOUT, score(found, secrets, None, seed=0, about=ABOUT))
    drawn = grid_figure(record)
    drawn.canvas.draw()
    box, picture = drawn.axes[0].get_window_extent(), np.asarray(drawn.canvas.buffer_rgba())[::-1, :, :3]
    cell = picture[int(box.y0) + 2 : int(box.y1) - 2, int(box.x0) + 2 : int(box.x1) - 2]
    black, white = (cell < 10).all(axis=2).mean(), (cell > 245).all(axis=2).mean()
    assert min(black, white) > 0.3
    assert black + white > 0.9


@each("columns, title", [(1, "dip on prototype uploads"), (5, "dip on prototype uploads " * 9), (10, "w" * 300)])
def test_no_text_lies_outside_the_picture(columns, title):
    cells = tuple((torch.rand(1, 8, 8), "12.3 dB") for _ in range(3))
    made = [Column("10 % quantile", "client 7 · round 30 · class 9", cells, True) for _ in range(columns)]
    drawn = draw_columns(["truth", "reconstruction", "baseline:\nmean image"], made, title, "mean PSNR 12.3 dB, " * 30)
    boxes = [text.get_window_extent(drawn.canvas.get_renderer()) for text in drawn.texts if text.get_text()]
    for box in boxes:
        assert min(box.x0, box.y0) >= 0
        assert (box.x1 <= drawn.bbox.x1, box.y1 <= drawn.bbox.y1) == (True, True)
    assert boxes[0].y0 >= boxes[1].y1
    assert boxes[1].y0 >= max(box.y1 for box in boxes[2:])
