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
from eval_cases import ABOUT, federated, firsts, images, reconstruction, truths
from eval_cases import stored_attack as attack
from page_cases import Page
from PIL import Image
from table_cases import told

from fedpriv.attacks.observation import KnowledgeCard
from fedpriv.federation.run_directory import DefenseChoice
from fedpriv.pages.alike import judge_results
from fedpriv.pages.comparison_table import comparison_rows
from fedpriv.pages.grid import at_quantiles, grid_png
from fedpriv.pages.picture_table import picture_table
from fedpriv.pages.report import StudyFacts, UnfinishedCell, number, write_report
from fedpriv.scoring.score import score
from fedpriv.scoring.storage import AttackRecord, load_attack, save_attack
from fedpriv.scoring.verdict import TOGETHER, words
from fedpriv.util.errors import UserError
from fedpriv.util.escape import markdown as as_markdown


@pytest.fixture
def three(tmp_path):
    """A leak, a failing attack (both white box) and a leak under another card; the prototype one has several strata."""
    secrets = truths([1, 2, 5, 12] * 3)
    single = truths([1] * 6)
    return [
        attack(tmp_path / "weak", 1 - firsts(single), single, attack="weak <b>&|name"),
        attack(
            tmp_path / "strong",
            firsts(single) * 0.9,
            single,
            attack="strong",
            permuted=reconstruction(firsts(single).roll(2, 0)),
        ),
        attack(
            tmp_path / "seen",
            torch.stack([truth.mean_image()[None].float() for truth in secrets]),
            secrets,
            attack="seen",
            target="prototype",
            knowledge=KnowledgeCard(extractor="shadow", attacker_data="same_domain"),
        ),
    ]


def judged(homes):
    """The verdicts of a page on some results, in their order."""
    found = judge_results({home: load_attack(home) for home in homes})
    return [found[home,] for home in homes]


def test_the_table_of_uploads_says_what_was_found_on_each(three, tmp_path):
    write_report(three, tmp_path / "out")
    told = (tmp_path / "out" / "report.md").read_text().partition("## What was attacked")[2].partition("## ")[0]
    rows = {line.split("|")[2].strip(): line.split("|")[5].strip() for line in told.splitlines() if " digits" in line}
    assert rows["representation"] == "images leak"  # by the stronger of two attacks


def test_the_page_holds_every_verdict_and_card(three, tmp_path):
    out = tmp_path / "report"
    write_report(three, out)
    page = Page((out / "report.html").read_text())
    flat = " ".join(page.text.split())
    markdown = (out / "report.md").read_text()
    for home, verdict in zip(three, judged(three), strict=True):
        record = load_attack(home).metrics
        assert words(verdict) in flat
        assert record.control.verdict in flat
        assert words(verdict) in markdown
    assert TOGETHER in flat
    assert TOGETHER in markdown
    assert "shadow" in flat
    assert "same domain" in flat
    assert ABOUT.command in flat
    assert ABOUT.command in markdown
    source = (out / "report.html").read_text()
    rows = [row for verdict in judged(three) for row in comparison_rows(verdict)]
    assert {row.images for row in rows} == {"all", "1", "2-3", "4-10", ">10"}
    for row in rows:
        told = [escape(value) for value in (row.images, row.over, row.attack)]
        assert "".join(f"<td>{value}</td>" for value in told) in source
        assert f"| {as_markdown(row.images)} | {row.over} | {row.attack} |" in markdown


def test_the_page_needs_nothing_from_outside(three, tmp_path):
    write_report(three, tmp_path / "report")
    page = Page((tmp_path / "report" / "report.html").read_text())
    pictures = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(pictures) > 20
    for picture in pictures:
        assert len(picture["alt"]) > 20
        kind, _, data = picture["src"].partition(",")
        assert kind == "data:image/png;base64"
        assert Image.open(io.BytesIO(base64.b64decode(data))).size == (8, 8)
    assert not {tag for tag, _ in page.tags} & {"link", "iframe", "object", "base"}
    assert [attrs for tag, attrs in page.tags if tag == "script"] == [{}]
    links = {attrs["href"] for tag, attrs in page.tags if tag == "a"}
    assert all(link.startswith("#") for link in links)
    assert {link[1:] for link in links} <= {attrs["id"] for _, attrs in page.tags if "id" in attrs}


