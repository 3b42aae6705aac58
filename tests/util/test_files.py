"""Files are read only where they hold what was written at their place; a crash leaves the old file or the new one."""

import itertools
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.util import files, manifest
from fedpriv.util.errors import UserError
from fedpriv.util.files import (
    append_all,
    append_lines,
    checked,
    link,
    read_bytes,
    read_json,
    read_lines,
    whole,
    whole_folder,
    write_all,
    write_json,
    write_text,
)

READERS = {"checked": checked, "bytes": read_bytes, "json": read_json, "lines": read_lines}


@pytest.fixture
def home(tmp_path):
    manifest.mark(tmp_path / "home", "run")
    return tmp_path / "home"


def test_what_was_altered_moved_or_never_written_by_us_is_read_by_nobody(home):
    for name in ("altered", "first", "second"):
        write_text(home / name, f'{{"name": "{name}"}}\n')
    for read in READERS.values():
        assert read(home / "first")
    (home / "altered").write_text('{"name": "other"}\n')
    (home / "first").replace(home / "third")
    (home / "second").replace(home / "first")
    (home / "third").replace(home / "second")
    (home / "strange").write_text('{"round": 1}\n')
    for name, read in itertools.product(("altered", "first", "second", "strange"), READERS.values()):
        with pytest.raises(UserError, match="not among the files" if name == "strange" else "content was altered"):
            read(home / name)


def test_where_nothing_is_listed_nothing_is_checked(tmp_path):
    write_json(tmp_path / "a.json", 1)
    (tmp_path / "a.json").write_text("2")
    assert read_json(tmp_path / "a.json") == 2
    assert not (tmp_path / manifest.MARKER).exists()


def test_an_older_version_of_a_file_is_not_taken_for_it(home):
    write_text(home / "a", "first")
    write_text(home / "a", "second")
    (home / "a").write_text("first")
    with pytest.raises(UserError, match="altered"):
        checked(home / "a")
    (home / "a").unlink()
    write_text(home / "a", "third")
    (home / "a").write_text("second")
    with pytest.raises(UserError, match="altered"):
        checked(home / "a")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_around_a_rename_leaves_a_file_that_can_be_read(home, monkeypatch, moment):
    write_text(home / "a", "first")

    class Killed(BaseException):
        pass

    rename = files.Path.replace

    def dies(self, target):
        if moment == "after":
            rename(self, target)
        raise Killed

    monkeypatch.setattr(files.Path, "replace", dies)
    with pytest.raises(Killed):
        write_text(home / "a", "second")
    monkeypatch.undo()
    assert read_bytes(home / "a") == (b"first" if moment == "before" else b"second")
    write_text(home / "a", "third")
    assert read_bytes(home / "a") == b"third"
    (home / "a").write_text("first")
    with pytest.raises(UserError, match="altered"):
        read_bytes(home / "a")


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("placed", range(4))
def test_a_crash_among_files_written_together_leaves_each_the_old_one_or_the_new(home, monkeypatch, placed):
    names = ["a", "b/c", "b/d"]
    write_text(home / "a", "first")
    done, rename = [], files.Path.replace

    def dies(self, target):
        if len(done) == placed:
            raise Killed
        done.append(target)
        rename(self, target)

    monkeypatch.setattr(files.Path, "replace", dies)
    if placed < 3:
        with pytest.raises(Killed):
            write_all({home / name: b"second" for name in names})
    else:
        write_all({home / name: b"second" for name in names})
    monkeypatch.undo()
    assert {file.name for file in home.rglob("*") if file.is_file()} <= {manifest.MARKER, "a", "c", "d"}
    for number, name in enumerate(names):
        if number < placed:
            assert read_bytes(home / name) == b"second"
        elif name == "a":
            assert read_bytes(home / name) == b"first"
        else:
            assert not (home / name).exists()
    write_all({home / name: b"third" for name in names})  # whatever is there is known as ours
    assert [read_bytes(home / name) for name in names] == [b"third"] * 3


