"""The verb ``train``: run a federation and keep everything that an attack needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from fedpriv.api.named_code import imports_what_is_named
from fedpriv.federation.run_directory import RunConfig, RunDirectory
from fedpriv.federation.summary import RunSummary
from fedpriv.study.saving import Scratch, Tabular, copy_folder, place
from fedpriv.study.settings import (
    Circumstances,
    FederationSettings,
    engine_choice,
    named_config,
    refuse_unknown,
    to_resume,
)
from fedpriv.study.training import train_run
from fedpriv.util import files
from fedpriv.util.code import allowed
from fedpriv.util.parallel import SILENT


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


class TrainSettings(Circumstances, FederationSettings, total=False):
    """Keyword arguments of ``train`` beside the settings of the federation."""

    resume: bool  # go on with the interrupted run in ``out``, as it was configured
    device: str  # ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``
    workers: int | str  # processes that run the clients of a round, or ``auto`` (default 1), with equal results
    download: bool  # fetch the data set if it is missing
    engine: str | None  # what runs the clients: ``local`` (default), or ``flower`` (``docs/engines.md``), with equal
    # results
    min_clients: int | None  # of ``flower``: clients that fail leave their round while so many others answered (default
    # 1)
    client_timeout: float | None  # of ``flower``: seconds after which a client that has not answered leaves the round
    # (default 600)
    nodes: int | None  # of ``flower``: simulated nodes (default: one for each client of a round)


@imports_what_is_named
def train(method: str | None = None, *, seed: int | None = None, **settings: Unpack[TrainSettings]) -> Run:
    """Train a federation and store what crossed the wire.

    >>> import fedpriv
    >>> run = fedpriv.train("fedgh", dataset="digits", per_class=20, clients=3, rounds=1)
    >>> run.config.method, 0 <= run.accuracy <= 1
    ('fedgh', True)

    Args:
        method: a name of ``fedpriv list methods`` (default ``fedre``).
        seed: of every random draw (default 0).
        settings: see :class:`TrainSettings`, :class:`FederationSettings` and :class:`Circumstances`.

    Raises:
        WorkError: where fewer clients answered than ``min_clients``; what is done is kept, and ``resume`` goes on with it.
    """
    refuse_unknown(settings, TrainSettings)
    given: dict[str, Any] = {"method": method, "seed": seed, **settings}
    names = ("engine", "min_clients", "client_timeout", "nodes")
    chosen = {name: given[name] for name in names if given.get(name) is not None}
    how = {name: given[name] for name in ("device", "workers", "download", "resume", "force") if name in given}
    if settings.get("resume"):
        extra = [name for name in ("method", "seed") if given[name] is not None]
        extra += [name for name in settings if name in (*FederationSettings.__annotations__, *chosen)]
        path, scratch = to_resume(settings.get("out"), extra, force=settings.get("force")), None
        config = RunDirectory.open(path).config
    else:
        config = replace(named_config(method or "fedre", settings, seed or 0), engine=engine_choice(chosen))
        path, scratch = place(settings.get("out"))
    with files.sharing(settings.get("share_group", False)):
        train_run(path, config, listener=settings.get("listener", SILENT), **how)
    return Run(path, scratch, allowed())
