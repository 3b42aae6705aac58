"""Files that are whole or not there, listed with their contents in the folder they are written to, and checked when read.

All that fedpriv writes into a folder of its own is written, and read back, by these functions: under another name first,
forced to the disk, listed with its SHA-256 in the folder's marker (:mod:`fedpriv.util.manifest`), then given its own name.
A file is read only where it is what was listed for its place. Outside of such folders there is nothing to check files by.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from fedpriv.util import access, foreign, manifest
from fedpriv.util.errors import UserError
from fedpriv.util.manifest import MARKER, PARTIAL, Contents, contents, home_of, sync
from fedpriv.util.vouchers import vouch, vouched

T = TypeVar("T")
AT_ONCE = 8
"""Files that are forced to the disk at a time."""

# ---------------------------------------------------------------- writing


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary name to write a file under; when all is written the file takes its place, whole.

    A reader, or a crash, never sees half of it. Folders above are made. A failure leaves nothing behind.

    Raises:
        UserError: where a file stands there that fedpriv did not write, in a folder that it made.
    """
    temporary = _place_for(path)
    try:
        yield temporary
        _take_places({path: temporary})
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_all(files: Mapping[Path, bytes]) -> None:
    """Write files of bytes, each whole or not at all; they are forced to the disk together, and listed together.

    Raises:
        UserError: as :func:`whole`.
    """
    written: dict[Path, Path] = {}
    try:
        for path, content in files.items():
            written[path] = _place_for(path)
            written[path].write_bytes(content)  # into the file that was made, so its mode stays
        _take_places(written)
    except BaseException:
        for temporary in written.values():
            temporary.unlink(missing_ok=True)
        raise


def _place_for(path: Path) -> Path:
    """Make an empty file under a temporary name, of the mode that the file is to have; return that name."""
    if path.is_dir():
        raise UserError(f"{path}: is a folder, where fedpriv writes a file; move it away")
    mode, temporary = _folder_for(path), _unfinished(path)
    temporary.unlink(missing_ok=True)
    access.in_place(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode).close()
    return temporary


def _folder_for(path: Path) -> int | None:
    """Make the folder of a file and return its mode, None outside of folders of ours.

    Raises:
        UserError: where a link leads to it from the marked folder around it.
    """
    home = home_of(path.parent)
    for place in () if home is None else path.relative_to(home).parents:
        if home is not None and place.name and (home / place).is_symlink():
            raise UserError(f"{home / place}: is a link, and nothing is written through it; put a folder in its place")
    manifest.make(path.parent)
    return manifest.mode_of(path.parent)


def _take_places(written: Mapping[Path, Path]) -> None:
    """Give files, by their place, which lie under temporary names, their own: forced to the disk and listed first.

    In a folder that is not finished nothing is forced: that comes when the folder takes its place.
    """
    around = {path: home_of(path.parent) for path in written}
    lasting = [path for path, home in around.items() if home is None or not _in_unfinished(path.relative_to(home))]
    _force([written[path] for path in lasting])
    homes = {path: home for path in lasting if (home := around[path]) is not None}
    listed = {path: contents(written[path]) for path in homes}
    known = [path for path in homes if _known(homes[path], path)]
    _note(homes, listed)
    for path, temporary in written.items():
        temporary.replace(path)
    for folder in dict.fromkeys(path.parent for path in lasting):
        sync(folder)
    _note(homes, {path: listed[path] for path in known}, placed=True)