def test_files_written_together_are_forced_before_they_are_listed_and_listed_once(home, monkeypatch):
    told, note, sync = [], manifest.note, os.fsync

    def forced(file):
        sync(file)
        told.append(os.path.basename(os.readlink(f"/proc/self/fd/{file}")))

    monkeypatch.setattr(os, "fsync", forced)
    monkeypatch.setattr(manifest, "note", lambda *given, **how: (told.append("listed"), note(*given, **how)))
    write_all({home / f"{number}": b"new" for number in range(5)})
    named = [name.partition(str(os.getpid()))[0].strip(".") if manifest.PARTIAL in name else name for name in told]
    assert sorted(named[:5]) == ["0", "1", "2", "3", "4"]
    assert named[5:] == ["listed", manifest.MARKER, "home"]
    told.clear()
    append_all({home / "a.jsonl": [{"n": 1}], home / "b.jsonl": [{"n": 2}]})
    append_all({home / "a.jsonl": [{"n": 3}], home / "b.jsonl": [{"n": 4}]})
    assert [told.count(name) for name in ("a.jsonl", "b.jsonl", "listed", manifest.MARKER)] == [2, 2, 3, 3]
    assert read_lines(home / "a.jsonl") == [{"n": 1}, {"n": 3}]


def test_one_file_that_is_a_stranger_s_keeps_all_from_being_written(home):
    (home / "b").write_text("a stranger's")
    with pytest.raises(UserError, match="not written by fedpriv"):
        write_all({home / "a": b"one", home / "b": b"two"})
    assert sorted(os.listdir(home)) == sorted([manifest.MARKER, "b"])
    assert (home / "b").read_text() == "a stranger's"


# ---------------------------------------------------------------- lines


@pytest.mark.parametrize("torn", ["before the list", "in the second file"])
def test_lines_of_several_files_that_a_crash_kept_from_the_list_are_cut(home, monkeypatch, torn):
    both = [home / "a.jsonl", home / "b.jsonl"]
    append_all({path: [{"n": 1}] for path in both})

    def dies(*given, **how):
        raise Killed

    monkeypatch.setattr(manifest, "note", dies)
    with pytest.raises(Killed):
        append_all({path: [{"n": 2}] for path in both})
    monkeypatch.undo()
    if torn == "in the second file":
        both[1].write_bytes(both[1].read_bytes()[:-3])
    assert [read_lines(path) for path in both] == [[{"n": 1}], [{"n": 1}]]
    append_all({path: [{"n": 3}] for path in both})
    assert [read_lines(path) for path in both] == [[{"n": 1}, {"n": 3}]] * 2


@given(st.lists(st.lists(st.integers(), max_size=3), max_size=5), st.binary(max_size=20))
def test_lines_behind_the_listed_ones_are_a_crash_s(appended, tail):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        manifest.mark(Path(folder), "run")
        rows = []
        for values in appended:
            append_lines(path, [{"v": value} for value in values])
            rows += [{"v": value} for value in values]
            with path.open("ab") as file:
                file.write(tail)
            assert read_lines(path) == rows
        append_lines(path, [{"end": 1}])
        assert read_lines(path) == [*rows, {"end": 1}]
        assert path.read_text() == "".join(json.dumps(row) + "\n" for row in read_lines(path))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("1", "7"),
        lambda text: "".join(reversed(text.splitlines(keepends=True))),
    ],
)
def test_damaged_lines_are_refused_by_readers_and_by_who_appends(home, damage):
    path = home / "a.jsonl"
    append_lines(path, [{"round": 1}])
    append_lines(path, [{"round": 2}])
    path.write_text(damage(path.read_text()))
    before = path.read_bytes()
    for use in (read_lines, lambda path: append_lines(path, [{"round": 3}])):
        with pytest.raises(UserError, match="altered"):
            use(path)
    assert path.read_bytes() == before


