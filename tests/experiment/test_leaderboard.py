"""Results become entries of a leaderboard, which is checked and drawn."""

import json

import pytest
from eval_cases import firsts, reconstruction, stored_attack, truths

import fedpriv
from fedpriv.experiment.leaderboard import checking
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
