"""``fedpriv attack``: invert what clients upload, and show what that is worth beside a blind guess."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from fedpriv.cli import common
from fedpriv.cli.attack_summary import finish
from fedpriv.cli.federation_options import data_options, training_options
from fedpriv.experiment import membership
from fedpriv.experiment import property as property_inference
from fedpriv.experiment.execution import attack_all, prepare_ground
from fedpriv.experiment.federation_settings import FLAG_NAMES, run_config
from fedpriv.experiment.plan import (
    MEMBERSHIP,
    PROPERTY,
    SCORING,
    AttackPlan,
    attack_names,
    build_attacks,
    granted,
    options_by_attack,
    parse_budgets,
    parse_card,
    parse_stages,
    refuse_rounds,
    target_name,
)
from fedpriv.experiment.results_folder import results_folder
from fedpriv.experiment.training import train_run
from fedpriv.util.device import pick_device
from fedpriv.util.errors import UserError
from fedpriv.util.folders import numbered, occupied

if TYPE_CHECKING:
    from fedpriv.attacks.observation import KnowledgeCard
    from fedpriv.evidence.stages import Stage
    from fedpriv.experiment.execution import Ground
    from fedpriv.federation.run_directory import RunConfig
    from fedpriv.util.listener import Listener

STAGED_ROUNDS = 100
"""Rounds of the run that is trained when none is given, where stages are asked for and its quick settings have one round."""


def quick_settings(target: str) -> dict[str, Any]:
    """Return flags of the run that is trained when none is given, unless the user sets them: small enough for a laptop.

    Weights are attacked after one step on one image, the textbook case; mixtures are taken apart over more rounds.
    """
    from fedpriv.wire.kinds import payload_kind

    kind = payload_kind(target)
    if kind.computed_from == "training":
        models = {"whole": "lenet-sigmoid", "extractor": "small-cnn"}.get(str(kind.network))
        one_step = {"rounds": 1, "lr": 0.1, "batch_size": 1, "local_steps": 1}
        return one_step | ({"models": models} if models else {})
    rounds = 30 if kind.computed_from == "mixture" else 10
    return {"rounds": rounds, "lr": 0.1} | ({"public": 200} if kind.computed_from == "public" else {})


@click.command()
@click.option("--target", required=True, help="Kind of upload to attack: fedpriv list targets.")
@click.option(
    "--attack",
    "attacks",
    multiple=True,
    metavar="NAME",
    help="Only this attack (repeat for more); default: all that fit.",
)
@click.option(
    "--run",
    "run_path",
    type=click.Path(path_type=Path),
    help="A finished run of fedpriv train; default: train one first.",
)
@click.option("--method", help="Method to train when there is no --run (default: the usual one for the target).")
@click.option("--targets", "n_targets", type=int, default=48, show_default=True, help="How many targets at most.")
@click.option("--round", "round_", type=int, help="Attack the uploads of this round (default: the last stored).")
@click.option(
    "--stage",
    "stages",
    multiple=True,
    metavar="STAGE",
    help="Attack early (after 5-10 % of the rounds), middle, converged (the last): several, or with commas between.",
)
@click.option(
    "--rounds-seen", type=int, help="Rounds of uploads that attacks across rounds use (default: all that are stored)."
)
@click.option(
    "--knowledge",
    multiple=True,
    metavar="GRANT=VALUE",
    help="Change the knowledge card: extractor, labels, batch, batch_norm, attacker_data, foreign.",
)
@click.option("--iterations", type=int, help="Budget of every attack that has one, in its own unit.")
@click.option(
    "--budget",
    "budget",
    metavar="N,N,...",
    help="Run every attack that has a budget once with each, for a curve: 100,300,1000,3000.",
)
@click.option("--restarts", type=int, help="Independent starts a target; the attack's own objective chooses.")
@click.option(
    "--attack-option",
    multiple=True,
    metavar="[ATTACK.]KEY=VALUE",
    help="A hyperparameter of every attack that has it, or of one.",
)
@click.option("--chunk-rows", type=int, help="Rows (targets x restarts) at a time; bounds memory, changes no result.")
@click.option(
    "--control/--no-control",
    default=True,
    show_default=True,
    help="Also attack permuted uploads (the negative control); with --budget at the largest only.",
)
@click.option("--control-every-budget", is_flag=True, help="With --budget: attack permuted uploads at every budget.")
@data_options
@training_options
@common.device_option
@click.option("--out", type=click.Path(path_type=Path), help="Folder to make (default: results/TARGET).")
@click.option("--resume", is_flag=True, help="Go on with an interrupted attack in --out; repeat the other flags.")
@click.option("--force", is_flag=True, help="Replace the folder if it exists.")
@common.common_options
@click.pass_context
def attack(
    ctx: click.Context,
    /,
    target: str,
    attacks: tuple[str, ...],
    run_path: Path | None,
    method: str | None,
    n_targets: int,
    round_: int | None,
    stages: tuple[str, ...],
    rounds_seen: int | None,
    knowledge: tuple[str, ...],
    iterations: int | None,
    budget: str | None,
    restarts: int | None,
    attack_option: tuple[str, ...],
    chunk_rows: int | None,
    control: bool,
    control_every_budget: bool,
    seed: int,
    download: bool,
    device: str,
    out: Path | None,
    resume: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> None:
    """Attack one kind of upload; write image grids, tables and a report.

    Without --run a federation is trained first. Where --rounds, --lr, --batch-size, --local-steps and --models are not
    given, it takes quick settings of the target instead of the defaults below, and prints them.
    """
    _check_numbers(n_targets, rounds_seen, chunk_rows)
    target = target_name(target)
    names = attack_names(target, attacks)
    attacks = tuple(name for name in names if attacks)
    wanted, budgets, card = parse_stages(stages), parse_budgets(budget), parse_card(knowledge)
    _refuse_together(round_, wanted, iterations, budgets, control, control_every_budget)
    options = options_by_attack(names, attack_option, iterations=iterations, restarts=restarts, budgets=budgets)
    chosen = build_attacks(names, options)
    refuse_rounds(attacks, chosen, target, rounds_seen)
    chosen, refusals = granted(chosen, attacks, target, card, rounds_seen)
    pick_device(device)
    if run_path is None:
        config = _quick_config(ctx, target, method, flags, seed, wanted)
        _refuse_without_images(card, config)
        _refuse_mixed(target, config)
    else:
        config = None
        _refuse_training_flags(ctx, run_path)
    plan = AttackPlan(
        target=target,
        attacks={name: made for name, made in chosen.items() if name not in SCORING},
        card=card,
        n_targets=n_targets,
        seed=seed,
        round=round_,
        rounds_seen=rounds_seen,
        stages=_stage_rounds(target, wanted, run_path, config),
        budgets=budgets,
        control=control,
        control_every_budget=control_every_budget,
        chunk_rows=chunk_rows,
        device=device,
        download=download,
        members=chosen.get(MEMBERSHIP),
        properties=chosen.get(PROPERTY),
    )
    if not plan.results():
        raise UserError(f"--stage {','.join(wanted)}: {plan.left_out()[0]}")
    for reason in (*refusals, *plan.left_out()):
        common.say(f"left out: {reason}", quiet=quiet, as_json=as_json)
    ground, request = None, _request(plan, run_path)
    if run_path is not None:
        # What an existing run cannot give is refused before a folder is made.
        ground, plan = _prepare(run_path, plan, attacks, quiet=quiet, as_json=as_json)
    folder = out or numbered(Path("results") / target)
    listener = common.Terminal(quiet=quiet, as_json=as_json, resume=_resume_command(folder, out))
    with results_folder(folder, resume=resume, force=force, request=request, config=config, run=run_path):
        listener.resumable()
        if config is not None:
            _train(folder / "run", config, device=device, download=download, listener=listener)
        if ground is None:
            ground, plan = _prepare(folder / "run", plan, attacks, quiet=quiet, as_json=as_json)
        command = common.command_line(*sys.argv[1:])
        results = attack_all(folder, ground, plan, command=command, listener=listener)
        measured = membership.measure_all(folder, ground, plan, command=command, listener=listener)
        named = PROPERTY in attacks
        measured |= property_inference.measure_all(
            folder, ground, plan, command=command, named=named, listener=listener
        )
        finish(folder, results, measured, as_json=as_json, quiet=quiet)


# ---------------------------------------------------------------- what to run


def _check_numbers(n_targets: int, rounds_seen: int | None, chunk_rows: int | None) -> None:
    for flag, value in (("--targets", n_targets), ("--rounds-seen", rounds_seen), ("--chunk-rows", chunk_rows)):
        if value is not None and value < 1:
            raise UserError(f"{flag} {value}: expected at least 1")


def _refuse_together(
    round_: int | None,
    stages: Sequence[Stage],
    iterations: int | None,
    budgets: Sequence[int],
    control: bool,
    control_every_budget: bool,
) -> None:
    if round_ is not None and stages:
        raise UserError("--round and --stage exclude each other: a stage is a round")
    if iterations is not None and budgets:
        raise UserError("--iterations and --budget exclude each other: --budget lists the iterations")
    if control_every_budget and not (budgets and control):
        raise UserError("--control-every-budget: needs --budget, and no --no-control")


def _refuse_without_images(card: KnowledgeCard, config: RunConfig) -> None:
    if card.attacker_data == "other_domain":
        from fedpriv.evidence.foreign import refuse_foreign

        refuse_foreign(card, config)
    if card.attacker_data == "same_domain" and not config.public:
        raise UserError(
            f"--knowledge attacker_data={card.attacker_data}: no images are set aside for the attacker; pass --public N"
        )


def _refuse_mixed(target: str, config: RunConfig) -> None:
    from fedpriv.evidence.client_states import refuse_mixed
    from fedpriv.methods import METHODS
    from fedpriv.models import family
    from fedpriv.util.registry import resolve

    refuse_mixed(resolve("method", config.method, METHODS), target, family(config.models)[: config.clients])


def _refuse_training_flags(ctx: click.Context, run_path: Path) -> None:
    extra = common.given(ctx) & {*FLAG_NAMES, "method"}
    if extra:
        listed = ", ".join("--" + name.replace("_", "-") for name in sorted(extra))
        raise UserError(f"--run {run_path}: the run is trained already; drop {listed}")


def _stage_rounds(
    target: str, stages: Sequence[Stage], run_path: Path | None, config: RunConfig | None
) -> dict[Stage, int]:
    if not stages:
        return {}
    from fedpriv.evidence.stages import kept_rounds, planned_rounds
    from fedpriv.federation.run_directory import RunDirectory

    if run_path is None:
        assert config is not None
        return planned_rounds(stages, config.rounds)
    run = RunDirectory.open(run_path)
    run.require_complete()
    return kept_rounds(run, target, stages)


def _quick_config(
    ctx: click.Context,
    target: str,
    method: str | None,
    flags: Mapping[str, Any],
    seed: int,
    stages: Sequence[Stage],
) -> RunConfig:
    from fedpriv.methods import default_method

    method = method or default_method(target)
    if method is None:
        raise UserError(f"--target {target}: no method here uploads this; pass --run or --method")
    chosen = common.given(ctx)
    quick = quick_settings(target)
    if stages and quick.get("rounds") == 1:
        quick["rounds"] = STAGED_ROUNDS
    values = {name: flags[name] for name in FLAG_NAMES}
    values |= {name: value for name, value in quick.items() if name not in chosen}
    if stages:
        from fedpriv.evidence.stages import planned_rounds, rounds_to_keep

        rounds = planned_rounds(stages, values["rounds"]).values() if values["rounds"] > 0 else ()
        values["keep"] = (*values["keep"], *rounds_to_keep(target, sorted(rounds)))
    # Every round's uploads are needed only by attacks across rounds, but they are small where such attacks exist.
    return run_config(method, values, seed)


def _prepare(
    run_path: Path, plan: AttackPlan, attacks: Sequence[str], *, quiet: bool, as_json: bool
) -> tuple[Ground, AttackPlan]:
    """Return the ground for a plan, and the plan without the inference that the run leaves nothing to.

    Raises:
        UserError: when the run does not have what is asked for, or leaves nothing to an inference that was named.
    """
    ground = prepare_ground(run_path, plan)
    plan, about_members = membership.check(ground, plan, named=MEMBERSHIP in attacks)
    plan, about_clients = property_inference.check(ground, plan, named=PROPERTY in attacks)
    reasons = (*about_members, *about_clients)
    if reasons and not plan.results():
        raise UserError(reasons[0])
    for reason in reasons:
        common.say(f"left out: {reason}", quiet=quiet, as_json=as_json)
    return ground, plan


def _request(plan: AttackPlan, run_path: Path | None) -> dict[str, Any]:
    """Return what is asked for, by which an interrupted suite knows its own continuation."""
    from fedpriv.util.config import plain

    return {
        "target": plan.target,
        "attacks": {name: plain(made) for name, made in plan.attacks.items()},
        "membership": plain(plan.members),
        "property": plain(plan.properties),
        "knowledge": plain(plan.card),
        "n_targets": plan.n_targets,
        "round": plan.round,
        "rounds_seen": plan.rounds_seen,
        "stages": dict(plan.stages),
        "budgets": list(plan.budgets),
        "control": plan.control,
        "control_every_budget": plan.control_every_budget,
        "seed": plan.seed,
        "run": None if run_path is None else str(run_path.resolve()),
        "results": plan.results(),
    }


# ---------------------------------------------------------------- where to


def _resume_command(folder: Path, out: Path | None) -> str:
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--force", "--resume")]
    return common.command_line(*arguments, *(() if out else ("--out", folder)), "--resume")


def _local(config: RunConfig) -> str:
    """Return the size of local batches and the limit on local steps, the latter where there is one."""
    training = config.training
    steps = "" if training.max_steps is None else f", at most {training.max_steps} local step(s) a round"
    return f", batch size {training.batch_size}{steps}"


def _train(path: Path, config: RunConfig, *, device: str, download: bool, listener: Listener) -> None:
    from fedpriv.federation.run_directory import RunDirectory

    resume = occupied(path)
    if resume and RunDirectory.open(path).complete:
        return
    listener.say(
        f"no --run: training {config.method} on {config.dataset}: {config.clients} clients, models {config.models}, "
        f"{config.rounds} rounds, learning rate {config.training.learning_rate:g}{_local(config)}"
    )
    train_run(path, config, device=device, download=download, resume=resume, listener=listener)
