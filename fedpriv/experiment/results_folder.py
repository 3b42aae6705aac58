"""The folder of ``fedpriv attack``: made once, found again by what was asked for, and given back when unused."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.util import folders
from fedpriv.util.config import plain
from fedpriv.util.errors import UserError
from fedpriv.util.files import digest, identity, read_json, remove, write_json
from fedpriv.util.listener import SILENT, Listener

if TYPE_CHECKING:
    from fedpriv.attacks.contract import Attack
    from fedpriv.attacks.inference.base import Inference
    from fedpriv.attacks.observation import ThreatModel
    from fedpriv.federation.run_directory import RunConfig
    from fedpriv.pipeline.plan import AttackPlan

REQUEST = "request.json"


@dataclass(frozen=True)
class Request:
    """``request.json``: what is asked for, by which an interrupted suite knows its own continuation.

    Attributes:
        run: that is attacked, or None.
        identity: of that run, by which it is known again, wherever it stands.
        config: of the run that is trained first, or None.
        knowledge: the card.
        results: names of the folders that there will be.
        reach: of several settings of local work the attacks on each; empty without.
        target, attacks, inferences, n_targets, round, rounds_seen, budgets, control, seed, redact, precision: as of
            :class:`fedpriv.pipeline.plan.AttackPlan`.
    """

    run: str | None
    identity: str | None
    config: RunConfig | None
    target: str
    attacks: Mapping[str, Attack]
    inferences: Mapping[str, Inference]
    knowledge: ThreatModel
    n_targets: int | None
    round: int | None
    rounds_seen: int | None
    budgets: tuple[int, ...]
    control: bool
    seed: int
    redact: str
    precision: str
    results: tuple[str, ...]
    reach: Mapping[str, Mapping[str, Attack]]

    @classmethod
    def of(cls, plans: Sequence[AttackPlan], run: Path | None, config: RunConfig | None) -> Request:
        """Return the request that plans are, on a run, or on runs that are trained first (``config``: the first of them)."""
        plan = plans[0]
        same = {spec.name: getattr(plan, spec.name) for spec in fields(cls) if hasattr(plan, spec.name)}
        position = None if run is None else os.fspath(run.resolve())
        known = None if run is None else _identity(run)
        more = {"run": position, "identity": known, "config": config, "knowledge": plan.card}
        reach = {item.reach.name: item.attacks for item in plans if item.reach is not None}
        results = tuple(name for entry in plans for name in entry.results())
        return cls(**same | more | {"reach": reach, "results": results})


@contextlib.contextmanager
def results_folder(
    folder: Path,
    *,
    resume: bool,
    force: bool,
    request: Request,
    run: Path | None,
    listener: Listener = SILENT,
) -> Iterator[None]:
    """Take the folder of results and hold it: a new one that holds the request, or that of an interrupted attack.

    A folder that was made for a request that turns out to be refused is removed again.

    Args:
        folder: where.
        resume: go on with what is there.
        force: replace what is there.
        request: what is asked for.
        run: that is attacked, or None.
        listener: hears of an earlier process that was killed.

    Raises:
        UserError: when the folder is taken, overlaps the run, or was made with other flags or for another run.
    """
    data_dir = None if request.config is None or request.config.data_dir is None else Path(request.config.data_dir)
    folders.refuse_overlap(folder, {"run": run}, around={"data_dir": data_dir})
    described = plain(request)
    if resume:
        _refuse_other(folder, described)
    refused: UserError | None = None
    with folders.output(folder, "attacks", force=force, resume=resume):
        if not resume:
            write_json(folder / REQUEST, described)
        try:
            yield
        except UserError as error:
            if resume or not _unused(folder):
                raise
            refused = error
    if refused is not None:
        if (folder / "run" / "summary.json").is_file():
            go_on = f"run {folder / 'run'} and another out"
            raise UserError(f"{refused} (the run is trained: go on with {go_on})") from refused
        remove(folder)
        raise refused


def _identity(run: Path) -> str | None:
    """Return the identity of a run's folder, or a hash of its summary, which holds the time it took."""
    known, summary = identity(run), run / "summary.json"
    return known or (digest(summary) if summary.is_file() else None)


def _refuse_other(folder: Path, described: Mapping[str, Any]) -> None:
    """Check that an interrupted suite is gone on with as it was asked for, on the very run that it began with."""
    before = read_json(folder / REQUEST)
    if not isinstance(before, dict):
        raise UserError(f"{folder / REQUEST}: expected an object, got {type(before).__name__}")
    if before.get("identity") != described["identity"]:
        raise UserError(
            f"{folder}: attacks a run that is not the one at {described['run']} now (it was {before.get('run')}, identity "
            f"{before.get('identity')}); attack this one into another out"
        )
    # A run that was moved is still the same.
    changed = differences(
        {**before, "run": None},
        {**described, "run": None},
    )
    if changed:
        raise UserError(
            f"{folder}: was made with other flags ({', '.join(changed)} differ); resume with the same flags"
        )


def _unused(folder: Path) -> bool:
    """True for a folder that holds nothing but the request, and a finished run at most."""
    files = [path for path in folder.rglob("*") if not path.is_dir() and not path.name.startswith(".fedpriv")]
    beside = [path for path in files if path != folder / REQUEST]
    trained = (folder / "run" / "summary.json").is_file()
    return not beside or (trained and all(path.relative_to(folder).parts[0].startswith("run") for path in beside))


def differences(before: Any, now: Any, prefix: str = "") -> list[str]:
    """Return the dotted names of what differs between two nested mappings."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return [prefix] if before != now else []
    return [
        name
        for key in {**before, **now}
        for name in differences(before.get(key), now.get(key), f"{prefix}.{key}" if prefix else str(key))
    ]
