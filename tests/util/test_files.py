"""A crash leaves the old file or the new one; one process writes a folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedpriv.util import files, folders
from fedpriv.util.errors import UserError
from fedpriv.util.files import (
    MARKER,
    append_lines,
    mark,
    read_bytes,
    read_lines,
    write_all,
    write_text,
)


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture
def home(tmp_path):
    mark(tmp_path / "home", "run")
    return tmp_path / "home"


def test_a_crash_leaves_each_file_the_old_one_or_the_new(home, monkeypatch):
    names = ["a", "b/c", "b/d"]
    for placed in range(4):
        files.remove(home / "b")
        write_text(home / "a", "first")
        done, replace = [], os.replace

        def dies(source, target, placed=placed, done=done, replace=replace):
            if len(done) == placed:
                raise Killed
            done.append(target)
            replace(source, target)

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", dies)
            if placed < 3:
                with pytest.raises(Killed):
                    write_all({home / name: b"second" for name in names})
            else:
                write_all({home / name: b"second" for name in names})
        assert {file.name for file in home.rglob("*") if file.is_file()} <= {MARKER, "a", "c", "d"}
        assert read_bytes(home / "a") == (b"second" if placed else b"first")
        assert [(home / name).exists() and read_bytes(home / name) for name in names[1:]] == [
            b"second" if placed > number else False for number in (1, 2)
        ]
        write_all({home / name: b"third" for name in names})
        assert [read_bytes(home / name) for name in names] == [b"third"] * 3


def test_lines_are_appended_and_half_a_line_is_left_out(tmp_path):
    path = tmp_path / "a.jsonl"
    assert read_lines(path) == []
    append_lines({path: [{"round": 1}]})
    append_lines({path: [{"round": 2}]})
    assert read_lines(path) == [{"round": 1}, {"round": 2}]
    path.write_text('{"round": 1}\n{"rou')
    assert read_lines(path) == [{"round": 1}]
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match=r"a\.jsonl: is a folder"):
        read_lines(path)


def test_a_file_is_what_was_written_there_or_a_step_that_was_interrupted(home, monkeypatch):
    path, other = home / "b" / "a.json", home / "b" / "c.jsonl"
    write_all({path: b"1", other: b"{}\n"})
    write_all({path: b"22"})
    for content in (b"1", b"23", b"2", b"", None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UserError, match=rf"a\.json: {'missing' if content is None else 'altered'}.* or remove"):
            files.checked(path)
        with pytest.raises(UserError, match=r"a\.json: (altered|no such file)"):
            read_bytes(path)
    with pytest.raises(UserError, match=r"a\.json: missing"):
        files.check_present(home)
    write_all({path: b"333"})

    def dies(source, target):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", dies)
        with pytest.raises(Killed):
            write_all({path: b"4444"})
    assert read_bytes(path) == b"333"
    path.write_bytes(b"whatever a process that was killed left")
    assert read_bytes(path).startswith(b"whatever")  # it is not listed, and made again
    write_all({path: b"4444"})
    files.remove(home / "b")
    files.check_present(home)
    write_all({other: b"{}\n"})
    (home / MARKER).write_bytes((home / MARKER).read_bytes() + b'{"file": "half')
    write_all({path: b"5"})
    assert sorted(files.listed(home)) == ["b/a.json", "b/c.jsonl"]


def test_every_way_to_write_gives_files_and_folders_the_mode_of_the_marked_folder(tmp_path):
    before = os.umask(0)
    try:
        for umask, (folder, file) in ((0, (0o700, 0o600)), (0o022, (0o750, 0o640)), (0o077, (0o755, 0o644))):
            os.umask(umask)
            home = tmp_path / f"{umask}"
            mark(home, "report")
            home.chmod(folder)
            (home / MARKER).chmod(file)
            write_all({home / "a" / "b.bin": b"1", home / "c.bin": b"2"})
            append_lines({home / "d" / "lines.jsonl": [{"round": 1}]})
            files.log(home / "logs" / "e.txt", "1\n")
            with files.placing([home / "by-a-library.bin"]) as temporary:
                temporary[home / "by-a-library.bin"].unlink()
                temporary[home / "by-a-library.bin"].touch(0o666)
            for one in (home, *home.rglob("*")):
                assert one.stat().st_mode & 0o777 == (folder if one.is_dir() else file), one
    finally:
        os.umask(before)


def test_a_folder_of_another_format_is_refused_in_one_line(home):
    marker = home / MARKER
    marker.write_text(marker.read_text().replace(f'"format": {files.FORMAT}', '"format": 2'))
    for use in (
        files.identity,
        lambda path: write_text(path / "a", "b"),
        lambda path: folders.check_free(path, force=True),
    ):
        with pytest.raises(UserError, match=r"format 2, but this version reads format 3; use fedpriv 0\.1\.0"):
            use(home)


# ---------------------------------------------------------------- output folders


def make(path, names=("config.json", "uploads/a/b.bin")):
    with folders.output(path, "run"):
        for name in names:
            write_text(path / name, name)
    return path


def everything(path):
    return sorted(str(one.relative_to(path)) for one in path.rglob("*") if one.is_file() or one.is_symlink())


def test_only_a_marked_folder_is_emptied_and_nothing_that_its_links_lead_to(tmp_path):
    out, elsewhere = make(tmp_path / "out"), make(tmp_path / "elsewhere")
    (out / "link").symlink_to(elsewhere)
    (out / "uploads" / "link").symlink_to(elsewhere / "config.json")
    before = files.identity(out)
    with pytest.raises(UserError, match="already exists"), folders.output(out, "report"):
        pass
    with pytest.raises(UserError, match="a link leads out"):
        write_text(out / "link" / "config.json", "over")
    with folders.output(out, "report", force=True):
        assert everything(out) == [MARKER, files.LOCK]
    assert files.identity(out) != before
    assert (elsewhere / "config.json").read_text() == "config.json"
    (elsewhere / MARKER).unlink()
    left = everything(elsewhere)
    with pytest.raises(UserError, match="did not make"), folders.output(elsewhere, "run", force=True):
        pass
    assert everything(elsewhere) == left


HOLD = """
import sys, time
from pathlib import Path
from fedpriv.util.folders import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_folder_that_a_process_writes_is_refused_to_others_until_it_ends(tmp_path):
    out = make(tmp_path / "out")
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        for way in (
            lambda: folders.output(out, "run", resume=True),
            lambda: folders.output(out, "run", force=True),
            lambda: folders.read(out),
        ):
            with pytest.raises(UserError, match="another fedpriv is at work"), way():
                pass
        assert (out / "config.json").is_file()
        assert folders.busy(out)
    finally:
        process.kill()
        process.wait()
    with folders.read(out), folders.read(out), pytest.raises(UserError, match="is at work"), folders.held(out):
        pass
    with folders.output(out, "run", resume=True):
        pass


