"""The verb ``audit``: train, attack and report over a grid of methods, defenses and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, Unpack

from fedpriv.experiment.federation_settings import FederationSettings, refuse_small, refuse_unknown
from fedpriv.experiment.named_code import imports_what_is_named
from fedpriv.experiment.saving import Tabular
from fedpriv.experiment.scratch import place
from fedpriv.experiment.study.cells import Execution, lay_out
from fedpriv.experiment.study.grid import Study, parse_study
from fedpriv.experiment.study.run import StudyResult, run_study, saved_study
from fedpriv.experiment.study.shards import Shard
from fedpriv.experiment.study.written import overridden
from fedpriv.util import files
from fedpriv.util.errors import UserError, shown
from fedpriv.util.escape import call
from fedpriv.util.foreign import given_path, toml_file
from fedpriv.util.parallel import SILENT, Listener, number_of_workers, patience_for


class StudySettings(FederationSettings, total=False):
    """The keys of a study, settings of its federation by name, and how it is carried out.

    Attributes:
        federation: settings that all methods share, by name; those that are given by themselves win.
        methods: names, or mappings with ``name`` and settings of its own (default ``fedre``). These and defenses and attacks
            may be texts ``NAME:KEY=VALUE,...``.
        defenses: ``none``, names, or mappings; a list of values makes a grid (default ``none``).
        attacks: names or mappings, ``all`` that fit and are granted (default), or ``none``: methods are trained only.
        seeds: of training, targets and attacks (default 0).
        knowledge: changes to the threat model.
        targets: how many targets a cell at most (default 48).
        control: also attack shuffled uploads (default True).
        local: also train the clients of each federation without any exchange, where no method is ``local`` (default True).
        redact: ``blur`` or ``omit`` pictures of people in all that is stored of attacks and drawn (docs/redaction.md).
        rounds_seen: rounds of uploads that attacks across rounds use.
        axes: settings of the federation (``alpha``) -> values, a grid, or texts ``KEY=VALUE,VALUE``.
        precision: of searches by Adam: ``float32`` (default), ``tf32`` or ``bfloat16`` (docs/gpu.md).
        workers: processes at a time, one thread each; ``auto`` (default) takes one for each core that this process may use,
            as far as memory lasts, and one where the device is a GPU or the process does a shard.
        device: ``auto`` (default), ``cpu``, ``cuda`` or ``cuda:N``.
        compile: compile the networks of such searches first; moves the last digits at most.
        download: fetch data sets that are missing.
        chunk_rows: rows of an attack at a time; bounds memory.
    """

    federation: Mapping[str, Any]
    methods: str | Sequence[Any]
    defenses: str | Sequence[Any]
    attacks: str | Sequence[Any]
    seeds: Sequence[int] | Sequence[str]
    knowledge: Mapping[str, Any] | Sequence[str]
    targets: int
    control: bool
    local: bool
    redact: str
    precision: str
    rounds_seen: int
    axes: Mapping[str, Any] | Sequence[str]
    workers: int | str
    device: str
    compile: bool
    download: bool
    chunk_rows: int | None


Described: TypeAlias = Mapping[str, Any] | str | Path | None
"""A file, the mapping that such a file holds, or nothing beside settings."""

_EXECUTION = ("workers", "device", "compile", "download", "chunk_rows")


@imports_what_is_named
def audit(
    study: Described = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    shard: str | None = None,
    force: bool = False,
    share_group: bool = False,
    allow_code: str | Sequence[str] = (),
    listener: Listener = SILENT,
    **settings: Unpack[StudySettings],
) -> StudyResult:
    """Train every method under every defense with every seed, attack each run, and report on all together.

    Calling it again with the same study and ``out`` goes on where it stopped.

    Args:
        study: a TOML file (docs/audit.md), the mapping that such a file holds, or None for settings alone.
        out: folder of the study; None for a temporary one, which is gone with the returned object.
        resume: go on with the study in ``out`` as it is.
        shard: do the part ``"I/N"`` of the study alone, beside other processes that do the others in the same ``out``
            (docs/shards.md); the last one merges and reports.
        force: replace ``out`` if it holds another study.
        share_group: let your group read the study; it is yours alone otherwise (docs/folders.md).
        allow_code: modules that may be imported although only a file names them (docs/reliability.md); one or several.
        listener: hears of every cell that ends, and of the progress.
        settings: see :class:`StudySettings`; they win over ``study``.

    Raises:
        UserError: naming the key that is wrong, before anything runs.
    """
    if shard is not None:  # the machine may be others' too
        settings.setdefault("workers", 1)
    described, execution = read_asked(study, out, settings, resume=resume, force=force)
    part = None if shard is None else _shard(shard, out, force=force)
    folder, scratch = place(out)
    command = listener.command or call("audit", "...")
    with files.sharing(share_group):
        result = run_study(described, folder, execution, shard=part, force=force, command=command, listener=listener)
    return replace(result, lifetime=scratch)


@dataclass(frozen=True)
class StudyPlan(Tabular):
    """The cells of a study, before anything runs.

    Attributes:
        cells: of each run with its attacks the name ``cell``, ``method``, ``defense``, ``seed``, ``target`` (None where
            nothing is uploaded) and ``attacks``, the names of its results.
        notices: attacks that are left out, and why.
    """

    cells: tuple[Mapping[str, Any], ...]
    notices: tuple[str, ...] = ()

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return one row a cell, its attacks as one text."""
        return [{**cell, "attacks": ", ".join(cell["attacks"])} for cell in self.cells]

    def __str__(self) -> str:
        rows = [f"{cell['cell']}: {', '.join(cell['attacks']) or 'trained only'}" for cell in self.cells]
        return "\n".join([*rows, f"{len(rows)} cells"])