def _note(homes: Mapping[Path, Path], files: Mapping[Path, Contents | None], *, placed: bool = False) -> None:
    """List files, each in its marked folder, in one piece for each of these."""
    for home in dict.fromkeys(homes[path] for path in files):
        rows = [(path, holds) for path, holds in files.items() if homes[path] == home]
        manifest.note(home, rows, placed=placed)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary name to make a folder of files under; when all are written it takes its place, whole.

    Nothing may stand there. Files directly in it are listed and checked as any other.
    """
    building = _unfinished(path)
    shutil.rmtree(building, ignore_errors=True)
    mode = _folder_for(building / "file")
    try:
        yield building
        files = sorted(building.iterdir())
        if mode is not None:  # files that a library wrote
            for file in files:
                access.set_mode(file, mode & 0o666)
        fresh = [file for file in files if vouched(file) is None]
        _force(fresh)
        sync(building)
        home = _home(path)
        if home is not None:
            listed = {path / file.name: vouched(file) or contents(file) for file in files}
            manifest.note(home, listed.items())
            vouch(listed, building)
        building.rename(path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


@contextlib.contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """Yield a folder for files that outlive a moment and not the process: it goes when the block ends, whatever is in it.

    It bears a temporary name, so what a crash leaves of it is cleared away by whoever holds the folder around it next.
    """
    folder = _unfinished(path)
    shutil.rmtree(folder, ignore_errors=True)
    manifest.make(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file of bytes, whole or not at all.

    Tensors go this way too, as bytes: safetensors, given a path, writes a temporary file of its own beside it, which a
    killed process leaves behind under a name that is not ours.
    """
    write_all({path: content})


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, indented for people."""
    write_text(path, json.dumps(value, indent=2, allow_nan=True) + "\n")


def link(old: Path, new: Path) -> bool:
    """Give a file of ours another name in a folder that is being made; False where it is damaged, or links do not exist."""
    try:
        os.link(old if vouched(old) else checked(old), new)
    except (OSError, UserError):
        return False
    return True


def append_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append JSON lines and force them to disk. What a crash left behind the listed lines goes first.

    Raises:
        UserError: where what is there is not what was written, or not ours.
    """
    append_all({path: rows})


def append_all(lines: Mapping[Path, Iterable[Mapping[str, Any]]]) -> None:
    """Append JSON lines to several files: all forced to the disk, then all listed.

    Raises:
        UserError: as :func:`append_lines`, before anything is appended.
    """
    homes: dict[Path, Path] = {}
    kept: dict[Path, bytes] = {}
    with contextlib.ExitStack() as stack:
        modes = {path: _folder_for(path) for path in lines}
        files = {path: stack.enter_context(access.in_place(path)) for path in lines if os.path.lexists(path)}
        for path in lines:
            there = files[path].read() if path in files else b""
            home = _home(path)
            if home is None:
                kept[path] = there[: there.rfind(b"\n") + 1]
                continue
            homes[path] = home
            kept[path] = _checked(home, path, there) if path in files else b""
        _note(homes, {path: None for path in homes if path not in files})
        for path, rows in lines.items():
            fresh = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
            if path not in files:
                files[path] = stack.enter_context(access.in_place(path, mode=modes[path]))
            files[path].truncate(len(kept[path]))
            files[path].seek(len(kept[path]))
            files[path].write(fresh)
            files[path].flush()
            kept[path] += fresh
        _at_once(lambda file: os.fsync(file.fileno()), files.values())
    _note(
        homes, {path: Contents(hashlib.sha256(kept[path]).hexdigest(), len(kept[path])) for path in homes}, placed=True
    )


def log(path: Path, text: str) -> None:
    """Append text for people, which nothing reads back, to a file that is ours."""
    mode, home = _folder_for(path), _home(path)
    if home is not None and not _known(home, path):
        manifest.note(home, [(path, None)])
    with access.in_place(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode) as file:
        file.write(text.encode("utf-8"))


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")


def _home(path: Path) -> Path | None:
    """Return the marked folder that lists a file; None for files that are listed nowhere, or that are not finished."""
    home = home_of(path.parent)
    return None if home is None or _in_unfinished(path.relative_to(home)) else home


def _in_unfinished(path: Path) -> bool:
    return any(part.endswith(PARTIAL) for part in path.parts)


def _known(home: Path, path: Path) -> bool:
    """True for a file that was written before; one that is there and was not is refused."""
    known = path.relative_to(home).as_posix() in manifest.written(home)
    if not known and os.path.lexists(path):
        raise UserError(f"{path}: is there and not written by fedpriv, so it stays; move it away")
    return known


def _force(paths: Iterable[Path]) -> None:
    """Force files to the disk."""

    def force(path: Path) -> None:
        with path.open("rb") as file:
            os.fsync(file.fileno())

    _at_once(force, paths)


def _at_once(force: Callable[[T], None], given: Iterable[T]) -> None:
    """Force files to the disk several at a time: the system then writes its own records of them once for many."""
    files = list(given)
    if len(files) < 2:
        for file in files:
            force(file)
        return
    with ThreadPoolExecutor(min(AT_ONCE, len(files)), "force") as threads:
        list(threads.map(force, files))


