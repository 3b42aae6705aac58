"""The settings that describe a federation, flat as people write them, and the run configuration they make."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from fedpriv.util.config import mapping, texts
from fedpriv.util.errors import UserError, shown, unknown_name
from fedpriv.util.foreign import given_path

if TYPE_CHECKING:
    from fedpriv.federation.run_directory import EngineChoice, RunConfig


EVERY_ROUND = "all"
"""In the place of the rounds whose checkpoints are kept: every one."""


class FederationSettings(TypedDict, total=False):
    """The settings of a federation: keywords of :func:`fedpriv.train`, flags of ``fedpriv train``, keys of a TOML file.

    Attributes:
        dataset: a name of ``fedpriv list datasets`` (default ``fashion``).
        data_dir: folder that holds the data set.
        per_class: keep only the first so many images of each class.
        image_size: resize images to this side in pixels.
        partition: ``dirichlet`` (default), ``pathological``, ``iid`` or ``long_tail``.
        alpha: concentration of the Dirichlet partition, > 0 (default 0.1).
        classes_per_client: of the pathological partition (default 2).
        imbalance: of the long-tailed partition (default 100).
        assignment: of classes to clients in the pathological partition, ``in_order`` (default) or ``random``.
        balanced: equal parts of a class in the pathological partition (default False).
        least_per_client: least number of images of a client (default: the reference library's, 40 of CIFAR-10).
        train_fraction: share of a client's images that it trains on, in (0, 1) (default 0.75).
        division_seed: of who holds which images, and of those set aside (default: the run's seed).
        clients: number of clients K (default 10).
        public: images set aside as public data (default 0).
        auxiliary: share of every class that no client holds, in [0, 1): half of it is what an attacker owns, the other
            half what baselines are made of (default 0.5; published divisions take 0).
        rounds: number of rounds (default 20).
        participation: share of clients in a round, in (0, 1] (default 1).
        unsampled: clients that no round has sampled yet are ``counted`` in accuracies (default) or ``left_out``.
        models: a family, or models with commas between; client k takes the k-th (default ``small``).
        width: representation width d (default: the family's).
        mapping: representation mapping to that width, ``ap``, ``mp`` or ``fc`` (default ``ap``).
        lr: learning rate of local SGD (default 0.01).
        batch_size: images of a local batch (default 10).
        epochs: local epochs a round (default 1).
        momentum: of SGD (default 0).
        weight_decay: of SGD (default 0).
        drop_last: leave out tail batches (default False).
        shuffle: draw a new order of the images every epoch (default True).
        local_steps: stop local training after so many steps.
        option: the method's own options: a mapping, or texts ``KEY=VALUE``.
        defense: what clients do to an upload before it leaves, in this order: texts ``NAME[:KEY=VALUE,...]``.
        capture: rounds whose uploads are stored: ``all``, ``last``, ``none`` or ``auto`` (default).
        checkpoint_every: rounds between checkpoints (default 1).
        evaluate_every: rounds between evaluations of all clients (default 1); the last round and those of ``keep`` are
            evaluated too.
        keep: rounds whose checkpoints and uploads are kept for good; ``all`` keeps every round.
    """

    dataset: str
    data_dir: str | Path | None
    per_class: int | None
    image_size: int | None
    partition: str
    alpha: float
    classes_per_client: int
    imbalance: float
    assignment: str
    balanced: bool
    least_per_client: int | None
    train_fraction: float
    division_seed: int | None
    clients: int
    public: int
    auxiliary: float
    rounds: int
    participation: float
    unsampled: str
    models: str
    width: int | None
    mapping: str
    lr: float
    batch_size: int
    epochs: int
    momentum: float
    weight_decay: float
    drop_last: bool
    shuffle: bool
    local_steps: int | None
    option: Mapping[str, Any] | Sequence[str]
    defense: Sequence[str]
    capture: str
    checkpoint_every: int
    evaluate_every: int
    keep: Sequence[int] | Literal["all"]


DIVISION_SETTINGS = (
    *("alpha", "classes_per_client", "assignment", "balanced", "imbalance", "least_per_client"),
    "train_fraction",
)
"""Settings of a division, beside which one it is."""

FLAG_NAMES = tuple(FederationSettings.__annotations__)
"""Names of the settings of a federation (``seed``, ``download`` and ``method`` are arguments of the verbs)."""


def refuse_unknown(settings: Mapping[str, Any], known: Collection[str]) -> None:
    """Check the names of keyword arguments."""
    for name in settings:
        if name not in known:
            raise unknown_name("argument", name, known)


def refuse_small(settings: Mapping[str, Any], names: Collection[str], least: int = 1) -> None:
    """Check that what is given of some arguments are whole numbers of at least ``least``."""
    for name in names:
        value = settings.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise UserError(f"{name}={shown(value)}: expected at least {least}, a whole number")


def run_config(method: str, flags: Mapping[str, Any], seed: int) -> RunConfig:
    """Return the run configuration that flags describe."""
    from fedpriv.defenses import parse_choice
    from fedpriv.federation.run_directory import RunConfig
    from fedpriv.util.config import parse, plain

    refuse_unknown(flags, FLAG_NAMES)
    direct = (
        *("dataset", "per_class", "image_size", "clients", "public", "auxiliary", "rounds"),
        *("participation", "unsampled", "models", "width", "mapping", "capture", "division_seed"),
    )
    values: dict[str, Any] = {name: flags[name] for name in direct if name in flags}
    values |= {"method": method, "seed": seed, "options": mapping("option", flags.get("option", ()))}
    if flags.get("data_dir") is not None:
        values["data_dir"] = os.path.realpath(os.path.expanduser(given_path("data_dir", flags["data_dir"])))
    values |= {name: flags[name] for name in ("checkpoint_every", "evaluate_every") if name in flags}
    values["keep"] = _kept(flags.get("keep", ()), values.get("rounds", RunConfig.rounds))
    values["defenses"] = tuple(plain(parse_choice(text)) for text in texts("defense", flags.get("defense", ())))
    partition = {"partition": "name"} | {name: name for name in DIVISION_SETTINGS}
    values["partition"] = {name: flags[flag] for flag, name in partition.items() if flag in flags}
    training = {"lr": "learning_rate", "local_steps": "max_steps"}
    training |= {n: n for n in ("batch_size", "epochs", "momentum", "weight_decay", "drop_last", "shuffle")}
    values["training"] = {name: flags[flag] for flag, name in training.items() if flag in flags}
    try:
        config = parse(RunConfig, values, "federation flags")
    except UserError as error:
        flag_of = {name: flag for flag, name in (partition | training).items()}
        nested = error.keys[:1] in (("partition",), ("training",)) and len(error.keys) > 1
        error.keys = (flag_of.get(str(error.keys[1]), error.keys[1]), *error.keys[2:]) if nested else error.keys
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
    from fedpriv.federation.run_directory import RunConfig

    public, auxiliary = (
        getattr(settings, name) if isinstance(settings, RunConfig) else settings.get(name, getattr(RunConfig, name))
        for name in ("public", "auxiliary")
    )
    return {"attacker_data": "same_domain"} if public or auxiliary else {}


def named_config(method: str, settings: Mapping[str, Any], seed: int) -> RunConfig:
    """Return the run configuration that arguments of a verb describe; arguments as :func:`run_config` has them."""
    try:
        return run_config(method, settings, seed)
    except UserError as error:
        name = str(error.keys[0]) if error.keys else ""
        if name not in (*FLAG_NAMES, "seed"):
            raise
        raise UserError(f"{name}: {error}", keys=error.keys) from error


def engine_choice(given: Mapping[str, Any]) -> EngineChoice:
    """Return the choice of an engine that arguments of a verb describe."""
    from fedpriv.federation.run_directory import EngineChoice
    from fedpriv.util.config import parse

    extra = sorted(given.keys() - {"engine"})
    if extra and given.get("engine", "local") == "local":
        raise UserError(f"{extra[0]}={shown(given[extra[0]])}: goes with engine='flower'")
    values = {"name" if name == "engine" else name: value for name, value in given.items()}
    try:
        return parse(EngineChoice, values, "engine")
    except UserError as error:
        wrong = str(error.keys[0]) if error.keys else "name"
        raise UserError(f"{'engine' if wrong == 'name' else wrong}: {error}", keys=error.keys) from error
