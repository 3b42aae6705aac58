"""Entries of a leaderboard from results: one for each upload that was attacked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedpriv.experiment.leaderboard.checking import without_folders, without_print
from fedpriv.experiment.result_folders import each_once, result_directories, unfinished
from fedpriv.experiment.results_folder import REQUEST
from fedpriv.federation.run_directory import RunConfig
from fedpriv.pages.alike import Result, about_of, by_folder, judge_results, over_seeds, reach_key, upload_key
from fedpriv.pages.report import load_scored
from fedpriv.pages.study_report import read_results
from fedpriv.pages.upload_size import upload_size
from fedpriv.scoring.ranking import largest_budgets
from fedpriv.scoring.records import About, EnteredAttack, LeaderboardEntry, Provenance, Verdict
from fedpriv.scoring.storage import AttackRecord, load_scores, scored
from fedpriv.util.errors import UserError


def entries_of(folders: Sequence[Path], *, entered_by: str = "", source: str = "") -> tuple[LeaderboardEntry, ...]:
    """Return an entry for each upload that was attacked in some folders of results or studies.

    Each upload's attacks are judged together, apart from the other uploads: an entry is to say the same wherever it stands.
    Where a result asks how far a leak reaches, all its settings are judged together, as on its page, and each is an entry.
    Of an attack with several budgets the largest is entered.

    Args:
        folders: of results, or that hold some.
        entered_by: whose measurement it is.
        source: where a method is described that this package lacks.

    Raises:
        UserError: where there are no results of attacks, or one is unfinished, damaged or was not scored.
    """
    found, strangers = result_directories(folders)
    if strangers:
        raise UserError(strangers[0])
    for line in unfinished(folders):
        raise UserError(f"{line}; an entry is of a whole suite")
    for folder in folders:
        _refuse_part(folder)
    studies = [read_results(folder) for folder in found["study"]]
    attacks = each_once(
        [*((path, load_scored(path)) for path in found["attack"]), *(one for s in studies for one in s.attacks.items())]
    )
    scores = each_once(
        [
            *((path, load_scores(path)) for path in found["membership"]),
            *(one for s in studies for one in s.scores.items()),
        ]
    )
    results = by_folder(list(attacks.values()), scores)
    if not results:
        raise UserError(f"{folders[0]}: holds no attack; an entry is of an upload that was attacked")
    together: dict[str, dict[Path, Result]] = {}
    for folder, result in results.items():
        about = about_of(result)
        together.setdefault(reach_key(about) or upload_key(about), {})[folder] = result
    return tuple(entry for group in together.values() for entry in _entries(group, entered_by, source))


def _refuse_part(folder: Path) -> None:
    """Refuse one result of a suite: the others may have found what it did not.

    Raises:
        UserError: where the folder above asked for more than this.
    """
    asked = folder.resolve().parent / REQUEST
    if asked.is_file() and not (folder / REQUEST).is_file():
        raise UserError(
            f"{folder}: one result of {folder.resolve().parent.name}; an entry is of a whole suite, add that"
        )


def _entries(group: Mapping[Path, Result], entered_by: str, source: str) -> Iterator[LeaderboardEntry]:
    """Return the entry of every upload of a group that is judged together."""
    verdicts = judge_results(group)
    uploads: dict[str, dict[Path, Result]] = {}
    for folder, result in group.items():
        uploads.setdefault(upload_key(about_of(result)), {})[folder] = result
    for own in uploads.values():
        yield _entry(own, verdicts, entered_by, source)


def _entry(
    own: Mapping[Path, Result], verdicts: Mapping[tuple[Path, ...], Verdict], entered_by: str, source: str
) -> LeaderboardEntry:
    """Return the entry of one upload from all that was done to it."""
    abouts = [about_of(result) for result in own.values()]
    attacks = [result for result in own.values() if isinstance(result, AttackRecord)]
    first = abouts[0]
    sizes = [size for attack in attacks if (size := upload_size(attack.about)) is not None]
    return LeaderboardEntry(
        target=first.target,
        method=first.method,
        dataset=first.dataset,
        source=source,
        entered_by=entered_by,
        defenses=first.defenses,
        run=None if first.run is None else _without_machine(first.run, min(about.run_seed for about in abouts)),
        seeds=tuple(sorted({about.run_seed for about in abouts})),
        accuracy=_accuracy([attack.about for attack in attacks]),
        upload_bytes=sizes[0].bytes if sizes else None,
        reach=first.reach,
        attacks=tuple(_attacks(own, verdicts)),
        commands=tuple(
            dict.fromkeys(without_print(without_folders(about.command)) for about in abouts if about.command)
        ),
        versions=dict(scored(attacks[0]).versions) if attacks else {},
    )


def _attacks(own: Mapping[Path, Result], verdicts: Mapping[tuple[Path, ...], Verdict]) -> list[EnteredAttack]:
    attacks = [result for result in own.values() if isinstance(result, AttackRecord)]
    others = {folder: result for folder, result in own.items() if not isinstance(result, AttackRecord)}
    largest: dict[Path, Result] = {
        one.directory: one for one in largest_budgets(attacks, scored, lambda one: one.about)
    }
    return [_attack(about_of(own[folders[0]]), verdicts[folders]) for folders in over_seeds({**largest, **others})]


def _attack(about: Provenance, verdict: Verdict) -> EnteredAttack:
    return EnteredAttack(
        name=about.attack,
        version=about.attack_version,
        options=about.options,
        knowledge=about.knowledge,
        verdict=verdict,
    )


def _without_machine(run: RunConfig, seed: int) -> RunConfig:
    """Return a run's configuration with the first seed, and of the folder of its data the last part alone."""
    return replace(run, seed=seed, data_dir=None if run.data_dir is None else Path(run.data_dir).name)


def _accuracy(abouts: Sequence[About]) -> dict[str, float]:
    """Return the accuracy after the last round by when it was taken, mean over runs."""
    runs = {about.run_seed: about.run_accuracy for about in abouts}
    told: dict[str, list[float]] = {}
    for reached in runs.values():
        for moment, one in reached.items():
            told.setdefault(moment, []).append(one.final)
    return {moment: sum(values) / len(values) for moment, values in told.items()}
