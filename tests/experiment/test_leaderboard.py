"""Results become entries of a leaderboard, which is checked and drawn."""

import json

import pytest
import torch
from eval_cases import firsts, reconstruction, stored_attack, truths

import fedpriv
from fedpriv.experiment.leaderboard import checking
from fedpriv.federation.method import LocalTraining
from fedpriv.federation.run_directory import RunConfig
from fedpriv.pages.alike import by_folder, judge_results
from fedpriv.pages.report import load_scored
from fedpriv.scoring.records.made import Reach
from fedpriv.util.errors import UserError


@pytest.fixture
def leak(tmp_path):
    secrets = truths([1] * 6)
    control = reconstruction(firsts(secrets).roll(2, 0))
    return stored_attack(tmp_path / "results" / "dip", firsts(secrets) * 0.9, secrets, permuted=control).parent


def test_a_result_becomes_an_entry_that_says_the_same(leak, tmp_path):
    board = fedpriv.leaderboard(tmp_path / "board", add=leak, entered_by="A Lab", out=tmp_path / "page")
    assert [str(path.relative_to(tmp_path)) for path in board.added] == ["board/representation/fedallrep-digits.json"]
    (entry,) = board.entries
    assert (entry.target, entry.method, entry.dataset, entry.entered_by) == (
        "representation",
        "fedallrep",
        "digits",
        "A Lab",
    )
    assert [one.verdict.kind for one in entry.attacks] == ["leaks"]
    assert entry.commands == ("fedpriv attack --target representation --seed 0",)
    assert board.faults == ()
    assert board.table()[0]["images"] == "● leak"
    assert "by A Lab" in board.pages[0].read_text()
    (ranking, *_) = board.rankings
    assert [place.attack.name for place in ranking.places] == ["dip"]


LABELS = ("1 image", "4 images", "epoch")


@pytest.fixture
def reached(tmp_path):
    """An attack after more and more local work: it leaks, it leaks, it shows noise."""
    secrets = truths([1] * 6)
    for place, (setting, images) in enumerate((("1", 1), ("4", 4), ("epoch", 90))):
        reach = Reach(
            **{"setting": setting, "label": LABELS[place], "words": f"one step on {setting}", "place": place},
            **{"series": LABELS, "steps": 1 if place < 2 else 9, "images": images},
        )
        run = RunConfig(
            method="fedavg", dataset="digits", models="small-cnn", training=LocalTraining(batch_size=images)
        )
        shown = firsts(secrets) * 0.9 if place < 2 else torch.rand_like(firsts(secrets))
        control = reconstruction(firsts(secrets).roll(2, 0))
        about = {"attack": "dlg", "target": "model", "method": "fedavg", "run": run, "reach": reach}
        stored_attack(tmp_path / "results" / f"dlg-{setting}", shown, secrets, permuted=control, **about)
    return tmp_path / "results"


def test_each_setting_of_a_reach_is_an_entry_and_all_are_judged_together(reached, tmp_path):
    board = fedpriv.leaderboard(tmp_path / "board", add=reached, out=tmp_path / "page")
    assert [path.name for path in board.added] == [
        "fedavg-reach-1-digits.json",
        "fedavg-reach-4-digits.json",
        "fedavg-reach-epoch-digits.json",
    ]
    assert board.faults == ()
    assert [row["of"] for row in board.table()] == [f"fedavg, {label}" for label in LABELS]
    assert [row["images"][0] for row in board.table()] == ["●", "●", "○"]
    compared = {one.verdict.n_compared for entry in board.entries for one in entry.attacks}
    pages = judge_results(by_folder([load_scored(one) for one in sorted(reached.iterdir())], {}))
    assert compared == {verdict.n_compared for verdict in pages.values()}
    assert [one.work for one in board.rankings if one.measure == "images"] == list(LABELS)
    missing = [next(one for one in board.remarks if f"reach-{setting}-" in one) for setting in ("1", "4", "epoch")]
    assert "gradient-dip" in missing[0]
    assert "gradient-dip" not in missing[1]
    assert ["membership" in one for one in missing] == [True, False, True]
    assert ["property" in one for one in missing] == [False, False, True]
    assert "one step on 4" in board.pages[1].read_text()