def test_lines_that_are_missing_are_missed(home):
    assert read_lines(home / "never") == []
    append_lines(home / "a.jsonl", [{"round": 1}])
    (home / "a.jsonl").unlink()
    with pytest.raises(UserError, match=r"a\.jsonl: missing, though"):
        read_lines(home / "a.jsonl")
    (home / "a.jsonl").mkdir()
    with pytest.raises(UserError, match=r"a\.jsonl: expected a file"):
        read_lines(home / "a.jsonl")


def test_lines_that_a_crash_kept_from_their_place_are_not_missed(home, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_text(home / "cells.jsonl", "{}\n")
    assert set(manifest.written(home)) == {"cells.jsonl"}
    assert read_lines(home / "cells.jsonl") == []
    write_text(home / "cells.jsonl", "{}\n")
    assert read_lines(home / "cells.jsonl") == [{}]
    (home / "cells.jsonl").unlink()
    with pytest.raises(UserError, match=r"cells\.jsonl: missing, though"):
        read_lines(home / "cells.jsonl")


# ---------------------------------------------------------------- folders of files, links


def test_a_folder_is_whole_or_not_there(home):
    def breaks_off():
        with whole_folder(home / "checkpoint") as building:
            write_text(building / "a", "half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        breaks_off()
    assert os.listdir(home) == [manifest.MARKER]
    with whole_folder(home / "checkpoint") as building:
        write_text(building / "a", "one")
        (building / "b").write_text("two")
    assert set(manifest.written(home)) == {"checkpoint/a", "checkpoint/b"}
    assert checked(home / "checkpoint" / "a").read_text() == "one"
    (home / "checkpoint" / "b").write_text("three")
    with pytest.raises(UserError, match="altered"):
        checked(home / "checkpoint" / "b")


def test_damage_is_not_vouched_for_by_a_link(home):
    write_text(home / "a", "one")
    with whole_folder(home / "next") as building:
        assert link(home / "a", building / "a")
    assert read_bytes(home / "next" / "a") == b"one"
    (home / "a").unlink()
    (home / "a").write_text("damaged")
    with whole_folder(home / "after") as building:
        assert not link(home / "a", building / "a")
        assert not link(home / "absent", building / "a")


def test_a_nested_folder_lists_its_own_and_goes_alone(home, tmp_path):
    manifest.mark(home / "inner", "attack")
    write_text(home / "inner" / "a", "one")
    assert manifest.written(home) == {}
    (home / "inner").rename(tmp_path / "alone")
    assert read_bytes(tmp_path / "alone" / "a") == b"one"
    (tmp_path / "alone" / "a").write_text("two")
    with pytest.raises(UserError, match="altered"):
        read_bytes(tmp_path / "alone" / "a")


def test_every_way_to_write_gives_files_and_folders_the_mode_of_the_folder_of_ours(tmp_path):
    before = os.umask(0)
    try:
        for umask, (folder, file) in ((0, (0o700, 0o600)), (0o022, (0o750, 0o640)), (0o077, (0o755, 0o644))):
            os.umask(umask)
            home = tmp_path / f"{umask}"
            manifest.mark(home, "report")
            home.chmod(folder)
            (home / manifest.MARKER).chmod(file)
            write_all({home / "a" / "b.bin": b"1", home / "c.bin": b"2"})
            append_lines(home / "d" / "lines.jsonl", [{"round": 1}])
            files.log(home / "logs" / "e.txt", "1\n")
            with whole(home / "f.png") as temporary:
                temporary.write_bytes(b"png")
            with whole_folder(home / "g") as building:
                (building / "by-a-library.bin").touch(0o666)
            with files.scratch_folder(home / "h") as scratch:
                assert scratch.stat().st_mode & 0o777 == folder
            for one in (home, *home.rglob("*")):
                assert one.stat().st_mode & 0o777 == (folder if one.is_dir() else file), one
    finally:
        os.umask(before)
