"""Which results speak of the same upload, and which are one attack under several seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedpriv.scoring.judgement import judge_page
from fedpriv.scoring.ranking import stage_name
from fedpriv.scoring.records import InferenceResult, Provenance, Verdict
from fedpriv.scoring.storage import AttackRecord
from fedpriv.util.config import plain

NOT_THE_UPLOAD = ("seed", "data_dir", "capture", "checkpoint_every", "evaluate_every", "keep")
"""Settings of a run that change neither the task nor the upload."""

_LOCAL_WORK = ("batch_size", "max_steps", "epochs")

Result = AttackRecord | InferenceResult
Verdicts = Mapping[tuple[Path, ...], Verdict]
"""By the folders of a result, or of the same attack under several seeds."""


def upload_key(about: Provenance) -> str:
    """Return the key that all attacks and seeds on one upload share."""
    return _key(about, ())


def reach_key(about: Provenance) -> str:
    """Return the key that all settings of a sweep share: that of the upload but for local work; empty outside a sweep."""
    return "" if about.reach is None else _key(about, _LOCAL_WORK)


def _key(about: Provenance, besides: Sequence[str]) -> str:
    run = {name: value for name, value in (plain(about.run) or {}).items() if name not in NOT_THE_UPLOAD}
    if besides and "training" in run:
        run["training"] = {name: value for name, value in run["training"].items() if name not in besides}
    defenses = [(defense.name, plain(defense.options)) for defense in about.defenses]
    group = [about.dataset, about.target, about.method, run, defenses]
    return json.dumps(group, sort_keys=True, default=str)


def about_of(result: Result) -> Provenance:
    """Return the provenance of a result."""
    return result.about if isinstance(result, AttackRecord) else result


def over_seeds(results: Mapping[Path, Result]) -> list[tuple[Path, ...]]:
    """Return the folders of each attack, those of several seeds together, in the order in which they come.

    It is the same attack where options, stage, upload and threat model are.
    """
    paths: dict[str, list[Path]] = {}
    for folder, result in results.items():
        about = about_of(result)
        variant = [about.attack, plain(about.options), stage_name(about), plain(about.knowledge)]
        key = upload_key(about) + json.dumps(variant, sort_keys=True, default=str)
        paths.setdefault(key, []).append(folder)
    return [tuple(folders) for folders in paths.values()]


def judge_results(results: Mapping[Path, Result]) -> dict[tuple[Path, ...], Verdict]:
    """Judge all results of a page, one by one and over seeds.

    Raises:
        UserError: where an attack was not scored.
    """
    several = [folders for folders in over_seeds(results) if len(folders) > 1]
    single: dict[tuple[Path, ...], Result] = {(folder,): result for folder, result in results.items()}
    return judge_page(single, {folders: [(folder,) for folder in folders] for folders in several})


def by_folder(attacks: Sequence[AttackRecord], members: Mapping[Path, InferenceResult]) -> dict[Path, Result]:
    """Return attacks and inferences by their folders."""
    return {**{attack.directory: attack for attack in attacks}, **members}
