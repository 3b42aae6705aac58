"""The page over attacks: its numbers are those of the records, it is short, whole, and needs nothing from outside."""

import base64
import hashlib
import io
import itertools
import re
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
import torch
from eval_cases import ABOUT, asked, but, compared, federated, firsts, reconstruction, truths
from eval_cases import stored_attack as attack
from frontier_cases import OPEN, answer
from page_cases import Page
from PIL import Image
from table_cases import told

from fedpriv.attacks.observation import ThreatModel
from fedpriv.eval.answers import WhyOpen, page_answers
from fedpriv.eval.records import NamedClasses, Premise, Reach
from fedpriv.eval.storage import load_attack, save_attack
from fedpriv.eval.words import cell, sentence
from fedpriv.federation.run_directory import DefenseChoice
from fedpriv.reports.grid import at_quantiles, grid_png
from fedpriv.reports.report import StudyFacts, UnfinishedCell, write_report, write_results
from fedpriv.reports.summary import subjects, table_lines
from fedpriv.util.errors import UserError
from fedpriv.util.files import write_bytes

VETOED = ("not tested hard enough", "neither shown nor excluded", "cannot be told", " card", " reach", "floor")
"""Words that no page says."""


def flat(text):
    return " ".join(text.split())


def member(kind="membership", **changes):
    own = federated("fedgh")
    measured = {"comparisons": (compared(kind, 0.2, 1e-6, n=40, least=0.05, ci95=(0.15, 0.25)),), "control": 0.5}
    return asked(kind, method="fedgh", run=own["run"], **(measured | changes))


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """One upload: prototypes of one and of several images, two attacks, membership, and class ids in clear."""
    home, secrets = tmp_path_factory.mktemp("single"), truths([1, 2, 5, 12] * 3)
    means = torch.stack([truth.mean_image()[None].float() for truth in secrets])
    own = {"target": "prototype", "method": "fedgh", "knowledge": ThreatModel(), **federated("fedgh", scalars=64.0)}
    homes = [
        attack(home / "dip", means, secrets, shuffled=reconstruction(means.roll(2, 0)), attack="dip", **own),
        attack(home / "weak", 1 - means, secrets, attack="weak <b>&|name", **own),
    ]
    results = {one: load_attack(one) for one in homes}
    clear = NamedClasses(clients=6, exact=6, counts_exact=0)
    results[home / "membership"] = member(classes=clear)
    return results, home / "out"


@pytest.fixture(scope="module")
def out(single):
    results, folder = single
    attacks = [one for one in results.values() if hasattr(one, "directory")]
    write_results(attacks, {k: v for k, v in results.items() if not hasattr(v, "directory")}, folder)
    return folder


def test_the_page_says_every_answer_and_says_it_shortly(single, out):
    html, markdown = (out / "report.html").read_text(), (out / "report.md").read_text()
    page, answers = Page(html), page_answers(single[0])
    assert {one.verdict for one in answers} >= {"leak", "inconclusive", "not asked"}
    plain = flat(markdown.replace("\\", ""))
    for one in answers:
        assert flat(cell(one)) in flat(page.unfolded)
        assert flat(cell(one)) in plain
        if one.verdict != "not asked":
            assert flat(sentence(one, named=False)) in flat(page.text)
    assert len(page.unfolded.split()) <= 600
    assert len(markdown.split()) <= 1200
    for text in (page.text, markdown):
        assert [word for word in VETOED if word in text.partition("How to reproduce")[0].lower()] == []
    assert "accuracy 90 %" in page.unfolded
    assert "upload 256 B" in page.unfolded
    head = page.unfolded.partition("answers.csv")[0]
    assert all(part in head for part in ("fedgh", "prototype", "digits", "10 clients"))


def test_the_terminal_has_the_same_table_in_eighty_columns(single):
    (upload,) = subjects(single[0])
    lines = table_lines(upload)
    assert max(map(len, lines)) <= 80
    text = flat(" ".join(lines))
    assert "label disclosure" in text
    assert "6/6" in text
    assert [row.endpoint for row in upload.rows] == ["label disclosure", "property", "membership", "reconstruction"]


