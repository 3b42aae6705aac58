"""The verb ``submit``: hand the shards of a study to a cluster's queue, one job a shard."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fedpriv.experiment.named_code import imports_what_is_named
from fedpriv.experiment.study.cells import Execution, lay_out
from fedpriv.experiment.study.run import run_study, saved_study
from fedpriv.experiment.study.shards import MOST, Shard, join
from fedpriv.experiment.verbs.auditing import Described, StudySettings, read_asked
from fedpriv.util import access
from fedpriv.util.code import code_flags, exported
from fedpriv.util.errors import UserError, shown, unknown_name
from fedpriv.util.escape import call, command_line
from fedpriv.util.foreign import given_path
from fedpriv.util.listener import SILENT, Listener
from fedpriv.util.pairs import mapping

if TYPE_CHECKING:
    from submitit import AutoExecutor

CLUSTERS = {"slurm": "sbatch of this machine", "local": "processes of this machine, all at once"}


@dataclass(frozen=True)
class Submission:
    """Shards of a study that wait in a queue, or are at work.

    Attributes:
        folder: of the study, which all shards share.
        shards: what was submitted, as ``1/4``; one job each.
        jobs: names of the jobs in the queue, in the same order.
        logs: folder of what the jobs print, and of the queue's own files.
        look: how to look at the study meanwhile.
        merge: how to merge what is there and do what is missing; the shard that ends last merges by itself.
    """

    folder: Path
    shards: tuple[str, ...]
    jobs: tuple[str, ...]
    logs: Path
    look: str
    merge: str


@imports_what_is_named
def submit(
    study: Described = None,
    *,
    out: str | Path,
    shards: int,
    cluster: str = "slurm",
    job: Mapping[str, Any] | Sequence[str] = (),
    resume: bool = False,
    share_group: bool = False,
    allow_code: str | Sequence[str] = (),
    listener: Listener = SILENT,
    **settings: Unpack[StudySettings],
) -> Submission:
    """Make the folder of a study and submit its shards, one job each, by the package ``submitit``.

    A job that is preempted or runs out of time is submitted again by itself and goes on; for one that died otherwise, submit
    again: what is done is not done again.

    Args:
        study: as of :func:`fedpriv.audit`.
        out: folder of the study, on a file system that all machines share and that knows locks.
        shards: how many jobs; at most as many as the study has runs.
        cluster: ``slurm``, or ``local`` for processes of this machine.
        job: parameters of ``submitit`` for every job: ``{"timeout_min": 600, "gpus_per_node": 1}``, or texts
            ``KEY=VALUE``.
        resume: go on with the study in ``out`` as it is.
        share_group: as of :func:`fedpriv.audit`.
        allow_code: modules that may be imported although only a file names them (docs/reliability.md); one or several.
        listener: hears what else is to be known.
        settings: as of :func:`fedpriv.audit`.

    Raises:
        UserError: when the study, the queue or one of its parameters is not right, before anything is submitted.
    """
    described, execution = read_asked(study, out, settings, resume=resume)
    if not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= MOST:
        raise UserError(f"shards={shown(shards)}: expected a number from 1 to {MOST:,}")
    folder = given_path("out", out).absolute()
    logs = folder.with_name(f"{folder.name}-jobs")
    queue = _queue(cluster, logs, mapping("job", job))
    cells, notes = lay_out(described, execution)
    for note in notes:
        listener.say(f"left out: {note}")
    runs = len({cell.run for cell in cells})
    if runs < shards:
        listener.say(f"{runs} shards, not {shards}: the study has {runs} runs, and a run is not divided")
    parts = tuple(str(Shard(number, min(shards, runs))) for number in range(1, min(shards, runs) + 1))
    with access.sharing(share_group):
        join(folder, described, cells, command=listener.command or call("audit", "..."))
    task = ShardJob(str(folder), execution)
    with _in_one_line(cluster, logs), exported():
        jobs = tuple(str(item.job_id) for item in queue.map_array(task, list(parts)))
    look = command_line("report", folder, "--out", f"{folder}-report")
    merge = command_line("audit", "--resume", "--out", folder, *code_flags())
    return Submission(folder, parts, jobs, logs, look, merge)


@dataclass(frozen=True)
class ShardJob:
    """A job: one shard of a study that is made."""

    folder: str
    execution: Execution

    def __call__(self, shard: str) -> str:
        """Do what is left of a shard, and return what became of its cells, in words."""
        folder, listener = Path(self.folder), _Printed()
        study = saved_study(folder)
        result = run_study(study, folder, self.execution, shard=Shard.read(shard), listener=listener)
        done = sum(row.status == "done" for row in result.rows)
        text = f"{done} of {len(result.rows)} cells of shard {shard} done"
        return text if result.report is None else f"{text}; report: {result.report}"

    def checkpoint(self, *given: str) -> Any:
        """Return the same job, to be submitted again when the queue takes its machine away."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *given)


class _Printed(Listener):
    """Prints notices to the job's log."""

    def say(self, line: str) -> None:
        print(line, flush=True)


def _queue(cluster: str, logs: Path, parameters: Mapping[str, Any]) -> AutoExecutor:
    if cluster not in CLUSTERS:
        raise unknown_name("cluster", cluster, CLUSTERS)
    try:
        from submitit import AutoExecutor
    except ImportError as error:
        raise UserError('submitting needs submitit, which is not installed: pip install "fedpriv[slurm]"') from error
    with _in_one_line(cluster, logs):
        queue = AutoExecutor(logs, cluster=cluster)
        queue.update_parameters(**{"name": "fedpriv", **parameters})
    return queue


@contextlib.contextmanager
def _in_one_line(cluster: str, logs: Path) -> Iterator[None]:
    """Say what a queue does not take in one line, and leave no empty folder; whatever it raises, the user can mend."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(OSError):
            logs.rmdir()
        details = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UserError(f"{cluster}: {details}") from error
