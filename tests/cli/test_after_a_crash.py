"""Commands that were cut off, and results damaged since: gone on with to the same result, or refused in one line."""

import os
import shutil

import pytest
from command_line import done, refused, words
from federations import DIGITS

from fedpriv.cli.main import run
from fedpriv.util.files import LOCK, MARKER

SMALL = [*DIGITS, "--per-class", "20", "--clients", "3", "--partition", "iid", "--rounds", "2"]
TRAIN = ["train", "--method", "fedgh", *SMALL, "--out", "run", "--quiet"]
ATTACK = words("attack --target prototype --attack pixels --targets 2 --iterations 3 --no-control")
ATTACK += ["--run", "run", "--out", "found", "--quiet"]


PASSING = (MARKER, LOCK, "request.json")
"""Files that say who wrote when, on what."""


class Killed(BaseException):
    """The machine went away."""


def contents(path):
    """Return every other file with its bytes."""
    files = [one for one in path.rglob("*") if one.is_file() and one.name not in PASSING]
    return {one.relative_to(path).as_posix(): one.read_bytes() for one in files}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run, and what an attack on it writes when clocks stand still."""
    path = tmp_path_factory.mktemp("crash")
    here = os.getcwd()
    os.chdir(path)
    assert run(TRAIN) == 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("time.perf_counter", lambda: 0.0)
        assert run(ATTACK) == 0
    os.chdir(here)
    return path


@pytest.fixture
def home(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    return tmp_path / "home"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["metrics.json", "about.json", "grid.png"])
def test_an_attack_killed_around_its_last_files_is_made_whole(name, when, home, monkeypatch):
    expected, replace, fatal = contents(home / "found"), os.replace, [name]
    shutil.rmtree(home / "found")

    def dying(source, target, **how):
        now = fatal and os.path.basename(target) == fatal[0]
        if now:
            fatal.clear()
        if not now or when == "after":
            replace(source, target, **how)
        if now:
            raise Killed

    monkeypatch.setattr(os, "replace", dying)
    with pytest.raises(Killed):
        run(ATTACK)
    assert not fatal
    assert run([*ATTACK, "--resume"]) == 0
    assert contents(home / "found") == expected


def test_an_attack_killed_before_its_request_was_written_is_begun(home):
    expected = contents(home / "found")
    for path in (home / "found").iterdir():
        if path.name != MARKER:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (home / "found" / MARKER).write_bytes((home / "found" / MARKER).read_bytes().partition(b"\n")[0] + b"\n")
    assert run([*ATTACK, "--resume"]) == 0
    assert contents(home / "found") == expected


def test_an_attack_is_not_resumed_on_a_run_that_took_the_place_of_its_own(home, capsys):
    (home / "found" / "report.html").unlink()
    assert run([*TRAIN, "--seed", "1", "--force"]) == 0
    before = contents(home / "found")
    err = refused(capsys, *ATTACK, "--resume")
    assert "attacks a run that is not the one at" in err
    assert contents(home / "found") == before


def test_an_attack_is_resumed_on_its_own_run_wherever_that_was_moved(home, capsys):
    before = contents(home / "found")
    (home / "found" / "report.html").unlink()
    (home / "run").rename(home / "moved")
    done(capsys, *[str(one).replace("run", "moved") if one == "run" else one for one in ATTACK], "--resume")
    assert contents(home / "found").keys() == before.keys()


def test_a_damaged_file_that_a_resume_reads_is_refused(home, monkeypatch, capsys):
    from fedpriv.federation.run_directory import RunDirectory

    save = RunDirectory.save_checkpoint

    def dying(self, checkpoint, *more):
        if checkpoint.round == 2:
            raise Killed
        save(self, checkpoint, *more)

    monkeypatch.setattr(RunDirectory, "save_checkpoint", dying)
    with pytest.raises(Killed):
        run([*TRAIN, "--force"])
    monkeypatch.setattr(RunDirectory, "save_checkpoint", save)
    for name in ("config.json", "ledger.jsonl", "checkpoints/round-0001/client-001.safetensors"):
        path = home / "run" / name
        whole = path.read_bytes()
        path.write_bytes(b"\xff" + whole[1:])
        err = refused(capsys, "train", "--resume", "--out", "run")
        assert f"run/{name}" in err
        path.write_bytes(whole)
