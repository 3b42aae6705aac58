"""What commands may do to folders: no link is followed, private files are private, and nothing of others is replaced."""

import itertools
import os
import shutil

import pytest
from command_line import done, refused, words
from federations import DIGITS

from fedpriv.cli.main import run
from fedpriv.util import files

SMALL = [*DIGITS, "--per-class", "20", "--clients", "4", "--partition", "iid", "--rounds", "2"]
TRAIN = ["train", "--method", "fedgh", *SMALL, "--keep", "1", "--quiet"]
PIXELS = words("--target prototype --attack pixels --targets 2 --iterations 3 --workers 1 --quiet")
AUDIT = ["audit", "--methods", "fedproto", "--attacks", "pixels:iterations=3", *SMALL, "--quiet"]
WORK = b"years of work\n"


def make(home, *, umask, share=()):
    before, here = os.umask(umask), os.getcwd()
    os.chdir(home)
    try:
        for command in (
            [*TRAIN, "--out", "runs/a", *share],
            ["attack", "--run", "runs/a", *PIXELS, "--out", "result", *share],
            ["report", "result", "runs/a", "--out", "page", "--quiet", *share],
            ["report", "result", "runs/a", "--out", "redacted", "--redact", "omit", "--quiet"],
            [*AUDIT, "--out", "study", "--workers", "2" if share else "1", *share],
        ):
            assert run(command) == 0, command
        # as a process leaves it that was killed in its second round
        shutil.copytree(home / "runs" / "a", home / "half")
        files.remove(home / "half" / "summary.json")
        files.remove(home / "half" / "checkpoints" / "round-0002")
    finally:
        os.umask(before)
        os.chdir(here)
    return home


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    return make(tmp_path_factory.mktemp("private"), umask=0o022)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return make(tmp_path_factory.mktemp("shared"), umask=0o077, share=["--share-group"])


