"""The verbs ``audit``, ``plan`` and ``submit``: train, attack and report over a grid of methods, defenses and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, Unpack

from fedpriv.api.named_code import imports_what_is_named
from fedpriv.study.cells import Execution, lay_out
from fedpriv.study.folder import Shard, join, saved_study
from fedpriv.study.grid import Study, parse_study
from fedpriv.study.run import StudyResult, run_study
from fedpriv.study.saving import Tabular, place
from fedpriv.study.settings import (
    Circumstances,
    FederationSettings,
    SuiteSettings,
    refuse_small,
    refuse_unknown,
    to_resume,
)
from fedpriv.study.written import QUICK, overridden
from fedpriv.util import files
from fedpriv.util.code import code_flags, exported
from fedpriv.util.config import mapping
from fedpriv.util.errors import UserError, shown
from fedpriv.util.escape import call, command_line
from fedpriv.util.foreign import given_path, toml_file
from fedpriv.util.parallel import SILENT, Listener, number_of_workers, patience_for


class StudySettings(SuiteSettings, FederationSettings, total=False):
    """The keys of a study, settings of its federation by name, and how it is carried out."""

    federation: Mapping[str, Any]  # settings that all methods share, by name; those that are given by themselves win
    methods: str | Sequence[Any]  # names, ``NAME:KEY=VALUE``, or mappings with ``name`` and the method's settings
    # (default ``fedre``)
    defenses: str | Sequence[Any]  # ``none``, names, or mappings; a list of values makes a grid (default ``none``)
    attacks: str | Sequence[Any]  # names or mappings, ``all`` that fit and are granted (default), or ``none``: methods
    # are trained only
    iterations: int | None  # budget of every attack that has one, in its own unit; an attack's own wins
    seeds: Sequence[int] | Sequence[str]  # of training, targets and attacks (default 0)
    knowledge: Mapping[str, Any] | Sequence[str]  # changes to the threat model
    local: bool  # also train the clients of each federation without any exchange (default True)
    axes: Mapping[str, Any] | Sequence[str]  # settings of the federation (``alpha``) -> values, a grid, or texts
    # ``KEY=VALUE,VALUE``
    quick: bool  # few rounds, targets and iterations where no argument gives others, to see whether everything works
    workers: int | str  # processes at a time, one thread each; ``auto`` (default): one a core, one on a GPU or for a
    # shard
    download: bool  # fetch data sets that are missing
    resume: bool  # go on with the study in ``out`` as it is


Described: TypeAlias = Mapping[str, Any] | str | Path | None
"""A file, the mapping that such a file holds, or nothing beside settings."""

_HOW = ("workers", "device", "compile", "download", "chunk_rows", "resume", "quick", *Circumstances.__annotations__)
"""Settings that say how a study is carried out, and nothing of what it is."""


@imports_what_is_named
def audit(study: Described = None, *, shard: str | None = None, **settings: Unpack[StudySettings]) -> StudyResult:
    """Train every method under every defense with every seed, attack each run, and report on all together.

    Calling it again with the same study and ``out`` goes on where it stopped.

    Args:
        study: a TOML file (docs/audit.md), the mapping that such a file holds, or None for settings alone.
        shard: do the part ``"I/N"`` of the study alone, beside other processes that do the others in the same ``out``
            (docs/shards.md); the last one merges and reports.
        settings: see :class:`StudySettings`, :class:`SuiteSettings`, :class:`FederationSettings`; they win over ``study``.
    """
    if shard is not None:  # the machine may be others' too
        settings.setdefault("workers", 1)
    described, execution = read_asked(study, settings)
    out, force, listener = settings.get("out"), settings.get("force", False), settings.get("listener", SILENT)
    part = None if shard is None else Shard.read(shard)
    if part is not None and out is None:
        raise UserError("shard needs out, the folder that all shards share")
    if part is not None and force:
        raise UserError("shard and force exclude each other: the folder is others' too")
    folder, scratch = place(out)
    command = listener.command or call("audit", "...")
    with files.sharing(settings.get("share_group", False)):
        result = run_study(described, folder, execution, shard=part, force=force, command=command, listener=listener)
    return replace(result, lifetime=scratch)


@dataclass(frozen=True)
class StudyPlan(Tabular):
    """The cells of a study and an estimate of its work, before anything runs.

    Attributes:
        cells: of each run with its attacks the name ``cell``, ``method``, ``defense``, ``seed``, ``target`` (None where
            nothing is uploaded), ``attacks``, the names of its results, ``client_steps`` of its run (0 where an earlier cell
            has it) and ``attack_iterations``, the most iterations over all targets and restarts, controls included.
        notices: what was chosen for the study or left out of it, and why.
    """

    cells: tuple[Mapping[str, Any], ...]
    notices: tuple[str, ...] = ()

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return one row a cell, its attacks as one text."""
        return [{**cell, "attacks": ", ".join(cell["attacks"])} for cell in self.cells]

    @property
    def work(self) -> str:
        """The estimate in one line."""
        trained, searched = (sum(cell[name] for cell in self.cells) for name in ("client_steps", "attack_iterations"))
        return f"{len(self.cells)} cells: {trained:,} client steps, at most {searched:,} attack iterations"