def test_whoever_writes_in_a_folder_of_a_folder_locks_both(tmp_path):
    outer = make(tmp_path / "outer")
    inner = make(outer / "attack")
    with folders.held_with_those_around(inner / "deeper"):
        for folder in (outer, inner):
            with pytest.raises(UserError, match="is at work"), folders.held(folder):
                pass
    with folders.held(outer), pytest.raises(UserError, match="is at work"), folders.held_with_those_around(inner):
        pass


def test_another_name_of_a_file_keeps_what_it_had(home):
    """A hard link is no link to follow: marker and log are written as files of their own."""
    files.log(home / "log.txt", "one\n")
    names = {each: home.parent / f"other-{each}" for each in (files.MARKER, "log.txt")}
    for each, other in names.items():
        os.link(home / each, other)
    before = [other.read_bytes() for other in names.values()]
    files.write_text(home / "more.json", "{}")
    files.log(home / "log.txt", "two\n")
    assert [other.read_bytes() for other in names.values()] == before
    assert (home / "log.txt").read_text() == "one\ntwo\n"
    assert "more.json" in files.listed(home)


def test_output_over_in_and_around_the_input_is_refused_by_resolved_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for out in ("other", "run2"):
        folders.refuse_overlap(Path(out), {"--run": Path("run")})
    for out in ("run", "run/x", ".", "link"):
        with pytest.raises(UserError, match=r"overlaps --run run"):
            folders.refuse_overlap(Path(out), {"--run": Path("run")})
    folders.refuse_overlap(tmp_path / "runs" / "a", {}, around={"--data-dir": tmp_path})
    with pytest.raises(UserError, match="overlaps --data-dir"):
        folders.refuse_overlap(tmp_path, {}, around={"--data-dir": tmp_path / "images"})
