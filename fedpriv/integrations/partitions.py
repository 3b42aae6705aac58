"""Which client holds which part of the data: written where the client runs, by audits only, and never sent.

::

    fedpriv-truth/node-4711/partition.json     {"format": 1, "client": "4711", "partition": 0}

Every client writes a folder of its own; the folders of several machines can be put together by copying.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from fedpriv.util.errors import UserError, shown
from fedpriv.util.files import mark, read_json, write_json
from fedpriv.util.foreign import entries

FORMAT: Final = 1

Partition = int | str


def default_folder() -> Path:
    """Return the folder that clients write into, and that an attack looks in where no other is named."""
    return Path(os.environ.get("FEDPRIV_TRUTH") or "fedpriv-truth").absolute()


def write_partition(folder: Path, client: str, partition: Partition) -> None:
    """Write down which part of the data a client holds, unless that stands there already."""
    path = folder / f"node-{client}"
    file = path / "partition.json"
    if not file.is_file():
        mark(path, "truth")
        write_json(file, {"format": FORMAT, "client": client, "partition": partition})
    elif (before := _read(file)[1]) != partition:
        raise UserError(
            f"{file}: says partition {shown(before)}, but this run of client {client} has {shown(partition)}"
        )


def read_partitions(folder: Path) -> dict[str, Partition]:
    """Return client -> part of the data, of every client that wrote into a folder; nothing where there is no folder."""
    if not folder.exists():
        return {}
    files = [position / "partition.json" for position in entries(folder) if position.name.startswith("node-")]
    return dict(_read(file) for file in files if file.is_file())


def _read(file: Path) -> tuple[str, Partition]:
    values: Any = read_json(file)
    client, partition = (values.get("client"), values.get("partition")) if isinstance(values, dict) else (None, None)
    if not isinstance(client, str) or not isinstance(partition, (int, str)) or values.get("format") != FORMAT:
        raise UserError(f"{file}: not what a client of fedpriv {FORMAT} writes: expected its client and partition")
    return client, partition
