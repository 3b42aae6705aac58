"""The verb ``data``: what each client would hold, before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from fedpriv.datasets.holdings import holdings_table
from fedpriv.experiment.federation_settings import FederationSettings, named_config
from fedpriv.experiment.named_code import imports_what_is_named
from fedpriv.experiment.saving import Tabular, copy_folder
from fedpriv.experiment.scratch import Scratch, place
from fedpriv.federation.prepared import load_division
from fedpriv.federation.run_directory import dataset_title
from fedpriv.util import folders
from fedpriv.util.files import write_json


@dataclass(frozen=True)
class Holdings(Tabular):
    """The images of each client, counted.

    A temporary folder (no ``out``) is removed when nothing refers to this object any more.

    Attributes:
        path: folder with the table ``about.json``.
        dataset: name of the data set.
        clients: one mapping a client: its number of images, of classes, and so on.
    """

    path: Path
    dataset: str
    clients: tuple[Mapping[str, Any], ...]
    _scratch: Scratch | None = field(default=None, repr=False, compare=False)

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the counts of each client's images, one row a client."""
        return self.clients

    def save(self, out: str | Path, *, force: bool = False) -> Holdings:
        """Copy the table to a folder that stays, and return it from there."""
        copy_folder(self.path, Path(out), "data", force=force)
        return Holdings(Path(out), self.dataset, self.clients)


@imports_what_is_named
def data(
    *,
    seed: int = 0,
    out: str | Path | None = None,
    force: bool = False,
    download: bool = False,
    **federation: Unpack[FederationSettings],
) -> Holdings:
    """Divide a data set among clients and show what each holds, without training.

    >>> import fedpriv
    >>> len(fedpriv.data(dataset="digits", clients=5).clients)
    5

    Args:
        seed: of the partition.
        out: folder to make; None for a temporary one, which is gone with the returned object.
        force: replace ``out`` if it exists.
        download: fetch the data set if it is missing.
        federation: those settings that say what data there is and who holds it; see :class:`FederationSettings`.

    Raises:
        UserError: naming the argument that is wrong.
    """
    config = named_config("local", federation, seed)
    folder, scratch = place(out)
    data_dir = federation.get("data_dir")
    folders.refuse_overlap(folder, {}, around={"data_dir": None if data_dir is None else Path(data_dir)})
    folders.check_free(folder, force=force)
    federated, _ = load_division(config, download=download)
    rows = holdings_table(federated)
    with folders.output(folder, "data", force=force):
        write_json(folder / "about.json", {"dataset": dataset_title(config), "seed": seed, "clients": rows})
    return Holdings(folder, dataset_title(config), tuple(rows), scratch)
