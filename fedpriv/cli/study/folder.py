"""A study's folder: what the study is, and how far each of its cells has come."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from fedpriv.cli import common
from fedpriv.cli.study.cells import Cell
from fedpriv.cli.study.entries import AttackEntry, DefenseEntry, Study
from fedpriv.config import plain
from fedpriv.errors import UserError
from fedpriv.files import read_json, read_lines, write_json, write_text

FORMAT = 1
STUDY, CELLS, LOCK = "study.json", "cells.jsonl", ".lock"
MADE_BY = ("format", "source", "command", "written")
"""Fields of study.json that say how it was made, not what it is."""
OVER = ("done", "left out")
"""What an attack says that need not be run again."""

Row = dict[str, Any]


def described(study: Study) -> dict[str, Any]:
    """Return a study as ``study.json`` holds it, without how and when it was made."""
    from fedpriv.defenses import DEFENSES
    from fedpriv.methods import METHODS
    from fedpriv.registry import resolve

    def attacks(entries: tuple[AttackEntry, ...] | None) -> Any:
        if entries is None:
            return "all"
        return [{"name": e.name, "options": plain(e.attack), "budgets": list(e.budgets)} for e in entries]

    def defense(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        kind = resolve("defense", name, DEFENSES)
        facts = {key: getattr(kind, key) for key in ("source", "guarantee", "answer", "server_view")}
        return {"name": name, "options": plain(options), **facts}

    def defenses(entries: tuple[DefenseEntry, ...]) -> list[dict[str, Any]]:
        return [
            {
                "label": entry.label,
                "family": entry.family,
                "strength": plain(entry.strength),
                "choices": [defense(choice.name, choice.options) for choice in entry.choices],
            }
            for entry in entries
        ]

    card = asdict(study.card)
    del card["rounds_seen"]
    return {
        "federation": plain(study.federation),
        "methods": [
            {
                "label": entry.label,
                "name": entry.name,
                "options": plain(entry.options),
                "federation": plain(entry.federation),
                "target": entry.target,
                "attacks": None if entry.attacks is None else attacks(entry.attacks),
                "defenses": [defense.label for defense in entry.defenses or study.defenses],
                "source": resolve("method", entry.name, METHODS).source,
            }
            for entry in study.methods
        ],
        "defenses": defenses(_all_defenses(study)),
        "attacks": attacks(study.attacks),
        "seeds": list(study.seeds),
        "knowledge": card,
        "targets": study.targets,
        "control": study.control,
        "stages": list(study.stages),
        "rounds_seen": study.rounds_seen,
    }


def _all_defenses(study: Study) -> tuple[DefenseEntry, ...]:
    """Return every defense that some method has, each label once."""
    every = [defense for entry in study.methods for defense in entry.defenses or study.defenses]
    return tuple({defense.label: defense for defense in every}.values())


def claim(path: Path, study: Study, *, force: bool) -> bool:
    """Make a study's folder, or take up the one that is there; return whether there was one.

    Args:
        path: the folder.
        study: what is asked for.
        force: empty a folder that holds another study, or the same.

    Raises:
        UserError: when the folder holds another study, or something else.
    """
    if path.is_dir() and (path / STUDY).is_file() and not force:
        before = {key: value for key, value in read_study(path).items() if key not in MADE_BY}
        changed = differences(before, json.loads(json.dumps(described(study))))
        if changed:
            raise UserError(
                f"{path}: holds another study ({', '.join(changed[:6])} differ{'s' if len(changed) == 1 else ''}); "
                "choose another --out, or --force to replace it"
            )
        return True
    if (path / LOCK).exists():  # --force must not pull the folder from under a process that is at work in it
        with alone(path):
            pass
    common.fresh_folder(path, force=force)
    path.mkdir(parents=True, exist_ok=True)
    source = study.source
    about = {
        "format": FORMAT,
        "source": None if source.file is None else str(source.file),
        "command": common.command_line(*sys.argv[1:]),
    }
    write_json(path / STUDY, {**about, **described(study), "written": plain(source.values)})
    return False


def read_study(path: Path) -> dict[str, Any]:
    """Return a folder's study.json.

    Raises:
        UserError: when there is none, or of another version.
    """
    if not (path / STUDY).is_file():
        raise UserError(
            f"{path}: no study here ({STUDY} is missing); start one with: fedpriv audit STUDY.toml --out {path}"
        )
    found = read_json(path / STUDY)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise UserError(f"{path / STUDY}: not of format {FORMAT}, which this version reads; run the study again")
    return found


def differences(before: Any, now: Any, prefix: str = "") -> list[str]:
    """Return the dotted names of what differs between two nested mappings."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return [prefix] if before != now else []
    return [
        name
        for key in {**before, **now}
        for name in differences(before.get(key), now.get(key), f"{prefix}.{key}" if prefix else str(key))
    ]


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a study's folder, so that two processes never work in it together.

    Raises:
        UserError: when another process has it.
    """
    with (path / LOCK).open("w") as file:
        if not _locked(file):
            raise UserError(f"{path}: another fedpriv audit is at work here")
        yield


def _locked(file: IO[str]) -> bool:
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# ---------------------------------------------------------------- cells.jsonl


def save_rows(path: Path, rows: Sequence[Row]) -> None:
    """Replace the lines of all cells at once."""
    write_text(path / CELLS, "".join(json.dumps(row) + "\n" for row in rows))


def standing(path: Path, cells: Sequence[Cell]) -> list[Row]:
    """Return a line for each cell: what is on disk is done, everything else is pending, also what failed before."""
    before = {row["cell"]: row for row in read_lines(path / CELLS)}
    return [_row(path, cell, before.get(cell.name, {})) for cell in cells]


def _row(path: Path, cell: Cell, before: Mapping[str, Any]) -> Row:
    kept = {entry["path"]: entry for entry in before.get("attacks", ()) if entry["status"] in OVER}
    attacks = [
        {
            "attack": name,
            "path": place,
            "stage": stage,
            "budget": budget,
            "status": _status(path / place, kept.get(place, {})),
            "error": kept.get(place, {}).get("error"),
            "seconds": kept.get(place, {}).get("seconds"),
        }
        for name, place, stage, budget in results(cell)
    ]
    done = (path / "runs" / cell.run / "summary.json").is_file() and all(entry["status"] in OVER for entry in attacks)
    return {
        "cell": cell.name,
        "method": cell.method.name,
        "method_label": cell.method.label,
        "method_options": plain(cell.method.options),
        "defenses": plain(cell.defense.choices),
        "defense_label": cell.defense.label,
        "defense_family": cell.defense.family,
        "seed": cell.seed,
        "target": cell.target,
        "division": cell.division,
        "run": f"runs/{cell.run}",
        "attack_folder": f"attacks/{cell.name}",
        "attacks": attacks,
        "status": "done" if done else "pending",
        "error": None,
        "seconds": dict(before.get("seconds", {"train": None, "attack": None})),
    }


def _status(path: Path, kept: Mapping[str, Any]) -> str:
    if is_result(path):
        return "done"
    return "left out" if kept.get("status") == "left out" else "pending"


def results(cell: Cell) -> list[tuple[str, str, str | None, int | None]]:
    """Return attack, place, stage and budget of every result that a cell will have, in order."""
    from fedpriv.cli.attack_plan import SCORING, folder_name

    home = f"attacks/{cell.name}"
    found: list[tuple[str, str, str | None, int | None]] = []
    for plan in cell.plans:
        found += [(job.name, f"{home}/{job.folder}", job.stage, job.budget) for job in plan.jobs()]
        for name, made in zip(SCORING, (plan.members, plan.properties), strict=True):
            if made is not None:
                found += [(name, f"{home}/{folder_name(name, stage)}", stage, None) for stage, _ in plan.moments]
    return found


def is_result(path: Path) -> bool:
    """Whether a folder holds a result that came to its end."""
    from fedpriv.eval.score_records import holds_scores
    from fedpriv.eval.storage import is_attack_directory

    return is_attack_directory(path) or holds_scores(path)
