"""Random command lines: every command and flag as they are declared, with values of every sort."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import click
from line_values import GOOD, LABOUR, PATHS, REAL, hostile, name_of, whole
from line_world import TINY

from fedpriv.attacks import ATTACKS, target_names
from fedpriv.cli.main import COMMANDS, main
from fedpriv.defenses import DEFENSES
from fedpriv.methods import METHODS

SHARES = {
    "train": 3,
    "attack": 4,
    "audit": 4,
    "audit-dp": 2,
    "score": 2,
    "report": 3,
    "cost": 3,
    "list": 2,
    "explain": 1,
    "compare": 1,
    "data": 3,
    "doctor": 0.1,
} | {"reproduce": 1}
"""How often each command is drawn."""

NETWORK = {"cifar10", "cifar100", "fashion-mnist", "mnist", "tiny-imagenet"}
"""Data sets that ``--download`` would fetch."""

REPLACED = {"--dataset": "dataset", "--per-class": "per_class", "--clients": "clients", "--alpha": "alpha"} | {
    "--rounds": "rounds",
    "--models": "models",
}


@cache
def _names() -> dict[str, tuple[str, ...]]:
    methods, attacks, defenses = tuple(METHODS), tuple(ATTACKS), tuple(DEFENSES)
    return {
        **{"method": methods, "methods": methods, "attacks": attacks},
        **{"defense": (*defenses, "none"), "defenses": (*defenses, "none"), "target": target_names()},
    }


@cache
def parameters(command: str) -> tuple[click.Parameter, ...]:
    """Return the parameters of a command as it declares them."""
    found = main.get_command(click.Context(main), command)
    assert found is not None
    return tuple(found.params)


def line(rng: random.Random, *, real_process: bool = False) -> list[str]:
    """Return the words of a random command line, without the program's name.

    Args:
        rng: what everything is drawn from.
        real_process: leave out what would reach for the network.
    """
    if rng.random() < 0.02:
        return [hostile(rng) for _ in range(rng.randrange(3))]
    command = rng.choices(list(SHARES), list(SHARES.values()))[0]
    assert set(SHARES) == set(COMMANDS)
    carried_out = command in ("train", "attack", "audit-dp") or (command == "audit" and rng.random() < 0.1)
    begun = _beginning(rng, command, carried_out)
    options = [one for one in parameters(command) if isinstance(one, click.Option)]
    number = rng.choice((0, 0, 0, 1, 1, 1, 2, 2, 3, 5, 8))
    words = [
        *begun,
        *(word for one in rng.sample(options, min(number, len(options))) for word in _given(rng, one, carried_out)),
    ]
    if rng.random() < 0.03:
        words.insert(rng.randrange(len(words) + 1), hostile(rng))
    if rng.random() < 0.02:
        words.append(rng.choice(("--help", "-h", "--nothing", "--rouds=1", "-x")))
    if real_process or any(name in words for name in NETWORK):
        words = [word for word in words if word != "--download"]
    return [command, *words]


def _beginning(rng: random.Random, command: str, carried_out: bool) -> list[str]:
    """Return the words that make a command do something small."""
    tiny = list(TINY)
    out = ["--out", rng.choice(("new", "new", "new", *PATHS))] if rng.random() < 0.9 else []
    if command == "train":
        begun = ["--method", name_of(rng, _names()["method"]), *tiny, *out]
        return ["--resume", *out] if rng.random() < 0.15 else begun
    if command == "attack":
        target = rng.choice(("prototype", "prototype", name_of(rng, _names()["target"])))
        begun = ["--target", target, *out, "--iterations", "2", "--targets", "2", "--workers", "1"]
        begun += ["--run", rng.choice(("run", "run", "run", *PATHS))] if rng.random() < 0.7 else tiny
        return [
            *begun,
            "--attack",
            rng.choice(("average", "pixels", "dip", "membership", name_of(rng, _names()["attacks"]))),
        ]
    if command == "audit":
        dry = ["--no-local", "--no-control", "--attacks", "average", *out] + ([] if carried_out else ["--dry-run"])
        if rng.random() < 0.5:
            return [rng.choice(("study.toml", "study.toml", *PATHS)), *dry]
        return [*tiny, "--targets", "2", "--methods", name_of(rng, _names()["methods"]), *dry]
    if command == "audit-dp":
        defense = rng.choice(("local-dp", "local-dp:sensitivity=0.1", "dp-noise:epsilon=1", "dp-sgd:epsilon=1", "clip"))
        begun = ["--canaries", rng.choice(("16", "40")), "--defense", defense, *out]
        run = ["--run", rng.choice(("run", *PATHS))] if rng.random() < 0.2 else list(tiny)
        return [*begun, *run, *(["--claim", rng.choice(GOOD["claim"])] if rng.random() < 0.4 else [])]
    if command in ("score", "report"):
        chosen = [
            rng.choice(("attacked", "run", "attacked/average", *PATHS)) for _ in range(rng.choice((1, 1, 1, 2, 3, 0)))
        ]
        return [*chosen, *(out if command == "report" else [])]
    if command == "cost":
        known = ["--classes", "10", "--models", rng.choice(GOOD["models"])] if rng.random() < 0.6 else tiny[:8]
        return ["--method", rng.choice((name_of(rng, _names()["method"]), "all")), *known]
    if command == "compare":
        return [rng.choice(("attacked", "attacked/average", "run", *PATHS)) for _ in range(2)]
    if command == "explain":
        return [name_of(rng, _names()[rng.choice(("attacks", "methods", "defenses", "target"))])]
    if command == "doctor":
        return out
    if command == "reproduce":
        claim = rng.choice(("fedre-table-2", "fedre-table-5", "fedral-table-4-communication", *PATHS, hostile(rng)))
        return [claim, *out, *(["--scale", "smoke"] if carried_out else [])]
    if command == "data":
        return [*tiny[:8], *out]
    return [rng.choice(GOOD["kind"]) if rng.random() < 0.7 else hostile(rng)]


def _given(rng: random.Random, option: click.Option, carried_out: bool) -> list[str]:
    """Return an option with a value, as its words."""
    flag = rng.choice([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return [flag if rng.random() < 0.97 else f"{flag}={hostile(rng)}"]
    repeats = rng.choice((1, 1, 2, 3)) if option.multiple or rng.random() < 0.05 else 1
    words: list[str] = []
    for _ in range(repeats):
        value = _value(rng, option, carried_out)
        words += [f"{flag}={value}"] if value.startswith("-") or rng.random() < 0.2 else [flag, value]
    return words if rng.random() < 0.98 else words[:-1]


def _value(rng: random.Random, option: click.Option, carried_out: bool) -> str:
    name, sort = str(option.name), rng.random()
    good: Sequence[str] = GOOD.get(name, ())
    if sort < 0.2:
        return hostile(rng)
    if isinstance(option.type, click.Path):
        return rng.choice(PATHS)
    if name in _names():
        return name_of(rng, _names()[name])
    if good and sort < 0.65:
        return rng.choice(good)
    if isinstance(option.type, (click.types.IntParamType, click.IntRange)):
        return whole(rng, large=not (carried_out and name in LABOUR))
    if isinstance(option.type, click.types.FloatParamType):
        return rng.choice(REAL)
    return rng.choice(good) if good and sort < 0.8 else hostile(rng)


def shown(words: Sequence[Any]) -> str:
    """Return words as they can be read in a list of failures."""
    return " ".join(text if len(text := repr(word)) < 80 else f"{text[:60]}...({len(word)})" for word in words)
