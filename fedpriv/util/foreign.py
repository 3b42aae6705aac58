"""Reading what fedpriv did not write: files and texts from outside, bounded before anything is allocated for them.

Every reader gives plain values, or one :class:`UserError` that says which file, what is wrong and what would be right.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import tomllib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from fedpriv.util.errors import UserError, shown
from fedpriv.util.escape import one_line

_MIB = 1 << 20


class Limit(NamedTuple):
    """The most bytes that a kind of file may have, and what such a file holds."""

    bytes: int
    what: str


SETTINGS: Final = Limit(_MIB, "settings in TOML")
LISTING: Final = Limit(64 * _MIB, "a list in text")
RECORDS: Final = Limit(256 * _MIB, "records in JSON")
IMAGE: Final = Limit(256 * _MIB, "an image")
PACKED: Final = Limit(1024 * _MIB, "a part of a data set")
TENSORS: Final = Limit(16 * 1024 * _MIB, "tensors")
TENSOR_HEADER: Final = 16 * _MIB  # names and shapes of a safetensors file, which are parsed as a whole
MOST_ENTRIES: Final = 2_000_000  # files of a folder that is read: ImageNet has 1.4 million
NESTING: Final = 32  # tables and lists in one another: a study has 6, a record 9
WHOLE_BITS: Final = 256  # of a whole number in TOML: an error prints it, and hexadecimal ones may have a megabyte
_DEEP = f"more than {NESTING} lists or tables in one another"


def open_file(path: Path, limit: Limit, where: str = "", *, expected: str = "") -> BinaryIO:
    """Open a regular file of at most so many bytes, without waiting for a pipe's other end.

    ``where`` begins an error (default: the path); ``expected`` is advice where there is no such file.
    """
    where, advice = where or str(path), f"; expected {expected}" if expected else ""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise UserError(f"{where}: no such file{advice}") from error
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        raise UserError(f"{where}: not readable ({reason(error)}){advice}") from error
    about = os.fstat(number)
    if stat.S_ISREG(about.st_mode) and about.st_size <= limit.bytes:
        return os.fdopen(number, "rb")
    os.close(number)
    if stat.S_ISREG(about.st_mode):
        raise UserError(f"{where}: {about.st_size:,} bytes; {limit.what} may have {limit.bytes:,}")
    what = "a folder" if stat.S_ISDIR(about.st_mode) else "no regular file but a pipe or a device"
    raise UserError(f"{where}: is {what}; expected a file of {limit.what}")


def check_file(path: Path, limit: Limit) -> None:
    """Check that a path is a regular file of at most so many bytes that can be read; errors as :func:`open_file`."""
    open_file(path, limit).close()


def read_bytes(path: Path, limit: Limit, where: str = "", *, expected: str = "") -> bytes:
    """Return the contents of a file; arguments and errors as :func:`open_file`."""
    with open_file(path, limit, where, expected=expected) as file:
        try:
            return file.read(limit.bytes)
        except OSError as error:
            raise UserError(f"{where or path}: not readable ({reason(error)})") from error


def read_text(path: Path, limit: Limit, where: str = "", *, expected: str = "") -> str:
    """Return the contents of a file in UTF-8; arguments and errors as :func:`open_file`."""
    try:
        return read_bytes(path, limit, where, expected=expected).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{where or path}: not UTF-8 at byte {error.start}; expected {limit.what}") from error


def entries(folder: Path) -> list[Path]:
    """Return the files and folders directly in a folder, in order of the names, without what is hidden."""
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: not readable as a folder ({reason(error)})") from error
    if len(names) > MOST_ENTRIES:
        raise UserError(f"{folder}: {len(names):,} entries; a folder that is read may have {MOST_ENTRIES:,}")
    return [folder / name for name in names]


def given_path(where: str, value: Any) -> Path:
    """Return a path that a user gave, as a text or a path; something may be there or not."""
    try:
        path = Path(value)
        os.lstat(path)
    except (OSError, TypeError, ValueError) as error:
        if not isinstance(error, OSError) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise UserError(f"{where}: expected a path, got {shown(value)} ({reason(error)})") from error
    return path


def inside(path: str) -> str:
    """Return a path that a file of a folder names, from there; ValueError where it leads out of the folder."""
    if os.path.isabs(path) or ".." in Path(path).parts:
        raise ValueError("a path that leads out of the folder")
    return path


def reason(error: BaseException) -> str:
    """Return in one line why an operation failed: the system's words, without the path."""
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return one_line(words) or type(error).__name__


def toml_file(path: Path, *, expected: str = "settings in TOML") -> dict[str, Any]:
    """Return the table that a TOML file holds; arguments and errors as :func:`open_file`."""
    try:
        return toml_table(read_text(path, SETTINGS, expected=expected))
    except ValueError as error:
        raise UserError(f"{path}: not readable as TOML ({reason(error)})") from error


def toml_table(text: str) -> dict[str, Any]:
    """Return the table that a text in TOML stands for: texts, numbers, booleans, lists and tables."""
    try:
        values = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(_DEEP) from error
    for key, value in _leaves(values):
        if isinstance(value, int) and value.bit_length() > WHOLE_BITS:
            raise ValueError(f"{shown(key)}: a whole number of {value.bit_length():,} bits; at most {WHOLE_BITS}")
        if not isinstance(value, (str, int, float)):
            raise ValueError(f"{shown(key)}: a date or a time; put it in quotes where a text is meant")
        if isinstance(value, str) and "\0" in value:
            raise ValueError(f"{shown(key)}: a NUL character")
    return values


def _leaves(values: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values within lists and tables, each with its key; ValueError where these stand too deep in one another."""
    left = [("", values, 0)]
    while left:
        key, value, depth = left.pop()
        if not isinstance(value, (dict, list)):
            yield key, value
        elif depth > NESTING:
            raise ValueError(_DEEP)
        else:
            inner = value.items() if isinstance(value, dict) else ((key, entry) for entry in value)
            left += [(name, entry, depth + 1) for name, entry in inner]


def inline_value(text: str) -> Any:
    """Return a text as the TOML value that it stands for; the text itself where it stands for none.

    >>> inline_value("0.1"), inline_value("VAP"), inline_value("true"), inline_value("2026-01-01")
    (0.1, 'VAP', True, '2026-01-01')
    """
    try:
        result = toml_table(f"value = {text}") if len(text) <= SETTINGS.bytes else {}
    except ValueError:
        return text
    return result["value"] if len(result) == 1 else text


def inline_values(text: str) -> list[Any]:
    """Return values that stand in a text with commas between; where they are no TOML, the texts.

    >>> inline_values("0.1,1"), inline_values("VAP, VAR")
    ([0.1, 1], ['VAP', 'VAR'])
    """
    result = inline_value(f"[{text}]")
    return result if isinstance(result, list) else [part.strip() for part in text.split(",")]


def json_value(text: str | bytes) -> Any:
    """Return the value that a text in JSON stands for."""
    text = text.decode("utf-8") if isinstance(text, bytes) else text
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(_DEEP) from error
    if text.count("[") + text.count("{") > NESTING:
        deque(_leaves(value), maxlen=0)
    return value


def tensor_file(path: Path) -> Path:
    """Return the path of a safetensors file; one of an impossible header is refused before it is opened as one."""
    with open_file(path, TENSORS) as file:
        first = file.read(8)
        size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(first, "little")
    if len(first) < 8 or length > min(TENSOR_HEADER, size - 8):
        text = f"a header of {length:,} bytes in a file of {size:,}; at most {TENSOR_HEADER:,}"
        raise UserError(f"{path}: not readable as safetensors ({text})")
    return path