@imports_what_is_named
def plan(
    study: Described = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    allow_code: str | Sequence[str] = (),
    listener: Listener = SILENT,
    **settings: Unpack[StudySettings],
) -> StudyPlan:
    """Check a study and list its cells. Nothing is trained, attacked or kept.

    Args:
        study: as for :func:`fedpriv.audit`.
        out: folder of a study that was begun; with ``resume`` only.
        resume: list the cells of the study in ``out``.
        allow_code: modules that may be imported although only a file names them (docs/reliability.md); one or several.
        listener: hears of attacks that are left out.
        settings: as for :func:`fedpriv.audit`.

    Raises:
        UserError: naming the key that is wrong.
    """
    described, execution = read_asked(study, out, settings, resume=resume)
    with listener.progress("laying the study out"):  # of many seeds it takes long
        cells, notes = lay_out(described, execution)
    notices = tuple(f"left out: {note}" for note in notes)
    for line in notices:
        listener.say(line)
    rows = (
        {"cell": cell.name, "method": cell.method.label, "defense": cell.defense.label, "seed": cell.seed}
        | {"target": cell.target, "attacks": tuple(name for item in cell.plans for name in item.results())}
        for cell in cells
    )
    return StudyPlan(tuple(rows), notices)


def _shard(text: str, out: str | Path | None, *, force: bool) -> Shard:
    shard = Shard.read(text)
    if out is None:
        raise UserError("shard needs out, the folder that all shards share")
    if force:
        raise UserError("shard and force exclude each other: the folder is others' too")
    return shard


def execution_of(settings: Mapping[str, Any]) -> Execution:
    """Return the circumstances of a study that settings ask for."""
    device, requested = settings.get("device", "auto"), settings.get("workers", "auto")
    return Execution(
        device=device,
        download=settings.get("download", False),
        chunk_rows=settings.get("chunk_rows"),
        compiled=settings.get("compile", False),
        workers=number_of_workers(requested, device),
        patience=patience_for(requested),
    )


def read_asked(
    study: Described, out: str | Path | None, settings: Mapping[str, Any], *, resume: bool, force: bool = False
) -> tuple[Study, Execution]:
    """Return the study that arguments of a verb describe, and how it is carried out."""
    refuse_unknown(settings, StudySettings.__optional_keys__)
    group = {name: value for name, value in settings.items() if name not in _EXECUTION}
    refuse_small(settings, ("chunk_rows",))
    execution = execution_of(settings)
    if not resume:
        source, values = "study", study
        if isinstance(study, (str, Path)):
            path = given_path("study", study)
            source, values = str(path), toml_file(path, expected="a study in TOML, see docs/audit.md")
        if values is not None and not isinstance(values, Mapping):
            text = "expected a file of TOML, or the mapping that such a file holds"
            raise UserError(f"study={shown(study)}: {text}")
        return parse_study(overridden(values or {}, group), source), execution
    if out is None:
        raise UserError("resume needs out, the folder of the study")
    if force:
        raise UserError("resume and force exclude each other")
    if study is not None or group:
        extra = ", ".join(["study"] * (study is not None) + sorted(group))
        raise UserError(f"resume goes on with the study in {out} as it is; drop {extra}")
    return saved_study(given_path("out", out)), execution