def test_an_entry_is_replaced_only_when_asked_and_nothing_else_ever(leak, tmp_path):
    home = tmp_path / "board"
    (path,) = fedpriv.leaderboard(home, add=leak).added
    before = path.read_text()
    with pytest.raises(UserError, match=r"exists; force"):
        fedpriv.leaderboard(home, add=leak, entered_by="Other")
    assert path.read_text() == before
    fedpriv.leaderboard(home, add=leak, entered_by="Other", force=True)
    assert json.loads(path.read_text())["entered_by"] == "Other"
    path.write_text("mine")
    with pytest.raises(UserError, match="is no entry that could be read; it is not replaced"):
        fedpriv.leaderboard(home, add=leak, force=True)
    assert path.read_text() == "mine"


def test_damaged_entries_are_told_and_the_others_shown(leak, tmp_path):
    home = tmp_path / "board"
    (path,) = fedpriv.leaderboard(home, add=leak).added
    (path.parent / "fedproto.json").write_text("{}")
    board = fedpriv.leaderboard(home)
    assert len(board.entries) == 1
    assert len(board.faults) == 1
    assert "fedproto.json" in board.faults[0]


def test_the_command_shows_the_others_and_ends_in_two(leak, tmp_path, capsys):
    from fedpriv.cli.main import run

    home = tmp_path / "board"
    (path,) = fedpriv.leaderboard(home, add=leak).added
    assert run(["leaderboard", str(home), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["entries"]) == 1
    (path.parent / "fedproto.json").write_text("{}")
    assert run(["leaderboard", str(home)]) == 2
    out, err = capsys.readouterr()
    assert "fedallrep" in out
    assert "fedproto.json: a record of format 1" in err
    assert err.splitlines()[-1] == f"fedpriv: {home}: 1 of 2 entries at fault; each is told in a line above"


def test_what_is_no_entry_is_refused(leak, tmp_path):
    with pytest.raises(UserError, match="says something of results that are added"):
        fedpriv.leaderboard(tmp_path / "board", entered_by="A Lab")
    with pytest.raises(UserError, match="no such folder"):
        fedpriv.leaderboard(tmp_path / "board")
    (leak / "request.json").write_text(json.dumps({"results": ["dip", "pixels"]}))
    with pytest.raises(UserError, match=r"unfinished, pixels missing.*an entry is of a whole suite"):
        fedpriv.leaderboard(tmp_path / "board", add=leak)
    assert not (tmp_path / "board").exists()


def test_one_attack_of_a_suite_is_no_entry_and_replaces_none(leak, tmp_path):
    home = tmp_path / "board"
    secrets = truths([1] * 6)
    control = reconstruction(firsts(secrets).roll(2, 0))
    stored_attack(leak / "pixels", firsts(secrets) * 0.5, secrets, permuted=control, attack="pixels")
    (path,) = fedpriv.leaderboard(home, add=leak).added
    before = path.read_text()
    with pytest.raises(UserError, match=r"has attacks that the new entry lacks \(pixels\)"):
        fedpriv.leaderboard(home, add=leak / "dip", force=True)
    (leak / "request.json").write_text(json.dumps({"results": ["dip", "pixels"]}))
    with pytest.raises(UserError, match="one result of results; an entry is of a whole suite"):
        fedpriv.leaderboard(home, add=leak / "dip", force=True)
    assert path.read_text() == before


def test_a_folder_that_cannot_be_read_is_told(leak, tmp_path, monkeypatch):
    home = tmp_path / "board"
    fedpriv.leaderboard(home, add=leak)
    (home / "model").mkdir()
    listdir = checking.os.listdir

    def refused(place):
        if place == home / "model":
            raise PermissionError(13, "Permission denied")
        return listdir(place)

    monkeypatch.setattr(checking.os, "listdir", refused)
    assert fedpriv.leaderboard(home).faults == (f"{home / 'model'}: cannot be read (Permission denied)",)


def test_a_report_takes_a_leaderboard(leak, tmp_path):
    home = tmp_path / "board"
    (path,) = fedpriv.leaderboard(home, add=leak).added
    for number in range(20):
        copy = json.loads(path.read_text()) | {"method": f"m{number}", "source": "a test"}
        (path.parent / f"m{number}.json").write_text(json.dumps(copy))
    told = "Of 21 entries of the leaderboard on representation uploads of digits under the same card, 0 give away less"
    page = fedpriv.report(leak, out=tmp_path / "page", leaderboard=home).pages[0]
    assert told in page.read_text()
    assert told in page.with_suffix(".md").read_text()
    assert told not in fedpriv.report(leak, out=tmp_path / "plain").pages[0].read_text()
