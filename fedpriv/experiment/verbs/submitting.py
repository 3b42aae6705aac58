"""The verb ``submit``: hand the shards of a study to a cluster's queue, one job a shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from fedpriv.experiment.named_code import imports_what_is_named
from fedpriv.experiment.study.cells import Execution, lay_out
from fedpriv.experiment.study.run import run_study, saved_study
from fedpriv.experiment.study.shards import Shard, join
from fedpriv.experiment.verbs.auditing import Described, StudySettings, read_asked
from fedpriv.util import files
from fedpriv.util.code import code_flags, exported
from fedpriv.util.config import mapping
from fedpriv.util.errors import UserError, shown
from fedpriv.util.escape import call, command_line
from fedpriv.util.foreign import given_path
from fedpriv.util.parallel import SILENT, Listener


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

    A job that is preempted is queued again by itself and goes on; for one that died otherwise, submit again.

    Args:
        study: as of :func:`fedpriv.audit`.
        out: folder of the study, on a file system that all machines share and that knows locks.
        shards: how many jobs; at most as many as the study has runs.
        cluster: of submitit: ``slurm``, or ``local`` for processes of this machine.
        job: parameters of submitit for every job: ``{"timeout_min": 600, "gpus_per_node": 1}``, or texts ``KEY=VALUE``.
        resume: go on with the study in ``out`` as it is.
        share_group: as of :func:`fedpriv.audit`.
        allow_code: modules that may be imported although only a file names them (docs/reliability.md); one or several.
        listener: hears what else is to be known.
        settings: as of :func:`fedpriv.audit`.

    Raises:
        UserError: when the study, the queue or one of its parameters is not right, before anything is submitted.
    """
    described, execution = read_asked(study, out, settings, resume=resume)
    folder = given_path("out", out).absolute()
    cells, notes = lay_out(described, execution)
    runs = len({cell.run for cell in cells})
    if not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= runs:
        raise UserError(f"shards={shown(shards)}: expected a number from 1 to {runs}, the runs of the study")
    for note in notes:
        listener.say(f"left out: {note}")
    try:
        from submitit import AutoExecutor
    except ImportError as error:
        raise UserError('submitting needs submitit, which is not installed: pip install "fedpriv[slurm]"') from error
    logs = folder.with_name(f"{folder.name}-jobs")
    try:
        queue = AutoExecutor(logs, cluster=cluster)
        queue.update_parameters(**{"name": "fedpriv", **mapping("job", job)})
        with files.sharing(share_group):
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
