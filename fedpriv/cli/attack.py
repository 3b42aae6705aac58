"""``fedpriv attack``: invert what clients upload, and show what that is worth beside a blind guess."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from fedpriv.cli import common, membership
from fedpriv.cli.attack_execution import AttackPlan, attack_all, finish, prepare_ground
from fedpriv.cli.federation_options import FLAG_NAMES, data_options, run_config, training_options
from fedpriv.errors import UserError, unknown_name

if TYPE_CHECKING:
    from fedpriv.attacks.observation import Attack, KnowledgeCard
    from fedpriv.runs import RunConfig

QUICK: dict[str, dict[str, Any]] = {
    "representation": {"rounds": 10, "lr": 0.1},
    "prototype": {"rounds": 10, "lr": 0.1},
    "entangled": {"rounds": 30, "lr": 0.1},
    "model": {"rounds": 1, "lr": 0.1, "batch_size": 1, "local_steps": 1, "models": "lenet-sigmoid"},
    "classifier": {"rounds": 1, "lr": 0.1, "batch_size": 1, "local_steps": 1},
    "angle-matrix": {"rounds": 1, "lr": 0.1, "batch_size": 1, "local_steps": 1},
    "logits": {"rounds": 10, "lr": 0.1},
    "kernel": {"rounds": 10, "lr": 0.1, "public": 200},
}
"""Flags of the run that is trained when none is given, unless the user sets them. Small enough for a laptop."""


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
    "--rounds-seen", type=int, help="Rounds of uploads that attacks across rounds use (default: all that are stored)."
)
@click.option(
    "--knowledge",
    multiple=True,
    metavar="GRANT=VALUE",
    help="Change the knowledge card: extractor, labels, batch, batch_norm, attacker_data.",
)
@click.option("--iterations", type=int, help="Budget of the attack.")
@click.option("--restarts", type=int, help="Independent starts a target; the attack's own objective chooses.")
@click.option("--attack-option", multiple=True, metavar="KEY=VALUE", help="An attack's own hyperparameter.")
@click.option("--chunk-rows", type=int, help="Rows (targets x restarts) at a time; bounds memory, changes no result.")
@click.option("--control/--no-control", default=True, show_default=True, help="Also attack permuted uploads.")
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
    rounds_seen: int | None,
    knowledge: tuple[str, ...],
    iterations: int | None,
    restarts: int | None,
    attack_option: tuple[str, ...],
    chunk_rows: int | None,
    control: bool,
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
    names = _attack_names(target, attacks)
    card = parse_card(knowledge)
    own = _own_options(attack_option, iterations, restarts)
    members = membership.requested(names, attacks, own, card)
    names = tuple(name for name in names if name != membership.NAME)
    chosen = {name: _build(name, own) for name in names}
    _refuse_rounds(chosen if attacks else {}, chosen, target, rounds_seen)
    if chosen or members is None:
        chosen = _granted(chosen, set(attacks), card, rounds_seen, quiet=quiet, as_json=as_json)
    common.pick_device(device)
    request = {
        "target": target,
        "attacks": {name: _describe(made) for name, made in chosen.items()},
        "membership": None if members is None else _describe(members),
        "knowledge": _describe(card),
        "n_targets": n_targets,
        "round": round_,
        "rounds_seen": rounds_seen,
        "control": control,
        "seed": seed,
    }
    config = None
    if run_path is None:
        config = _quick_config(ctx, target, method, flags, seed)
        if card.attacker_data != "none" and not config.public:
            raise UserError(
                f"--knowledge attacker_data={card.attacker_data}: no images are set aside for the attacker; pass --public N"
            )
        request["run"] = None
    else:
        extra = common.given(ctx) & {*FLAG_NAMES, "method"}
        if extra:
            listed = ", ".join("--" + name.replace("_", "-") for name in sorted(extra))
            raise UserError(f"--run {run_path}: the run is trained already; drop {listed}")
        request["run"] = str(run_path.resolve())
    plan = AttackPlan(target, chosen, card, n_targets, round_, rounds_seen, seed, control, chunk_rows, device, download)
    # What an existing run cannot give is refused before a folder is made.
    ground = None if run_path is None else prepare_ground(run_path, plan)
    folder = _folder(out, target, resume, force, request, config)
    common.hint["resume"] = _resume_command(folder, out)
    if config is not None:
        _train(folder / "run", config, device=device, download=download, quiet=quiet, as_json=as_json)
    if ground is None:
        ground = prepare_ground(folder / "run", plan)
    results = attack_all(folder, ground, plan, request, quiet=quiet)
    measured = None
    if members is not None:
        measured = membership.measure(folder, ground.run, ground.federation, members, plan, quiet=quiet)
    common.hint.pop("resume", None)
    finish(folder, results, measured, as_json=as_json, quiet=quiet)


# ---------------------------------------------------------------- what to run


def _check_numbers(n_targets: int, rounds_seen: int | None, chunk_rows: int | None) -> None:
    for flag, value in (("--targets", n_targets), ("--rounds-seen", rounds_seen), ("--chunk-rows", chunk_rows)):
        if value is not None and value < 1:
            raise UserError(f"{flag} {value}: expected at least 1")


def _attack_names(target: str, attacks: tuple[str, ...]) -> tuple[str, ...]:
    from fedpriv.attacks import ATTACKS, TARGET_NAMES, TARGETS, attacks_for

    if target not in TARGET_NAMES:
        raise unknown_name("target", target, TARGET_NAMES)
    fitting = attacks_for(target)
    if not fitting:
        raise UserError(f"--target {target}: no attack on this kind of upload yet; see: fedpriv list targets")
    for name in attacks:
        if name not in ATTACKS:
            raise unknown_name("attack", name, ATTACKS)
        if name not in fitting:
            raise UserError(
                f"--attack {name}: attacks {' or '.join(TARGETS[name])}, not {target}; "
                f"for {target} there are: {', '.join(fitting)}"
            )
    return tuple(dict.fromkeys(attacks)) or fitting


def parse_card(pairs: tuple[str, ...]) -> KnowledgeCard:
    """Return the knowledge card that flags describe; the number of rounds is each attack's own.

    Raises:
        UserError: for an unknown grant or value.
    """
    from fedpriv.attacks.observation import KnowledgeCard
    from fedpriv.config import parse

    values = common.key_values(pairs, "--knowledge")
    batch = values.get("batch", "known")
    if batch not in ("known", "none"):
        raise UserError(f"--knowledge batch={batch}: expected known or none")
    if "rounds_seen" in values:
        raise UserError("--knowledge rounds_seen: use --rounds-seen")
    card = parse(KnowledgeCard, values | {"batch": batch == "known"}, "--knowledge")
    if card.extractor == "shadow" and card.attacker_data == "none":
        raise UserError(
            "--knowledge extractor=shadow: a shadow extractor is trained on the attacker's own images; "
            "pass --knowledge attacker_data=same_domain and --public N too"
        )
    return card


def _granted(
    chosen: Mapping[str, Attack],
    named: set[str],
    card: KnowledgeCard,
    rounds_seen: int | None,
    *,
    quiet: bool,
    as_json: bool,
) -> dict[str, Attack]:
    """Return the attacks whose needs the card meets; say which others are left out, unless the user named them.

    Raises:
        UserError: when an attack that was named needs more, or every attack does.
    """
    kept: dict[str, Attack] = {}
    refusals: list[UserError] = []
    for name, made in chosen.items():
        try:
            made.needs.refuse(name, replace(card, rounds_seen=rounds_seen or made.needs.min_rounds))
        except UserError as error:
            if name in named:
                raise
            refusals.append(error)
        else:
            kept[name] = made
    if not kept:
        raise refusals[0]
    for refusal in refusals:
        common.say(f"left out: {refusal}", quiet=quiet, as_json=as_json)
    return kept


def _refuse_rounds(
    named: Mapping[str, Attack], chosen: Mapping[str, Attack], target: str, rounds_seen: int | None
) -> None:
    """Check that somebody uses the rounds: every attack that was named, or any of the suite."""
    if rounds_seen is None or rounds_seen == 1:
        return
    for name, made in named.items():
        if made.needs.min_rounds == 1:
            raise UserError(f"--rounds-seen {rounds_seen}: attack {name!r} uses one round; drop the flag or the attack")
    if all(made.needs.min_rounds == 1 for made in chosen.values()):
        raise UserError(f"--rounds-seen {rounds_seen}: no attack on {target} uses several rounds; drop the flag")


def _own_options(pairs: tuple[str, ...], iterations: int | None, restarts: int | None) -> dict[str, Any]:
    options = common.key_values(pairs, "--attack-option")
    for name, value in (("iterations", iterations), ("restarts", restarts)):
        if value is not None:
            options[name] = value
    return options


def _build(name: str, options: Mapping[str, Any]) -> Attack:
    from fedpriv.attacks import ATTACKS
    from fedpriv.config import parse
    from fedpriv.registry import resolve

    made: Attack = parse(resolve("attack", name, ATTACKS), options, f"options of attack {name}")
    return made


def _describe(value: Any) -> dict[str, Any]:
    from fedpriv.config import plain

    described: dict[str, Any] = plain(value)
    return described


def _quick_config(
    ctx: click.Context, target: str, method: str | None, flags: Mapping[str, Any], seed: int
) -> RunConfig:
    from fedpriv.methods import DEFAULT_METHOD

    if method is None and target not in DEFAULT_METHOD:
        raise UserError(f"--target {target}: no method uploads this by default; pass --run or --method")
    chosen = common.given(ctx)
    quick = {name: value for name, value in QUICK.get(target, {}).items() if name not in chosen}
    # Every round's uploads are needed only by attacks across rounds, but they are small where such attacks exist.
    return run_config(method or DEFAULT_METHOD[target], {name: flags[name] for name in FLAG_NAMES} | quick, seed)


# ---------------------------------------------------------------- where to


def _folder(
    out: Path | None, target: str, resume: bool, force: bool, request: Mapping[str, Any], config: RunConfig | None
) -> Path:
    from fedpriv.config import plain
    from fedpriv.files import read_json, write_json

    described = {**request, "config": None if config is None else plain(config)}
    if resume:
        if out is None:
            raise UserError("--resume needs --out, the folder of the interrupted attack")
        before = read_json(out / "request.json")
        if before != described:
            changed = ", ".join(_differences(before, described))
            raise UserError(f"{out}: was made with other flags ({changed} differ); resume with the same flags")
        return out
    folder = out or common.numbered(Path("results") / target)
    common.fresh_folder(folder, force=force)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "request.json", described)
    return folder


def _differences(before: Any, now: Any, prefix: str = "") -> list[str]:
    """Return the dotted names of what differs between two nested mappings."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return [prefix] if before != now else []
    names = [str(name) for name in {**before, **now}]
    return [
        found
        for name in names
        for found in _differences(before.get(name), now.get(name), f"{prefix}.{name}" if prefix else name)
    ]


def _resume_command(folder: Path, out: Path | None) -> str:
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--force", "--resume")]
    return common.command_line(*arguments, *(() if out else ("--out", folder)), "--resume")


def _train(path: Path, config: RunConfig, *, device: str, download: bool, quiet: bool, as_json: bool) -> None:
    from fedpriv.cli.train import train_into
    from fedpriv.runs import RunDirectory

    resume = path.exists()
    if resume and RunDirectory.open(path).complete:
        return
    common.say(
        f"no --run: training {config.method} on {config.dataset}: {config.clients} clients, models {config.models}, "
        f"{config.rounds} rounds, learning rate {config.training.learning_rate:g}",
        quiet=quiet,
        as_json=as_json,
    )
    train_into(
        path,
        config,
        device=device,
        download=download,
        resume=resume,
        quiet=quiet,
        resume_command=common.hint["resume"],
    )