@imports_what_is_named
def plan(study: Described = None, **settings: Unpack[StudySettings]) -> StudyPlan:
    """List the cells of a study and estimate its work, by the configuration alone: data is not looked at.

    Args:
        study: as for :func:`fedpriv.audit`.
        settings: as for :func:`fedpriv.audit`; ``out`` with ``resume`` alone.
    """
    cells, notices = lay_out(*read_asked(study, settings), sketch=True)
    for line in notices:
        settings.get("listener", SILENT).say(line)
    rows, runs = [], set[str]()
    for cell in cells:
        results, steps = tuple(name for item in cell.plans for name in item.results()), cell.client_steps
        row = {"cell": cell.name, "method": cell.method.label, "defense": cell.defense.label, "seed": cell.seed}
        row |= {"target": cell.target, "attacks": results, "client_steps": 0 if cell.run in runs else steps}
        rows.append(row | {"attack_iterations": cell.attack_iterations})
        runs.add(cell.run)
    return StudyPlan(tuple(rows), notices)


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


def read_asked(study: Described, settings: Mapping[str, Any]) -> tuple[Study, Execution]:
    """Return the study that arguments of a verb describe, and how it is carried out."""
    refuse_unknown(settings, StudySettings)
    refuse_small(settings, ("chunk_rows",))
    group = {name: value for name, value in settings.items() if name not in _HOW}
    execution = execution_of(settings)
    if settings.get("resume"):
        extra = ["study"] * (study is not None) + ["quick"] * bool(settings.get("quick")) + [*group]
        return saved_study(to_resume(settings.get("out"), extra, force=settings.get("force"), what="study")), execution
    source, values = "study", study
    if isinstance(study, (str, Path)):
        path = given_path("study", study)
        source, values = str(path), toml_file(path, expected="a study in TOML, see docs/audit.md")
    if values is not None and not isinstance(values, Mapping):
        text = "expected a file of TOML, or the mapping that such a file holds"
        raise UserError(f"study={shown(study)}: {text}")
    if settings.get("quick"):
        few = {name: value for name, value in QUICK.items() if name not in group}
        settings.get("listener", SILENT).say(f"quick: {', '.join(f'{name} {value}' for name, value in few.items())}")
        group |= few
    return parse_study(overridden(values or {}, group), source), execution


# ---------------------------------------------------------------- jobs of a queue


@dataclass(frozen=True)
class Submission:
    """Shards of a study that wait in a queue, or are at work.

    Attributes:
        folder: of the study, which all shards share.
        jobs: names of the jobs in the queue, one a shard.
        logs: folder of what the jobs print, and of the queue's own files.
        merge: command that merges what is there and does what is missing; the shard that ends last merges by itself.
    """

    folder: Path
    jobs: tuple[str, ...]
    logs: Path
    merge: str


@imports_what_is_named
def submit(
    study: Described = None,
    *,
    shards: int,
    cluster: str = "slurm",
    job: Mapping[str, Any] | Sequence[str] = (),
    **settings: Unpack[StudySettings],
) -> Submission:
    """Make the folder of a study and submit its shards, one job each, by the package ``submitit``.

    A job that is preempted is queued again by itself and goes on; for one that died otherwise, submit again.

    Args:
        study: as of :func:`fedpriv.audit`.
        shards: how many jobs; at most as many as the study has runs.
        cluster: of submitit: ``slurm``, or ``local`` for processes of this machine.
        job: parameters of submitit for every job: ``{"timeout_min": 600, "gpus_per_node": 1}``, or texts ``KEY=VALUE``.
        settings: as of :func:`fedpriv.audit`; ``out`` on a file system that all machines share and that knows locks.
    """
    described, execution = read_asked(study, settings)
    folder, listener = given_path("out", settings.get("out")).absolute(), settings.get("listener", SILENT)
    cells, notes = lay_out(described, execution)
    runs = len({cell.run for cell in cells})
    if not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= runs:
        raise UserError(f"shards={shown(shards)}: expected a number from 1 to {runs}, the runs of the study")
    for note in notes:
        listener.say(note)
    try:
        from submitit import AutoExecutor
    except ImportError as error:
        raise UserError('submitting needs submitit, which is not installed: pip install "fedpriv[slurm]"') from error
    logs = folder.with_name(f"{folder.name}-jobs")
    try:
        queue = AutoExecutor(logs, cluster=cluster)
        queue.update_parameters(**{"name": "fedpriv", **mapping("job", job)})
        with files.sharing(settings.get("share_group", False)):
            join(folder, described, cells, command=listener.command or call("audit", "..."))
        with exported():
            parts = [str(Shard(number, shards)) for number in range(1, shards + 1)]
            jobs = tuple(str(item.job_id) for item in queue.map_array(ShardJob(str(folder), execution), parts))
    except UserError:
        raise
    except Exception as error:  # whatever a queue raises, the user can mend
        raise UserError(f"{cluster}: {next(iter(str(error).splitlines()), '') or type(error).__name__}") from error
    return Submission(folder, jobs, logs, command_line("audit", "--resume", "--out", folder, *code_flags()))


@dataclass(frozen=True)
class ShardJob:
    """A job: one shard of a study that is made."""

    folder: str
    execution: Execution

    def __call__(self, shard: str) -> str:
        """Do what is left of a shard, and return what became of its cells, in words."""
        folder = Path(self.folder)
        result = run_study(saved_study(folder), folder, self.execution, shard=Shard.read(shard), listener=_Printed())
        done = sum(row.status == "done" for row in result.rows)
        return f"{done} of {len(result.rows)} cells of shard {shard} done"

    def checkpoint(self, *given: str) -> Any:
        """Return the same job, to be submitted again when the queue takes its machine away."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *given)


class _Printed(Listener):
    """Prints notices to the job's log."""

    def say(self, line: str) -> None:
        print(line, flush=True)
