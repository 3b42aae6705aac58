"""The verb ``train``: run a federation and keep everything that an attack needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fedpriv.experiment.federation_settings import FederationSettings, engine_choice, named_config
from fedpriv.experiment.named_code import imports_what_is_named
from fedpriv.experiment.saving import Tabular, copy_folder
from fedpriv.experiment.scratch import Scratch, place
from fedpriv.experiment.training import train_run
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.util import files
from fedpriv.util.code import allowed
from fedpriv.util.errors import UserError
from fedpriv.util.foreign import given_path
from fedpriv.util.parallel import SILENT, Listener

if TYPE_CHECKING:
    from fedpriv.federation.run_directory import RunConfig
    from fedpriv.federation.summary import RunSummary


@dataclass(frozen=True)
class Run(Tabular):
    """A finished run: a folder, and what it says of itself.

    A temporary run (``train`` without ``out``) is removed when nothing refers to this object any more; :meth:`save`
    keeps it.

    Attributes:
        path: the run directory.
        code: modules that its maker named, which verbs may import again where they get this object; no file stores them.
    """

    path: Path
    _scratch: Scratch | None = field(default=None, repr=False, compare=False)
    code: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    @property
    def config(self) -> RunConfig:
        """Everything that determined the run."""
        return RunDirectory.open(self.path).config

    @property
    def summary(self) -> RunSummary:
        """Accuracy, communication, seconds and, where a defense accounts for it, privacy: ``summary.json``."""
        return RunDirectory.open(self.path).summary

    @property
    def accuracy(self) -> float:
        """Accuracy over the test images of all clients after local training of the last round, in [0, 1]."""
        return self.summary.accuracy["after_training"].pooled

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return accuracy by round, one row a round."""
        return [
            {"round": line.round}
            | {f"{when}_{name}": number for when, result in line.accuracy.items() for name, number in result}
            for line in RunDirectory.open(self.path).rounds()
        ]

    def save(self, out: str | Path, *, force: bool = False) -> Run:
        """Copy the run to a folder that stays, and return it from there."""
        copy_folder(self.path, Path(out), "run", force=force)
        return Run(Path(out), code=self.code)


@imports_what_is_named
def train(
    method: str | None = None,
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    share_group: bool = False,
    device: str = "auto",
    workers: int | str = 1,
    download: bool = False,
    engine: str | None = None,
    min_clients: int | None = None,
    client_timeout: float | None = None,
    nodes: int | None = None,
    allow_code: str | Sequence[str] = (),
    listener: Listener = SILENT,
    **federation: Unpack[FederationSettings],
) -> Run:
    """Train a federation and store what crossed the wire.

    >>> import fedpriv
    >>> run = fedpriv.train("fedgh", dataset="digits", per_class=20, clients=3, rounds=1)
    >>> run.config.method, 0 <= run.accuracy <= 1
    ('fedgh', True)

    Args:
        method: a name of ``fedpriv list methods`` (default ``fedre``).
        seed: of every random draw (default 0).
        out: run directory to make; None for a temporary run, which is gone with the returned object.
        resume: go on with the interrupted run in ``out``, as it was configured.
        force: replace ``out`` if it exists.
        share_group: let your group read the run, and so attack it; it is yours alone otherwise (docs/folders.md).
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``.
        workers: processes that run the clients of a round, one thread each, or ``auto`` (default 1). Worth it from some
            four cores and long rounds on; results do not depend on it.
        download: fetch the data set if it is missing.
        engine: what runs the clients: ``local`` (default), or ``flower`` (``docs/engines.md``), with equal results.
        min_clients: clients that fail leave their round while at least so many others answered (default 1). This and the
            following are of engine ``flower`` alone.
        client_timeout: seconds after which a client that has not answered leaves the round (default 600).
        nodes: simulated nodes (default: one for each client of a round).
        allow_code: modules that may be imported although only a file names them (docs/reliability.md); one or several.
        listener: hears of the progress.
        federation: the settings of the federation; see :class:`FederationSettings`.

    Raises:
        UserError: naming the argument that is wrong, before anything is written.
        WorkError: where fewer clients answered than ``min_clients``; what is done is kept, and ``resume`` goes on with it.
    """
    choices = {"engine": engine, "min_clients": min_clients, "client_timeout": client_timeout, "nodes": nodes}
    chosen = {name: value for name, value in choices.items() if value is not None}
    if resume:
        given = [name for name, value in (("method", method), ("seed", seed)) if value is not None]
        path, scratch = _to_resume(out, [*given, *federation, *chosen], force=force), None
        config = RunDirectory.open(path).config
    else:
        config = replace(named_config(method or "fedre", federation, seed or 0), engine=engine_choice(chosen))
        path, scratch = place(out)
    with files.sharing(share_group):
        how: dict[str, Any] = {
            "device": device,
            "download": download,
            "resume": resume,
            "force": force,
            "clients_by": workers,
        }
        train_run(path, config, listener=listener, **how)
    return Run(path, scratch, allowed())


def _to_resume(out: str | Path | None, given: list[str], *, force: bool) -> Path:
    if out is None:
        raise UserError("resume needs out, the run directory to go on with")
    if force:
        raise UserError("resume and force exclude each other")
    if given:
        extra = ", ".join(sorted(given))
        raise UserError(f"resume goes on with the run as it was configured; drop {extra}")
    return given_path("out", out)
