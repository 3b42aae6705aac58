"""Files that this process forced to the disk, and what they hold, so that other names of them need not be read again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedpriv.util.manifest import Contents

_vouchers: dict[Path, dict[tuple[int, int], tuple[int, int, Contents]]] = {}
"""Members of folders that were made whole, by the folder that theirs lies in, of the newest such folder only.

Device and number of the file -> time of its last change in nanoseconds, size, contents.
"""


def vouch(listed: Mapping[Path, Contents], building: Path) -> None:
    """Note what the files of a folder hold, which are forced to the disk; their folder still bears a temporary name."""
    vouchers = {}
    for path, holds in listed.items():
        about = (building / path.name).stat()
        vouchers[about.st_dev, about.st_ino] = (about.st_mtime_ns, about.st_size, holds)
    _vouchers[building.parent] = vouchers


def vouched(path: Path) -> Contents | None:
    """Return the contents of a file in a folder that was, or is being, made whole; None where they are not known."""
    try:
        about = path.stat()
    except OSError:
        return None
    found = _vouchers.get(path.parent.parent, {}).get((about.st_dev, about.st_ino))
    return found[2] if found is not None and found[:2] == (about.st_mtime_ns, about.st_size) else None