@pytest.fixture
def home(private, tmp_path, monkeypatch):
    shutil.copytree(private, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


def contents(path):
    return {
        str(one.relative_to(path)): (one.lstat().st_mode, os.readlink(one) if one.is_symlink() else one.read_bytes())
        for one in path.rglob("*")
        if one.is_symlink() or one.is_file()
    }


# ---------------------------------------------------------------- links

RESUME, REPORT = ["train", "--resume", "--out", "half"], ["report", "result", "--out", "page", "--force"]
REFUSED = {
    "train, resumed": (RESUME, ["half/.fedpriv.lock", "half/.fedpriv.jsonl"]),
    "train, new": ([*TRAIN, "--out", "new"], ["new/.fedpriv.lock"]),
    "train, anew": ([*TRAIN, "--out", "runs/a", "--force"], ["runs/a/.fedpriv.lock"]),
    "attack of a run": (["attack", "--run", "runs/a", *PIXELS, "--out", "new"], ["runs/a/.fedpriv.lock"]),
    "score": (["score", "result"], ["result/.fedpriv.lock", "result/pixels/.fedpriv.lock"]),
    "report, anew": (REPORT, ["page/.fedpriv.lock", "page/.fedpriv.jsonl"]),
    "audit, resumed": (["audit", "--resume", "--out", "study"], ["study/.fedpriv.lock", "study/.fedpriv.jsonl"]),
}
"""Command -> files that it would write in place, each of which is a link in turn."""


def test_no_command_writes_through_a_link_and_a_refused_one_changes_nothing(home, capsys):
    for case, (command, places) in REFUSED.items():
        for place in places:
            path = home / place
            path.parent.mkdir(exist_ok=True)
            before = path.read_bytes() if path.exists() else None
            target = home.parent / "target"
            target.write_bytes(WORK)
            path.unlink(missing_ok=True)
            path.symlink_to(target)
            there, held = contents(home), target.read_bytes()
            refused(capsys, *command)
            assert target.read_bytes() == held, (case, place)
            assert contents(home) == there, (case, place)
            path.unlink()
            target.unlink()
            if before is not None:
                path.write_bytes(before)
                path.chmod(0o600)


# ---------------------------------------------------------------- modes


def modes(path):
    """Return the modes of files and of folders at and below a path."""
    every = [path, *path.rglob("*")]
    return tuple({one.stat().st_mode & 0o777 for one in every if one.is_dir() == folder} for folder in (False, True))


MADE = ("runs/a", "result", "page", "study", "half")


def test_what_is_made_is_its_owner_s_alone_or_the_group_s_and_what_is_redacted_everybody_s(private, shared):
    """Of umask 022, which would let everybody read, and of 077, which would let nobody."""
    for home, file, folder in ((private, 0o600, 0o700), (shared, 0o640, 0o750)):
        assert {name: modes(home / name) for name in MADE} == dict.fromkeys(MADE, ({file}, {folder}))
        assert modes(home / "redacted") == ({0o644}, {0o755})
    assert (shared / "runs").stat().st_mode & 0o777 == 0o750  # else nobody would come as far as the run


def test_going_on_keeps_the_modes_or_shares_all(shared, home, capsys):
    shutil.copytree(shared / "half", home / "goes-on")
    for name, flags in (("goes-on", []), ("half", ["--share-group"])):
        done(capsys, "train", "--resume", "--out", name, "--quiet", *flags)
        assert modes(home / name) == ({0o640}, {0o750})
    for command in (["score", "result"], ["audit", "--resume", "--out", "study", "--quiet"]):
        (home / command[-2 if "--quiet" in command else -1] / "notes.txt").write_text("mine")
        done(capsys, *command, "--share-group")
    for name in ("result", "study"):
        (home / name / "notes.txt").chmod(0o600)
        (home / name / "notes.txt").rename(home / f"{name}.txt")
        assert modes(home / name) == ({0o640}, {0o750})


def test_a_folder_that_was_there_is_made_private_too(home, capsys):
    (home / "mine").mkdir(mode=0o755)
    done(capsys, "report", "result", "--out", "mine", "--quiet")
    assert modes(home / "mine") == ({0o600}, {0o700})


# ---------------------------------------------------------------- out, force and resume

COMMANDS = (TRAIN, ["attack", "--target", "entangled", *SMALL], ["report", "runs/a"], AUDIT)


def test_force_never_removes_a_folder_that_only_looks_like_ours(home, capsys):
    for decoy in ("config.json", "report.html", "study.json"):
        (home / decoy / "src").mkdir(parents=True)
        (home / decoy / decoy).write_text('{"name": "x"}')
        (home / decoy / "src" / "thesis.tex").write_text("years of work")
    before = contents(home)
    for command, decoy in itertools.product(COMMANDS, ("config.json", "report.html", "study.json")):
        err = refused(capsys, *command, "--out", decoy, "--force")
        assert "holds files that fedpriv did not make" in err
        assert contents(home) == before, (command, decoy)


def test_no_command_writes_over_in_or_around_what_it_reads(home, capsys):
    (home / "link").symlink_to(home / "runs" / "a")
    before = contents(home)
    for out in ("runs/a", "runs/a/results", ".", "link"):
        err = refused(capsys, "attack", "--run", "runs/a", *PIXELS, "--out", out, "--force")
        assert f"out {out}: overlaps run runs/a" in err
        assert contents(home) == before
    for out in ("runs/a", "runs/a/report"):
        err = refused(capsys, "report", "runs/a", "--out", out, "--force")
        assert f"out {out}: overlaps" in err
    assert contents(home) == before


def test_a_run_that_died_before_it_was_one_is_in_nobody_s_way(home, capsys):
    files.mark(home / "early", "run")
    (home / "early" / f".config.json.17{files.PARTIAL}").write_text("{")
    done(capsys, *TRAIN, "--out", "early")


def test_a_path_that_is_no_text_is_refused_before_any_work(capsys):
    for command in (["train", "--method", "local"], ["attack", "--target", "prototype"]):
        assert "not UTF-8" in refused(capsys, *command, *DIGITS, "--out", "bad\udcff")
    assert not os.listdir()