def test_the_page_allows_its_own_script_and_nothing_else(three, tmp_path):
    write_report(three, tmp_path / "report")
    html = (tmp_path / "report" / "report.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html).group(1)
    script = re.search(r"<script>(.*)</script>", html, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy.replace("&#39;", "'")
    assert "default-src 'none'" in policy.replace("&#39;", "'")


def test_headings_come_in_order(three, tmp_path):
    write_report(three, tmp_path / "report")
    page = Page((tmp_path / "report" / "report.html").read_text())
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {"main", "header", "nav"} <= {tag for tag, _ in page.tags}


def test_pictures_keep_to_their_room():
    truth = truths([1] * 30, shape=(3, 64, 64))
    found = reconstruction(firsts(truth))
    record = AttackRecord(Path("x"), found, None, truth, ABOUT, score(found, truth, None, seed=0, about=ABOUT))
    whole, small = picture_table(record, 10**9), picture_table(record, 60_000)
    assert whole.remark == ""
    assert "colours" in small.remark
    size = sum(len(cell.source) for _, cells in small.rows for cell in cells)
    assert size <= 60_000 < sum(len(cell.source) for _, cells in whole.rows for cell in cells)
    # What is shown without a remark is what was scored, to the last grey level.
    shown = Image.open(io.BytesIO(base64.b64decode(whole.rows[1][1][0].source.partition(",")[2])))
    true = Image.open(io.BytesIO(base64.b64decode(whole.rows[0][1][0].source.partition(",")[2])))
    assert np.array_equal(np.asarray(shown), np.asarray(true))


def test_names_are_escaped(three, tmp_path):
    write_report(three, tmp_path / "report")
    html = (tmp_path / "report" / "report.html").read_text()
    assert "weak &lt;b&gt;&amp;|name" in html
    assert "weak <b>" not in html
    markdown = (tmp_path / "report" / "report.md").read_text()
    assert "weak &lt;b>&amp;\\|name" in markdown
    assert "weak <b>" not in markdown


def test_ranking_is_within_a_card_and_strongest_first(three, tmp_path):
    write_report(three, tmp_path / "report")
    html = (tmp_path / "report" / "report.html").read_text()
    assert html.count('<dl class="card">') == 2
    first, second = html.split('<dl class="card">')[1:]
    ranked = re.findall(r'<a href="#attack-[\d-]+">(\w+)', second)
    assert ranked == ["strong", "weak"]
    assert re.findall(r'<a href="#attack-[\d-]+">(\w+)', first) == ["seen"]


def test_the_table_for_spreadsheets(three, tmp_path):
    write_report(three, tmp_path / "report")
    rows = told(tmp_path / "report" / "results.csv")
    weak, strong, seen = three
    assert [row["directory"] for row in rows] == ["seen", "strong", "weak"]  # by card, strongest first
    weak_one, strong_one, seen_one = judged(three)
    assert [row["verdict_kind"] for row in rows] == [one.kind for one in (seen_one, strong_one, weak_one)]
    assert [row["verdict_reasons"] for row in rows] == ["no_control", "", "no_control"]
    for row, home, one in zip(rows, (seen, strong, weak), (seen_one, strong_one, weak_one), strict=True):
        record = load_attack(home).metrics
        assert float(row["advantage_db"]) == record.advantage_db.mean
        assert float(row["psnr_db"]) == record.metrics.psnr_db.mean
        assert row["lpips"] == ""
        assert row["verdict"] == words(one)
    assert rows[1]["control_passes"] == "True"
    assert "batch=known" in rows[0]["knowledge"]


def test_markdown_tables_are_whole(three, tmp_path):
    write_report(three, tmp_path / "report")
    width = None
    for line in (tmp_path / "report" / "report.md").read_text().splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else None
        if cells is not None and width is not None:
            assert cells == width, line
        width = cells


def test_without_the_truth_there_is_a_page_without_pictures(three, tmp_path):
    for home in three:
        (home / "truth.safetensors").unlink()
    write_report(three, tmp_path / "report")
    page = Page((tmp_path / "report" / "report.html").read_text())
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert "private truth was left out" in page.text


def test_writing_twice_gives_the_same_bytes(three, tmp_path):
    write_report(three, tmp_path / "one")
    write_report(three, tmp_path / "two")
    for name in ("report.html", "report.md", "results.csv"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_study_tells_what_did_not_finish(three, tmp_path):
    failed = UnfinishedCell("fedre--none--s1", "fedre", "none", "entangled", 1, "failed", "ran <out> of memory")
    study = StudyFacts(4, (failed,), commands=("fedpriv audit study.toml",))
    write_report(three, tmp_path / "report", study=study)
    page = Page((tmp_path / "report" / "report.html").read_text())
    flat = " ".join(page.text.split())
    assert "3 of 4 cells done" in flat
    assert "ran <out> of memory" in flat
    assert "fedpriv audit study.toml" in flat
    assert "ran &lt;out> of memory" in (tmp_path / "report" / "report.md").read_text()
    write_report([], tmp_path / "empty", study=study)
    assert "fedre--none--s1" in (tmp_path / "empty" / "report.html").read_text()


def test_claims_stand_beside_results_on_the_same_data_and_say_what_is_not_known(tmp_path):
    secrets = truths([1] * 6)
    homes = [
        attack(tmp_path / method, firsts(secrets) * 0.9, secrets, method=method, target=target, dataset="tiny-imagenet")
        for method, target in (("fedallrep", "representation"), ("fedgh", "prototype"))
    ]
    write_report(homes, tmp_path / "report")
    page = Page((tmp_path / "report" / "report.html").read_text())
    flat = " ".join(page.text.split())
    assert "12.89" in flat  # representations
    assert "10.25" in flat  # prototypes
    assert "9.66" not in flat  # nothing entangled was attacked
    assert flat.count("Not stated:") >= 1
    assert "mean colour 11.60 ± 2.01 dB" in flat
    other = attack(tmp_path / "other", firsts(secrets), secrets, method="fedgh", target="prototype", dataset="digits")
    write_report([other], tmp_path / "digits")
    assert "What papers report" not in (tmp_path / "digits" / "report.html").read_text()


def test_claims_stand_beside_undefended_runs_alone(tmp_path):
    secrets, homes = truths([1] * 4), []
    for name, share, chosen in (("bare", 0.94, ()), ("guarded", 0.785, (DefenseChoice("noise", {"scale": 0.3}),))):
        facts = federated("fedproto", accuracy=share, scalars=1e5 * share, defenses=chosen, dataset="cifar10")
        homes.append(attack(tmp_path / name, firsts(secrets), secrets, method="fedproto", target="prototype", **facts))
    write_report(homes, tmp_path / "report")
    told = (tmp_path / "report" / "report.md").read_text().partition("## What papers report")[2]
    assert "94.0 % after training" in told
    assert "940.00 thousand scalars up" in told
    for text in ("78.5", "785.00", "+ noise"):
        assert text not in told, text
    write_report(homes[1:], tmp_path / "alone")
    assert "What papers report" not in (tmp_path / "alone" / "report.md").read_text()


def test_what_cannot_be_reported_is_named(tmp_path):
    with pytest.raises(UserError, match="no attack directories"):
        write_report([], tmp_path)
    secrets = truths([1, 1])
    save_attack(tmp_path / "raw", reconstruction=reconstruction(firsts(secrets)), truths=secrets, about=ABOUT)
    with pytest.raises(UserError, match=r"metrics\.json: no such file; run fedpriv score"):
        write_report([tmp_path / "raw"], tmp_path / "report")


def test_numbers_as_shown():
    assert [number(value) for value in (None, 0.0123, 8.437, 123.45, 4043.2)] == ["–", "0.012", "8.44", "123.5", "4043"]


# ---------------------------------------------------------------- grid


def test_quantiles_are_ranks_and_never_the_best():
    values = [float(v) for v in np.random.default_rng(0).permutation(101)]
    picked = at_quantiles(values, (0.1, 0.5, 0.9))
    assert [values[p] for p in picked] == [10.0, 50.0, 90.0]


def grid_of(pictures, secrets, permuted=None, **how):
    found = reconstruction(pictures)
    record = score(found, secrets, permuted, seed=0, about=ABOUT)
    attack = AttackRecord(Path("x"), found, permuted, secrets, ABOUT, record)
    return np.asarray(Image.open(io.BytesIO(grid_png(attack, **how))).convert("RGB"))


def test_small_images_stay_crisp():
    # A black and white chequerboard must come out black and white: any smoothing would leave large grey areas.
    board = (torch.arange(8)[:, None] + torch.arange(8)[None]).remainder(2).float()[None, None, None]
    secrets = truths([1, 1])
    secrets = tuple(type(t).equal(board[0], t.labels, t.pool) for t in secrets)
    picture = grid_of(board.expand(2, -1, -1, -1, -1).clone(), secrets)
    cell = picture[135:260, 180:320]
    black, white = (cell < 10).all(axis=2).mean(), (cell > 245).all(axis=2).mean()
    assert black > 0.3
    assert white > 0.3
    assert black + white > 0.9


def test_only_scores_above_the_floor_are_green():
    single = truths([1] * 3)
    green = np.array([11, 110, 79])
    for pictures, found in ((firsts(single), True), (1 - firsts(single), False)):
        assert (np.abs(grid_of(pictures, single).astype(int) - green).sum(2) < 3).any() == found


def test_grids_of_every_kind_are_drawn():
    single, several = truths([1] * 30), truths([1, 2, 5, 12])
    control = reconstruction(images(30, seed=3)[:, None])
    few = grid_of(firsts(single), single)
    more = grid_of(firsts(single), single, every_target=True)
    assert more.shape[0] > 2 * few.shape[0] * 0.9
    assert grid_of(firsts(single), single, control).shape[0] > few.shape[0]
    assert grid_of(firsts(several), several).shape[0] > few.shape[0]
    batch = truths([4, 4, 4], shape=(3, 16, 16))
    assert grid_of(torch.stack([truth.members for truth in batch]), batch).ndim == 3


def test_the_best_target_cannot_be_asked_for():
    secrets = truths([1, 1])
    with pytest.raises(UserError, match="strictly between 0 and 1"):
        grid_of(firsts(secrets), secrets, quantiles=(0.5, 1.0))
