"""The keywords that verbs share, above all those of a federation, and the run configuration that they make."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from fedpriv.defenses import parse_choice
from fedpriv.federation.run_directory import EngineChoice, RunConfig
from fedpriv.util.config import mapping, parse, plain, texts
from fedpriv.util.errors import UserError, shown, unknown_name
from fedpriv.util.foreign import given_path
from fedpriv.util.parallel import Listener

EVERY_ROUND = "all"  # in the place of the rounds whose checkpoints are kept: every one


class Circumstances(TypedDict, total=False):
    """Where the results of a verb go, and who hears of it."""

    out: str | Path | None  # folder to make. None: a temporary one, which is gone with the returned object
    force: bool  # replace ``out`` if it exists
    share_group: bool  # let your group read the result; it is yours alone otherwise (docs/folders.md)
    allow_code: str | Sequence[str]  # modules to import although only a file names them (docs/reliability.md)
    listener: Listener  # hears of the progress, and of what is left out


class FederationSettings(TypedDict, total=False):
    """The settings of a federation: keywords of :func:`fedpriv.train`, flags of ``fedpriv train``, keys of a TOML file."""

    dataset: str  # a name of ``fedpriv list datasets`` (default ``fashion``)
    data_dir: str | Path | None  # folder that holds the data set
    per_class: int | None  # keep only the first so many images of each class
    image_size: int | None  # resize images to this side in pixels
    partition: str  # ``dirichlet`` (default), ``pathological``, ``iid`` or ``long_tail``
    alpha: float  # concentration of the Dirichlet partition, > 0 (default 0.1)
    classes_per_client: int  # of the pathological partition (default 2)
    imbalance: float  # of the long-tailed partition (default 100)
    assignment: str  # of classes to clients in the pathological partition, ``in_order`` (default) or ``random``
    least_per_client: int | None  # least number of images of a client (default: the reference library's)
    train_fraction: float  # share of a client's images that it trains on, in (0, 1) (default 0.75)
    division_seed: int | None  # of who holds which images, and of those set aside (default: the run's seed)
    clients: int  # number of clients K (default 10)
    public: int  # images set aside as public data (default 0)
    auxiliary: float  # share of every class that no client holds, in [0, 1), half for the attacker, half for baselines
    # (default 0.5; published divisions take 0)
    rounds: int  # number of rounds (default 20)
    participation: float  # share of clients in a round, in (0, 1] (default 1)
    models: str  # a family, or models with commas between; client k takes the k-th (default ``small``)
    width: int | None  # representation width d (default: the family's)
    mapping: str  # representation mapping to that width, ``ap`` (default), ``mp`` or ``fc``; ``none``: each model's own
    lr: float  # learning rate of local SGD (default 0.01)
    batch_size: int  # images of a local batch (default 10)
    epochs: int  # local epochs a round (default 1)
    momentum: float  # of SGD (default 0)
    weight_decay: float  # of SGD (default 0)
    drop_last: bool  # leave out tail batches (default False)
    shuffle: bool  # draw a new order of the images every epoch (default True)
    local_steps: int | None  # stop local training after so many steps
    option: Mapping[str, Any] | Sequence[str]  # the method's own options, texts ``KEY=VALUE``. Or a mapping
    defense: Sequence[str]  # what clients do to an upload, in this order: ``NAME[:KEY=VALUE,...]``
    capture: str  # rounds whose uploads are stored: ``all``, ``last``, ``none`` or ``auto`` (default)
    checkpoint_every: int  # rounds between checkpoints (default 1)
    evaluate_every: int  # rounds between evaluations of all clients (default 1), beside the last
    keep: Sequence[int] | Literal["all"]  # rounds whose checkpoints and uploads are kept for good, or ``all``


class SuiteSettings(Circumstances, total=False):
    """Settings of attacks, of one suite or many."""

    targets: int  # how many targets at most (default: each attack's own, 48 or, where each is a long search, 6)
    rounds_seen: int | None  # rounds of uploads that attacks across rounds use, the last ones (default: all)
    control: bool  # also attack shuffled uploads, the negative control (default True)
    chunk_rows: int | None  # rows (targets x restarts) at a time; bounds memory
    device: str  # ``auto`` (default), ``cpu``, ``cuda`` or ``cuda:N``
    redact: str | None  # ``blur`` or ``omit`` pictures of people in all that is stored and drawn (docs/redaction.md),
    # or ``none`` (default, but for runs of another framework: ``omit``)


class SearchSettings(SuiteSettings, total=False):
    """Settings of the searches of one suite."""

    iterations: int | None  # how long every attack searches, in its own unit (default: its own)
    restarts: int | None  # independent starts a target; the attack's own objective chooses
    attack_option: Mapping[str, Any] | Sequence[str]  # hyperparameters, texts ``KEY=VALUE`` of every attack that
    # has it, or ``ATTACK.KEY=VALUE`` of one. Or a mapping


DIVISION_SETTINGS = ("alpha", "classes_per_client", "assignment", "imbalance", "least_per_client", "train_fraction")
"""Settings of a division, beside which one it is."""

_INNER = {
    **{name: ("partition", name) for name in DIVISION_SETTINGS},
    "partition": ("partition", "name"),
    **{n: ("training", n) for n in ("batch_size", "epochs", "momentum", "weight_decay", "drop_last", "shuffle")},
    "lr": ("training", "learning_rate"),
    "local_steps": ("training", "max_steps"),
}
"""Setting -> table of the run configuration that it stands in, and its name there; others stand at the top."""

FLAG_NAMES = tuple(FederationSettings.__annotations__)
"""Names of the settings of a federation (``seed``, ``download`` and ``method`` are arguments of the verbs)."""


def refuse_unknown(settings: Mapping[str, Any], kind: Any) -> None:
    """Check the names of keyword arguments against the keys of a typed dictionary."""
    for name in settings:
        if name not in kind.__optional_keys__:
            raise unknown_name("argument", name, kind.__optional_keys__)


def refuse_small(settings: Mapping[str, Any], names: Collection[str], least: int = 1) -> None:
    """Check that what is given of some arguments are whole numbers of at least ``least``."""
    for name in names:
        value = settings.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise UserError(f"{name}={shown(value)}: expected at least {least}, a whole number")


def to_resume(out: str | Path | None, given: Collection[str], *, force: bool | None, what: str = "run") -> Path:
    """Return the folder to go on with, of a run or a study; whatever else is given is refused."""
    if out is None:
        raise UserError(f"resume needs out, the folder of the {what}")
    if force:
        raise UserError("resume and force exclude each other")
    if given:
        raise UserError(f"resume goes on with the {what} in {out} as it is; drop {', '.join(sorted(given))}")
    return given_path("out", out)


def run_config(method: str, flags: Mapping[str, Any], seed: int) -> RunConfig:
    """Return the run configuration that flags describe."""
    refuse_unknown(flags, FederationSettings)
    values: dict[str, Any] = {"method": method, "seed": seed, "partition": {}, "training": {}}
    for name, value in flags.items():
        if name in _INNER:
            table, key = _INNER[name]
            values[table][key] = value
        elif name not in ("option", "defense", "data_dir", "keep"):
            values[name] = value
    if flags.get("data_dir") is not None:
        values["data_dir"] = os.path.realpath(os.path.expanduser(given_path("data_dir", flags["data_dir"])))
    values["options"] = mapping("option", flags.get("option", ()))
    values["defenses"] = tuple(plain(parse_choice(text)) for text in texts("defense", flags.get("defense", ())))
    values["keep"] = _kept(flags.get("keep", ()), values.get("rounds", RunConfig.rounds))
    try:
        config = parse(RunConfig, values, "federation flags")
    except UserError as error:
        flag = next((name for name, place in _INNER.items() if place == error.keys[:2]), None)
        error.keys = error.keys if flag is None else (flag, *error.keys[2:])
        raise
    for number in config.keep:
        if not 1 <= number <= config.rounds:
            details = f"federation flags: keep: input should be a round from 1 to {config.rounds}, got {number}"
            raise UserError(details, keys=("keep",))
    return config


def _kept(keep: Any, rounds: Any) -> Any:
    """Return the rounds to keep as the configuration has them; every round for ``all``."""
    several = (keep,) if isinstance(keep, str) else keep
    if not isinstance(several, (list, tuple, set, frozenset, range)):
        return keep
    every = any(isinstance(item, str) and item == EVERY_ROUND for item in several)
    return tuple(range(1, rounds + 1)) if every and isinstance(rounds, int) else tuple(several)


def attacker_by_default(settings: Mapping[str, Any] | RunConfig) -> dict[str, str]:
    """Return the grant of images of the clients' domain, where settings or a run's configuration set some aside."""
    public, auxiliary = (
        getattr(settings, name) if isinstance(settings, RunConfig) else settings.get(name, getattr(RunConfig, name))
        for name in ("public", "auxiliary")
    )
    return {"attacker_data": "same_domain"} if public or auxiliary else {}


def named_config(method: str, settings: Mapping[str, Any], seed: int) -> RunConfig:
    """Return the run configuration that arguments of a verb describe; an error begins with the name of the argument."""
    try:
        return run_config(method, {name: value for name, value in settings.items() if name in FLAG_NAMES}, seed)
    except UserError as error:
        name = str(error.keys[0]) if error.keys else ""
        if name not in (*FLAG_NAMES, "seed"):
            raise
        raise UserError(f"{name}: {error}", keys=error.keys) from error


def engine_choice(given: Mapping[str, Any]) -> EngineChoice:
    """Return the choice of an engine that arguments of a verb describe."""
    extra = sorted(given.keys() - {"engine"})
    if extra and given.get("engine", "local") == "local":
        raise UserError(f"{extra[0]}={shown(given[extra[0]])}: goes with engine='flower'")
    return parse(EngineChoice, {"name" if name == "engine" else name: value for name, value in given.items()}, "engine")