# ---------------------------------------------------------------- reading


def checked(path: Path) -> Path:
    """Return the path of a file of ours, once it is sure that it holds what was written there.

    In a folder that fedpriv did not make there is nothing to check by; nor is a file that is missing looked for.

    Raises:
        UserError: where it does not, or fedpriv wrote no such file in this folder.
    """
    home = _home(path)
    if home is not None and path.is_file():
        listed = _listed(home, path)
        try:
            holds = contents(path)
        except OSError as error:
            raise UserError(f"{path}: not readable ({error.strerror or error})") from error
        if holds not in listed:
            raise _altered(home, path)
    return path


def missing(folder: Path) -> list[str]:
    """Return the names of files that were written into a folder of ours, not below it, and are not there, sorted."""
    home = home_of(folder)
    names = [] if home is None else [home / name for name in manifest.written(home)]
    return sorted(path.name for path in names if path.parent == folder and not path.is_file())


def checked_tensors(path: Path) -> Path:
    """Return the path of a safetensors file of ours, as :func:`checked`; one of an impossible header is refused first."""
    if os.path.lexists(path):
        foreign.check_tensor_file(path)
    return checked(path)


def read_bytes(path: Path) -> bytes:
    """Return the contents of a file of ours, checked.

    Raises:
        UserError: as :func:`checked`, and where it is missing or not readable.
    """
    found = foreign.read_bytes(path, foreign.RECORDS)
    home = _home(path)
    if home is not None and Contents(hashlib.sha256(found).hexdigest(), len(found)) not in _listed(home, path):
        raise _altered(home, path)
    return found


def read_json(path: Path) -> Any:
    """Read JSON that is ours.

    Raises:
        UserError: as :func:`read_bytes`, and where it is no JSON.
    """
    try:
        return foreign.json_value(read_bytes(path))
    except ValueError as error:
        raise UserError(f"{path}: not readable as JSON ({error})") from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines that are ours; what a crash left behind the listed lines, or half a line, is left out.

    Raises:
        UserError: as :func:`checked`, where a listed file is missing, and where a line is no JSON object.
    """
    home = _home(path)
    if not path.is_file():
        if home is not None and not os.path.lexists(path) and _stood(home, path):
            raise UserError(f"{path}: missing, though {MARKER} lists it")
        if os.path.lexists(path):
            raise UserError(f"{path}: expected a file of JSON lines, and this is none")
        return []
    try:
        found = foreign.read_bytes(path, foreign.RECORDS)
        if home is not None:
            found = _checked(home, path, found)
        lines = found.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not readable as lines of JSON ({error})") from error
    complete, rows = lines[:-1], []
    for number, line in enumerate(complete, start=1):
        try:
            row = foreign.json_value(line)
        except ValueError as error:
            raise UserError(f"{path}:{number}: not a line of JSON ({error})") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: expected a JSON object, got {type(row).__name__}")
        rows.append(row)
    return rows


def _listed(home: Path, path: Path) -> tuple[Contents, ...]:
    listed = manifest.written(home).get(path.relative_to(home).as_posix())
    if listed is None:
        raise UserError(f"{path}: not among the files that fedpriv wrote in {home} (see {MARKER} there)")
    return listed


def _stood(home: Path, path: Path) -> bool:
    """True for a file that was there and held something; one that is only listed, a crash may have kept from its place."""
    name = path.relative_to(home).as_posix()
    return manifest.placed(home, name) and any(one.size for one in manifest.written(home)[name])


def _checked(home: Path, path: Path, found: bytes) -> bytes:
    """Return the part of a file of lines that is listed; what a crash left behind it is not.

    A file that is listed without contents was made, and nothing in it was finished.
    """
    listed = _listed(home, path)
    for holds in reversed(listed):
        part = found[: holds.size]
        if Contents(hashlib.sha256(part).hexdigest(), len(part)) == holds:
            return part
    if listed:
        raise _altered(home, path)
    return b""


def _altered(home: Path, path: Path) -> UserError:
    return UserError(
        f"{path}: its content was altered: it is not what fedpriv wrote there (SHA-256, see {MARKER} in {home}); "
        "restore it, or make the folder again"
    )