def test_the_page_needs_nothing_from_outside_and_allows_its_own_script_alone(out):
    html = (out / "report.html").read_text()
    page = Page(html)
    pictures = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(pictures) == 3  # of both attacks, and the primary's on the first screen
    for picture in pictures:
        kind, _, data = picture["src"].partition(",")
        assert (kind, len(picture["alt"]) > 20) == ("data:image/png;base64", True)
        assert Image.open(io.BytesIO(base64.b64decode(data))).width > 500
    assert not {tag for tag, _ in page.tags} & {"link", "iframe", "object", "base"}
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = {attrs["href"] for tag, attrs in page.tags if tag == "a"}
    assert links <= {f"#{name}" for name in ids} | {path.name for path in out.iterdir()}
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html).group(1).replace("&#39;", "'")
    script = re.search(r"<script>(.*)</script>", html, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_names_are_escaped_and_tables_of_markdown_whole(out):
    html, markdown = (out / "report.html").read_text(), (out / "report.md").read_text()
    assert "weak &lt;b&gt;&amp;|name" in html
    assert "weak &lt;b>&amp;\\|name" in markdown
    assert "weak <b>" not in html + markdown
    width = None
    for line in markdown.splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else None
        assert None in (cells, width) or cells == width, line
        width = cells


def test_the_tables_for_spreadsheets(single, out):
    rows = told(out / "results.csv")
    assert [row["directory"] for row in rows] == ["dip", "weak"]
    for row in rows:
        record = load_attack(out.parent / row["directory"]).metrics
        assert float(row["advantage_db"]) == record.advantage_db.mean
        assert float(row["psnr_db"]) == record.metrics.psnr_db.mean
        assert not [name for name in row if "verdict" in name]
    answers = page_answers(single[0])
    assert len(told(out / "answers.csv")) == len(answers)
    for row, one in zip(told(out / "answers.csv"), answers, strict=True):
        assert (row["endpoint"], row["threat"], row["verdict"]) == (one.endpoint, one.threat, one.verdict)
        assert row["advantage"] == ("" if one.advantage is None else str(one.advantage))
        assert row["bound"] == ("" if one.bound is None else str(one.bound))


def test_every_reason_is_said_and_a_premise_only_where_it_fails():
    for why in get_args(WhyOpen):
        failed = (
            {"status": "differs", "cause": "optimiser"} if why == "premise" else {"status": "agrees", "n_clients": 6}
        )
        said = sentence(answer(OPEN, why=why, premise=Premise(**failed)))
        assert why in said
        assert ("The premise fails" in said) == (why == "premise")


def test_a_report_takes_records_alone_and_loads_no_torch(single, tmp_path):
    for one in single[0].values():
        if hasattr(one, "directory"):
            write_bytes(one.directory / "grid.png", grid_png(one))
    script = "import sys; from fedpriv.cli.main import run; sys.exit(run(sys.argv[1:]) or 'torch' in sys.modules)"
    command = [sys.executable, "-c", script, "report", str(single[1].parent / "dip"), "--out", str(tmp_path / "out")]
    subprocess.run(command, check=True)
    assert "data:image/png" in (tmp_path / "out" / "report.html").read_text()


def stored(home, method="fedgh", gain=1.0, **changed):
    secrets = truths([1] * 6)
    own = federated(method, scalars=64.0, **changed)
    more = {"target": "prototype", "method": method, **own}
    return load_attack(attack(home, (firsts(secrets) * gain).clamp(0, 1), secrets, **more))


def test_a_study_opens_with_uploads_by_defenses_a_picture_and_one_recommendation(tmp_path):
    noise = (DefenseChoice("noise", {"scale": 0.3}),)
    made = [stored(tmp_path / f"{m}-{len(d)}", m, defenses=d) for m in ("fedgh", "fedproto") for d in ((), noise)]
    failed = UnfinishedCell("fedre--none--s1", "fedre", "none", "entangled", 1, "failed", "ran <out> of memory")
    study = StudyFacts(5, (failed,), commands=("fedpriv audit study.toml",))
    for name in ("one", "two"):
        write_results(made, {}, tmp_path / name, study=study)
    files = {path.name for path in (tmp_path / "one").iterdir()}
    assert files == {"report.html", "report.md", "results.csv", "answers.csv", "frontier.svg", "frontier.csv"}
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    page = Page((tmp_path / "one" / "report.html").read_text())
    text = flat(page.unfolded)
    for part in ("4 of 5 cells done", "noise scale=0.3", "accuracy 90 %", "fedproto, prototype"):
        assert part in text
    assert text.count("Of these, prefer") == 1
    assert "ran <out> of memory" in page.text
    assert len(page.unfolded.split()) <= 600
    markdown = (tmp_path / "one" / "report.md").read_text()
    assert "ran &lt;out> of memory" in markdown
    assert len(markdown.split()) <= 1200
    assert len(told(tmp_path / "one" / "frontier.csv")) == 4
    write_results([], {}, tmp_path / "empty", study=study)
    assert "fedre--none--s1" in (tmp_path / "empty" / "report.html").read_text()


def test_a_sweep_over_local_work_has_one_row_a_setting(tmp_path):
    labels = ("1 image", "4 images")
    made = {}
    for place, label in enumerate(labels):
        reach = Reach(setting=str(place), label=label, steps=1, images=1 + place)
        one = stored(tmp_path / str(place), gain=1 - 0.9 * place)
        made[label] = but(one.metrics, reach=reach, run=None)
    (upload,) = subjects({key: made[key] for key in reversed(made)})
    assert list(upload.settings) == list(labels)
    rows = [row for row in upload.rows if row.endpoint == "reconstruction"]
    assert [row.setting for row in rows] == list(labels)
    assert [row.setting for row in upload.rows if row.endpoint == "membership"] == [""]


def test_what_cannot_be_reported_is_named(tmp_path):
    secrets = truths([1, 1])
    save_attack(tmp_path / "raw", reconstruction=reconstruction(firsts(secrets)), truths=secrets, about=ABOUT)
    with pytest.raises(UserError, match=r"metrics\.json: no such file; run fedpriv score"):
        write_report([tmp_path / "raw"], tmp_path / "report")


def test_quantiles_are_ranks_and_never_the_best():
    values = [float(v) for v in np.random.default_rng(0).permutation(101)]
    picked = at_quantiles(values, (0.1, 0.5, 0.9))
    assert [values[p] for p in picked] == [10.0, 50.0, 90.0]
