"""Whose file is it? Only what the marker lists is ever removed, whatever else stands beside, below or above it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.util import folders, manifest, ownership
from fedpriv.util.errors import UserError
from fedpriv.util.files import append_lines, log, write_text
from fedpriv.util.listener import Listener


def make(path, names=("config.json", "uploads/a/b.bin")):
    with folders.output(path, "run"):
        for name in names:
            write_text(path / name, name)
    return path


def everything(path):
    return sorted(str(one.relative_to(path)) for one in path.rglob("*") if one.is_file() or one.is_symlink())


def test_a_folder_of_ours_is_emptied_and_made_anew(tmp_path):
    out = make(tmp_path / "out")
    before = manifest.identity(out)
    with folders.output(out, "report", force=True):
        assert set(everything(out)) == {manifest.MARKER, ownership.LOCK}
        write_text(out / "page.html", "x")
    assert manifest.identity(out) != before
    assert set(manifest.written(out)) == {"page.html"}


def test_a_stranger_s_file_refuses_force_wherever_it_is_and_nothing_goes(tmp_path):
    for number, place in enumerate(("thesis.tex", "src/thesis.tex", "uploads/thesis.tex", "uploads/a/.hidden")):
        out = make(tmp_path / str(number))
        (out / place).parent.mkdir(exist_ok=True)
        (out / place).write_text("years of work")
        before = everything(out)
        with pytest.raises(UserError, match=f"did not make \\({place}\\)"), folders.output(out, "run", force=True):
            pass
        assert everything(out) == before


def test_a_stranger_s_file_is_not_written_over(tmp_path):
    out = make(tmp_path / "out", ())
    (out / "notes.txt").write_text("mine")
    for write, content in ((write_text, "ours"), (append_lines, [{"round": 1}]), (log, "ours")):
        with pytest.raises(UserError, match=r"notes\.txt"):
            write(out / "notes.txt", content)
    assert (out / "notes.txt").read_text() == "mine"
    assert ownership.strangers(out) == [out / "notes.txt"]


def test_links_are_neither_followed_nor_ours(tmp_path):
    out, elsewhere = make(tmp_path / "out"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "thesis.tex").write_text("years of work")
    (out / "link").symlink_to(elsewhere)
    with pytest.raises(UserError, match=r"did not make \(link\)"):
        folders.check_free(out, force=True)
    ownership.remove(out)
    assert (elsewhere / "thesis.tex").read_text() == "years of work"
    assert (out / "link").is_symlink()
    assert everything(out) == sorted([manifest.MARKER, "link"])


@pytest.mark.parametrize("way", ["resume", "new"])
def test_what_a_crash_left_unfinished_is_ours_but_only_in_a_folder_of_ours(tmp_path, way):
    out = make(tmp_path / "out", ())
    for folder in (out, tmp_path / "other"):
        folder.mkdir(exist_ok=True)
        (folder / f".config.json.17{manifest.PARTIAL}").write_text("{")
        building = folder / f".round-0001.17{manifest.PARTIAL}"
        building.mkdir()
        (building / "client-000.safetensors").write_text("half")
    assert not folders.occupied(out)
    assert ownership.strangers(out) == []
    assert len(ownership.strangers(tmp_path / "other")) == 2
    if way == "resume":
        (out / "uploads").mkdir()
        (out / "uploads" / f".client-000.safetensors.17{manifest.PARTIAL}").write_text("half")
    with folders.output(out, "run", resume=way == "resume"):
        pass
    assert everything(out) == sorted([manifest.MARKER, ownership.LOCK])
    assert len(everything(tmp_path / "other")) == 2


@given(st.lists(st.sampled_from(["a", "b", "c/d", "c/e", "f/g/h"]), unique=True), st.data())
def test_removing_takes_exactly_what_is_listed(names, data):
    ours = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    with tempfile.TemporaryDirectory() as folder:
        out = make(Path(folder) / "out", sorted(ours))
        for name in set(names) - set(ours):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text("theirs")
        assert ownership.strangers(out) == sorted(out / name for name in set(names) - set(ours))
        ownership.remove(out)
        left = set(everything(out)) - {manifest.MARKER} if out.is_dir() else set()
        assert left == set(names) - set(ours)
        assert out.is_dir() == bool(left)


# ---------------------------------------------------------------- locks


HOLD = """
import sys, time
from pathlib import Path
from fedpriv.util.ownership import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    out = make(tmp_path / "out")
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield out, process
    process.kill()
    process.wait()


def test_a_folder_that_is_being_written_is_refused_to_everybody_else(holder):
    out, process = holder
    for way in ({"resume": True}, {"force": True}):
        with (
            pytest.raises(UserError, match=rf"another fedpriv \(process {process.pid}\) is at work"),
            folders.output(out, "run", **way),
        ):
            pass
    assert (out / "config.json").is_file()


class Heard(Listener):
    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)


def test_a_lock_ends_with_its_process_and_whoever_takes_over_says_so(holder):
    out, process = holder
    process.kill()
    process.wait()
    heard = Heard()
    with folders.output(out, "run", resume=True, listener=heard):
        assert (out / ownership.LOCK).read_text().strip() == str(os.getpid())
    assert heard.lines == [f"{out}: process {process.pid} ended here without finishing; going on from what it left"]
    with pytest.raises(ZeroDivisionError), folders.output(out, "run", resume=True, listener=heard):
        _ = 1 / 0
    with folders.output(out, "run", resume=True, listener=heard):
        pass
    assert len(heard.lines) == 1


def test_a_folder_that_is_written_is_not_read_and_one_that_is_read_is_not_written(holder):
    out, process = holder
    with pytest.raises(UserError, match=rf"another fedpriv \(process {process.pid}\)"), ownership.read(out):
        pass
    process.kill()
    process.wait()
    known = rf" \(process {os.getpid()}\)" if os.path.exists("/proc/locks") else ""
    with (
        ownership.read(out),
        ownership.read(out),
        pytest.raises(UserError, match=f"fedpriv{known} is at work"),
        folders.output(out, "run", force=True),
    ):
        pass
    with folders.output(out, "run", force=True):
        pass


def test_whoever_writes_in_a_folder_of_a_folder_holds_both(tmp_path):
    outer = make(tmp_path / "outer")
    inner = make(outer / "attack")
    with ownership.held_with_those_around(inner / "deeper"):
        for folder in (outer, inner):
            with pytest.raises(UserError, match="is at work"), ownership.held(folder):
                pass
    with ownership.held(outer), pytest.raises(UserError, match="is at work"), ownership.held_with_those_around(inner):
        pass


# ---------------------------------------------------------------- input and output apart


def test_output_over_in_and_around_the_input_is_refused_by_resolved_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for out in ("other", "run2"):
        folders.refuse_overlap(Path(out), {"--run": Path("run")})
    for out in ("run", "run/x", ".", "link"):
        with pytest.raises(UserError, match=r"overlaps --run run"):
            folders.refuse_overlap(Path(out), {"--run": Path("run")})


def test_a_folder_of_data_sets_may_have_the_output_below_it_but_not_be_it(tmp_path):
    folders.refuse_overlap(tmp_path / "runs" / "a", {}, around={"--data-dir": tmp_path})
    with pytest.raises(UserError, match="overlaps --data-dir"):
        folders.refuse_overlap(tmp_path, {}, around={"--data-dir": tmp_path / "images"})
