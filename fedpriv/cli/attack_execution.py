"""Carry out what ``fedpriv attack`` was asked: evidence, attacks, control, scores, pictures, report."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from fedpriv.cli import common, membership
from fedpriv.config import plain

if TYPE_CHECKING:
    from fedpriv.attacks.observation import Attack, KnowledgeCard
    from fedpriv.eval.evidence import Evidence
    from fedpriv.federation import Federation
    from fedpriv.runs import RunDirectory


@dataclass(frozen=True)
class AttackPlan:
    """What to attack, with what, under which knowledge, and how to run it."""

    target: str
    attacks: Mapping[str, Attack]
    card: KnowledgeCard
    n_targets: int
    round: int | None
    rounds_seen: int | None
    seed: int
    control: bool
    chunk_rows: int | None
    device: str
    download: bool


@dataclass(frozen=True)
class Ground:
    """A finished run, prepared again, and what each attack is handed of it."""

    run: RunDirectory
    federation: Federation
    cards: Mapping[str, KnowledgeCard]
    evidence: Mapping[str, Evidence]


def prepare_ground(run_path: Path, plan: AttackPlan) -> Ground:
    """Open a run and collect the evidence for each attack.

    Raises:
        UserError: when the run is unfinished or damaged, or does not have what the plan asks for.
    """
    from fedpriv.defenses import build_defenses
    from fedpriv.eval.evidence import gather
    from fedpriv.federation import prepare
    from fedpriv.runs import RunDirectory

    run = RunDirectory.open(run_path)
    run.require_complete()
    federation = prepare(
        run.config,
        common.pick_device(plan.device),
        download=plan.download,
        defenses=build_defenses(run.config.defenses),
    )
    stored = sum(1 for number in run.captured_rounds() if plan.round is None or number <= plan.round)
    cards, evidence = {}, {}
    for name, made in plan.attacks.items():
        least = made.needs.min_rounds
        seen = 1 if least == 1 else plan.rounds_seen or max(stored, least)
        cards[name] = replace(plan.card, rounds_seen=seen)
        evidence[name] = gather(
            run,
            federation,
            plan.target,
            cards[name],
            n_targets=plan.n_targets,
            seed=plan.seed,
            round_=plan.round,
            unit=made.unit,
        )
    return Ground(run, federation, cards, evidence)


def attack_all(
    folder: Path, ground: Ground, plan: AttackPlan, request: Mapping[str, Any], *, quiet: bool
) -> dict[Path, dict[str, Any]]:
    """Run every attack that has no result yet, score it, and save it; return the records by directory."""
    from fedpriv.eval.evidence import truths
    from fedpriv.eval.grid import grid_png
    from fedpriv.eval.score import score
    from fedpriv.eval.storage import is_attack_directory, load_metrics, save_attack
    from fedpriv.eval.suite import Execution, attack_in_pieces, forget_pieces
    from fedpriv.runs import dataset_title

    run, federation = ground.run, ground.federation
    target, seed, picked = plan.target, plan.seed, federation.server.device
    execution = Execution(seed, picked, plan.chunk_rows)
    results: dict[Path, dict[str, Any]] = {}
    for name, made in plan.attacks.items():
        directory, evidence = folder / name, ground.evidence[name]
        if is_attack_directory(directory):
            results[directory] = load_metrics(directory)
            continue
        with common.progress(f"{name} on {target}", quiet=quiet) as report:
            reconstruction = attack_in_pieces(
                made,
                evidence.observations,
                evidence.targets,
                evidence.knowledge,
                execution,
                directory,
                "reconstruction",
                report,
            )
        permuted = None
        if plan.control and evidence.permuted is not None:
            with common.progress(f"{name} on permuted uploads", quiet=quiet) as report:
                permuted = attack_in_pieces(
                    made,
                    evidence.permuted,
                    evidence.targets,
                    evidence.knowledge,
                    execution,
                    directory,
                    "permuted",
                    report,
                )
        # Looked up only now: no attack ran with it in reach.
        truth = truths(run, federation, target, evidence.targets, seed=seed, unit=made.unit)
        about = {
            "target": target,
            "attack": name,
            "method": run.config.method,
            "dataset": dataset_title(run.config),
            "knowledge": plain(ground.cards[name]),
            "seed": seed,
            "options": request["attacks"][name],
            "run": plain(run.config),
            "run_accuracy": run.summary["accuracy"],
            "communication": run.summary["communication"],
            "command": common.command_line(*sys.argv[1:]),
            "device": str(picked),
        }
        record = score(reconstruction, truth, permuted, seed=seed, about=about)
        save_attack(
            directory, reconstruction=reconstruction, truths=truth, about=about, permuted=permuted, metrics=record
        )
        (directory / "grid.png").write_bytes(grid_png(record, reconstruction, truth, permuted))
        forget_pieces(directory)
        results[directory] = record
    return results


def finish(
    folder: Path,
    results: Mapping[Path, dict[str, Any]],
    measured: Mapping[str, Any] | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the report over all results and print what a person, or a program, wants of it."""
    from fedpriv.eval.report import write_report
    from fedpriv.eval.verdict import verdict

    write_report(list(results), folder, [] if measured is None else [folder / membership.NAME])
    if as_json:
        found = {path.name: record for path, record in results.items()}
        common.print_json({"out": str(folder), "attacks": found, membership.NAME: measured})
        return
    if quiet:
        return
    if results:
        rows = [summary_row(record) for record in results.values()]
        common.print_table("leakage (dB of PSNR, mean over targets)", rows, as_json=False)
    for record in results.values():
        click.echo(f"{record['attack']}: {verdict(record)}")
    if measured is not None:
        membership.show(measured)
    click.echo("")
    for path in results:
        click.echo(f"image grid: {path / 'grid.png'}")
    click.echo(f"report:     {folder / 'report.html'}")


def summary_row(record: Mapping[str, Any]) -> dict[str, str]:
    """Return one line of the table that a person reads."""
    found = record["metrics"]["psnr_db"]
    low, high = record["advantage_db"]["ci95"]
    best = record["advantage_db"]["best_floor"]
    floors = {name: values["psnr_db"] for name, values in record["floors"].items()}
    permuted = floors.get("permuted")
    return {
        "attack": record["attack"],
        "targets / clients": f"{record['n_targets']} / {record['n_clients']}",
        "attack PSNR": f"{found['mean']:.2f}",
        "best blind guess": f"{floors[best]:.2f} ({best.replace('_', ' ')})",
        "permuted uploads": "not run" if permuted is None else f"{permuted:.2f}",
        "advantage [95 %]": f"{record['advantage_db']['mean']:+.2f} [{low:+.2f}, {high:+.2f}]",
        "beat it by 3 dB": f"{100 * record['advantage_db']['share_3db']:.0f} %",
        "identified": f"{100 * record['metrics']['identification_top1']['mean']:.0f} %",
        "seconds": f"{record['cost']['seconds']:.0f}",
    }
